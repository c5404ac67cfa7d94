"""Tables of parameter names: ours <-> published.

    names = Names([
        ("embedding.weight", "shared.weight"),
        ("layers.{layer}.out.weight", "h.{layer}.c_proj.weight", transpose),
        (("layers.{layer}.query.weight", "layers.{layer}.key.weight"),
         "h.{layer}.qk.weight", split(2)),
    ], duplicates={"lm_head.weight": "shared.weight"}, ignored=["h.{layer}.mask"])
    model.load_state_dict(names.read(published, model.state_dict()))

A table is strict in both directions; see `Names`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.checkpoints.filling import Problems, Weights, check_finite
from regard.errors import warn

Column = str | tuple[str, ...]
LAYER = re.compile(r".*\.\d+\.")  # the part of a name up to the last number
INSIDE = (
    "extra in layers that this model computes without them, so that its results would be others "
    "(remove them if they are without effect)"
)
Tensors = list[Tensor]


@dataclass(frozen=True)
class Transform:
    """Two inverse functions: `read` published -> ours, `write` ours -> published.

    Both take and give a list, because one published tensor may hold several of ours.
    """

    read: Callable[[Tensors], Tensors]
    write: Callable[[Tensors], Tensors]

    def then(self, after: Transform) -> Transform:
        """Reading applies this transform and then `after`; writing applies the inverses."""
        return Transform(
            read=lambda tensors: after.read(self.read(tensors)),
            write=lambda tensors: self.write(after.write(tensors)),
        )

    def reversed(self) -> Transform:
        """The inverse: ours and published exchanged."""
        return Transform(read=self.write, write=self.read)


def _transposed(tensors: Tensors) -> Tensors:
    return [tensor.t() for tensor in tensors]


def only_read(read: Callable[[Tensors], Tensors]) -> Transform:
    """The transform of a layout that is not written."""

    def write(tensors: Tensors) -> Tensors:
        raise NotImplementedError("this layout is not written")

    return Transform(read, write)


keep = Transform(read=list, write=list)  # the tensors are equal on both sides

# Matrices stored (in, out) there and (out, in) here, as in GPT-2's Conv1D.
transpose = Transform(read=_transposed, write=_transposed)


def split(parts: int) -> Transform:
    """One published tensor holds `parts` equal blocks of rows, each a tensor of ours.

    `split(3)` reads a packed query-key-value matrix; `split(3).reversed()` is for a model whose own
    tensor is packed while there are three published ones.

    Raises:
        ValueError: when read, there are no such parts; when written, shapes differ.
    """

    def read(tensors: Tensors) -> Tensors:
        (packed,) = tensors
        if len(packed) % parts:
            raise ValueError(f"the rows of {tuple(packed.shape)} have no {parts} equal parts")
        return list(packed.chunk(parts))

    def write(tensors: Tensors) -> Tensors:
        shapes = {tuple(tensor.shape) for tensor in tensors}
        if len(shapes) > 1:  # the size of the packed tensor may be right all the same
            raise ValueError(f"the parts must have one shape, but have {sorted(shapes)}")
        return [torch.cat(tensors)]

    return Transform(read, write)


def interleave(dim: int = 0) -> Transform:
    """Their order (s1 s2 … c1 c2 …) along `dim` becomes ours (s1 c1 s2 c2 …)."""

    def reordered(tensor: Tensor, sizes: tuple[int, int]) -> Tensor:
        return tensor.unflatten(dim, sizes).transpose(dim, dim + 1).flatten(dim, dim + 1)

    return Transform(
        read=lambda tensors: [reordered(t, (2, -1)) for t in tensors],
        write=lambda tensors: [reordered(t, (-1, 2)) for t in tensors],
    )


# --------------------------------------------------------------------------------------- tables


@dataclass(frozen=True)
class NameRow:
    """Names of ours and published ones that hold the same numbers, related by a transform."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    transform: Transform

    @classmethod
    def of(cls, ours: Column, theirs: Column, transform: Transform = keep) -> NameRow:
        """A row as `Names` takes it, where a column may be a single name."""
        ours, theirs = (
            (column,) if isinstance(column, str) else tuple(column) for column in (ours, theirs)
        )
        return cls(ours, theirs, transform)


