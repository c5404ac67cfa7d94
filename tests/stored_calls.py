"""Calls and what they give, which tests/calls/NAME.json stores: an update must not change it.

`python tests/test_NAME_calls.py` writes the results anew; a call is added to the file with any
result. All is computed in double precision from numbers that are not drawn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.errors import RegardError

FLOAT = re.compile(r"-?\d+\.\d+(?:e[+-]?\d+)?|-?\d+e[+-]?\d+")


def waves(*shape: int, seed: int = 0) -> Tensor:
    """Numbers from -3 to 3 of which no two are alike."""
    steps = torch.arange(1, torch.Size(shape).numel() + 1, dtype=torch.float64)
    return 3 * (0.37 * steps**2 + seed).sin().view(shape)


def plain(value: Any) -> Any:
    """A result as JSON has it: of floats 9 digits, of other objects their fields."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, Tensor):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if value is None or isinstance(value, int | str):
        return value
    if isinstance(value, Path | torch.device | torch.dtype):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        values = {field.name: plain(getattr(value, field.name)) for field in fields(value)}
        return {type(value).__name__: values}
    return [plain(part) for part in value] if isinstance(value, Iterable) else type(value).__name__


def names_in(package: str, modules: str) -> dict[str, Any]:
    """What these modules of a package define and import, by name."""
    parts = (vars(import_module(f"{package}.{module}")) for module in modules.split())
    return {name: value for part in parts for name, value in part.items()}


def result_of(call: str, names: dict[str, Any]) -> Any:
    """What a call gives or raises."""
    try:
        return plain(eval(call, dict(names)))
    except RegardError as error:
        return f"{type(error).__name__}: {error}"


@cache
def calls(name: str) -> dict[str, Any]:
    """The calls of a file with their results."""
    return json.loads(Path(__file__).with_name("calls").joinpath(f"{name}.json").read_text())


def check(result: Any, expected: Any) -> None:
    """Compare a result with the stored one, floats to 6 digits and all else exactly."""
    texts = json.dumps(result), json.dumps(expected)
    found, wanted = ([float(number) for number in FLOAT.findall(text)] for text in texts)
    assert FLOAT.sub("#", texts[0]) == FLOAT.sub("#", texts[1])
    assert found == pytest.approx(wanted, rel=1e-6, abs=1e-9)


def write(name: str, names: dict[str, Any]) -> None:
    """Store what the calls of a file give now."""
    results = {call: result_of(call, names) for call in calls(name)}
    lines = [f"{json.dumps(call)}: {json.dumps(result)}" for call, result in results.items()]
    path = Path(__file__).with_name("calls") / f"{name}.json"
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
