"""Multi30k for translation between languages that were never paired (Johnson et al. 2017).

    python examples/multi30k_pivot.py multi30k/data/task1/raw data
    MULTI30K=data regard train recipes/multi30k-pivot-free.toml
    MULTI30K=data regard train recipes/multi30k-pivot-free.toml 'data.train=["data/direct.tsv"]'

pivot.tsv has German-English pairs of the first half of the training data and English-French pairs
of the second, each in both directions; a source begins with the language to translate into. With
these alone every German source has an English target, whatever the language that it names. So every
third sentence is also translated into its own language, from a source with words left out and
exchanged (the noise of Lample et al. 2018, section 2.3). No sentence of pivot.tsv has both a German
and a French side. direct.tsv has German-French pairs of the first half, for comparison; valid.tsv
and test.tsv are German-French. All texts are in lower case, with spaces between words and
punctuation.
"""

from __future__ import annotations

import gzip
import random
import re
import sys
from pathlib import Path

Pairs = list[tuple[str, str]]
PAIRED = ((("de", "en"), 0), (("en", "fr"), 1))  # languages, and which half of the rows
WORDS = re.compile(r"\w+['’]?|[^\w\s]")
DROPPED, MOVED = 0.1, 3  # the share of words that noise leaves out; how far it moves others


def lines(folder: Path, part: str, language: str) -> list[str]:
    """The sentences of a part."""
    text = gzip.decompress((folder / f"{part}.{language}.gz").read_bytes()).decode()
    return [" ".join(WORDS.findall(line)) for line in text.lower().splitlines()]


def into(language: str, sources: list[str], targets: list[str]) -> Pairs:
    """Pairs whose sources name the language of the targets."""
    return [(f">>{language}<< {a}", b) for a, b in zip(sources, targets, strict=True) if a and b]


def noisy(sentence: str, draw: random.Random) -> str:
    """The sentence without some of its words, the others at most `MOVED` words from their place."""
    words = [word for word in sentence.split() if draw.random() >= DROPPED]
    places = [number + draw.uniform(0, MOVED) for number in range(len(words))]
    return " ".join(word for _, word in sorted(zip(places, words, strict=True)))


def write(pairs: Pairs, file: Path) -> None:
    """A table of two columns."""
    file.write_text("".join(f"{a}\t{b}\n" for a, b in pairs), "utf-8")
    print(f"{file}: {len(pairs):,} pairs")


def main(source: str, target: str) -> None:
    """Write the tables."""
    folder, out, draw = Path(source), Path(target), random.Random(1)
    out.mkdir(parents=True, exist_ok=True)
    train = {language: lines(folder, "train", language) for language in ("de", "en", "fr")}
    half = len(train["en"]) // 2
    halves = (slice(0, half), slice(half, None))
    pairs: Pairs = []
    for (a, b), number in PAIRED:
        one, other = train[a][halves[number]], train[b][halves[number]]
        pairs += into(b, one, other) + into(a, other, one)
        for language, sentences in ((a, one[::3]), (b, other[::3])):
            pairs += into(language, [noisy(text, draw) for text in sentences], sentences)
    write(pairs, out / "pivot.tsv")
    write(into("fr", train["de"][halves[0]], train["fr"][halves[0]]), out / "direct.tsv")
    for part, name in (("val", "valid"), ("test_2016_flickr", "test")):
        write(into("fr", lines(folder, part, "de"), lines(folder, part, "fr")), out / f"{name}.tsv")


if __name__ == "__main__":
    main(*sys.argv[1:])
