"""How the excerpt beside this file was made, from the pairs at manythings.org/anki (fra-eng.zip):

    python examples/tatoeba/excerpt.py fra.txt examples/tatoeba

Short sentences of frequent words, so that a small model can learn them in a minute; and parts that
share nothing: a sentence of the test or validation part, in whatever case and punctuation and in
either language, stands nowhere else.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import sys
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path

Pair = tuple[str, str]
WORDS = range(3, 9)  # how many words a sentence may have
OFTEN = 20  # how many times, at least, each of its words occurs in the excerpt's language
TEST, VALID = 1000, 500
BLANKS = dict.fromkeys(map(ord, "\u202f\u00a0\u2009"), " ")
TIDY = BLANKS | dict.fromkeys(map(ord, "\u200b\u00ad")) | dict.fromkeys(map(ord, "‘’"), "'")
PLAIN = re.compile(r"[A-Za-zÀ-ÖØ-öø-ÿŒœ0-9 .,!?'\"$%:;-]+")


def tidy(text: str) -> str:
    """Composed characters, one kind of apostrophe, and a plain blank for each kind of blank."""
    return " ".join(unicodedata.normalize("NFC", text.translate(TIDY)).split())


@cache
def words(text: str) -> tuple[str, ...]:
    """The words without case and punctuation: what makes two sentences the same."""
    return tuple(re.findall(r"\w+", text.casefold()))


def fits(text: str) -> bool:
    return len(words(text)) in WORDS and PLAIN.fullmatch(text) is not None


def frequent(pairs: list[Pair]) -> list[Pair]:
    """The pairs whose every word occurs `OFTEN` in the pairs that are left."""
    while True:
        counts = [Counter(w for pair in pairs for w in words(pair[side])) for side in (0, 1)]
        kept = [
            pair
            for pair in pairs
            if all(counts[side][w] >= OFTEN for side in (0, 1) for w in words(pair[side]))
        ]
        if len(kept) == len(pairs):
            return kept
        pairs = kept


def families(pairs: Iterable[Pair]) -> list[list[Pair]]:
    """Pairs that share a sentence of either language, directly or through others, together."""
    parent: dict[tuple[str, ...], tuple[str, ...]] = {}

    def root(node: tuple[str, ...]) -> tuple[str, ...]:
        while parent.setdefault(node, node) != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    pairs = list(pairs)
    for english, french in pairs:
        parent[root(("en", *words(english)))] = root(("fr", *words(french)))
    found: dict[tuple[str, ...], list[Pair]] = defaultdict(list)
    for pair in pairs:
        found[root(("en", *words(pair[0])))].append(pair)
    return list(found.values())


def chance(pair: Pair) -> str:
    """A number that looks random and depends on the pair alone."""
    return hashlib.sha256("\t".join(pair).encode()).hexdigest()


def parts(lines: Iterable[str]) -> dict[str, list[Pair]]:
    """Test and validation: one pair of a family each. Training: all pairs of the other families."""
    pairs = {(tidy(e), tidy(f)) for e, f, *_ in (line.rstrip("\n").split("\t") for line in lines)}
    kept = frequent(sorted(pair for pair in pairs if fits(pair[0]) and fits(pair[1])))
    order = sorted(families(kept), key=lambda family: chance(min(family)))
    one_each = [min(family, key=chance) for family in order[: TEST + VALID]]
    train = sorted(pair for family in order[TEST + VALID :] for pair in family)
    return {"train": train, "valid": one_each[TEST:], "test": one_each[:TEST]}


def write(path: Path, pairs: Iterable[Pair]) -> None:
    """Tab-separated lines, packed so that the same pairs give the same bytes."""
    text = "".join(f"{english}\t{french}\n" for english, french in pairs)
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    source, folder = map(Path, sys.argv[1:])
    with source.open(encoding="utf-8") as file:
        for name, pairs in parts(file).items():
            write(folder / f"{name}.tsv.gz", pairs)
            print(f"{name}: {len(pairs):,} pairs")
