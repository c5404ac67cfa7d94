"""The sample of the Penn Treebank that NLTK distributes, split by the numbers of its files.

    python examples/treebank_sample.py treebank.zip data
    TREEBANK=data regard train recipes/treebank-chart.toml

The archive has 3,914 trees in the files wsj_0001.mrg to wsj_0199.mrg. Training data are the files 1
to 139, validation data 140 to 159, test data 160 to 199, so that no article is in two of them. With
a third argument, only sentences of at most so many words are written.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

from regard.text.trees import read_trees, simplified

PARTS = {"train": range(1, 140), "valid": range(140, 160), "test": range(160, 200)}


def trees_of(archive: Path) -> dict[str, list[str]]:
    """The trees of each part as they are in the files."""
    found: dict[str, list[str]] = {part: [] for part in PARTS}
    with zipfile.ZipFile(archive) as files:
        for name in sorted(one for one in files.namelist() if one.endswith(".mrg")):
            number = int(Path(name).stem.removeprefix("wsj_"))
            (part,) = (part for part, numbers in PARTS.items() if number in numbers)
            found[part] += map(str, read_trees(files.read(name).decode()))
    return found


def short(brackets: list[str], most: int) -> list[str]:
    """The trees of at most so many words."""
    trees = [simplified(tree) for one in brackets for tree in read_trees(one)]
    return [str(tree) for tree in trees if tree is not None and len(tree.words) <= most]


def main(source: str, target: str, most: str = "") -> None:
    """Write train.mrg, valid.mrg and test.mrg."""
    Path(target).mkdir(parents=True, exist_ok=True)
    for part, brackets in trees_of(Path(source)).items():
        kept = short(brackets, int(most)) if most else brackets
        (Path(target) / f"{part}.mrg").write_text("".join(f"{one}\n" for one in kept), "utf-8")
        print(f"{part}: {len(kept):,} trees")


if __name__ == "__main__":
    main(*sys.argv[1:])
