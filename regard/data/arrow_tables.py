"""Arrow tables of rows whose columns hold every value as it is.

pyarrow itself drops fields that the columns lack, cuts 1.5 to 1 in a column of integers, and writes
True as 1.0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

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
