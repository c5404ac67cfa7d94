"""TOML texts of nested mappings, as recipes have them."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.errors import ConfigError


def dumps(tables: Mapping[str, Any]) -> str:
    """The TOML text of nested mappings; None is left out."""
    return "\n".join(_lines(tables, ())).strip() + "\n"


def _lines(table: Mapping[str, Any], name: tuple[str, ...]) -> Iterator[str]:
    present = {key: value for key, value in table.items() if value is not None}
    for key, value in present.items():
        if not isinstance(value, Mapping):
            yield f"{_key(key)} = {toml_value(value)}"
    for key, value in present.items():
        if isinstance(value, Mapping):
            yield f"\n[{'.'.join(map(_key, (*name, key)))}]"
            yield from _lines(value, (*name, key))


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else toml_value(key)


def toml_value(value: Any) -> str:
    """One value in TOML's notation, as an override has it.

    Raises:
        ConfigError: TOML has no such value.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str | Path):
        # JSON's escapes are TOML's; only DEL may stand bare in JSON and not in TOML.
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        items = (f"{_key(key)} = {toml_value(item)}" for key, item in value.items())
        return "{" + ", ".join(items) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    raise ConfigError(f"a recipe cannot hold {value!r}: TOML has no {type(value).__name__}")
