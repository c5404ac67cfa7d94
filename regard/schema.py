"""JSON and TOML: reads files that other programs wrote, validates them with a typed schema, and
writes both.

    config = read_json(folder / "config.json", ModelConfig, error=ConfigError)

A file is opened only if it is a regular file and not too large. It must be UTF-8; of a key that
occurs twice the last value counts. A schema is any type that pydantic validates. An error message
names the file and the wrong fields.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pydantic_core
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from regard.errors import CheckpointError, ConfigError, DataError, RegardError, shown

ErrorOf = Callable[[str], RegardError]

PROBLEMS = 20  # that an error names; it counts the others
LONGEST_NAME = 200  # characters of a field in an error
LARGEST = 64 * 2**20  # bytes of a JSON file; the largest published tokenizer.json has about 20 MB
UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")  # pydantic's errors for a field


class Fields(BaseModel):
    """Base of the schemas of such files: types are strict, and unknown fields are stored too."""

    model_config = ConfigDict(
        strict=True, extra="allow", frozen=True, allow_inf_nan=False, protected_namespaces=()
    )


def read_json(
    path: Path,
    schema: Any = dict[str, Any],
    *,
    error: ErrorOf = CheckpointError,
    finite: bool = True,
) -> Any:
    """The contents of a JSON file, validated by `schema` (a pydantic model or any type).

    error: the exception class, or a function from a message to an exception.
    finite: whether NaN and Infinity are errors; our own logs may contain them.

    Raises:
        FileNotFoundError: there is no such file.
        RegardError: the one that `error` makes. The file is not a regular file, is too large, is
            not UTF-8 or not JSON, or a field has a wrong type; the message names file and field.
    """
    text = read_text(path, error=error)
    return checked(parse_json(text, str(path), error, finite=finite), schema, path, error)


def read_text(path: Path, *, max_bytes: int = LARGEST, error: ErrorOf = CheckpointError) -> str:
    """The text of a small regular file, strictly UTF-8. Raises as `read_json` does."""
    data = read_bytes(path, max_bytes=max_bytes, error=error)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as wrong:
        line = data.count(b"\n", 0, wrong.start) + 1
        byte = data[wrong.start]
        raise error(f"{path}:{line}: byte 0x{byte:02x} is not UTF-8. Save it as UTF-8.") from None


def read_bytes(path: Path, *, max_bytes: int = LARGEST, error: ErrorOf = CheckpointError) -> bytes:
    """The contents of a small regular file. Raises as `read_json` does."""
    try:
        if not path.exists():
            raise FileNotFoundError(2, "there is no such file", str(path))
        if not path.is_file():  # opening a named pipe would block
            raise error(f"{path}: must be a file, but is a folder, a pipe or a device.")
        if (size := path.stat().st_size) > max_bytes:
            raise error(f"{path}: must have at most {max_bytes:,} bytes, but has {size:,} bytes.")
        return path.read_bytes()
    except PermissionError:
        raise error(f"{path}: this user has no permission to read the file.") from None


def parse_json(
    text: str, where: str, error: ErrorOf = CheckpointError, *, finite: bool = True
) -> Any:
    """The value of a JSON text; errors name `where`, and the line. Raises as `read_json` does."""
    try:
        encoded = text.encode(errors="surrogatepass")
        return pydantic_core.from_json(encoded, allow_inf_nan=not finite)
    except ValueError as wrong:
        problem, _, place = str(wrong).partition(" at line ")
        line, column = map(int, place.split(" column "))
    near = text.split("\n")[line - 1][max(0, column - 40) : column + 10]
    where += f":{line}" if "\n" in text else ""
    raise error(f"{where}: is not JSON: {problem} (column {column}: {near!r}).")


def check_same(where: str | Path, name: str, value: Any, other: str, stated: Any) -> None:
    """Compare two statements of one fact; None is no statement.

    where: the file of the field `name`.  other: what states the fact, too, such as "`n_head`".

    Raises:
        ConfigError: they differ; it names both.
    """
    if value is not None and stated is not None and value != stated:
        both = f"is {shown(value)}, but {other} says {shown(stated)}"
        raise ConfigError(f"{where}: `{name}` {both}. Make them equal.")


def checked(
    value: Any, schema: Any, where: str | Path, error: ErrorOf = CheckpointError, field: str = ""
) -> Any:
    """`value` validated by `schema`, without conversion: "3" is no number and 1 is no boolean.

    where: the file that errors name. field: the dotted name of `value` in it, "" for the whole
        file.

    Raises:
        RegardError: the one that `error` makes; it names the wrong fields, at most `PROBLEMS`.
    """
    try:
        if isinstance(schema, type) and is_dataclass(schema):
            # In JSON mode, pydantic's strict types accept lists as tuples, objects as dataclasses.
            return _adapter(schema).validate_json(json.dumps(value), strict=True)
        return _adapter(schema).validate_python(value, strict=True)
    except ValidationError as wrong:
        problems = error_messages(wrong.errors(), field)
    raise error("\n".join(f"{where}: {problem}" for problem in problems))


@lru_cache(maxsize=128)
def _adapter(schema: Any) -> TypeAdapter[Any]:
    return TypeAdapter(schema)


def error_messages(errors: Iterable[Any], field: str = "") -> list[str]:
    """A message for each wrong field, at most `PROBLEMS`; the members of a union share one.

    errors: those of pydantic.  field: the dotted name of the value that they are about.
    """
    by_name: dict[str, list[Any]] = {}
    for problem in errors:
        by_name.setdefault(_name_of(problem, field), []).append(problem)
    messages = []
    for name, several in by_name.items():
        name = name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 3]}..."
        if several[0]["type"] in ("missing", "missing_argument"):
            messages.append(f"`{name}` is missing.")
        elif several[0]["type"] in UNKNOWN:
            messages.append(f"`{name}` is an unknown field.")
        else:
            messages.append(type_error_message(name or "the content", several, _shown))
    if more := len(messages[PROBLEMS:]):
        messages[PROBLEMS:] = [f"{more:,} further fields are wrong."]
    return messages


def _name_of(problem: Any, field: str) -> str:
    """The dotted name of a field, without the union members that pydantic adds to it."""
    parts = [str(part) for part in problem["loc"]]
    tags = {"int", "float", "str", "bool", "none", "dict", "list", "tuple"}
    unknown = parts[-1:] if problem["type"] in UNKNOWN else []  # may have any name
    parts = parts[: len(parts) - len(unknown)]
    named = [part for part in parts if part not in tags and not re.search(r"[\[({-]", part)]
    named += unknown
    return ".".join([*([field] if field else []), *named])


# ------------------------------------------------------------------------------- messages

_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a string",
    "path_type": "a path (a string)",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "dataclass_type": "an object",
    "none_required": "null",
}


def type_error_message(name: str, errors: Sequence[Any], shown: Callable[[Any], str]) -> str:
    """ "`name` must be ..., but is ...", from pydantic's errors for one field.

    shown: writes a value in the notation of the file.
    """
    expected = joined_with_or(dict.fromkeys(_expected(error) for error in errors))
    return f"`{name}` must be {expected}, but is {shown(errors[0]['input'])}."


def _expected(error: Any) -> str:
    """What a value must be, by pydantic's error."""
    if error["type"] == "greater_than_equal":
        return f"at least {error['ctx']['ge']}"
    if error["type"] == "less_than_equal":
        return f"at most {error['ctx']['le']:,}"
    if error["type"] == "too_long":
        return f"a list of at most {error['ctx']['max_length']:,} values"
    if error["type"] == "string_pattern_mismatch":
        return f"text like {error['ctx']['pattern']}"
    expected = re.sub("^Input should (be )?|^Value error, (must (be )?)?", "", error["msg"])
    return _EXPECTED.get(error["type"], expected)


