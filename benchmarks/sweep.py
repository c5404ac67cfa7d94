"""Successive halving against the whole grid: 16 configurations of the small LSTM of Penn Treebank.

    python -m benchmarks.sweep PTB_FOLDER OUT [SEED ...]

The recipe is recipes/ptb-lstm-small.toml, shortened: 2,500 lines of the training data, 250 of the
validation data, 50,000 tokens a run. For each seed it halves, and then trains the runs that were
not promoted to their end, too: a run that was stopped ends with the same bits as one that was not,
so these are the grid's runs. It prints what both have spent and which configuration each has
chosen.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from regard import resume
from regard.experiments.study import RunOptions
from regard.experiments.sweep import sweep_file
from regard.training.callbacks import RESULT, read_result

RECIPE = Path(__file__).parents[1] / "recipes" / "ptb-lstm-small.toml"
LINES = {"train": 2500, "valid": 250}
OPTIONS = (
    "training.epochs=100",
    "training.tokens=50000",
    "training.threads=1",
    "training.precision=float32",
    "training.validation.eval_steps=63",
    "training.logging_steps=100000",
)
OVER = {
    "training.optimizer.learning_rate": [1.25, 5.0, 20.0, 80.0],
    "model.d_model": [64, 128],
    "model.dropout": [0.0, 0.3],
}


def shorten(data: Path, out: Path) -> list[str]:
    """Write the first lines of the data; the overrides that name them."""
    out.mkdir(parents=True, exist_ok=True)
    for part, count in LINES.items():
        lines = (data / f"ptb.{part}.txt").read_text().splitlines(keepends=True)
        (out / f"{part}.txt").write_text("".join(lines[:count]))
    files = {"train": "train", "valid": "valid", "test": "valid"}
    return [f"data.{part}={(out / f'{name}.txt').absolute()}" for part, name in files.items()]


def compared(overrides: Sequence[str], out: Path, seed: int) -> dict[str, object]:
    """What halving and the grid have chosen and spent."""
    options = RunOptions((seed,), executor="here")
    halving = ("successive-halving", None, 2, 1)
    found = sweep_file(RECIPE, overrides, OVER, halving, options, out)
    scores, spent = {}, 0
    for trial in found.trials:
        run = out / f"{trial.name}-seed{seed}"
        if not (run / RESULT).exists() and not trial.error:
            resume(run, progress=False)
        if (run / RESULT).exists():
            result = read_result(run)
            scores[trial.name], spent = float(result.best or 1e9), spent + result.tokens
    best = min(scores, key=scores.__getitem__)
    chosen = found.best.name if found.best else ""
    return {
        "seed": seed,
        "halving": chosen,
        "grid": best,
        "loss of halving": scores[chosen],
        "loss of the grid": scores[best],
        "losses": sorted(scores.values()),
        "tokens of halving": found.tokens,
        "tokens of the grid": spent,
        "share": found.tokens / spent,
    }


def main(data: str, out: str, *seeds: str) -> None:
    """Print a line of JSON for each seed."""
    overrides = [*OPTIONS, *shorten(Path(data), Path(out))]
    for seed in map(int, seeds or ("1", "2", "3")):
        print(json.dumps(compared(overrides, Path(out) / f"seed{seed}", seed)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
