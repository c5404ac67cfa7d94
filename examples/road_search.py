"""The options with which each model of the road from the LSTM to GPT learns most.

    python examples/road_search.py REVIEWS OUT [MODEL ...]

For each model 16 configurations, chosen by Optuna's TPE, read one million tokens; the best four are
then trained on three million. Validation data alone choose. All models have the same number of
trials, tokens, data and subwords (those of examples/lstm_to_gpt.py), and about 1.9 million
parameters. Interrupted, the same command continues. OUT/search.json has all trials.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lstm_to_gpt import prepare

import regard
from regard.experiments.results import StudyResults
from regard.experiments.sweep import LogUniform

TRIALS, TOKENS = 16, 1_000_000
BEST, MORE_TOKENS = 4, 3_000_000
RATES = {"recurrent": LogUniform(2e-3, 3e-2), "attention": LogUniform(5e-4, 1e-2)}
COMMON: dict[str, Any] = {
    "training.optimizer.betas": [[0.9, 0.95], [0.9, 0.98], [0.9, 0.999]],
    "training.optimizer.weight_decay": [0.0, 0.1],
    "training.schedule.name": ["linear", "cosine"],
    "model.dropout": [0.0, 0.1],
}
SEGMENTS = {"data.batch_size": [8, 16, 32, 64], "data.sequence_length": [16, 32, 64]}
BATCHES = {"data.batch_size": [4, 8, 16, 32], "model.init_range": [0.02, 0.05, 0.08]}
WIDTHS: dict[str, Any] = {"d_model": 128, "heads": 4, "layers": 4}
# model -> its options, and what is searched
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "lstm": (
        {"name": "lstm-lm", "d_model": 176, "layers": 2, "tied": True},
        {"learning_rate": RATES["recurrent"], **SEGMENTS, **COMMON},
    ),
    "gpt2": (
        {"name": "gpt2", **WIDTHS, "d_ff": 512, "max_length": 64},
        {"learning_rate": RATES["attention"], **BATCHES, **COMMON},
    ),
    "transformer-xl": (
        {
            "name": "transformer-xl",
            **WIDTHS,
            "d_ff": 512,
            "memory_length": 64,
            "target_length": 64,
        },
        {"learning_rate": RATES["attention"], **BATCHES, **COMMON},
    ),
    "gpt": (
        {"name": "gpt", **WIDTHS, "max_length": 64},
        {"learning_rate": RATES["attention"], **BATCHES, **COMMON},
    ),
    "awd-lstm": (
        {"name": "awd-lstm", "d_model": 128, "d_hidden": 256, "layers": 2},
        {
            "learning_rate": RATES["recurrent"],
            **SEGMENTS,
            **{name: values for name, values in COMMON.items() if name != "model.dropout"},
            "model.weight_dropout": [0.0, 0.1, 0.3],
        },
    ),
}
NO_DROPOUT = dict.fromkeys(
    ("embedding_dropout", "input_dropout", "hidden_dropout", "output_dropout"), 0.0
)


def recipe(name: str, data: Path, tokens: int) -> dict[str, Any]:
    """The recipe of a model, as keywords of `regard.train`."""
    model, _ = MODELS[name]
    return {
        "task": "language-modeling",
        "name": name,
        "model": model | (NO_DROPOUT if name == "awd-lstm" else {}),
        "data": {
            "train": str(data / "train.txt"),
            "valid": str(data / "valid.txt"),
            "format": "lines",
            "batch_size": 16,
            "sequence_length": 64,
        },
        "tokenizer": {"path": str(data / "tokenizer")},
        "training": {
            "tokens": tokens,
            "threads": 1,
            "schedule": {"min_lr_ratio": 0.02},
            "checkpoints": {"save_seconds": 0.0, "save_steps": 1_000_000, "save_total_limit": 1},
        },
    }


def searched(name: str, data: Path, out: Path, workers: int) -> list[dict[str, Any]]:
    """The trials of a model at both budgets, the best first."""
    trials = regard.sweep(
        **recipe(name, data, TOKENS),
        param_space=MODELS[name][1],
        strategy="tpe",
        trials=TRIALS,
        workers=workers,
        out=out / f"{name}-1m",
    )
    rows = rows_of(name, TOKENS, trials)
    for number, row in enumerate(rows[:BEST], 1):
        values = row["values"]
        more = regard.sweep(
            **recipe(name, data, MORE_TOKENS),
            param_space={option: [value] for option, value in values.items()},
            out=out / f"{name}-3m-{number}",
        )
        rows += rows_of(name, MORE_TOKENS, more)
    return rows


def rows_of(name: str, tokens: int, results: StudyResults) -> list[dict[str, Any]]:
    """The trials of a sweep as plain values."""
    return [
        {
            "model": name,
            "tokens": tokens,
            "parameters": trial.costs.get("parameters"),
            "valid loss": None if trial.error else -trial.score,
            "seconds": trial.costs.get("seconds"),
            "values": dict(trial.values),
        }
        for trial in results.trials
    ]


def main(reviews: Path, out: Path, names: Mapping[str, Any]) -> None:
    """Search for each model, and write OUT/search.json after each."""
    data = (out / "data").resolve()
    prepare(reviews, data)
    path = out / "search.json"
    rows = json.loads(path.read_text("utf-8")) if path.exists() else []
    for name in names:
        rows = [row for row in rows if row["model"] != name]
        rows += searched(name, data, out, workers=2)
        path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]), dict.fromkeys(sys.argv[3:] or MODELS))
