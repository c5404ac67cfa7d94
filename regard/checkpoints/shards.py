"""A folder of tensors that several processes write together, each its part of every tensor.

    step-000500/  weights-00001-of-00004.safetensors ... memory-00004-of-00004.safetensors
                  index.json facts.json manifest.json

index.json says which tensors were cut by their first dimension: table -> name -> rows of each
process. The others are whole, in the file of the first process, or, under `random/`, belong to the
process that wrote them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from regard.errors import CheckpointError
from regard.schema import Fields, read_json

INDEX = "index.json"
OWN = "random/"  # tensors of each process by itself begin with this
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})")

Tables = dict[str, dict[str, Tensor]]
Rows = dict[str, dict[str, int]]  # table -> name -> rows that a process holds


class Index(Fields):
    """index.json: how many processes wrote the folder, and the rows of each in the cut tensors."""

    processes: int
    rows: dict[str, dict[str, list[int]]]


def shard_name(table: str, rank: int, size: int) -> str:
    """The name of a process' file of a table, without its ending."""
    return f"{table}-{rank + 1:05}-of-{size:05}"


def rows_of(tables: Mapping[str, Mapping[str, Tensor]]) -> Rows:
    """The rows of all tensors that have some, but those of each process by itself."""
    return {
        table: {
            name: tensor.size(0)
            for name, tensor in tensors.items()
            if tensor.dim() and not name.startswith(OWN)
        }
        for table, tensors in tables.items()
    }


def index_of(rows: list[Rows]) -> dict[str, object]:
    """What index.json says; a tensor that the first process alone holds is whole.

    rows: those of each process, in their order.
    """
    found: dict[str, dict[str, list[int]]] = {}
    for table, names in rows[0].items():
        held = [one.get(table, {}) for one in rows]
        shared = [name for name in names if any(name in one for one in held[1:])]
        found[table] = {name: [one.get(name, 0) for one in held] for name in shared}
    return {"processes": len(rows), "rows": found}


def joined(folder: Path, files: Mapping[str, Mapping[str, Tensor]], rank: int, size: int) -> Tables:
    """The tables of a folder from its files, with whole tensors.

    files: name without ending -> the tensors of the file
    rank, size: of the process that reads. Tensors of a process by itself are there only where as
        many processes have written.

    Raises:
        CheckpointError: a file is missing, or does not hold what index.json says.
    """
    index = read_json(folder / INDEX, Index)
    tables: Tables = {}
    for file, tensors in files.items():
        match = _SHARD.fullmatch(file)
        if match is None or int(match[3]) != index.processes:
            raise CheckpointError(f"{folder / file}.safetensors: index.json does not name it.")
        table, number = tables.setdefault(match[1], {}), int(match[2]) - 1
        cut = index.rows.get(match[1], {})
        for name, tensor in tensors.items():
            if name.startswith(OWN):
                if (number, index.processes) == (rank, size):
                    table[name] = tensor
            elif name not in cut:
                table[name] = tensor
    for one in tables.keys() & index.rows.keys():
        cut = index.rows[one]
        for name, rows in cut.items():
            shards = [files.get(shard_name(one, n, len(rows)), {}) for n in range(len(rows))]
            tables[one][name] = _cat(folder, one, name, shards, rows)
    return tables


def _cat(
    folder: Path, table: str, name: str, shards: list[Mapping[str, Tensor]], rows: list[int]
) -> Tensor:
    found = [shard[name] for shard, count in zip(shards, rows, strict=True) if name in shard]
    if sum(part.size(0) for part in found) != sum(rows):
        raise CheckpointError(
            f"{folder}: {table} must have {sum(rows)} rows of {name}, but has "
            f"{sum(part.size(0) for part in found)}."
        )
    return torch.cat(found)
