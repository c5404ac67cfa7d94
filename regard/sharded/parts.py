"""The file of a part: one row for each row of the input, in order, also for rows without a result.

safetensors   `vectors` (rows, D) in float32; NaN for a row without one
parquet       the columns of the input, and `vector` or those of the prediction
jsonl         a line of JSON for each row: its fields and the prediction
txt           a line for each row: the prediction, an empty line for a row without one
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from regard.data.arrow_tables import UnfitValue, table_of
from regard.errors import ConfigError, DataError, MissingExtra
from regard.plain_json import to_json
from regard.suggest import nearest

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
    if format is not None and format not in formats:
        raise ConfigError(f"{method} writes no parts as {format!r}. {nearest(format, formats)}")
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
        fields |= {field.name: field.type for field in parquet.read_schema(path)}
    # A column of nulls alone may have text in later rows.
    types = ((n, pyarrow.string() if k == pyarrow.null() else k) for n, k in fields.items())
    return pyarrow.schema(list(types))
