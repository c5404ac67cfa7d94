"""A closed vocabulary of words, the most frequent first; all others are <unk>.

Trained here and not by the library, whose trainer leaves a gap in the ids if a special token such
as <unk> also occurs in the texts, as it does in the Penn Treebank and in WikiText.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tokenizers import Tokenizer, models

from regard.text.bpe_fast import assemble
from regard.text.normalize import Preprocessing
from regard.text.special_tokens import need_unknown


def train(
    texts: Iterable[str],
    vocab_size: int,
    special_tokens: list[str],
    preprocessing: Preprocessing,
    *,
    min_frequency: int = 1,
) -> Tokenizer:
    """The most frequent words; ties in alphabetical order. Decoding joins words by one space.

    min_frequency: a rarer word is unknown. A word that is written like a special token is one.
    """
    preprocessing.check_split("whitespace", "punctuation")
    unknown = need_unknown("words", special_tokens)
    counts: Counter[str] = Counter()
    for words in map(preprocessing.splitter(), texts):
        counts.update(words)
    model = models.WordLevel(frequent(counts, vocab_size, special_tokens, min_frequency), unknown)
    return assemble(model, preprocessing)


def frequent(
    counts: Counter[str], vocab_size: int, special_tokens: list[str], min_frequency: int
) -> dict[str, int]:
    """Special tokens, then the most frequent of what was counted: token -> id."""
    ranked = sorted(counts, key=lambda token: (-counts[token], token))
    kept = [token for token in ranked if counts[token] >= min_frequency]
    tokens = list(dict.fromkeys([*special_tokens, *kept]))[:vocab_size]
    return {token: i for i, token in enumerate(tokens)}
