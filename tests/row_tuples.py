"""Rows as tuples, for short tests."""

from __future__ import annotations

from typing import Any

from regard.data.readers import open_table


def tuples(source: Any, columns: Any = (), **options: Any) -> list[tuple[Any, ...]]:
    """The values of the rows that `open_table` gives."""
    return [tuple(row.values()) for row in open_table(source, columns, **options)]
