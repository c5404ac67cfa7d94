"""Byte-pair encoding as kinds of tokenizer, trained and run by the `tokenizers` library.

bpe       words are characters, the last one with </w>: low -> l o w</w> (Sennrich et al. 2016; GPT)
byte-bpe  words are bytes, the space before a word belongs to it (GPT-2): nothing is ever unknown
          and decode(encode(text)) == text

`regard.text.bpe` learns the same merges step by step, to explain them.
"""

import json

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from regard.errors import ConfigError
from regard.text.bpe import END
from regard.text.merges import Pair, SymbolCodes, bpe_trainer, code_with_suffix, learn_merges
from regard.text.normalize import Preprocessing
from regard.text.special_tokens import TrainerInput


def train(
    inputs: TrainerInput, *, min_frequency: int = 2, alphabet_limit: int | None = None
) -> Tokenizer:
    """Subwords of characters, with </w> at the end of a word. Decoding joins words by one space.

    min_frequency: a pair seen less often is not merged
    alphabet_limit: keep only so many symbols of one character, the most frequent ones; each
        character counts twice, with and without </w>
    """
    inputs.preprocessing.check_split("whitespace", "punctuation")
    unknown, codes = inputs.unknown(), SymbolCodes(suffix=END)
    limits = inputs.vocab_size, inputs.special_tokens, min_frequency, alphabet_limit
    coded, merges = learn_merges(inputs.words(), codes, code_with_suffix, *limits)
    vocab, decoded = _decode(coded, merges, codes, inputs.special_tokens)
    model = models.BPE(vocab, decoded, unk_token=unknown, end_of_word_suffix=END)
    return assemble(model, inputs.preprocessing, decoders.BPEDecoder(suffix=END))


def train_bytes(inputs: TrainerInput, *, min_frequency: int = 2) -> Tokenizer:
    """Subwords of bytes; words by GPT-2's rule. min_frequency: a rarer pair is not merged."""
    inputs.preprocessing.check_split("gpt2", "gpt2-prefix")
    if inputs.vocab_size < 256 + len(inputs.special_tokens):
        raise inputs.too_small(256, "An alphabet of bytes cannot be smaller.")
    fast = assemble(models.BPE(), inputs.preprocessing, decoders.ByteLevel())
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = bpe_trainer(inputs.vocab_size, inputs.special_tokens, min_frequency, alphabet)
    fast.train_from_iterator(inputs.texts, trainer)
    for left, right in json.loads(fast.to_str())["model"]["merges"]:
        if left + right in inputs.special_tokens:
            raise ConfigError(
                f"the special token {left + right!r} is also a frequent subword of the texts. "
                "Choose a name that does not occur in them."
            )
    return fast


def assemble(
    model: models.Model, preprocessing: Preprocessing, decoder: decoders.Decoder | None = None
) -> Tokenizer:
    """A tokenizer of these parts; without a decoder, decoding joins tokens by one space."""
    fast = Tokenizer(model)
    normalizer = preprocessing.normalizer()
    if normalizer is not None:
        fast.normalizer = normalizer
    fast.pre_tokenizer = preprocessing.pre_tokenizer()
    if decoder is not None:
        fast.decoder = decoder
    return fast


def _decode(
    coded: list[str], merges: list[Pair], codes: SymbolCodes, special_tokens: list[str]
) -> tuple[dict[str, int], list[Pair]]:
    """Coded symbols and merges as the vocabulary writes them.

    If a text contains the four characters </w>, or the name of a special token, two symbols would
    be written alike. The later one is left out, and all that is merged from it.
    """
    vocab = {name: i for i, name in enumerate(special_tokens)}
    symbols = {symbol for symbol in coded if len(symbol) == 1}
    for symbol in coded:
        if symbol in symbols:
            vocab[codes.decode(symbol)] = len(vocab)
    decoded = []
    for left, right in merges:
        name = codes.decode(left + right)
        if left in symbols and right in symbols and name not in vocab:
            symbols.add(left + right)
            vocab[name] = len(vocab)
            decoded.append((codes.decode(left), codes.decode(right)))
    return vocab, decoded
