"""Closed vocabularies, of words or of characters: the most frequent first, all others are <unk>.

Words are counted here and not by the library, whose trainer leaves a gap in the ids if a special
token such as <unk> also occurs in the texts, as it does in the Penn Treebank and in WikiText.

Of characters every code point is a token, spaces and line ends too. ELMo's characters are bytes
with fixed numbers and need no vocabulary.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models

from regard.text.bpe import assemble
from regard.text.preprocessing import Preprocessing, TrainerInput
from regard.text.tokenizer import Tokenizer as RegardTokenizer


def train_words(inputs: TrainerInput, *, min_frequency: int = 1) -> Tokenizer:
    """The most frequent words; ties in alphabetical order. Decoding joins words by one space.

    min_frequency: a rarer word is unknown. A word that is written like a special token is one.
    """
    inputs.preprocessing.check_split("whitespace", "punctuation")
    unknown, counts = inputs.unknown(), Counter[str]()
    for words in inputs.words():
        counts.update(words)
    model = models.WordLevel(frequent(inputs, counts, min_frequency), unknown)
    return assemble(model, inputs.preprocessing)


def closed_vocabulary(words: Sequence[str], roles: Mapping[str, str]) -> RegardTokenizer:
    """A tokenizer of these words, by their ids; texts are split at white space.

    roles: the special tokens among them, as of `regard.text.Tokenizer`.
    """
    model = models.WordLevel({word: i for i, word in enumerate(words)}, roles["unk"])
    fast = assemble(model, Preprocessing(split="whitespace"))
    fast.add_special_tokens([AddedToken(name, normalized=False) for name in roles.values()])
    return RegardTokenizer(fast, "words", roles)


def frequent(inputs: TrainerInput, counts: Counter[str], min_frequency: int) -> dict[str, int]:
    """Special tokens, then the most frequent of what was counted: token -> id."""
    ranked = sorted(counts, key=lambda token: (-counts[token], token))
    common = [token for token in ranked if counts[token] >= min_frequency]
    tokens = list(dict.fromkeys([*inputs.special_tokens, *common]))[: inputs.vocab_size]
    return {token: i for i, token in enumerate(tokens)}


# --------------------------------------------------------------------------------------- characters


# ELMo (Peters et al. 2018): bytes are 0..255, then these; ids are one more, 0 is the padded word.
BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, PADDING = range(256, 261)
ELMO_CHARACTERS, ELMO_PADDING = 262, PADDING + 1  # how many ids there are; that of padding


def train_characters(inputs: TrainerInput, *, min_frequency: int = 1) -> Tokenizer:
    """All characters seen at least `min_frequency` times, the most frequent first.

    Decoding gives the text itself, unless a character is unknown.
    """
    inputs.preprocessing.check_split("characters")
    unknown, normalizer = inputs.unknown(), inputs.preprocessing.normalizer()
    counts: Counter[str] = Counter()
    for text in inputs.texts:
        counts.update(normalizer.normalize_str(text) if normalizer else text)
    alphabet = sum(count >= min_frequency for count in counts.values())
    if len(inputs.special_tokens) + alphabet > inputs.vocab_size:
        raise inputs.too_small(alphabet, "Or leave rare characters unknown: min_frequency=…")
    model = models.WordLevel(frequent(inputs, counts, min_frequency), unknown)
    return assemble(model, inputs.preprocessing, decoders.Fuse())


def elmo_word(tokenizer: Any, id: int, per_word: int = 50) -> list[int]:
    """The character ids of a token, (per_word,); bos and eos begin and end a sentence."""
    if id in (tokenizer.bos_id, tokenizer.eos_id):
        return _framed([BEGIN_SENTENCE if id == tokenizer.bos_id else END_SENTENCE], per_word)
    return _framed(tokenizer.token(id).encode(), per_word)


def _framed(word: Sequence[int], per_word: int) -> list[int]:
    """Bytes between the marks of a word's ends, and padding behind them."""
    marked = [BEGIN_WORD, *word[: per_word - 2], END_WORD]
    return [c + 1 for c in marked + [PADDING] * (per_word - len(marked))]
