"""Data in memory of every kind, in every task: a training or a score, or an error with a message.

Cases are drawn: a kind of container, a value of a column that is odd, a task and a call.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import math
import random
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard.errors import RegardError
from regard.experiments import runs
from regard.tasks.infer_task import ENCODER_DECODERS

pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")
sys.path.insert(0, str(Path(__file__).parents[1]))
import every_task  # noqa: E402

TEXTS = ["the cat", "a mat", "sat on", "the old cat", "warm sun", "who"]
DATA: dict[str, dict[str, list[Any]]] = {
    "classification": {"text": TEXTS, "label": ["no", "yes"] * 3},
    "regression": {"text": TEXTS, "label": [1, 2.5, 3, 4, 5, 6]},
    "multi-label-classification": {"text": TEXTS, "labels": [["old"], [], ["warm", "sunny"]] * 2},
    **dict.fromkeys(
        every_task.TAGGING, {"words": [["the", "cat"]] * 6, "tags": [["O", "B-X"]] * 6}
    ),
    "question-answering": {
        "id": list("123456"),
        "context": ["the cat sat"] * 6,
        "question": ["who"] * 6,
        "answers": [{"text": ["the cat"], "answer_start": [0]}] * 6,
    },
    "multiple-choice": {
        "question": ["who"] * 6, "choices": [["a", "b"]] * 6, "answer": [0, 1] * 3
    },
    **dict.fromkeys(ENCODER_DECODERS, {"en": TEXTS, "de": TEXTS[::-1]}),
    "language-modeling": {"text": TEXTS},
    "embedding": {"sentence1": TEXTS, "sentence2": TEXTS[::-1], "label": [1, 2, 3, 4, 5, 6]},
}  # fmt: skip
SMALL = dict(d_model=8, heads=2)
MODELS: dict[str, Any] = {
    "language-modeling": dict(name="gpt2", layers=1, max_length=24, **SMALL),
    **dict.fromkeys(
        ENCODER_DECODERS,
        dict(name="transformer", d_ff=8, encoder_layers=1, decoder_layers=1, **SMALL),
    ),
}  # fmt: skip
Columns = dict[str, list[Any]]


def frame(columns: Columns) -> Any:
    """A DataFrame whose columns hold objects as they are."""
    kept = {name: pandas.Series(list(v), dtype=object) for name, v in columns.items()}
    return pandas.DataFrame(kept)


def records(columns: Columns) -> list[dict[str, Any]]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def tuples(columns: Columns) -> list[tuple[Any, ...]]:
    return list(zip(*columns.values(), strict=True))


class TorchDataset(torch.utils.data.Dataset):
    """Rows by number."""

    def __init__(self, columns: Columns):
        self.rows = records(columns)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


CONTAINERS = {
    "frame": frame,
    "inferred types": pandas.DataFrame,
    "nullable types": lambda c: pandas.DataFrame(c).convert_dtypes(),
    "other index": lambda c: frame(c).set_index(pandas.Index([9, 3, 3, 1, 0, 7])),
    "categories": lambda c: frame(c).astype({list(c)[-1]: "category"}),
    "polars": lambda c: polars.DataFrame(c, strict=False),
    "lazy": lambda c: polars.DataFrame(c, strict=False).lazy(),
    "columns": lambda c: c,
    "columns of arrays": lambda c: {k: np.array(v, dtype=object) for k, v in c.items()},
    "columns of scalars": lambda c: {k: v[0] for k, v in c.items()},
    "records": records,
    "tuples": tuples,
    "generator": lambda c: iter(records(c)),
    "structured array": lambda c: frame(c).to_records(index=False),
    "array": lambda c: np.array([list(row) for row in tuples(c)], dtype=object),
    "torch": TorchDataset,
    "grouped": lambda c: frame(c).groupby(list(c)[-1]),
    "series": lambda c: frame(c).iloc[:, -1],
    "no rows": lambda c: frame(c)[:0],
    "one row": lambda c: frame(c)[:1],
    "columns twice": lambda c: pandas.concat([frame(c), frame(c)], axis=1),
    "tensor": lambda c: torch.zeros(3, 2),
    "scalar": lambda c: torch.tensor(3),
    "nothing": lambda c: None,
}
ODD = [
    None, math.nan, math.inf, pandas.NA, pandas.NaT, 3, 10**400, True, np.bool_(False), 2.5,
    np.int64(2), np.float32(1.5), np.longdouble(1.5), np.str_("the cat"), torch.tensor(1),
    torch.tensor(1.5, requires_grad=True), torch.tensor(True), np.array(2), np.array("cat"),
    torch.tensor(math.nan), torch.tensor([1, 2]), np.zeros((2, 2)), np.array(["old", "warm"]),
    np.ma.masked, torch.zeros((), device="meta"), torch.tensor([1.0]).to_sparse(), ["old"],
    [["a"]], [None, "a"], ("old", "warm"), {"old"}, {"a": 1}, "", " ", [], b"x", "a\ud800", "a\0b",
    datetime.date(2020, 1, 1), pandas.Timestamp("2020"), np.datetime64("2020"), decimal.Decimal(1),
    1j, object(), len, pandas.Series([1, 2]), range(2), collections.deque(["old"]), int,
    [torch.tensor(1), np.float32(2)], "cat " * 500, "[old]", '["old"]', [1j],
]  # fmt: skip


class Reached(Exception):
    """The data were read, and the training would begin."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    return every_task.make(tmp_path_factory.mktemp("tasks"))


