"""Kinds of positions by one recipe: python examples/positions.py [KIND...] [NAME=VALUE...]

The recipe is recipes/positions.toml, a small translator from English to French; each kind of
docs/concepts/positions.md is trained on the same tokens, one after the other. The table is printed,
and runs/positions/report.html shows the curves. Interrupted, it goes on where it was stopped.

    python examples/positions.py shaw t5 training.tokens=100_000      two of them, a shorter run
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from regard.experiments.compare import compare_files
from regard.experiments.results import StudyResults

ROOT = Path(__file__).resolve().parents[1]
RECIPE = ROOT / "recipes/positions.toml"
KINDS = ("sinusoidal", "learned", "shaw", "t5", "transformer-xl", "none")


def main(
    kinds: Sequence[str], overrides: Sequence[str], out: Path = Path("runs/positions")
) -> StudyResults:
    """Train a model with each kind of positions, and compare them."""
    folder = out.with_name(f"{out.name}-recipes")
    folder.mkdir(parents=True, exist_ok=True)
    found = compare_files([variant(kind, folder) for kind in kinds], overrides, out=out)
    found.picture().show()
    return found


def variant(kind: str, folder: Path) -> Path:
    """The recipe with another kind of positions, and paths that hold in its folder."""
    text = RECIPE.read_text(encoding="utf-8")
    text = text.replace('"sinusoidal"', f'"{kind}"').replace('"../', f'"{ROOT.as_posix()}/')
    path = folder / f"{kind}.toml"
    path.write_text(text, encoding="utf-8")
    return path


if __name__ == "__main__":
    options = [word for word in sys.argv[1:] if "=" in word]
    main([word for word in sys.argv[1:] if "=" not in word] or KINDS, options)
