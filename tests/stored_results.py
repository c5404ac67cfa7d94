"""What statements about `regard.text`, `regard.metrics` and `regard.checkpoints` give, as stored.

`tests/results/FOLDER.json` has sections of statements, each with its result: those of a section
are run in their order and see the names of those before. To add a case, add `["statement", null]`
and run `python tests/stored_results.py`, which writes all results: whoever changes one sees it in
the change. A statement knows the modules of its folder by their names.
"""

from __future__ import annotations

import ast
import json
import math
import sys
import tempfile
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import numpy as np
import torch

RESULTS = Path(__file__).with_name("results")
sys.path.append(str(Path(__file__).with_name("text")))  # statements use its helpers
LIBRARIES = {"torch": torch, "np": np, "json": json}
Sections = dict[str, list[list[Any]]]  # name -> statements with their results


def stored(folder: str) -> Sections:
    return json.loads((RESULTS / f"{folder}.json").read_text())


def plain(value: Any) -> Any:
    """A value as JSON has it; of many numbers their shape, and one in which each of them counts."""
    if isinstance(value, np.generic | np.ndarray):
        value = torch.as_tensor(value) if value.size else value.tolist()
    if isinstance(value, torch.Tensor):
        flat = value.detach().double().flatten()
        if len(flat) <= 12:
            return plain(value.tolist())
        angles = torch.arange(1, len(flat) + 1, dtype=torch.float64).sin()
        return [str(value.dtype)[6:], *value.shape, plain(float(flat @ angles))]
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(f"{value:.9g}") if math.isfinite(value) else str(value)
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(plain, value), key=str)
    if isinstance(value, Iterable) and not isinstance(value, bytes | Path):
        return [*map(plain, value)]
    return value.name if isinstance(value, Path) else repr(value)


def statement_names(folder: str, place: Path) -> dict[str, Any]:
    """What statements know: modules, and functions that write files and feed metrics."""

    def put(content: Any, *parts: str) -> Path:
        path = place.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        content = content if isinstance(content, str | bytes) else json.dumps(content)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def fed(metric: Any, *portions: Any) -> Any:
        for portion in portions:
            metric.add(*portion)
        return metric.result()

    package = import_module(f"regard.{folder}")
    modules = [one.name for one in walk_packages(package.__path__, f"regard.{folder}.")]
    names = {name.rpartition(".")[2]: import_module(name) for name in modules}
    return {**names, "put": put, "fed": fed, "place": place, "plain": plain, **LIBRARIES}


def computed(folder: str, statements: Iterable[str]) -> list[Any]:
    """The results of the statements of a section; of one that raises an error, its type."""
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        names, results = statement_names(folder, Path(place)), []
        for statement in statements:
            caught.clear()
            try:
                is_value = isinstance(ast.parse(statement).body[0], ast.Expr)
                result = plain((eval if is_value else exec)(statement, names))
            except Exception as error:
                result = f"raises {type(error).__name__}"
            said = [str(one.message) for one in caught if one.category is UserWarning]
            results.append({"result": result, "warnings": said} if said else result)
        return json.loads(json.dumps(results).replace(place, "PLACE"))


def near(one: Any, other: Any) -> bool:
    """Whether two results are equal, floats but for rounding."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(near, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(near(one[name], other[name]) for name in one)
    if float in (type(one), type(other)) and {type(one), type(other)} <= {int, float}:
        return math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-6)
    return type(one) is type(other) and one == other


def check(folder: str, section: str) -> None:
    """Compare the results of a section with those of the file."""
    rows = stored(folder)[section]
    results = computed(folder, [statement for statement, _ in rows])
    for (statement, before), now in zip(rows, results, strict=True):
        assert near(now, before), f"{statement} was {before}, is {now}; see {Path(__file__).name}"


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:] or map(str, RESULTS.glob("*.json"))):
        sections = {
            name: [*map(list, zip(asked, computed(path.stem, asked), strict=True))]
            for name, rows in stored(path.stem).items()
            if (asked := [statement for statement, _ in rows])
        }
        dump = lambda value: json.dumps(value, ensure_ascii=False)  # noqa: E731
        blocks = [
            f"{dump(name)}: [\n" + ",\n".join(map(dump, rows)) + "\n]"
            for name, rows in sections.items()
        ]
        path.write_text("{\n" + ",\n".join(blocks) + "\n}\n")
