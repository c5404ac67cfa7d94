"""Weights on disk: read and written safely, published names through one table.

Three things live here, and nothing about models or training:

- `Names`: a two-column table between our parameter names and published ones, strict both ways.
- `read_tensors`, `write_tensors`: safetensors files (never pickle), written atomically;
  `load_weights` fills a model with them, strictly, and `adopt` without a copy.
- `write_folder`, `read_folder`: a folder of tensors and facts that is either complete or absent,
  with a manifest of sha256 sums that is verified when the folder is read.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.errors import CheckpointError
from regard.file_pages import is_releasing, release
from regard.schema import Fields, read_json

# ----------------------------------------------------------------------------------------------
# Transforms: how the tensors of one row of the table become each other
# ----------------------------------------------------------------------------------------------

Tensors = list[Tensor]


@dataclass(frozen=True)
class Transform:
    """Two functions that undo each other: `read` published -> ours, `write` ours -> published.

    Both take and give a list, because one published tensor may hold several of ours.
    """

    read: Callable[[Tensors], Tensors]
    write: Callable[[Tensors], Tensors]

    def then(self, after: Transform) -> Transform:
        """Reading applies this transform and then `after`; writing goes the way back."""
        return Transform(
            read=lambda tensors: after.read(self.read(tensors)),
            write=lambda tensors: self.write(after.write(tensors)),
        )

    def reversed(self) -> Transform:
        """The same transform with the roles of ours and published exchanged."""
        return Transform(read=self.write, write=self.read)


def _transposed(tensors: Tensors) -> Tensors:
    return [tensor.t() for tensor in tensors]


keep = Transform(read=list, write=list)
"""The tensors are equal on both sides."""

transpose = Transform(read=_transposed, write=_transposed)
"""Matrices stored (in, out) there and (out, in) here, as in GPT-2's Conv1D."""


def split(parts: int, dim: int = 0) -> Transform:
    """One published tensor holds `parts` equal blocks along `dim`, each a tensor of ours.

    `split(3)` reads a fused query-key-value matrix; `split(3).reversed()` is for a model whose own
    tensor is fused while the published ones are apart.
    """

    def read(tensors: Tensors) -> Tensors:
        (fused,) = tensors
        if fused.shape[dim] % parts:
            raise ValueError(f"dimension {dim} of {tuple(fused.shape)} has no {parts} equal parts")
        return list(fused.chunk(parts, dim))

    def write(tensors: Tensors) -> Tensors:
        shapes = {tuple(tensor.shape) for tensor in tensors}
        if len(shapes) > 1:  # their sum may fit all the same
            raise ValueError(f"the parts must have one shape, but have {sorted(shapes)}")
        return [torch.cat(tensors, dim)]

    return Transform(read, write)


def reorder(order: Sequence[int], dim: int = 0) -> Transform:
    """Equal blocks along `dim` come in another order: block i of ours is their block `order[i]`.

    A gate order of (input, forget, cell, output) against (input, forget, output, cell) is
    `reorder((0, 1, 3, 2))`.
    """
    back = [order.index(i) for i in range(len(order))]

    def moved(tensors: Tensors, places: Sequence[int]) -> Tensors:
        (tensor,) = tensors
        blocks = tensor.chunk(len(places), dim)
        return [torch.cat([blocks[i] for i in places], dim)]

    return Transform(lambda tensors: moved(tensors, order), lambda tensors: moved(tensors, back))


# ----------------------------------------------------------------------------------------------
# Names: the table
# ----------------------------------------------------------------------------------------------

Column = str | tuple[str, ...]
Indices = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class _Row:
    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    transform: Transform