def joined_with_or(names: Iterable[str]) -> str:
    """ "a", "a or b", "a, b or c"."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def _shown(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=True)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def data_error(path: Path) -> ErrorOf:
    """An `error` that makes a `DataError` from a message that starts with the path."""
    named = re.compile(re.escape(str(path)) + r"(?::(\d+))?: ")

    def made(message: str) -> RegardError:
        start = named.match(message)
        if start is None:
            return DataError(path, None, message)
        line = start[1] and int(start[1])
        return DataError(path, line or None, message[start.end() :])

    return made


def differences(
    before: Mapping[str, Any], now: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    """(dotted name, value before, value now) of each leaf of two nested tables that differs; None
    where there is none."""
    values, others = dict(_leaves(before)), dict(_leaves(now))
    for key in dict.fromkeys([*values, *others]):
        if values.get(key) != others.get(key):
            yield key, values.get(key), others.get(key)


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def change_lines(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """A line for each difference: "\\n  data.batch_size: was 8, is 16"."""
    changes = differences(before, now)
    return "".join(f"\n  {key}: was {old!r}, is {new!r}" for key, old, new in changes)


# ------------------------------------------------------------------------------------------ writing


def to_json(facts: Any) -> str:
    """JSON on one line; paths become strings, NaN and infinity null."""
    try:
        return json.dumps(facts, ensure_ascii=False, default=str, allow_nan=False)
    except ValueError:
        return json.dumps(_with_nulls(facts), ensure_ascii=False, default=str, allow_nan=False)


def to_json_bytes(facts: Any) -> bytes:
    """The same without spaces, in UTF-8, as the server sends it: lists of numbers take a fifteenth
    of the time. Arrays are lists, which are made one by one: they take ten times the memory.
    """
    import numpy as np

    def plain(value: Any) -> Any:
        return value.tolist() if isinstance(value, np.ndarray) else str(value)

    return pydantic_core.to_json(facts, inf_nan_mode="null", fallback=plain)


def _with_nulls(facts: Any) -> Any:
    """The same with None instead of numbers that JSON does not have."""
    if isinstance(facts, float):
        return facts if math.isfinite(facts) else None
    if isinstance(facts, dict):
        return {key: _with_nulls(value) for key, value in facts.items()}
    if isinstance(facts, list | tuple):
        return [_with_nulls(value) for value in facts]
    return facts


def to_toml(tables: Mapping[str, Any]) -> str:
    """The TOML text of nested mappings; None is left out."""
    return "\n".join(_toml_lines(tables, ())).strip() + "\n"


def _toml_lines(table: Mapping[str, Any], name: tuple[str, ...]) -> Iterator[str]:
    present = {key: value for key, value in table.items() if value is not None}
    for key, value in present.items():
        if not isinstance(value, Mapping):
            yield f"{_toml_key(key)} = {toml_value(value)}"
    for key, value in present.items():
        if isinstance(value, Mapping):
            yield f"\n[{'.'.join(map(_toml_key, (*name, key)))}]"
            yield from _toml_lines(value, (*name, key))


def _toml_key(key: str) -> str:
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
        items = (f"{_toml_key(key)} = {toml_value(item)}" for key, item in value.items())
        return "{" + ", ".join(items) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    raise ConfigError(f"a recipe cannot hold {value!r}: TOML has no {type(value).__name__}")
