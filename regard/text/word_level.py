"""Words: a closed vocabulary, the most frequent words first; the rest is <unk>.

Trained here and not by the library, whose trainer leaves a hole in the ids when a special such
as <unk> also stands in the texts, as it does in the Penn Treebank and in WikiText.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tokenizers import Tokenizer, models

from regard.text.bpe_fast import allow_splits, assemble
from regard.text.normalize import Handling
from regard.text.special_tokens import need_unknown


def train(
    texts: Iterable[str],
    vocab_size: int,
    special_tokens: list[str],
    handling: Handling,
    *,
    min_frequency: int = 1,
) -> Tokenizer:
    """The most frequent words; ties in alphabetical order. Decoding puts one space between words.

    min_frequency: a rarer word is unknown. A word that is written like a special is that special.
    """
    allow_splits(handling, ["whitespace", "punctuation"])
    unknown = need_unknown("words", special_tokens)
    counts: Counter[str] = Counter()
    for some in map(handling.splitter(), texts):
        counts.update(some)
    model = models.WordLevel(frequent(counts, vocab_size, special_tokens, min_frequency), unknown)
    return assemble(model, handling)


def frequent(
    counts: Counter[str], vocab_size: int, special_tokens: list[str], min_frequency: int
) -> dict[str, int]:
    """Specials, then the most frequent of what was counted, as piece -> id."""
    ranked = sorted(counts, key=lambda piece: (-counts[piece], piece))
    kept = [piece for piece in ranked if counts[piece] >= min_frequency]
    pieces = list(dict.fromkeys([*special_tokens, *kept]))[:vocab_size]
    return {piece: i for i, piece in enumerate(pieces)}
