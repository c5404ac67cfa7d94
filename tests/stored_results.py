"""What statements about a folder of `regard` give, as tests/results/FOLDER.json stores it.

A file has sections of statements with their results. Those of a section run in their order, in an
empty working folder, after a seed; they see the names of the statements before, all that
tests/test_FOLDER_results.py defines, the modules of the folder by their last names, and some
libraries and helpers (`names`). To add a case, add `"statement": null` and run

    python tests/stored_results.py [FOLDER...]

which writes all results anew: whoever changes one sees it in the difference.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import chdir
from dataclasses import fields, is_dataclass, replace
from functools import cache
from hashlib import sha256
from importlib import import_module
from itertools import islice
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import numpy as np
import pytest
import torch

from regard.errors import RegardError
from regard.metrics.score import Scores

RESULTS = Path(__file__).with_name("results")
FLOAT = re.compile(r"-?\d+\.\d+(?:e[+-]?\d+)?|-?\d+e[+-]?\d+")
WRITE = "If the change is meant, write the results anew: python tests/stored_results.py"
# Warnings of torch, and of an installation without the package of kernels.
OF_THE_MACHINE = ("Triggered internally", "no compiled kernels")
Sections = dict[str, dict[str, Any]]  # name -> statements with their results


@cache
def stored(folder: str) -> Sections:
    """The sections of the file of a folder."""
    return json.loads((RESULTS / f"{folder}.json").read_text(encoding="utf-8"))


def waves(*shape: int, seed: int = 0) -> torch.Tensor:
    """Numbers from -3 to 3 of which no two are alike."""
    steps = torch.arange(1, torch.Size(shape).numel() + 1, dtype=torch.float64)
    return 3 * (0.37 * steps**2 + seed).sin().view(shape)


@cache
def sines(count: int) -> torch.Tensor:
    """Numbers of which no two are alike."""
    return torch.arange(1, count + 1, dtype=torch.float64).sin()


def digest(tensors: Iterable[torch.Tensor]) -> float:
    """One number in which every element of the tensors counts, and its place; their norm keeps it
    from being small beside the rounding of the elements.
    """
    flat = torch.cat([tensor.detach().double().flatten() for tensor in tensors])
    flat = flat.nan_to_num(0.5, 2.0, -3.0).asinh()
    return float(2 * flat.norm() + flat @ sines(2 ** len(flat).bit_length())[: len(flat)])


def of_tensor(tensor: torch.Tensor, most: int = 12) -> Any:
    """The values of a tensor of so many at most; of a larger one its type, sizes and a digest."""
    if tensor.is_meta:
        return [str(tensor.dtype), *tensor.shape]
    exact = not (tensor.is_floating_point() or tensor.is_complex())
    if tensor.numel() <= (64 if exact else most):
        return plain(tensor.tolist())
    values = sha256(str(tensor.tolist()).encode()).hexdigest()[:12] if exact else digest([tensor])
    return [str(tensor.dtype), *tensor.shape, plain(values)]


def plain(value: Any) -> Any:
    """A value as JSON has it: floats with 9 digits, other objects as their type and fields."""
    if value is None or isinstance(value, bool | int | str):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, np.generic | np.ndarray):
        numbers = value.dtype.kind in "biuf" and value.size
        return of_tensor(torch.as_tensor(value)) if numbers else plain(value.tolist())
    if isinstance(value, torch.Tensor):
        return of_tensor(value)
    if isinstance(value, torch.nn.Module):
        weights = {name: of_tensor(part, 0) for name, part in value.state_dict().items()}
        return {type(value).__name__: weights}
    if isinstance(value, Scores):
        return {"Scores": [plain(value.named), plain(value.outputs)]}
    if isinstance(value, Path | torch.device | torch.dtype):
        return str(value)
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}"
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if is_dataclass(value) and not isinstance(value, type | Sequence):
        values = {field.name: getattr(value, field.name) for field in fields(value)}
        return {type(value).__name__: plain(values)}
    if isinstance(value, set | frozenset):
        return sorted(map(plain, value), key=str)
    if isinstance(value, Iterable) and not isinstance(value, bytes | type):
        endless = isinstance(value, Iterator)
        return [*map(plain, islice(value, 40) if endless else value)]
    text = repr(value)
    return type(value).__name__ if " at 0x" in text else text


def put(content: Any, *parts: str) -> Path:
    """Write a file of this text, of these bytes, or of JSON."""
    path = Path(*parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = content if isinstance(content, str | bytes) else json.dumps(content)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def fed(metric: Any, *portions: Any) -> Any:
    """The result of a metric to which these portions are added."""
    for portion in portions:
        metric.add(*portion)
    return metric.result()


def names(folder: str) -> dict[str, Any]:
    """What the statements of a folder know."""
    package = import_module(f"regard.{folder}")
    paths = [module.name for module in walk_packages(package.__path__, f"regard.{folder}.")]
    modules = {path.rpartition(".")[2]: import_module(path) for path in paths}
    libraries = {"torch": torch, "np": np, "json": json, "Path": Path, "replace": replace}
    helpers = {"put": put, "fed": fed, "plain": plain, "digest": digest, "place": Path()}
    own = vars(import_module(f"test_{folder}_results"))
    return {folder: package, **modules, **libraries, **helpers, **own}


def result_of(statement: str, known: dict[str, Any]) -> Any:
    """What a statement gives, or which error, and its warnings with the files that they point at.
    An unknown name is a mistake in the statement.
    """
    run = eval if isinstance(ast.parse(statement).body[0], ast.Expr) else exec
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            result = plain(run(statement, known))
        except (NameError, ImportError):
            raise
        except Exception as error:
            result = f"raises {type(error).__name__}"
            result += f": {error}" if isinstance(error, RegardError) else ""
    texts = [f"{Path(warning.filename).stem}: {warning.message}" for warning in warned]
    texts = [text for text in texts if not any(part in text for part in OF_THE_MACHINE)]
    return {"result": result, "warnings": texts} if texts else result


def computed(folder: str, statements: Iterable[str]) -> dict[str, Any]:
    """The statements of a section with what they give now."""
    with (
        tempfile.TemporaryDirectory() as place,
        chdir(place),
        pytest.MonkeyPatch.context() as patch,
    ):
        known = {**names(folder), "patch": patch.setattr}
        torch.manual_seed(1)
        results = {statement: result_of(statement, known) for statement in statements}
        return json.loads(json.dumps(results).replace(os.getcwd(), "PLACE"))


def differences(before: Any, now: Any, where: str = "", rel: float = 1e-6) -> Iterator[str]:
    """Where two results differ; floats, also those in texts, by more than rounding."""
    kinds = {type(before), type(now)}
    if kinds == {dict} and [*before] == [*now]:
        for name, part in before.items():
            yield from differences(part, now[name], f"{where}[{name!r}]", rel)
    elif kinds == {list} and len(before) == len(now):
        rel = 1e-5 if before[:1] in (["torch.float32"], ["torch.bfloat16"]) else rel
        for place, part in enumerate(before):
            yield from differences(part, now[place], f"{where}[{place}]", rel)
    elif before != now or len(kinds) > 1:
        texts = json.dumps(before), json.dumps(now)
        numbers = [[*map(float, FLOAT.findall(text))] for text in texts]
        same = FLOAT.sub("#", texts[0]) == FLOAT.sub("#", texts[1])
        if not same or numbers[1] != pytest.approx(numbers[0], rel=rel, abs=1e-9):
            yield f"    {where} was {texts[0]}\n    {where} is  {texts[1]}"


def check(folder: str, section: str) -> None:
    """Compare the results of a section with those of the file."""
    rows = stored(folder)[section]
    changed = [
        f"  {statement}\n" + "\n".join(where)
        for statement, result in computed(folder, rows).items()
        if (where := [*differences(rows[statement], result)])
    ]
    title = f"Of {section!r} in tests/results/{folder}.json, {len(changed)} of {len(rows)} changed:"
    assert not changed, "\n".join([title, *changed, f"{WRITE} {folder}"])


def each_section(folder: str) -> pytest.MarkDecorator:
    """Parametrize a test with the sections of the file of a folder."""
    return pytest.mark.parametrize("section", stored(folder))


def write(folder: str) -> None:
    """Store what the statements of a folder give now."""
    blocks = []
    for section, rows in stored(folder).items():
        results = computed(folder, rows).items()
        lines = [f"{json.dumps(name)}: {json.dumps(result)}" for name, result in results]
        blocks.append(f"{json.dumps(section)}: {{\n" + ",\n".join(lines) + "\n}")
    path = RESULTS / f"{folder}.json"
    path.write_text("{\n" + ",\n".join(blocks) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    for chosen in sys.argv[1:] or sorted(path.stem for path in RESULTS.glob("*.json")):
        write(chosen)
