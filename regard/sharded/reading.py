"""The parts of an output folder, read one after another in the order of the input."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from regard.errors import CheckpointError, ConfigError
from regard.sharded.manifest import ALL_FAILED, ShardManifest, read_manifest


@dataclass(frozen=True)
class FileResults:
    """The results in a folder: one for each row of the input, in its order.

    Looping gives a row at a time: a mapping by column for jsonl and parquet, a text for txt, a
    vector (D,) for safetensors. Of a row without a result the prediction is None, an empty text, or
    NaN.
    """

    folder: Path
    manifest: ShardManifest

    def __repr__(self) -> str:
        return f"FileResults({str(self.folder)!r}: {self.manifest.task.method}, {len(self):,} rows)"

    @property
    def files(self) -> list[Path]:
        """The parts, in order."""
        return [self.manifest.part_file(self.folder, n) for n in range(self.manifest.count)]

    def __len__(self) -> int:
        return self.manifest.rows

    def __iter__(self) -> Iterator[Any]:
        for file in self.files:
            yield from _rows(file)

    def vectors(self) -> np.ndarray:
        """All vectors in memory, (rows, D).

        Raises:
            ConfigError: the results are no vectors.
        """
        method = self.manifest.task.method
        if method != "embed":
            raise ConfigError(f"{self.folder} holds the results of {method}, which are no vectors.")
        rows = [row["vector"] if isinstance(row, dict) else row for row in self]
        width = next((len(vector) for vector in rows if vector is not None), 0)
        missing = np.full(width, np.nan, np.float32)
        vectors = [missing if vector is None else vector for vector in rows]
        return np.asarray(vectors, np.float32).reshape(len(vectors), width)

    def failed(self) -> Iterator[dict[str, Any]]:
        """The rows without a result: `file`, `line` and `reason`."""
        with (self.folder / ALL_FAILED).open(encoding="utf-8") as lines:
            yield from map(json.loads, lines)


def iter_results(folder: str | PathLike[str]) -> FileResults:
    """The results in an output folder of `regard embed`, `predict` and so on with `--workers`.

    Raises:
        CheckpointError: there is no such folder, or it is not complete.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    if missing := manifest.missing(folder):
        raise CheckpointError(
            f"{folder} is not complete: {len(missing):,} of {manifest.count:,} parts are missing. "
            "Run the command that has begun it again."
        )
    return FileResults(folder, manifest)


def _rows(file: Path) -> Any:
    if file.suffix == ".safetensors":
        from safetensors.numpy import load_file

        return load_file(file)["vectors"]
    if file.suffix == ".parquet":
        from pyarrow import parquet

        return parquet.read_table(file).to_pylist()
    lines = file.read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line) for line in lines] if file.suffix == ".jsonl" else lines