class Names:
    """A table between our parameter names and published ones.

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
        self.rows = [NameRow.of(*row) for row in rows]
        self.tied = dict(tied or {})
        self.duplicates = dict(duplicates or {})
        self.ignored = [_pattern(name) for name in (*ignored, *zero)]
        self.zero = [_pattern(name) for name in zero]

    def read(
        self,
        published: Weights,
        ours: Weights,
        described_by: str = "config.json",
    ) -> dict[str, Tensor]:
        """Published tensors under our names; a warning names those that the model does not read.

        ours: the state dict of the model to fill; gives the names and shapes to expect (tensors on
            the meta device will do).
        described_by: the file that says what model it is, for errors.

        Raises:
            CheckpointError: tensors are missing, not finite, or of a wrong type or shape; or they
                belong to a layer of the model that does not read them. All of them are named.
        """
        title = f"published weights do not fit the model that {described_by} describes"
        problems = Problems(title)
        alone = {o: published[name] for name, o in self.duplicates.items() if name in published}
        published = {**alone, **published}
        result: dict[str, Tensor] = {}
        used = set(self.duplicates)
        for row, here, there in self.filled(ours, problems):
            used.update(there)
            absent = [name for name in there if name not in published]
            if absent:
                problems.add("missing", *(f"{name} (for {', '.join(here)})" for name in absent))
                continue
            for name in there:  # before they are packed, which would give them one type
                problems.add_type(name, published[name], ours[here[0]])
            for name, tensor in zip(
                here, _converted(row.transform.read, published, there, here, problems), strict=False
            ):
                problems.add_shape(name, tensor, ours[name], ", ".join(there))
                result[name] = tensor
        unread = [n for n in published if n not in used and not _matches(n, self.ignored)]
        inside = [name for name in unread if is_inside(name, used)]
        problems.add(INSIDE, *inside)
        self._check_values(published, problems)
        problems.raise_any()
        if unread:
            more = f" and {len(unread) - 8} more" if len(unread) > 8 else ""
            warn(
                "Tensors that this model does not read, nor its class in transformers: "
                f"{', '.join(unread[:8])}{more}.",
            )
        result |= {name: result[original] for name, original in self.tied.items() if name in ours}
        check_finite({name: published[name] for name in published if name in used})
        return result

    def write(self, ours: Weights) -> dict[str, Tensor]:
        """Our tensors under their published names: the inverse of `read`, and as strict.

        Duplicates are left out, as `save_pretrained` does with tied weights.

        Raises:
            CheckpointError: tensors are not in the table or missing, or tied ones differ.
        """
        problems = Problems("weights do not fit the table of published names")
        result: dict[str, Tensor] = {}
        for row, here, there in self.filled(ours, problems):
            tensors = _converted(row.transform.write, ours, here, there, problems)
            result.update(zip(there, (t.contiguous() for t in tensors), strict=False))
        for name, original in self.tied.items():
            if name in ours and not (original in ours and torch.equal(ours[name], ours[original])):
                problems.add("differs", f"{name} must equal {original}: they are tied")
        problems.raise_any()
        return result

    def without_prefixes(self, ours: str = "", theirs: str = "") -> Names:
        """The table of a model whose names lack these prefixes."""

        def cut(names: tuple[str, ...], prefix: str) -> tuple[str, ...]:
            return tuple(name.removeprefix(prefix) for name in names)

        made = Names(
            [(cut(row.ours, ours), cut(row.theirs, theirs), row.transform) for row in self.rows],
            tied=dict(cut(pair, ours) for pair in self.tied.items()),  # type: ignore[misc]
            duplicates=dict(cut(pair, theirs) for pair in self.duplicates.items()),  # type: ignore
        )
        made.ignored, made.zero = self.ignored, self.zero
        return made

    def filled(
        self, ours: Weights, problems: Problems | None = None
    ) -> Iterator[tuple[NameRow, tuple[str, ...], tuple[str, ...]]]:
        """Each row with its names for this model: (row, ours, theirs).

        ours: the state dict of the model.  problems: where names without a row are noted.
        """
        problems = problems or Problems("")
        covered = set(self.tied)
        for row in self.rows:
            pattern = _pattern(row.ours[0])
            numbers_of_layers = [
                match.groupdict() for name in ours if (match := pattern.fullmatch(name))
            ]
            if not numbers_of_layers and "{" not in row.ours[0]:
                problems.add("missing here", row.ours[0])
            for numbers in numbers_of_layers:
                here, there = (
                    tuple(name.format(**numbers) for name in column)
                    for column in (row.ours, row.theirs)
                )
                absent = [name for name in here if name not in ours]
                covered.update(here)
                problems.add("missing here", *absent)
                if not absent:
                    yield row, here, there
        problems.add("not in the table", *(name for name in ours if name not in covered))

    def _check_values(self, published: Weights, problems: Problems) -> None:
        """Duplicates must be equal, and parts that our model does not have zero; tensors on the
        meta device have no values.
        """
        published = {name: tensor for name, tensor in published.items() if not tensor.is_meta}
        for name, original in self.duplicates.items():
            if name in published and not torch.equal(published[name], published[original]):
                problems.add(
                    "differs",
                    f"{name} must equal {original}, for config.json ties them (to use both, write "
                    '"tie_word_embeddings": false there)',
                )
        for name, tensor in published.items():
            if _matches(name, self.zero) and bool(tensor.any()):
                problems.add("not zero", f"{name}: our model has no such part")


def is_inside(name: str, used: Collection[str]) -> bool:
    """Whether a tensor belongs to a layer, or to a module, of which other tensors are used."""
    layers = {match[0] for other in used if (match := LAYER.match(other))}
    modules = {other.rpartition(".")[0] for other in used}
    layer = LAYER.match(name)
    return name.rpartition(".")[0] in modules or (layer is not None and layer[0] in layers)


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


def _matches(name: str, patterns: Iterable[re.Pattern[str]]) -> bool:
    return any(pattern.fullmatch(name) for pattern in patterns)


def _converted(
    change: Callable[[Tensors], Tensors],
    source: Weights,
    names: tuple[str, ...],
    into: tuple[str, ...],
    problems: Problems,
) -> Tensors:
    """The tensors of one row after its transform; a transform that fails is a wrong shape."""
    try:
        changed = change([source[name] for name in names])
    except (RuntimeError, ValueError, IndexError) as error:
        problems.add("wrong shape", f"{', '.join(names)} -> {', '.join(into)}: {error}")
        return []
    assert len(changed) == len(into), f"row {names} -> {into} gives {len(changed)} tensors"
    return changed
