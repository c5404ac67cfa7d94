"""What functions and tasks give for the calls of tests/calls/NAME.toml, which NAME.jsonl stores.

`python tests/call_tables.py` writes the results: whoever changes one sees it in the change.

A call is [name, arguments..., {options}]: a name of the section, which is a module or a task of
tests/every_task.py; "module:name" of another one; ".name" of the first argument; or a builtin.
Arguments are values, "$name" of a file or of what `Calls.known` has, and calls, whose names begin
with "=". Tasks have weights that are not drawn, and compute in double precision.
"""

from __future__ import annotations

import builtins
import json
import tempfile
import tomllib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import chdir
from dataclasses import fields, is_dataclass
from functools import cache
from hashlib import sha256
from importlib import import_module
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any

import every_task
import numpy as np
import pytest
import torch
from PIL import Image
from stored_numbers import digest

from regard.errors import DataError, RegardError
from regard.metrics.score import Scores
from regard.tasks import task_class
from regard.text import train
from regard.visual.attention_record import look

HERE = Path(__file__).with_name("calls")
KINDS = {"words": 60, "wordpiece": 60, "byte-bpe": 300, "unigram": 40, "characters": 40}


@cache
def tokenizer(kind: str) -> Any:
    """A small tokenizer; that of word pieces has the special tokens of BERT."""
    special = {"special_tokens": every_task.SPECIALS} if kind == "wordpiece" else {}
    return train(kind, every_task.lines(), KINDS[kind], **special)


@cache
def task(name: str) -> Any:
    """A task of tests/every_task.py with weights of which no two are alike."""
    torch.manual_seed(1)
    return filled(every_task.MAKERS[name]())


def trained(name: str) -> list[Any]:
    """With what the training of a small recipe begins, and its scores; without dropout."""
    recipes = tomllib.loads((HERE.parent / "options/recipes.toml").read_text())
    Path("recipes").mkdir(exist_ok=True)
    for file, text in recipes["files"].items():
        Path("recipes", file).write_text(text)
    made, recipe = every_task.MAKERS[name](), {**recipes["recipes"][name], "task": name}
    recipe.pop("teacher", None)
    kind = task_class(name)
    options = kind.Recipe.model_validate(recipe, context={"folder": Path("recipes")})
    learning = filled(kind.from_recipe(options, made.module, made.tokenizer))
    batches = list(islice(learning.train_batches(), 2))
    learning.module.training = True  # not that of its parts, which drop out
    losses = learning.losses(batches[0], None)[0]
    counts = learning.counts(batches[0])
    example = kind.example(options, 5) if hasattr(kind, "example") else None
    learning.module.training = False
    scores, facts = learning.validate(), [learning.settings(), learning.notes()]
    return [batches, counts, losses, example, scores, facts, learning.samples(options)]


@torch.no_grad()
def filled(made: Any) -> Any:
    """The task in double precision, with weights that are not drawn."""
    for n, weight in enumerate(made.module.eval().double().parameters()):
        angles = 4.76 + 0.7 * n + 0.618 * torch.arange(weight.numel(), dtype=torch.float64) ** 2
        norm = bool((weight == 1).all())
        weight.copy_(norm + 0.6 * angles.sin().view_as(weight))
    return made


def looked(model: Any, method: str, *items: Any, **options: Any) -> list[Any]:
    """The labels and the weights of the attention in a call of a method."""
    with look(model) as record:
        getattr(model, method)(*items, **options)
    return record.passes