@pytest.fixture
def until_training(tmp_path, monkeypatch):
    """Trainings end where they begin."""

    def stop(*_: Any, **__: Any) -> None:
        raise Reached

    monkeypatch.setattr(runs.training, "train", stop)
    monkeypatch.chdir(tmp_path)


def drawn(draw: random.Random) -> tuple[str, Columns, Any]:
    """A task, columns of which one may have odd values, and the same columns in a container."""
    name, kind = draw.choice([*DATA]), draw.choice([*CONTAINERS])
    columns = {column: list(values) for column, values in DATA[name].items()}
    column, odd = draw.choice([*columns]), draw.choice(ODD)
    how = draw.choice(["none", "one", "one", "all"])
    if how != "none":
        columns[column] = [
            odd if how == "all" or i == 3 else one for i, one in enumerate(columns[column])
        ]
    try:
        return name, columns, CONTAINERS[kind](columns)
    except Exception:  # the library of the container does not take these values
        return name, columns, columns


def called(draw: random.Random, folders: dict[str, Path], task: Any, columns: Columns, data: Any):
    """A training, or a method of a loaded model."""
    verb = draw.choice(["train", "valid", "evaluate", "predict"])
    if verb in ("train", "valid") and task.name != "embedding":
        new = {"kind": "words"} if task.name in MODELS else {}
        given = dict(model=MODELS.get(task.name, str(folders[task.name])), **new)
        whole = frame(DATA[task.name])
        parts = (data, 0.34) if verb == "train" else (whole, data)
        train, valid = parts
        regard.train(task=task.name, train=train, valid=valid, epochs=1, progress=False, **given)
    elif verb == "evaluate":
        task.evaluate(data)
    else:
        limit = {"max_tokens": 3} if task.decodes else {}
        method = draw.choice(["predict", "hypotheses" if task.decodes else "predict"])
        getattr(task, method)(draw.choice([data, *columns.values()]), **limit)


@pytest.mark.parametrize("seed", range(2))
def test_data_of_any_kind_are_read_or_raise_an_error_of_the_library(folders, until_training, seed):
    draw = random.Random(seed)
    tasks = {name: regard.load(folders[name]) for name in DATA}
    reached = 0
    for _ in range(50):
        name, columns, data = drawn(draw)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                called(draw, folders, tasks[name], columns, data)
        except Reached:
            reached += 1
        except RegardError as error:
            assert len(str(error)) > 15
    assert reached


@pytest.mark.parametrize("name", ["classification", "regression"])
@pytest.mark.parametrize("kind", [torch.tensor, np.int64, np.array, np.float32])
def test_labels_that_are_scalars_of_torch_and_numpy_are_those_of_python(
    folders, tmp_path, monkeypatch, name, kind
):
    monkeypatch.chdir(tmp_path)
    labels = [1, 0, 1, 1, 0, 0]
    plain = list(map(float, labels)) if kind is np.float32 else labels
    options = dict(task=name, model=str(folders[name]), valid=0.34, epochs=1, progress=False)
    found = []
    for given in (plain, [kind(label) for label in labels]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run = regard.train(train=list(zip(TEXTS, given, strict=True)), **options)
        found.append(run.predict(TEXTS))
        assert run.evaluate(list(zip(TEXTS, given, strict=True))).named[0].count == 6
    assert found[0] == found[1]
