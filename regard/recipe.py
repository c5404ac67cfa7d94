"""Recipes: TOML files <-> typed options.

A recipe is read in two steps, because the task and the model decide which options exist:

    raw = read("recipes/small.toml", ["training.max_steps=100"])      # the tables of the file
    task = raw.choice("task", TASKS)                                # an unknown name is an error
    options = raw.check(schema_of(task))                            # frozen, typed, complete

A schema is a subclass of `Recipe` whose fields are the sections; a section is a subclass of
`Options` or a frozen dataclass. One error names every unknown option, wrong type and unset
environment variable, with file, line and, where there is one, the nearest name.
"""

import dataclasses
import json
import math
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    create_model,
)

from regard import habit_names
from regard.errors import ConfigError, DataError
from regard.file_writing import write_text
from regard.schema import (
    data_error,
    joined_with_or,
    read_text,
    to_toml,
    toml_value,
    type_error_message,
)
from regard.suggest import nearest

Tables = dict[str, Any]
COMMAND_LINE = "command line"
# where recipes are named: those of the current folder, and those that come with the package
RECIPE_FOLDERS = (Path("recipes"), Path(__file__).parent / "recipes")
LARGEST = 4 * 2**20  # bytes of a recipe; one of a run lists its data files
MAX_PROBLEMS = 20  # in one error


# ------------------------------------------------------------------------------- schemas


