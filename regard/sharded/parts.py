"""The file of a part: one row for each row of the input, in order, also for rows without a result.

safetensors   `vectors` (rows, D) in float32; NaN for a row without one
parquet       the columns of the input, and `vector` or those of the prediction
jsonl         a line of JSON for each row: its fields and the prediction
txt           a line for each row: the prediction, an empty line for a row without one

pyarrow itself drops fields that the columns lack, cuts 1.5 to 1 in a column of integers, and writes
True as 1.0: `table_of` raises errors instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.errors import CheckpointError, ConfigError, DataError, MissingExtra, check_choice
from regard.schema import to_json
from regard.sharded.manifest import ALL_FAILED, ShardManifest, read_manifest

if TYPE_CHECKING:
    import pyarrow


class UnfitValue(ValueError):
    """A column cannot hold a value as it is; the message says why, after the name of a file."""


def table_of(records: Sequence[Mapping[str, Any]], schema: pyarrow.Schema) -> pyarrow.Table:
    """A table with these columns; a row has null where a record lacks a field.

    Raises:
        UnfitValue: a record has another field, or a value of another type.
        UnicodeEncodeError: a text has lone surrogates.
    """
    import pyarrow

    if new := {name for record in records for name in record} - {*schema.names}:
        raise UnfitValue(f"has a field {min(new)!r}, which the first rows do not have.")
    for field in schema:
        for record in records:
            if not _keeps(field.type, value := record.get(field.name)):
                raise UnfitValue(
                    f"field {field.name!r} has another type than in the first rows: {value!r:.40} "
                    f"is no {field.type}."
                )
    try:
        return pyarrow.Table.from_pylist([*records], schema)
    except (pyarrow.ArrowException, TypeError, OverflowError) as error:
        problem = f"a value has another type than in the first rows: {error}."
        raise UnfitValue(problem) from None


def _keeps(kind: pyarrow.DataType, value: Any) -> bool:
    """Whether pyarrow writes a value into a column of this type as it is, or raises an error."""
    from pyarrow import types

    if value is None:
        return True
    if types.is_integer(kind):
        return not isinstance(value, float) or value.is_integer()
    if types.is_floating(kind):
        return not isinstance(value, bool)
    if types.is_struct(kind):
        fields = {field.name: field.type for field in kind}
        return isinstance(value, Mapping) and all(
            name in fields and _keeps(fields[name], item) for name, item in value.items()
        )
    if types.is_list(kind):
        return isinstance(value, list) and all(_keeps(kind.value_type, item) for item in value)
    return True


# -------------------------------------------------------------------------------------------- parts


VECTOR_FORMATS = ("safetensors", "parquet")  # the default first
PREDICTION_FORMATS = ("jsonl", "parquet", "txt")
HINT = "Write jsonl instead."
Record = Mapping[str, Any]


def format_of(method: str, format: str | None) -> str:
    """The format of the parts.

    Raises:
        ConfigError: the results of the method cannot be written so.
    """
    formats = VECTOR_FORMATS if method == "embed" else PREDICTION_FORMATS
    check_choice("format", format or formats[0], formats)
    return format or formats[0]


def safetensors_part(results: Sequence[Record | None], width: int) -> bytes:
    """The vectors (rows, D), NaN where there is none."""
    from safetensors.numpy import save

    whole = np.full((len(results), width), np.nan, np.float32)
    for number, result in enumerate(results):
        if result is not None:
            whole[number] = result["vector"]
    return save({"vectors": whole})


def lines_part(records: Sequence[Record], results: Sequence[Record | None], format: str) -> bytes:
    """Lines of "jsonl", whose prediction is null where there is none, or of "txt"."""
    if format == "jsonl":
        both = zip(records, results, strict=True)
        rows = [{**record, "prediction": None, **(result or {})} for record, result in both]
        return "".join(f"{to_json(row)}\n" for row in rows).encode("utf-8", "backslashreplace")
    texts = [str((result or {}).get("prediction", "")) for result in results]
    lines = (" ".join(text.splitlines()) + "\n" for text in texts)
    return "".join(lines).encode("utf-8", "backslashreplace")


def parquet_part(
    records: Sequence[Record], results: Sequence[Record | None], schema: Any, path: str
) -> bytes:
    """The file, with the columns of a `pyarrow.Schema`.

    path: of the file with the rows, for errors.

    Raises:
        DataError: the columns, which are those of the first rows, cannot hold a row.
    """
    import pyarrow
    from pyarrow import parquet

    both = zip(records, results, strict=True)
    try:
        table = table_of([{**record, **(result or {})} for record, result in both], schema)
    except (UnfitValue, UnicodeEncodeError) as error:
        raise DataError(path, None, str(error), HINT) from None
    file = pyarrow.BufferOutputStream()
    parquet.write_table(table, file)
    return file.getvalue().to_pybytes()  # type: ignore[no-any-return]


def parquet_schema(records: Sequence[Record], results: Sequence[Record | None], path: str) -> Any:
    """The schema of all parts: the columns of the input, and those of the results.

    records: the first rows of the input, from which the types of its columns are inferred.
    path: the first file of the input; if it is Parquet, the columns have its types.

    Raises:
        MissingExtra: pyarrow is not installed.
        DataError: a column has values of several types.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtra("pyarrow", "data", "Writing Parquet") from error
    fields: dict[str, Any] = {}
    for rows in (records, [result for result in results if result]):
        for name in dict.fromkeys(name for row in rows for name in row):
            values = [row.get(name) for row in rows]
            if isinstance(values[0], np.ndarray):
                fields[name] = pyarrow.list_(pyarrow.float32(), len(values[0]))
                continue
            try:
                fields[name] = pyarrow.array(values).type
            except (pyarrow.ArrowException, TypeError, OverflowError, UnicodeError) as error:
                problem = f"field {name!r} has values that one column cannot hold: {error}."
                raise DataError(path, None, problem, HINT) from None
    if path.lower().endswith(".parquet"):
        results_too = {name for result in results for name in result or ()}
        read = {field.name: field.type for field in parquet.read_schema(path)}
        fields |= {name: kind for name, kind in read.items() if name not in results_too}
    # A column of nulls alone may have text in later rows.
    types = ((n, pyarrow.string() if k == pyarrow.null() else k) for n, k in fields.items())
    return pyarrow.schema(list(types))