class Calls:
    """The calls of a file; its files and images are written into the working folder."""

    def __init__(self, name: str):
        self.table = tomllib.loads((HERE / f"{name}.toml").read_text())
        self.named = self.table.pop("named")
        for file, text in self.table.pop("files").items():
            Path(file).parent.mkdir(parents=True, exist_ok=True)
            Path(file).write_bytes(text.encode() if isinstance(text, str) else bytes(text))
        for number in range(3):
            pixels = np.arange(30, dtype=np.uint8).reshape(2, 5, 3) * (number + 1)
            Image.fromarray(pixels).save(f"{number}.png")

    def results(self, section: str) -> list[Any]:
        """Of a section's calls; "$name" stands for several, which other sections have, too."""
        torch.manual_seed(1)
        self.owner = import_module(section) if section.startswith("regard.") else task(section)
        listed = self.table[section]["calls"]
        calls = [c for call in listed for c in (self.named[call[1:]] if call[0] == "$" else [call])]
        return [(call, json.loads(json.dumps(self.result(call)))) for call in calls]

    def result(self, call: list[Any]) -> Any:
        """What a call gives, its warnings, or its error."""
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                found = self.plain(self.called(*call))
            except (ValueError, LookupError, TypeError) as error:
                said = self.plain(str(error)) if isinstance(error, RegardError) else ""
                found = {type(error).__name__: said}
        own = [w for w in warned if "Triggered internally" not in str(w.message)]  # not torch's
        texts = [[Path(w.filename).stem, self.plain(str(w.message))] for w in own]
        return {"gives": found, "warns": texts} if texts else found

    def called(self, name: str, *items: Any) -> Any:
        """What a name with arguments gives."""
        values = [self.value(item) for item in items]
        options = values.pop() if items and isinstance(items[-1], dict) else {}
        owner: Any = self.owner if hasattr(self.owner, name.split(".")[0]) else builtins
        if name.startswith("."):
            owner, name = values.pop(0), name[1:]
        elif ":" in name:
            owner, name = import_module(name.partition(":")[0]), name.partition(":")[2]
        function = attrgetter(name)(owner)
        plain = isinstance(function, torch.nn.Module) or not callable(function)
        return function if plain else function(*values, **options)

    def value(self, item: Any) -> Any:
        """An argument."""
        if isinstance(item, dict):
            return {name: self.value(part) for name, part in item.items()}
        if isinstance(item, str) and item.startswith("$"):
            return self.known(item[1:])
        if isinstance(item, list) and item and str(item[0]).startswith("="):
            return self.called(item[0][1:], *item[1:])
        return [self.value(part) for part in item] if isinstance(item, list) else item

    def known(self, name: str) -> Any:
        """None, the task, a tokenizer, a builtin, a value of [named], or the path of a file."""
        if name in KINDS:
            return tokenizer(name)
        if name in self.named:
            return self.value(self.named[name])
        values = {"none": None, "task": self.owner, "str": str, "list": list}
        return values.get(name, name or ".")

    def plain(self, value: Any, depth: int = 0) -> Any:
        """A value as JSON has it; of many numbers one in which all count."""
        if isinstance(value, torch.Tensor | np.ndarray | np.generic):
            array = np.asarray(value.detach() if isinstance(value, torch.Tensor) else value)
            if array.size <= (6 if array.dtype.kind == "f" else 200):
                return array.tolist()
            one = digest([torch.from_numpy(array)]) if array.dtype.kind == "f" else None
            return [*array.shape, one or sha256(str(array.tolist()).encode()).hexdigest()[:12]]
        if isinstance(value, str | Path | DataError):
            text = str(value)
            return text if len(text) < 400 else sha256(text.encode()).hexdigest()[:20]
        if isinstance(value, Scores):
            return [self.plain(value.named), self.plain(value.outputs)]
        if isinstance(value, Mapping):
            return {str(name): self.plain(part, depth) for name, part in value.items()}
        if is_dataclass(value) and not isinstance(value, type | Sequence) and depth < 4:
            parts = ((f.name, getattr(value, f.name)) for f in fields(value) if f.repr)
            return {name: self.plain(part, depth + 1) for name, part in parts}
        if isinstance(value, Iterable) and depth < 4:
            ordered = sorted(value) if isinstance(value, set | frozenset) else value
            return [self.plain(part, depth) for part in islice(ordered, 40)]
        return value if isinstance(value, bool | int | float | None) else type(value).__name__


def same(found: Any, expected: Any) -> bool:
    """Whether results are equal, numbers nearly."""
    if isinstance(expected, dict) and isinstance(found, dict):
        return [*found] == [*expected] and same([*found.values()], [*expected.values()])
    if isinstance(expected, list) and isinstance(found, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    numbers = isinstance(expected, float) and isinstance(found, float)
    return found == (pytest.approx(expected, 1e-5, 1e-7, nan_ok=True) if numbers else expected)


def compare(name: str, section: str, folder: Path) -> None:
    """Check the results of a section against the file."""
    stored = map(json.loads, (HERE / f"{name}.jsonl").read_text().splitlines())
    expected = [result for where, result in stored if where == section]
    with chdir(folder):
        results = Calls(name).results(section)
    for (call, found), before in zip(results, expected, strict=True):
        assert same(found, before), (call, found, before)


def sections(name: str, mark: str) -> Any:
    """Each section of a file of calls: the modules (mark "."), or the tasks ("")."""
    table = tomllib.loads((HERE / f"{name}.toml").read_text()).keys() - {"named", "files"}
    chosen = [section for section in sorted(table) if ("." in section) == bool(mark)]
    return pytest.mark.parametrize("section", chosen)


if __name__ == "__main__":
    for name in ("data", "tasks"):
        with tempfile.TemporaryDirectory() as folder, chdir(folder):
            calls = Calls(name)
            rows = [[s, found] for s in calls.table for _, found in calls.results(s)]
        (HERE / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
