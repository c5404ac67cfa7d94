"""The Stanford Sentiment Treebank's three files of trees (Socher et al. 2013), without overlap.

    python examples/sst.py trees data
    SST=data regard train recipes/sst5-kim-cnn.toml

The first argument is the folder of the distributed files train.txt, dev.txt and test.txt: 8,544,
1,101 and 2,210 trees. In some copies train.txt also has the trees of dev.txt; they are taken out.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path


def without(trees: list[str], others: list[str]) -> list[str]:
    """The trees without the others, each taken out once, if all of these are there."""
    left, found = Counter(others), []
    for tree in trees:
        if left[tree]:
            left[tree] -= 1
        else:
            found.append(tree)
    return trees if +left else found


def main(source: str, target: str) -> None:
    """Write train.txt, dev.txt and test.txt."""
    folder = Path(target)
    folder.mkdir(parents=True, exist_ok=True)
    trees = {
        name: Path(source, f"{name}.txt").read_text("utf-8").splitlines()
        for name in ("train", "dev", "test")
    }
    trees["train"] = without(trees["train"], trees["dev"])
    for name, lines in trees.items():
        (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")
        print(f"{name}: {len(lines):,} trees")


if __name__ == "__main__":
    main(*sys.argv[1:])