# ------------------------------------------------------------------------------------------ reading


@dataclass(frozen=True)
class ShardedSummary:
    """The numbers of parts and rows in an output folder.

    out: the folder.  missing: parts that other commands compute.  failed: the number of rows
    without a result.  truncated, unfinished: texts that were cut, and outputs that reached the
    limit on their length, of those that were computed now.
    """

    out: Path
    parts: int
    missing: int
    rows: int
    failed: int
    truncated: int = 0
    unfinished: int = 0

    def __str__(self) -> str:
        if self.missing:
            return f"{self.out}: {self.parts - self.missing:,} of {self.parts:,} parts are done"
        parts = "1 part" if self.parts == 1 else f"{self.parts:,} parts"
        text = f"{self.out}: {self.rows:,} rows in {parts}"
        if self.failed:
            text += f"; {self.failed:,} rows have no result: see {self.out / ALL_FAILED}"
        return text


@dataclass(frozen=True)
class FileResults:
    """The results in a folder: one for each row of the input, in its order.

    Looping gives a row at a time: a mapping by column for jsonl and parquet, a text for txt, a
    vector (D,) for safetensors. Of a row without a result the prediction is None, an empty text, or
    NaN.

    summary: of the call that has computed the last of them.
    """

    folder: Path
    manifest: ShardManifest
    summary: ShardedSummary | None = None

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


def iter_results(folder: str | PathLike[str], summary: ShardedSummary | None = None) -> FileResults:
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
    return FileResults(folder, manifest, summary)


def _rows(file: Path) -> Any:
    if file.suffix == ".safetensors":
        from safetensors.numpy import load_file

        return load_file(file)["vectors"]
    if file.suffix == ".parquet":
        from pyarrow import parquet

        return parquet.read_table(file).to_pylist()
    lines = file.read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line) for line in lines] if file.suffix == ".jsonl" else lines