class Options(BaseModel):
    """A section of a recipe: frozen, with no other names than its fields.

    TOML has no null: an option that may be absent has None as its default.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", ser_json_inf_nan="constants", protected_namespaces=()
    )


def plain_name(name: str) -> str:
    """The name, if a file or folder can have it.

    Raises:
        ValueError: it has separators or control characters, is "." or "..", or is too long.
    """
    too_long = len(name.encode(errors="surrogatepass")) > 255
    if too_long or name in (".", "..") or re.search(r"[/\\\x00-\x1f\x7f\ud800-\udfff]", name):
        raise ValueError(f"must be a plain, short name, but is {name!r:.60}. Or give `out` (--out)")
    return name


class Recipe(Options):
    """What every recipe has at its top; a task adds its sections as fields."""

    task: str
    """The task that is trained; `regard list tasks` has all."""
    name: Annotated[str, AfterValidator(plain_name)] = ""
    """The name of the run's folder in runs/; "": that of the recipe's file."""
    seed: int = 1
    """The seed of all random numbers of the training."""


AnyRecipe = TypeVar("AnyRecipe", bound=Recipe)


def options_of(
    config: type, omit: Iterable[str] = (), defaults: Mapping[str, Any] | None = None, **more: Any
) -> type[Options]:
    """The section whose options are the fields of a dataclass (a model's config).

    omit: fields that no recipe sets, because they follow from something else (vocab_size).
    defaults: values that replace the dataclass's own (those of a named size).
    more: further options as (type, default), such as `name=(str, ...)`, where ... is "required".
    """
    hints = get_type_hints(config, include_extras=True)
    fields = {
        field.name: (hints[field.name], (defaults or {}).get(field.name, _default(field)))
        for field in dataclasses.fields(config)
        if field.name not in {*omit, *more}
    }
    return create_model(config.__name__, __base__=Options, **more, **fields)  # type: ignore


def with_section(
    schema: type[AnyRecipe], name: str, section: type, default: Any = ...
) -> type[AnyRecipe]:
    """`schema` with one section replaced, such as [model] by the options of the model.

    default: the options of a recipe without the section; ...: it must be there.
    """
    fields: Any = {name: (section, default)}
    return create_model(schema.__name__, __base__=schema, **fields)


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return ... if field.default is dataclasses.MISSING else field.default


# --------------------------------------------------------------------------------- paths

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


def _variable(name: str) -> str:
    """The environment variable; "" where it is blank: `$DATA/a` would be the file `/a`."""
    value = os.environ.get(name, "")
    return value if value.strip() else ""


def _from_folder(value: Any, info: ValidationInfo) -> Any:
    """Expand `~`, `$NAME` and `${NAME}`; a relative path starts at the recipe's folder."""
    if not isinstance(value, str):
        return value
    for match in _VARIABLE.finditer(value):
        name = match[1] or match[2]
        if not _variable(name) and not (info.context or {}).get("keep_unset"):
            state = "empty" if name in os.environ else "not set"
            raise ValueError(f"is {value!r}, but {name} is {state}. Set it: export {name}=PATH")
    expanded = _VARIABLE.sub(lambda match: _variable(match[1] or match[2]) or match[0], value)
    if not expanded.strip():  # would be the recipe's folder
        raise ValueError(f"must name a file or a folder, but is {value!r}, which is empty.")
    return str((info.context or {}).get("folder", Path()) / Path(expanded).expanduser())


RecipePath = Annotated[Path, BeforeValidator(_from_folder)]
"""A path in a recipe: relative to the recipe's file, environment variables expanded."""


def _folder_or_name(value: Any, info: ValidationInfo) -> Any:
    """A path where there is such a folder; else the name itself, for the hub."""
    path = _from_folder(value, info)
    return path if isinstance(path, str) and Path(path).exists() else value


ModelSource = Annotated[str, BeforeValidator(_folder_or_name)]
"""The source of weights: a path like `RecipePath`, or a name on the hub."""


# ------------------------------------------------------------------------------- reading


@dataclasses.dataclass(frozen=True)
class RawRecipe:
    """The tables of a recipe before they are checked, and its text, for the lines of options.

    overrides: dotted name -> text, from the command line.
    run: the record of a run folder's recipe (`record`); {} for others.
    keywords: the names at the top of `tables` that come from Python.
    """

    path: Path | None
    text: str
    tables: Tables
    overrides: dict[str, str] = dataclasses.field(default_factory=dict)
    run: Tables = dataclasses.field(default_factory=dict)
    keywords: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        values = {key: readings(text)[0] for key, text in self.overrides.items()}
        tables, ours = habit_names.of_recipe(self.tables, values)
        overrides = {
            key: self.overrides[key] if values.get(key) == value else toml_value(value)
            for key, value in ours.items()
        }
        object.__setattr__(self, "tables", tables)
        object.__setattr__(self, "overrides", overrides)

    def choice(self, key: str, allowed: Iterable[str], default: str | None = None) -> str:
        """The string at the dotted `key`, which must be one of `allowed`."""
        names = list(allowed)
        value = self._asked(key)
        if value is None and default is not None:
            return default
        if value in names:
            return str(value)
        was = f"is {json.dumps(value, default=str)}, which is unknown"
        was = "is missing" if value is None else was
        hint = nearest(str(value or ""), names)
        if key == "model.name":
            hint += " Published weights are named by `model.path`: a folder, or ORG/NAME."
        raise ConfigError(f"{self.location(key)}: `{key}` {was}. {hint}")

    def text_at(self, key: str) -> str:
        """The text at the dotted `key`; "" where there is none."""
        value = _value_at(self.tables, key)
        return value if isinstance(value, str) else ""

    def has(self, key: str) -> bool:
        """Whether the file or the command line sets the option at this dotted name."""
        return self._asked(key) is not None

    def _asked(self, key: str) -> Any:
        """The value at a dotted name on the command line, else in the file; None: there is none.

        On the command line it may stand inside its section: `model={name = "gpt2"}`.
        """
        sections = [other for other in self.overrides if f"{key}.".startswith(f"{other}.")]
        if not sections:
            return _value_at(self.tables, key)
        last = sections[-1]  # the later one replaces the other
        value = readings(self.overrides[last])[0]
        return value if last == key else _value_at(value, key.removeprefix(f"{last}."))

    def check(self, schema: type[AnyRecipe], *, keep_unset: bool = False) -> AnyRecipe:
        """The typed options.

        keep_unset: environment variables that are not set stay in paths, where files are not read.

        Raises:
            ConfigError: the options are wrong; one problem a line.
        """
        if invalid := [*_invalid_values(self.tables)]:
            raise self._error((key, f"`{key}` {problem}") for key, problem in invalid)
        tables = json.loads(json.dumps(self.tables))
        for key, text in self.overrides.items():
            _put_override(tables, schema, self._full_name(schema, key), readings(text))
        folder = self.path.absolute().parent if self.path else Path.cwd()
        try:
            # JSON's strict mode has TOML's types: lists become tuples and strings paths, but "3"
            # is not a number and 1 is not a boolean.
            return schema.model_validate_json(
                json.dumps(tables),
                strict=True,
                context={"folder": folder, "keep_unset": keep_unset},
            )
        except ValidationError as error:
            problems = [*_problems(schema, error)]
        raise self._error(problems)

    def _error(self, problems: Iterable[tuple[str, str]]) -> ConfigError:
        """The error of (dotted name, problem), one a line; the first ones are named."""
        first = islice(problems, MAX_PROBLEMS)
        return ConfigError("\n".join(f"{self.location(key)}: {problem}" for key, problem in first))

    def _full_name(self, schema: Any, key: str) -> str:
        try:
            return full_name(schema, key)
        except ConfigError as error:
            raise ConfigError(f"{COMMAND_LINE}: {error}") from None

    @contextmanager
    def locating(self, schema: Any) -> Iterator[None]:
        """Add the file and the line to a ConfigError about an option that is raised inside.

        schema: of the recipe, with the sections of its task and model.
        """
        try:
            yield
        except ConfigError as error:
            key = _key_in(str(error), schema)
            if not key or str(error).startswith((COMMAND_LINE, str(self.path))):
                raise
            raise ConfigError(f"{self.location(key)}: {error}") from None

    def location(self, key: str) -> str:
        """`file:line` of the option at the dotted `key`; the file where no line is found."""
        of_key = (key.endswith(f".{o}") or f"{key}.".startswith(f"{o}.") for o in self.overrides)
        if key and any(of_key):
            return COMMAND_LINE
        if self.path and {key.partition(".")[0], key.rpartition(".")[2]} & {*self.keywords}:
            return "keyword argument"
        file = str(self.path) if self.path else "recipe"
        line = _line_of(self.text, key) or _line_of(self.text, key.rpartition(".")[0])
        return f"{file}:{line}" if line else file


def recipe_file(recipe: str | PathLike[str]) -> Path:
    """The file of a recipe: of a name NAME `recipes/NAME.toml` here, else that of the package."""
    path = Path(recipe)
    if path.suffix == ".toml" or path.parent != Path() or path.is_file():
        return path
    files = (folder / f"{path}.toml" for folder in RECIPE_FOLDERS)
    return next((file for file in files if file.is_file()), path)


def recipe_files() -> dict[str, Path]:
    """The files of all recipes that can be named, by their names."""
    files = [file for folder in reversed(RECIPE_FOLDERS) for file in folder.glob("*.toml")]
    return dict(sorted((file.stem, file) for file in files))


def recipe_set(name: str) -> list[str]:
    """The files of the recipes that a name stands for: of that name, or of all names that begin
    with it and a hyphen. A path, and any other name, stands for itself.
    """
    files = {} if Path(name).exists() else recipe_files()
    several = [str(path) for other, path in files.items() if other.startswith(f"{name}-")]
    return [str(files[name])] if name in files else several or [name]


def read(recipe: str | PathLike[str], overrides: Sequence[str] = ()) -> RawRecipe:
    """Read a recipe.

    recipe: a TOML file, or a name; see `recipe_file`.
    overrides: `dotted.name=value`, as on the command line.

    Raises:
        DataError: there is no such file, or it is not TOML.
        ConfigError: an override has another form.
    """
    path = recipe_file(recipe)
    try:
        text = read_text(path, max_bytes=LARGEST, error=data_error(path))
    except FileNotFoundError:
        others = [*sorted(other.name for other in path.parent.glob("*.toml")), *recipe_files()]
        hint = nearest(path.name, others, "`regard list recipes` shows those that there are.")
        raise DataError(path, None, "there is no such recipe.", hint) from None
    return parse(text, overrides, path)


def parse(text: str, overrides: Sequence[str] = (), path: Path | None = None) -> RawRecipe:
    """As `read`, for a text.

    path: named in errors; relative paths in the recipe start in its folder.
    """
    try:
        tables = tomllib.loads(text)
        json.dumps(tables, default=str)  # nested as deeply as JSON may be
    except (ValueError, RecursionError) as error:
        line = re.search(r"at line (\d+)", str(error))
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        place = path or "recipe"
        raise DataError(place, int(line[1]) if line else None, f"is not TOML: {reason}.") from None
    run = tables.pop("run") if isinstance(tables.get("run"), dict) else {}
    return RawRecipe(path, text, tables, dict(map(_split, overrides)), run)


def _split(item: str) -> tuple[str, str]:
    key, equals, value = (part.strip() for part in item.partition("="))
    if not equals or not re.fullmatch(r"[\w-]+(\.[\w-]+)*", key):
        raise ConfigError(f"{COMMAND_LINE}: {item!r} must be like training.max_steps=100")
    return key, value


def _put_override(tables: Tables, schema: type, key: str, readings: list[Any]) -> None:
    """Put `key=value` into the tables; the options of a whole section one by one."""
    first = readings[0]
    if not isinstance(first, dict) or _plain(_option(schema, key)) is None:
        return _put(tables, key, _override(schema, key, readings))
    _put(tables, key, {})
    for name, value in first.items():
        _put_override(tables, schema, f"{key}.{name}", [value])


def _override(schema: type, key: str, readings: list[Any]) -> Any:
    """The value that `key=value` puts into the tables, of the option's own type.

    readings: what the text may mean. It is read as TOML (100, true, [1, 2], "a") and, where the
    option takes no such value, as a bare string or a list `a,b`, so that the shell needs no inner
    quotes and brackets. Paths start in the current folder.
    """
    option = _option(schema, key)
    if option is None:
        raise ConfigError(f"{COMMAND_LINE}: {_unknown(schema, key)}")
    adapter: TypeAdapter[Any] = TypeAdapter(option)
    problems = []
    for value in readings:
        if invalid := list(_invalid_values({key: value})):
            problems.append(f"`{key}` {invalid[0][1]}")
            continue
        try:
            text = json.dumps(value)
            typed = adapter.validate_json(text, strict=True, context={"folder": Path.cwd()})
            return adapter.dump_python(typed, mode="json")
        except ValidationError as error:
            problems.append(_message(key, error.errors()))
    raise ConfigError(f"{COMMAND_LINE}: {problems[0]}")


def readings(text: str) -> list[Any]:
    """What the text of an option may mean, the first as TOML where it is."""
    try:
        return [tomllib.loads(f"value = {text}")["value"], text]
    except (ValueError, RecursionError):
        parts = [part.strip() for part in text.split(",")]
        return [text] if len(parts) == 1 else [text, [readings(part)[0] for part in parts]]


def _put(tables: Tables, key: str, value: Any) -> None:
    *sections, name = key.split(".")
    for section in sections:
        tables = tables.setdefault(section, {})
    tables[name] = value


def _value_at(tables: Any, key: str) -> Any:
    """The value at a dotted name, None where the name is absent (TOML has no null)."""
    for part in key.split("."):
        tables = tables.get(part) if isinstance(tables, dict) else None
    return tables


# ------------------------------------------------------------------------------ refusing


def _invalid_values(tables: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(dotted name, problem) for each value that TOML has and that no option takes."""
    for key, value in tables.items():
        if isinstance(value, dict):
            yield from ((f"{key}.{name}", problem) for name, problem in _invalid_values(value))
        elif isinstance(value, list):
            for item in value:
                yield from _invalid_values({key: item})
        elif isinstance(value, float) and not math.isfinite(value):
            yield key, f"must be a finite number, but is {value}."
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            yield key, "must fit into 64 bits, but is a larger number."
        elif not isinstance(value, bool | int | float | str):
            yield key, f"must not be a date or a time, but is {value}. Put quotes around a text."


def _key_in(message: str, schema: Any) -> str:
    """The dotted name of the option in a message such as "[model] `heads` must be ..."."""
    named = re.findall(r"`([\w.]+)`", message)
    section = re.match(r"\[([\w.]+)\]", message)
    if section and _option(schema, section[1]) is not None:
        inside = [f"{section[1]}.{name}" for name in named if name in names_in(schema, section[1])]
        return inside[0] if inside else section[1]
    for name in named:
        if _option(schema, name) is not None:
            return name
        sections = [key for key in _names(schema) if name in names_in(schema, key)]
        if len(sections) == 1:
            return f"{sections[0]}.{name}"
    return ""


def _names(section: Any) -> Tables:
    """The options of a section, with their types: of `Options` or of a dataclass."""
    return _names_of_class(section) if isinstance(section, type) else {}


@lru_cache(512)  # a check asks for the same classes thousands of times
def _names_of_class(section: type) -> Tables:
    if issubclass(section, BaseModel):
        return {
            name: Annotated[field.annotation, field] for name, field in section.model_fields.items()
        }
    if dataclasses.is_dataclass(section):
        return get_type_hints(section, include_extras=True)
    return {}


def _plain(option: Any) -> Any:
    """The class of a section, where the type is `Section`, `Section | None` or annotated.

    None for an option that may be something else instead, such as `Path | Fold`.
    """
    option = option.__origin__ if hasattr(option, "__metadata__") else option
    inner = [part for part in getattr(option, "__args__", ()) if part is not type(None)]
    parts = [option, *inner] if len(inner) < 2 else [option]
    return next((part for part in parts if _names(part)), None)


def _option(schema: Any, key: str) -> Any:
    """The type of the option at a dotted name, None where there is no such option."""
    option = schema
    for part in key.split("."):
        values = _value_type(option)
        option = _names(_plain(option)).get(part) if values is None else values
    return option


def _value_type(option: Any) -> Any:
    """The type of the values of a mapping, whose names are free; None for another option."""
    if option is Any:  # the value of a mapping, which may be a mapping
        return Any
    option = option.__origin__ if hasattr(option, "__metadata__") else option
    return get_args(option)[1] if get_origin(option) in (dict, Mapping) else None


def full_name(schema: Any, name: str) -> str:
    """The dotted name of an option, which may be given by its last part alone.

    Of several sections with such an option the outermost is meant.

    Raises:
        ConfigError: no section has it, or several equally deep ones have it.
    """
    if "." in name or name in names_in(schema, ""):
        return name
    sections = [*sections_of(schema)]
    owners = [section for section in sections if name in names_in(schema, section)]
    depth = min((section.count(".") for section in owners), default=0)
    outermost = [section for section in owners if section.count(".") == depth]
    if len(outermost) == 1:
        return f"{outermost[0]}.{name}"
    if outermost:
        names = joined_with_or([f"{section}.{name}" for section in outermost])
        raise ConfigError(f"`{name}` is an option of several sections: write {names}.")
    options = [option for section in ("", *sections) for option in names_in(schema, section)]
    options += ["out", "device", "progress"]  # of `train` itself
    hint = nearest(name, dict.fromkeys(options), "`regard init TASK` lists all of a task.")
    raise ConfigError(f"no section has an option `{name}`. {hint}")


def check_name(schema: Any, key: str) -> None:
    """Check that a recipe has an option at the dotted `key`.

    Raises:
        ConfigError: it has none; the nearest name is offered.
    """
    if _option(schema, key) is None:
        raise ConfigError(_unknown(schema, key))


def takes(schema: Any, key: str, value: Any) -> bool:
    """Whether the option at the dotted `key` can have this value."""
    try:
        TypeAdapter(_option(schema, key)).validate_json(json.dumps(value), strict=True)
    except ValidationError:
        return False
    return True


@lru_cache(2048)  # each option that is named without its section is looked for in all
def names_in(schema: Any, section: str) -> tuple[str, ...]:
    """The options of the section at a dotted name; "" for the whole recipe."""
    return tuple(_names(_plain(_option(schema, section) if section else schema)))


def section_class(schema: Any, section: str) -> Any:
    """The class of the section at a dotted name; None where there is no such section."""
    return _plain(_option(schema, section))


def sections_of(schema: Any, inside: str = "") -> Iterator[str]:
    """The dotted names of all sections of a recipe."""
    for name in names_in(schema, inside):
        key = f"{inside}.{name}" if inside else name
        if names_in(schema, key):
            yield key
            yield from sections_of(schema, key)


def _unknown(schema: Any, key: str) -> str:
    """The message that the dotted `key` is not an option, with the nearest name."""
    section, _, name = key.rpartition(".")
    while section and _plain(_option(schema, section)) is None:  # [trainig] is misspelled
        section, _, name = section.rpartition(".")
    where = f"[{section}]" if section else "a recipe"
    sections = [*sections_of(schema)]
    if others := [f"[{other}]" for other in sections if name in names_in(schema, other)]:
        return f"{where} has no `{name}`. It belongs to {joined_with_or(others)}."
    names = names_in(schema, section)
    return f"{where} has no `{name}`. {nearest(name, names)}"


def _problems(schema: Any, invalid: ValidationError) -> Iterator[tuple[str, str]]:
    """(dotted name, problem) for each option; the errors of a union's members are one."""
    by_key: dict[str, list[Any]] = {}
    for error in invalid.errors():
        by_key.setdefault(_key_of(schema, error), []).append(error)
    for key, errors in by_key.items():
        if errors[0]["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            yield key, _unknown(schema, key)
        elif errors[0]["type"] in ("missing", "missing_argument"):
            yield key, f"`{key}` is missing; it has no default."
        else:
            yield key, _message(key, errors)


def _key_of(schema: Any, error: Any) -> str:
    """The dotted name: pydantic's location without the names of a union's members."""
    key: list[str] = []
    for part in map(str, error["loc"]):
        if _option(schema, ".".join([*key, part])) is not None:
            key.append(part)
        elif error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            key.append(part)
    return ".".join(key)


def _message(key: str, errors: Sequence[Any]) -> str:
    """ "`key` must be ..., but is ..."; or the sentence that a validator raised."""
    first, index = errors[0], _index(errors[0])
    errors = [error for error in errors if _index(error) == index]
    if first["type"] in ("value_error", "assertion_error"):
        text = str(first["ctx"]["error"])
        if not text.startswith("must ") or "but " in text:  # a whole sentence
            return f"[{key}] {text}" if text.startswith("`") else f"`{key}` {text}"
    hint = ""
    if first["type"] in ("literal_error", "enum"):
        hint = nearest(str(first["input"]), re.findall(r"'([^']*)'", first["ctx"]["expected"]))
    message = type_error_message(key + index, errors, toml_value)
    return f"{message.replace('an object', 'a section', 1)} {hint}".rstrip()


def _index(error: Any) -> str:
    return "".join(f"[{part}]" for part in error["loc"] if isinstance(part, int))


def _line_of(text: str, key: str) -> int | None:
    """The line of a dotted name in a TOML text, by a search over lines."""
    section, _, name = key.rpartition(".")
    current = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[\s*([\w.\- \"']+?)\s*\]", line):
            current = re.sub(r"[\s\"']", "", header.group(1))
            if current == key:
                return number
        elif current == section and re.match(rf"\s*[\"']?{re.escape(name)}[\"']?\s*[=.]", line):
            return number
    return None


# ------------------------------------------------------------------------------- writing


def write(path: str | PathLike[str], recipe: Recipe, run: Mapping[str, Any] | None = None) -> None:
    """Write the resolved recipe and the record of the run; `read` gives both back.

    The file appears whole or not at all.
    """
    tables = recipe.model_dump(mode="json", exclude_none=True)
    text = to_toml({**tables, "run": run} if run else tables)
    write_text(Path(path), text)
