"""The file of a part: one row for each row of the input, in order, also for rows without a result.

safetensors   `vectors` (rows, D) in float32; NaN for a row without one
parquet       the columns of the input, and `vector` or those of the prediction
jsonl         a line of JSON for each row: its fields and the prediction
txt           a line for each row: the prediction, an empty line for a row without one
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from regard.data.arrow_tables import UnfitValue, table_of
from regard.errors import ConfigError, DataError, MissingExtra
from regard.plain_json import to_json
from regard.sharded.rows import InputRow
from regard.suggest import nearest

VECTOR_FORMATS = ("safetensors", "parquet")  # the default first
PREDICTION_FORMATS = ("jsonl", "parquet", "txt")
VECTOR = "vector"
BLANK = {"prediction": ""}  # the result of a row without text


def format_of(method: str, format: str | None) -> str:
    """The format of the parts.

    Raises:
        ConfigError: the results of the method cannot be written so.
    """
    known = VECTOR_FORMATS if method == "embed" else PREDICTION_FORMATS
    if format is not None and format not in known:
        raise ConfigError(f"{method} writes no parts as {format!r}. {nearest(format, known)}")
    return format or known[0]


def safetensors_part(results: Sequence[np.ndarray | None], width: int) -> bytes:
    """The vectors (rows, D), NaN where there is none."""
    from safetensors.numpy import save

    whole = np.full((len(results), width), np.nan, np.float32)
    for number, vector in enumerate(results):
        if vector is not None:
            whole[number] = vector
    return save({"vectors": whole})


def lines_part(rows: Sequence[InputRow], results: Sequence[Any], format: str) -> bytes:
    """Lines of "jsonl" or "txt"."""
    line = json_line if format == "jsonl" else text_line
    lines = map(line, rows, results)
    return "".join(lines).encode("utf-8", "backslashreplace")


def json_line(row: InputRow, result: Mapping[str, Any] | None) -> str:
    """The fields of a row and its prediction; the prediction is null where there is none."""
    return to_json({**row.record, "prediction": None, **(result or {})}) + "\n"


def text_line(row: InputRow, result: Mapping[str, Any] | None) -> str:
    """The prediction alone."""
    text = "" if result is None else str(result["prediction"])
    return " ".join(text.splitlines()) + "\n"


def parquet_part(
    rows: Sequence[InputRow], results: Sequence[Any], schema: Any, path: str
) -> tuple[bytes, dict[int, DataError]]:
    """The file, and by index the errors of rows that the columns cannot hold as they are; these
    rows are written without what the columns cannot hold, and without their results.

    schema: the `pyarrow.Schema` of all parts.  path: of the file with the rows, for errors.
    """
    import pyarrow
    from pyarrow import parquet

    records = [
        {**row.record, **result_columns(result)} for row, result in zip(rows, results, strict=True)
    ]
    errors: dict[int, DataError] = {}
    if unfit(records, schema):
        for index, row in enumerate(rows):
            if problem := unfit([records[index]], schema):
                errors[index] = DataError(path, row.line, problem, "Write jsonl instead.")
                fields = row.record.items()
                records[index] = {n: v for n, v in fields if not unfit([{n: v}], schema)}
    file = pyarrow.BufferOutputStream()
    parquet.write_table(_table(records, schema), file)
    return file.getvalue().to_pybytes(), errors


def unfit(records: Sequence[Mapping[str, Any]], schema: Any) -> str:
    """Why the columns cannot hold records; "" where they can."""
    try:
        _table(records, schema)
    except UnfitValue as error:
        return str(error)
    return ""


def _table(records: Sequence[Mapping[str, Any]], schema: Any) -> Any:
    """The `pyarrow.Table` of records.

    Raises:
        UnfitValue: the columns cannot hold them.
    """
    try:
        return table_of(records, schema)
    except UnicodeEncodeError:
        return table_of(_in_utf8(records), schema)


def result_columns(result: Any) -> Mapping[str, Any]:
    """The columns of a result, a vector or a prediction; none where there is none, or no text:
    the column of predictions may have numbers."""
    if isinstance(result, Mapping):
        return {} if result == BLANK else result
    return {} if result is None else {VECTOR: result}


def parquet_schema(rows: Sequence[Mapping[str, Any]], added: Mapping[str, Any], path: str) -> Any:
    """The schema of all parts: the columns of the input, and those of the results.

    rows: the first rows of the input, from which the types of its columns are inferred.
    added: the columns of results, with a value or an Arrow type of each.
    path: the first file of the input; if it is Parquet, the columns have its types.

    Raises:
        MissingExtra: pyarrow is not installed.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtra("pyarrow", "data", "Writing Parquet") from error
    columns = {
        name: _type_of(name, [row.get(name) for row in rows], path)
        for name in dict.fromkeys(name for row in rows for name in row)
    }
    if path.lower().endswith(".parquet"):
        columns |= {field.name: field.type for field in parquet.read_schema(path)}
    for name, value in added.items():
        is_type = isinstance(value, pyarrow.DataType)
        columns[name] = value if is_type else pyarrow.array([value]).type
    # A column of nulls alone may have text in later rows.
    fields = [(n, pyarrow.string() if k == pyarrow.null() else k) for n, k in columns.items()]
    return pyarrow.schema(fields)


def _type_of(name: str, values: Sequence[Any], path: str) -> Any:
    """The type of a column with these values.

    Raises:
        DataError: no type has all of them.
    """
    import pyarrow

    try:
        return pyarrow.array(_in_utf8(values)).type
    except (pyarrow.ArrowException, TypeError, OverflowError) as error:
        problem = f"field {name!r} has values of several types in the first rows: {error}."
        raise DataError(path, None, problem, "Write jsonl instead.") from None


def _in_utf8(value: Any) -> Any:
    """A value whose lone surrogates, which UTF-8 cannot encode, are replaced by escapes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {_in_utf8(name): _in_utf8(one) for name, one in value.items()}
    return [*map(_in_utf8, value)] if isinstance(value, list) else value


def check_new_columns(
    rows: Sequence[Mapping[str, Any]], added: Mapping[str, Any], path: str, line: int | None = None
) -> None:
    """Check that no column of the input has the name of a column of the results.

    line: of a single row, for the error.

    Raises:
        DataError: one has.
    """
    if both := {name for row in rows for name in row} & set(added):
        problem = f"has a column {min(both)!r}, which is the name of a column of the results."
        raise DataError(path, line, problem, "Rename it.")
