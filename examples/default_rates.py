"""The sweep behind the default learning rates: recipes at several rates, betas and eps of AdamW.

    export PTB=ptb TREC=trec CONLL2003=conll2003 PYTHON_SOURCE=python
    python examples/default_rates.py runs/rates [recipe ...]
    python examples/default_rates.py runs/rates million python-char-lstm

Each recipe is trained for a small budget with linear decay after 10 % warm-up: at each rate with
both second betas, and language models at the best of these with another eps. OUT/rates.jsonl has a
line for each training; a second call goes on where the first was stopped and prints the table.
`million` trains a recurrent language model on a million tokens with five choices.
docs/reports/training-defaults.md shows both.
"""

from __future__ import annotations

import json
import os
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import regard

RECIPES = Path(__file__).parents[1] / "recipes"
LSTM = {"name": "lstm-lm", "d_model": 200, "layers": 2, "dropout": 0.0}
GPT = {
    "name": "gpt2", "max_length": 64, "d_model": 128, "d_ff": 512, "heads": 4, "layers": 4,
    "dropout": 0.1, "embedding_dropout": 0.1,
}  # fmt: skip
WORDS = {"data": {"batch_size": 20, "sequence_length": 20, "test": None}}
# recipe -> what of it changes, and the rates that are tried
TRIALS: dict[str, tuple[dict[str, Any], tuple[float, ...]]] = {
    "python-char-lstm": ({"training": {"tokens": 300_000}}, (1e-3, 3e-3, 1e-2)),
    "ptb-lstm-small": (
        {**WORDS, "model": LSTM, "training": {"tokens": 300_000}}, (1e-3, 3e-3, 1e-2),
    ),
    "ptb-gpt": (
        {
            "data": {"batch_size": 16, "sequence_length": 64, "test": None},
            "model": GPT,
            "training": {"tokens": 200_000},
        },
        (5e-4, 2e-3, 5e-3),
    ),
    "demo-lstm-attention": ({"training": {"tokens": 100_000}}, (1e-3, 3e-3, 1e-2)),
    "demo-transformer": ({"training": {"tokens": 100_000}}, (5e-4, 2e-3, 5e-3)),
    "trec-bilstm": ({"training": {"epochs": 3}}, (1e-3, 3e-3, 1e-2)),
    "trec-kim-cnn": ({"training": {"epochs": 3}}, (5e-4, 1e-3, 3e-3)),
    "conll2003-bilstm-crf": ({"training": {"epochs": 2}}, (1e-3, 3e-3)),
}  # fmt: skip
BETAS = (0.98, 0.999)
EPS = (1e-8, 1e-9)
WITH_EPS = ("python-char-lstm", "ptb-lstm-small", "ptb-gpt")  # where the second eps is tried


def recipe(name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of a recipe, without its own rate, schedule and limits."""
    file = "ptb-lstm-small" if name == "ptb-gpt" else name
    tables = tomllib.loads((RECIPES / f"{file}.toml").read_text())
    training = {"threads": 1, "precision": tables["training"].get("precision", "float32")}
    tables["training"] = {**training, "validation": {"eval_steps": 10**9}, **changes["training"]}
    for section in ("data", "model"):
        own = {} if section == "model" and "model" in changes else tables[section]
        tables[section] = {**own, **changes.get(section, {})}
    tables["data"] = {key: _path(value) for key, value in tables["data"].items() if value}
    if "decoding" in tables:
        tables["evaluation"] = {"valid_sentences": 10}
    return tables


def _path(value: Any) -> Any:
    """A path that a recipe has relative to its own folder."""
    if isinstance(value, list):
        return [_path(one) for one in value]
    relative = isinstance(value, str) and value.startswith("..")
    return str(RECIPES / value) if relative else value


def trained(
    name: str, rate: float, beta: float, eps: float, schedule: str = "linear", tokens: int = 0
) -> dict[str, Any]:
    """The scores after a training; tokens: its length, 0: that of the table."""
    options = recipe(name, TRIALS[name][0])
    options["training"] |= {
        "optimizer": {
            "name": "adamw", "learning_rate": rate, "betas": [0.9, beta], "eps": eps,
            "weight_decay": 0.0,
        },
        "schedule": {"name": schedule},
    }  # fmt: skip
    options["training"] |= {"tokens": tokens} if tokens else {}
    with TemporaryDirectory() as folder:
        run = regard.train(**options, out=f"{folder}/run", progress=False)
        result = run.result
    scores = {key: value for key, value in result.scores.items() if isinstance(value, float)}
    return {
        "recipe": name, "rate": rate, "beta": beta, "eps": eps, "schedule": schedule,
        "scores": scores,
        "seconds": round(result.seconds), "tokens": result.tokens,
    }  # fmt: skip


def trials(name: str, done: list[dict[str, Any]]) -> Iterator[tuple[float, float, float]]:
    """The rates with both betas; then the best of them with the other eps."""
    for rate in TRIALS[name][1]:
        for beta in BETAS:
            yield rate, beta, EPS[0]
    if name not in WITH_EPS:
        return
    best = min((one for one in done if one["recipe"] == name), key=lambda one: goal(one["scores"]))
    for beta in BETAS:
        yield best["rate"], beta, EPS[1]


def goal(scores: Mapping[str, float]) -> float:
    """What is to be small: the loss, or the negative score."""
    if "loss" in scores:
        return scores["loss"]
    return -scores.get("f1", scores.get("accuracy", 0.0))


def million(name: str) -> Iterator[dict[str, Any]]:
    """A recurrent model after a million tokens: Vaswani et al.'s betas and eps, others, the default
    rate and schedule."""
    for options in (
        (1e-3, 0.98, 1e-9, "constant"), (1e-3, 0.999, 1e-8, "constant"), (1e-3, 0.98, 1e-9),
        (3e-3, 0.98, 1e-9), (3e-3, 0.999, 1e-8),
    ):  # fmt: skip
        yield trained(name, *options, tokens=1_000_000)


def main(out: str, *names: str) -> None:
    """Train what is missing, then print the table."""
    folder = Path(out).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "rates.jsonl"
    done = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    if names[:1] == ("million",):
        for found in million(names[1]):
            print(json.dumps(found), flush=True)
        return
    for name in names or TRIALS:
        for rate, beta, eps in trials(name, done):
            key = name, rate, beta, eps
            if any(key == (o["recipe"], o["rate"], o["beta"], o["eps"]) for o in done):
                continue
            done.append(trained(*key))
            with file.open("a") as lines:
                print(json.dumps(done[-1]), file=lines)
            print(*key, done[-1]["scores"], done[-1]["seconds"], flush=True)
    for one in done:
        print(f"| {one['recipe']} | {one['rate']:g} | {one['beta']} | {one['eps']:g} "
              f"| {abs(goal(one['scores'])):.3f} |")  # fmt: skip


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(*sys.argv[1:])