class Names:
    """A table between our parameter names and published ones, strict in both directions.

    >>> names = Names([
    ...     ("embedding.weight", "shared.weight"),
    ...     ("layers.{layer}.out.weight", "h.{layer}.c_proj.weight", transpose),
    ...     (("layers.{layer}.query.weight", "layers.{layer}.key.weight"),
    ...      "h.{layer}.qk.weight", split(2)),
    ... ], duplicates={"lm_head.weight": "shared.weight"}, ignored=["h.{layer}.mask"])

    A word in braces stands for a number and must be the same across the row.

    rows: (ours, theirs) or (ours, theirs, transform); a column is a name or a tuple of names.
    tied: names of ours that hold the same tensor as another name of ours; never published.
    duplicates: published names that must equal another published name, where both are present;
        where only the duplicate is, it stands for the other (files hold a shared tensor once).
    ignored: published names that carry nothing (buffers, computed tables); may be present.
    zero: published names of what our model does not have; may be present, but only with zeros.
    """

    def __init__(
        self,
        rows: Iterable[tuple],
        *,
        tied: Mapping[str, str] | None = None,
        duplicates: Mapping[str, str] | None = None,
        ignored: Sequence[str] = (),
        zero: Sequence[str] = (),
    ):
        self.rows = [_row(*row) for row in rows]
        self.tied = dict(tied or {})
        self.duplicates = dict(duplicates or {})
        self.ignored = [_pattern(name) for name in (*ignored, *zero)]
        self.zero = [_pattern(name) for name in zero]

    def read(self, published: Mapping[str, Tensor], ours: Mapping[str, Tensor]) -> dict:
        """Published tensors under our names, ready for `load_state_dict`.

        ours: the state dict of the model to fill; gives the names and shapes to expect (tensors on
            the meta device will do).
        Raises CheckpointError naming every tensor that is missing, left over or of a wrong shape.
        """
        problems = _Problems("published weights do not fit the model that config.json describes")
        kept = {o: published[name] for name, o in self.duplicates.items() if name in published}
        published = {**kept, **published}
        result: dict[str, Tensor] = {}
        origin: dict[str, str] = {}
        used = set(self.duplicates)
        for row, here, there in self._pairs(ours, problems):
            used.update(there)
            origin.update(dict.fromkeys(here, ", ".join(there)))
            absent = [name for name in there if name not in published]
            if absent:
                problems.add("missing", *(f"{name} (for {', '.join(here)})" for name in absent))
                continue
            for name in there:  # before they are joined, which would make them of one type
                problems.add_type(name, published[name], ours[here[0]])
            tensors = _converted(row.transform.read, published, there, here, problems)
            result.update(zip(here, tensors, strict=False))
        problems.add("extra", *(n for n in published if n not in used and not self._ignores(n)))
        self._check_duplicates(published, problems)
        self._check_zeros(published, problems)
        for name, original in self.tied.items():
            if name in ours and original in result:
                result[name] = result[original]
        for name, tensor in result.items():
            problems.add_shape(name, tensor, ours[name], origin.get(name))
        problems.raise_any()
        check_finite({name: published[name] for name in published if name in used})
        return result

    def write(self, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Our tensors under their published names: the way back of `read`, and as strict.

        Duplicates are left out, as `save_pretrained` does with tied weights.
        """
        problems = _Problems("weights do not fit the table of published names")
        result: dict[str, Tensor] = {}
        for row, here, there in self._pairs(ours, problems):
            tensors = _converted(row.transform.write, ours, here, there, problems)
            result.update(zip(there, (t.contiguous() for t in tensors), strict=False))
        for name, original in self.tied.items():
            if name in ours and not _equal(ours[name], ours.get(original)):
                problems.add("differs", f"{name} must equal {original}: they are tied")
        problems.raise_any()
        return result

    def _pairs(
        self, ours: Mapping[str, Tensor], problems: _Problems
    ) -> Iterator[tuple[_Row, tuple[str, ...], tuple[str, ...]]]:
        """Each row with the names that its placeholders give for this model."""
        covered = set(self.tied)
        for row in self.rows:
            found = _bindings(row.ours[0], ours)
            if not found and "{" not in row.ours[0]:
                problems.add("missing here", row.ours[0])
            for indices in found:
                here, there = _filled(row.ours, indices), _filled(row.theirs, indices)
                absent = [name for name in here if name not in ours]
                covered.update(here)
                problems.add("missing here", *absent)
                if not absent:
                    yield row, here, there
        problems.add("not in the table", *(name for name in ours if name not in covered))

    def _ignores(self, name: str) -> bool:
        return any(pattern.fullmatch(name) for pattern in self.ignored)

    def _check_duplicates(self, published: Mapping[str, Tensor], problems: _Problems) -> None:
        for name, original in self.duplicates.items():
            if name in published and original in published:
                if not _equal(published[name], published[original]):
                    problems.add("differs", f"{name} must equal {original}: they are tied")

    def _check_zeros(self, published: Mapping[str, Tensor], problems: _Problems) -> None:
        for name, tensor in published.items():
            if any(pattern.fullmatch(name) for pattern in self.zero) and bool(tensor.any()):
                problems.add("not zero", f"{name}: our model has no such part")


class _Problems:
    """Collects every misfit, so that the user sees them at once and not one per attempt."""

    def __init__(self, title: str, limit: int = 8):
        self.title, self.limit = title, limit
        self.kinds: dict[str, list[str]] = {}

    def add(self, kind: str, *names: str) -> None:
        if names:
            self.kinds.setdefault(kind, []).extend(names)

    def add_shape(
        self, name: str, tensor: Tensor, expected: Tensor, origin: str | None = None
    ) -> None:
        if tensor.shape != expected.shape:
            must, got = tuple(expected.shape), tuple(tensor.shape)
            of = f" (from {origin})" if origin else ""
            self.add("wrong shape", f"{name} must be {must}, but is {got}{of}")

    def add_type(self, name: str, tensor: Tensor, expected: Tensor) -> None:
        """Any type of `FLOATS` where a parameter stands; else the very type."""
        floating = expected.is_floating_point()
        if tensor.dtype not in FLOATS if floating else tensor.dtype != expected.dtype:
            must = "floating point" if floating else f"of type {expected.dtype}"
            self.add(f"not {must}", f"{name} is {tensor.dtype}")

    def raise_any(self) -> None:
        if not self.kinds:
            return
        lines = [self.title + ":"]
        for kind, names in self.kinds.items():
            more = f", and {len(names) - self.limit} more" if len(names) > self.limit else ""
            lines.append(f"  {kind}: {', '.join(names[: self.limit])}{more}")
        raise CheckpointError("\n".join(lines))


AT_ONCE = 1 << 22  # numbers that are looked at before they are given back
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def check_finite(tensors: Mapping[str, Tensor]) -> None:
    """Look for numbers that are infinite or none; it takes 0.1 seconds a gigabyte.

    Raises:
        CheckpointError: there are some, or some that float32 cannot hold; the message names the
            tensors and the first index of each.
    """
    problems = _Problems("weights must be finite numbers in float32, but some are not")
    largest = torch.finfo(torch.float32).max
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        if not all(_is_within(part, largest) for part in _parts(tensor.detach())):
            wrong = ~(tensor.detach().double().abs() <= largest)
            index = wrong.nonzero()[0].tolist()
            problems.add(
                "not finite",
                f"{name}{index} is {float(tensor[tuple(index)])} ({int(wrong.sum()):,} such)",
            )
    problems.raise_any()


def _is_within(tensor: Tensor, largest: float) -> bool:
    """Whether all numbers are; the least and the greatest are NaN where one is: no copy is made."""
    least, most = (float(value) for value in torch.aminmax(tensor))
    return -largest <= least and most <= largest


def _parts(tensor: Tensor) -> Iterator[Tensor]:
    """A tensor whole, or piece by piece where what was read is given back."""
    if not is_releasing() or not tensor.is_contiguous():
        yield tensor
        return
    for part in tensor.view(-1).split(AT_ONCE):
        yield part
        release(part)


def _row(ours: Column, theirs: Column, transform: Transform = keep) -> _Row:
    def column(names: Column) -> tuple[str, ...]:
        return (names,) if isinstance(names, str) else tuple(names)

    return _Row(column(ours), column(theirs), transform)


def _pattern(template: str) -> re.Pattern[str]:
    """`a.{n}.b` matches `a.12.b`; a placeholder that comes twice must match the same number."""
    seen: set[str] = set()
    parts = []
    for text, name in re.findall(r"([^{]*)(?:\{(\w+)\})?", template):
        parts.append(re.escape(text))
        if name:
            parts.append(f"(?P={name})" if name in seen else rf"(?P<{name}>\d+)")
            seen.add(name)
    return re.compile("".join(parts))


def _bindings(template: str, names: Iterable[str]) -> list[Indices]:
    pattern = _pattern(template)
    matches = (pattern.fullmatch(name) for name in names)
    return [tuple(match.groupdict().items()) for match in matches if match]


def _filled(templates: tuple[str, ...], indices: Indices) -> tuple[str, ...]:
    return tuple(template.format(**dict(indices)) for template in templates)


def _equal(first: Tensor, second: Tensor | None) -> bool:
    return second is not None and torch.equal(first, second)


def _converted(
    change: Callable[[Tensors], Tensors],
    source: Mapping[str, Tensor],
    names: tuple[str, ...],
    into: tuple[str, ...],
    problems: _Problems,
) -> Tensors:
    """The tensors of one row after its transform; a transform that fails is a wrong shape."""
    tensors = [source[name] for name in names]
    try:
        changed = change(tensors)
    except (RuntimeError, ValueError, IndexError) as error:
        problems.add("wrong shape", f"{', '.join(names)} -> {', '.join(into)}: {error}")
        return []
    if len(changed) != len(into):
        raise CheckpointError(
            f"row {names} -> {into} of the name table must give {len(into)} tensors, "
            f"but its transform gives {len(changed)}"
        )
    return changed


# ----------------------------------------------------------------------------------------------
# Files of tensors
# ----------------------------------------------------------------------------------------------


def distinct(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each tensor once, under its first name: tied parameters are stored a single time."""
    seen: set[tuple] = set()
    result = {}
    for name, tensor in tensors.items():
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        if tensor.numel() == 0 or tensor.is_meta or key not in seen:
            seen.add(key)
            result[name] = tensor
    return result


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write one safetensors file; it is there completely or, after any accident, not at all.

    Raises CheckpointError when the disk refuses; what stood at `path` before is then untouched.
    """
    temporary = path.with_name(f".{path.name}.writing")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _save(temporary, tensors)
        os.replace(temporary, path)
        _sync(path.parent)
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        raise _unwritten(path, error) from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of one safetensors file. Raises CheckpointError when it cannot be read."""
    if path.exists() and not path.is_file():  # opening a named pipe would wait for ever
        raise CheckpointError(f"{path}: must be a file, but is a folder, a pipe or a device.")
    try:
        return load_file(path)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: there is no such file of weights.") from None
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: not a whole safetensors file: {error}.") from error


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Fill a model with tensors named as in its state dict; tied names may be left out.

    Raises CheckpointError naming all that is missing, left over or of another shape.
    """
    check_fit(model, tensors)
    model.load_state_dict(dict(tensors), strict=False)


def check_fit(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Compare names and shapes with a model's; tied names may be left out.

    Raises CheckpointError naming all that is missing, left over or of another shape.
    """
    expected = model.state_dict()
    problems = _Problems("weights do not fit the model that config.json describes")
    problems.add("missing", *(name for name in distinct(expected) if name not in tensors))
    problems.add("extra", *(name for name in tensors if name not in expected))
    for name in expected.keys() & tensors.keys():
        problems.add_shape(name, tensors[name], expected[name])
        problems.add_type(name, tensors[name], expected[name])
    problems.raise_any()


def adopt(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Fill a new model with tensors that fit it: they become its parameters, uncopied.

    Of a mapped file only what is computed with is then ever read. What is of another type, does
    not lie line after line, or is a parameter already, is copied. Tied parameters stay tied.
    """
    places = model.state_dict(keep_vars=True)
    taken: dict[int, Tensor] = {}
    with torch.no_grad():
        for name, tensor in tensors.items():
            place = places[name]
            free = taken.setdefault(tensor.data_ptr(), place) is place
            lies = tensor.is_contiguous() or is_releasing()  # slices of it are copied later
            if free and tensor.dtype == place.dtype and lies:
                place.data = tensor.detach()
            else:
                place.copy_(tensor)


class Undrawn(TorchFunctionMode):
    """Inside, no first values are drawn, which would take longer than to read those of a file.

    weights: those that the model is for. Parameters that together have far more numbers than they
        are refused before there is memory for them.
    """

    SPARE = 2**20  # numbers: 4 MB
    PRUNED = 4  # a model is built with all its heads, and its weights may have a few of them

    def __init__(self, weights: Mapping[str, Tensor] | None = None):
        super().__init__()
        self.numbers = None if weights is None else sum(t.numel() for t in weights.values())
        self.made = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Leave out what draws numbers."""
        if getattr(func, "__name__", "").endswith(("normal_", "uniform_")):
            return args[0] if args else (kwargs or {})["tensor"]
        if func is torch.empty and self.numbers is not None:
            self._count(args[0] if args and not isinstance(args[0], int) else args)
        return func(*args, **(kwargs or {}))

    def _count(self, shape: Sequence[int]) -> None:
        self.made += math.prod(shape)
        if self.numbers is not None and self.made > self.PRUNED * self.numbers + self.SPARE:
            raise CheckpointError(
                f"config.json asks for a tensor of shape {tuple(shape)} and with it for "
                f"{self.made:,} parameters, but the weights have only {self.numbers:,}. Correct "
                "its sizes, or use the config.json that was saved with these weights."
            )


def _save(path: Path, tensors: Mapping[str, Tensor]) -> None:
    ready = {name: t.detach().cpu().contiguous() for name, t in distinct(tensors).items()}
    path.touch()
    mode = path.stat().st_mode  # as this process makes files; the library lets nobody else read
    save_file(ready, path, metadata={"format": "pt"})
    path.chmod(mode)
    _sync(path)


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unwritten(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"{path} could not be written: {error}. Nothing that was written before is lost; "
        "free some space or choose another disk."
    )


# ----------------------------------------------------------------------------------------------
# Folders of tensors and facts
# ----------------------------------------------------------------------------------------------

MANIFEST = "manifest.json"
FACTS = "facts.json"


class Manifest(Fields):
    """file -> the SHA-256 of its bytes."""

    sha256: dict[str, str]


def write_folder(
    folder: Path, tensors: Mapping[str, Mapping[str, Tensor]], facts: Mapping[str, Any]
) -> None:
    """Write a new folder of `<name>.safetensors` files and facts.json, complete or not at all.

    It is written beside its place, with a manifest of sha256 sums, forced to the disk and then
    renamed. Raises CheckpointError when the disk refuses; nothing is left behind in that case.
    """
    temporary = folder.with_name(f".{folder.name}.writing")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        for name, content in tensors.items():
            _save(temporary / f"{name}.safetensors", content)
        _write_json(temporary / FACTS, facts)
        sums = {path.name: _sha256(path) for path in sorted(temporary.iterdir())}
        _write_json(temporary / MANIFEST, {"sha256": sums})
        _sync(temporary)
        os.rename(temporary, folder)
        _sync(folder.parent)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise _unwritten(folder, error) from error


def verify_folder(folder: Path) -> None:
    """Compare every file with the manifest. Raises CheckpointError naming the file that differs."""
    try:
        sums = read_json(folder / MANIFEST, Manifest).sha256
    except OSError as error:
        raise CheckpointError(f"{folder / MANIFEST}: cannot be read: {error}.") from error
    for name, expected in sums.items():
        if name != Path(name).name:
            raise CheckpointError(f"{folder / MANIFEST}: {name!r} is not the name of a file in it.")
        try:
            actual = _sha256(folder / name)
        except OSError as error:
            raise CheckpointError(f"{folder / name}: cannot be read: {error}.") from error
        if actual != expected:
            raise CheckpointError(
                f"{folder / name} is damaged: its sha256 must be {expected[:12]}…, "
                f"but is {actual[:12]}…"
            )


def read_folder(folder: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """The tensors (by file, by name) and the facts of a folder, after it was verified."""
    verify_folder(folder)
    tensors = {path.stem: read_tensors(path) for path in sorted(folder.glob("*.safetensors"))}
    try:
        return tensors, read_json(folder / FACTS, finite=False)
    except OSError as error:
        raise CheckpointError(f"{folder / FACTS}: cannot be read: {error}.") from error


def write_text(path: Path, text: str) -> None:
    """Write a small text file atomically. Raises CheckpointError when the disk refuses."""
    temporary = path.with_name(f".{path.name}.writing")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        _sync(temporary)
        os.replace(temporary, path)
        _sync(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise _unwritten(path, error) from error


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    _sync(path)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
