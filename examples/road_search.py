"""The options with which each model of the road from the LSTM to GPT learns most.

    python examples/road_search.py REVIEWS OUT [MODEL ...]

For each model four configurations, chosen by Optuna's TPE, read one million tokens, as do the
options of recipes/lstm-to-gpt.toml, for comparison; the best two are then trained on three million.
Validation data alone choose. All models have the same number of trials, tokens, data and subwords
(those of examples/lstm_to_gpt.py), and about 1.9 million parameters. Interrupted, the same command
continues. OUT/search.json has all trials.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lstm_to_gpt import prepare

import regard
from regard.experiments.results import StudyResults
from regard.experiments.sweep import LogUniform

TRIALS, TOKENS = 4, 1_000_000
BEST, MORE_TOKENS = 2, 3_000_000
WORKERS = 2
# The options of recipes/lstm-to-gpt.toml, with which all models were trained before.
UNTUNED: dict[str, Any] = {
    "learning_rate": [2e-3],
    "data.batch_size": [16],
    "data.sequence_length": [64],
    "training.optimizer.betas": [[0.9, 0.98]],
    "training.optimizer.eps": [1e-9],
    "training.optimizer.weight_decay": [0.0],
    "training.optimizer.max_grad_norm": [0.5],
    "training.schedule.name": ["cosine"],
    "training.schedule.min_lr_ratio": [0.05],
}
LAYERS = ("", "attention_", "embedding_")
AWD = ("input_", "weight_", "hidden_", "output_")
UNTUNED_MODELS: dict[str, dict[str, Any]] = {
    "lstm": {"model.dropout": [0.1]},
    "gpt2": {f"model.{name}dropout": [0.1] for name in LAYERS} | {"model.init_range": [0.05]},
    "gpt": {f"model.{name}dropout": [0.1] for name in LAYERS} | {"model.init_range": [0.05]},
    "transformer-xl": {"model.dropout": [0.1], "model.init_range": [0.05]},
    "awd-lstm": {f"model.{name}dropout": [0.1] for name in AWD},
}
RATES = {"recurrent": LogUniform(2e-3, 3e-2), "attention": LogUniform(5e-4, 1e-2)}
COMMON: dict[str, Any] = {
    "training.optimizer.betas": [[0.9, 0.95], [0.9, 0.98], [0.9, 0.999]],
    "training.optimizer.weight_decay": [0.0, 0.1],
    "training.schedule.name": ["linear", "cosine"],
    "model.dropout": [0.0, 0.1],
}
SEGMENTS = {"data.batch_size": [8, 16, 32, 64], "data.sequence_length": [16, 32, 64]}
BATCHES = {"data.batch_size": [4, 8, 16, 32], "model.init_range": [0.02, 0.05, 0.08]}
NO_DROPOUT = {"attention_dropout": 0.0, "embedding_dropout": 0.0}
WIDTHS: dict[str, Any] = {"d_model": 128, "heads": 4, "layers": 4}
# model -> its options, and what is searched
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "lstm": (
        {"name": "lstm-lm", "d_model": 176, "layers": 2, "tied": True},
        {"learning_rate": RATES["recurrent"], **SEGMENTS, **COMMON},
    ),
    "gpt2": (
        {"name": "gpt2", **WIDTHS, "d_ff": 512, "max_length": 64, **NO_DROPOUT},
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
        {"name": "gpt", **WIDTHS, "max_length": 64, **NO_DROPOUT},
        {"learning_rate": RATES["attention"], **BATCHES, **COMMON},
    ),
    "awd-lstm": (
        dict(name="awd-lstm", d_model=128, d_hidden=256, layers=2)
        | dict.fromkeys((f"{name}dropout" for name in (*AWD, "embedding_")), 0.0),
        {
            "learning_rate": RATES["recurrent"],
            **SEGMENTS,
            **{name: values for name, values in COMMON.items() if name != "model.dropout"},
            "model.weight_dropout": [0.0, 0.1, 0.3],
        },
    ),
}


def recipe(name: str, data: Path, tokens: int) -> dict[str, Any]:
    """The recipe of a model, as keywords of `regard.train`."""
    model, _ = MODELS[name]
    return {
        "task": "language-modeling",
        "name": name,
        "model": model,
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


def searched(name: str, data: Path, out: Path) -> list[dict[str, Any]]:
    """The trials of a model with one million tokens, the best first, and the untuned options."""
    common = {**recipe(name, data, TOKENS), "workers": WORKERS}
    trials = regard.sweep(
        **common,
        param_space=MODELS[name][1],
        strategy="tpe",
        trials=TRIALS,
        out=out / f"{name}-1m",
    )
    untuned = regard.sweep(
        **common, param_space=UNTUNED | UNTUNED_MODELS[name], out=out / f"{name}-untuned"
    )
    return rows_of(name, TOKENS, trials) + rows_of(name, TOKENS, untuned)


def trained_further(
    name: str, rows: list[dict[str, Any]], data: Path, out: Path
) -> list[dict[str, Any]]:
    """The best trials of a model with three million tokens."""
    further = []
    for number, row in enumerate(rows[:BEST], 1):
        results = regard.sweep(
            **recipe(name, data, MORE_TOKENS),
            param_space={option: [value] for option, value in row["values"].items()},
            out=out / f"{name}-3m-{number}",
        )
        further += rows_of(name, MORE_TOKENS, results)
    return further


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


def main(reviews: Path, out: Path, names: Sequence[str]) -> None:
    """Search for each model, then train the best further; write OUT/search.json after each."""
    data, path = (out / "data").resolve(), out / "search.json"
    prepare(reviews, data)
    rows: dict[str, list[dict[str, Any]]] = {}

    def write() -> None:
        every = [row for of_model in rows.values() for row in of_model]
        path.write_text(json.dumps(every, indent=1) + "\n", encoding="utf-8")

    for name in names:
        rows[name] = searched(name, data, out)
        write()
    for name in names:
        rows[name] += trained_further(name, rows[name], data, out)
        write()


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:] or [*MODELS])
