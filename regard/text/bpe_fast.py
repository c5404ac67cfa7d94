"""Byte-pair encoding as kinds of tokenizer, trained and run by the `tokenizers` library.

bpe       words are characters, the last one marked: low -> l o w</w> (Sennrich et al. 2016; GPT)
byte-bpe  words are bytes, the space before a word belongs to it (GPT-2): nothing is ever unknown
          and decode(encode(text)) == text

The merge table itself is explained, and learned step by step, in `regard.text.bpe`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from regard.errors import ConfigError
from regard.text.merges import SymbolCodes, code_with_suffix, learn_merges
from regard.text.normalize import Handling
from regard.text.special_tokens import need_unknown, too_small

END = "</w>"


def train(
    texts: Iterable[str],
    vocab_size: int,
    special_tokens: list[str],
    handling: Handling,
    *,
    min_frequency: int = 2,
    alphabet_limit: int | None = None,
) -> Tokenizer:
    """Characters with </w>. Decoding puts one space between words.

    min_frequency: a pair seen less often is not merged
    alphabet_limit: keep only so many symbols of the alphabet, the most frequent ones;
        each character counts twice, with and without </w>
    """
    allow_splits(handling, ["whitespace", "punctuation"])
    unknown = need_unknown("bpe", special_tokens)
    trainer = bpe_trainer(vocab_size, special_tokens, min_frequency, alphabet_limit)
    words = map(handling.splitter(), texts)
    codes = SymbolCodes(after=END)
    coded, merges = learn_merges(words, codes, code_with_suffix, trainer)
    if len(coded) > vocab_size:
        hint = "Or keep only the most frequent symbols: alphabet_limit=…"
        raise too_small(vocab_size, len(special_tokens), len(coded) - len(special_tokens), hint)
    vocab, spelled = _spell(coded, merges, codes, special_tokens)
    model = models.BPE(vocab, spelled, unk_token=unknown, end_of_word_suffix=END)
    return assemble(model, handling, decoders.BPEDecoder(suffix=END))


def train_bytes(
    texts: Iterable[str],
    vocab_size: int,
    special_tokens: list[str],
    handling: Handling,
    *,
    min_frequency: int = 2,
) -> Tokenizer:
    """Bytes, cut into words by GPT-2's rule. min_frequency: a rarer pair is not merged."""
    allow_splits(handling, ["gpt2", "gpt2-prefix"])
    if vocab_size < 256 + len(special_tokens):
        raise too_small(
            vocab_size, len(special_tokens), 256, "An alphabet of bytes cannot be smaller."
        )
    fast = assemble(models.BPE(), handling, decoders.ByteLevel())
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = bpe_trainer(vocab_size, special_tokens, min_frequency, alphabet=alphabet)
    fast.train_from_iterator(texts, trainer)
    for left, right in json.loads(fast.to_str())["model"]["merges"]:
        if left + right in special_tokens:
            raise ConfigError(
                f"the special {left + right!r} is also a frequent piece of the texts. "
                "Choose a name that does not occur in them."
            )
    return fast


def assemble(
    model: models.Model, handling: Handling, decoder: decoders.Decoder | None = None
) -> Tokenizer:
    """Model, handling and decoder put together; without a decoder, pieces join with one space."""
    fast = Tokenizer(model)
    normalizer = handling.normalizer()
    if normalizer is not None:
        fast.normalizer = normalizer
    fast.pre_tokenizer = handling.pre_tokenizer()
    if decoder is not None:
        fast.decoder = decoder
    return fast


def bpe_trainer(
    vocab_size: int,
    special_tokens: list[str],
    min_frequency: int,
    alphabet_limit: int | None = None,
    alphabet: Sequence[str] = (),
) -> trainers.BpeTrainer:
    """The library's trainer, silent."""
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special_tokens,
        min_frequency=min_frequency,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    if alphabet_limit is not None:
        trainer.limit_alphabet = alphabet_limit
    return trainer


def allow_splits(handling: Handling, splits: list[str]) -> None:
    if handling.split not in splits:
        raise ConfigError(
            f"`split` must be {' or '.join(splits)} for this kind, but is {handling.split!r}."
        )


def _spell(
    coded: list[str], merges: list[tuple[str, str]], codes: SymbolCodes, special_tokens: list[str]
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Coded pieces and merges as the vocabulary writes them.

    A text may hold the four characters </w>, or a special's name, so that two pieces would be
    written alike. The later one is left out, and what was built on it.
    """
    vocab = {name: i for i, name in enumerate(special_tokens)}
    alive = {piece for piece in coded if len(piece) == 1}
    for symbol in coded[len(special_tokens) :]:
        if symbol in alive:
            vocab[codes.spell(symbol)] = len(vocab)
    spelled = []
    for left, right in merges:
        name = codes.spell(left + right)
        if left in alive and right in alive and name not in vocab:
            alive.add(left + right)
            vocab[name] = len(vocab)
            spelled.append((codes.spell(left), codes.spell(right)))
    return vocab, spelled
