"""Multi30k for translation between languages that were never paired (Johnson et al. 2017).

    python examples/multi30k_pivot.py multi30k/data/task1/raw data
    MULTI30K=data regard train recipes/multi30k-pivot-free.toml
    MULTI30K=data regard train recipes/multi30k-pivot-free.toml data.train='["data/direct.tsv"]'

German-English pairs of the first half of the training data and English-French pairs of the second,
each in both directions; a source begins with the language to translate into. No sentence of the
training data has both a German and a French side. direct.tsv has German-French pairs of the first
half, for comparison; valid.tsv and test.tsv are German-French.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

Pairs = list[tuple[str, str]]
PAIRED = ((("de", "en"), 0), (("en", "fr"), 1))  # languages, and which half of the rows


def lines(folder: Path, part: str, language: str) -> list[str]:
    """The sentences of a part; tabs become spaces."""
    text = gzip.decompress((folder / f"{part}.{language}.gz").read_bytes()).decode()
    return [line.replace("\t", " ").strip() for line in text.splitlines()]


def into(language: str, sources: list[str], targets: list[str]) -> Pairs:
    """Pairs whose sources name the language of the targets."""
    return [(f">>{language}<< {a}", b) for a, b in zip(sources, targets, strict=True) if a and b]


def write(pairs: Pairs, file: Path) -> None:
    """A table of two columns."""
    file.write_text("".join(f"{a}\t{b}\n" for a, b in pairs), "utf-8")
    print(f"{file}: {len(pairs):,} pairs")


def main(source: str, target: str) -> None:
    """Write the tables."""
    folder, out = Path(source), Path(target)
    out.mkdir(parents=True, exist_ok=True)
    train = {language: lines(folder, "train", language) for language in ("de", "en", "fr")}
    half = len(train["en"]) // 2
    halves = (slice(0, half), slice(half, None))
    pairs: Pairs = []
    for (a, b), number in PAIRED:
        one, other = train[a][halves[number]], train[b][halves[number]]
        pairs += into(b, one, other) + into(a, other, one)
    write(pairs, out / "pivot.tsv")
    write(into("fr", train["de"][halves[0]], train["fr"][halves[0]]), out / "direct.tsv")
    for part, name in (("val", "valid"), ("test_2016_flickr", "test")):
        write(into("fr", lines(folder, part, "de"), lines(folder, part, "fr")), out / f"{name}.tsv")


if __name__ == "__main__":
    main(*sys.argv[1:])
