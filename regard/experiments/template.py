"""Templates of recipes: every option of a task with its default and its meaning.

Options without a usable default are set; all others are comments with their defaults.
"""

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from regard.errors import check_choice
from regard.experiments.recipe_options import NO_OPTIONS, schema_of
from regard.models import MODELS, model_class
from regard.recipe import names_in, parse, section_class, sections_of
from regard.schema import to_toml, toml_value
from regard.tasks import TASKS, task_class

# Fields that mean the same in every model's configuration.
USUAL_FIELDS = {
    "d_model": "Width of the hidden states.",
    "name": "The model; `regard list models` has all.",
    "size": "A size with a name: the default of each option that is not set.",
    "d_ff": "Width inside the feed-forward layers.",
    "d_embedding": "Width of the token embeddings.",
    "heads": "Attention heads of a layer.",
    "head_dim": "Width of a head.",
    "layers": "Number of layers.",
    "encoder_layers": "Layers of the encoder.",
    "decoder_layers": "Layers of the decoder.",
    "decoder_d_ff": "Width inside the decoder's feed-forward layers; not set: `d_ff`.",
    "decoder_heads": "Attention heads of the decoder's layers; not set: `heads`.",
    "segments": "Number of segment embeddings.",
    "max_length": "Most tokens that the model reads; not set: any number.",
    "activation": "Activation function of the feed-forward layers.",
    "dropout": "Dropout of embeddings and of the output of each sub-layer.",
    "attention_dropout": "Dropout of attention weights.",
    "activation_dropout": "Dropout inside the feed-forward layers.",
    "embedding_dropout": "Dropout of the embeddings.",
    "input_dropout": "Dropout of the input of the first layer.",
    "output_dropout": "Dropout of the output of the last layer.",
    "head_dropout": "Dropout before the head of a task.",
    "norm_eps": "Epsilon of the layer norms.",
    "init_range": "Scale of the initial weights.",
    "tied": "Whether input and output embeddings share their weights.",
    "positions": "Kind of positions, see docs/concepts/positions.md.",
    "window": "Tokens that a layer of local attention sees.",
    "source_vocab_size": "Size of the source's vocabulary; not set: one vocabulary for both sides.",
    "scale_embedding": "Whether embeddings are multiplied by sqrt(d_model).",
    "scaled_by_layer": "Whether attention scores are also divided by the number of the layer.",
    "clip_distance": "Distances beyond it share a vector (relative positions).",
    "max_distance": "Distances from this one on share a vector.",
    "choice_dropout": "Dropout before the head for multiple choice.",
    "choice_activation": "Activation in the head for multiple choice; not set: none.",
    "span_dropout": "Dropout before the head for answers.",
    "random_blocks": "Random blocks that each block attends to.",
    "lstm_layers": "Layers of the biLSTM.",
    "highway_layers": "Highway layers above the character convolutions.",
    "dilations": "Dilations of the convolutions, repeated from layer to layer.",
    "d_hidden": "Width of the hidden states between the first and the last layer.",
    "d_cell": "Width of the LSTM cells, before their projection.",
    "d_character": "Width of the character embeddings.",
    "d_characters": "Width of the vector that the characters of a word give.",
    "base_model": "Options of the language model inside.",
    "output_bias": "Whether the output layer has a bias.",
}
WIDTH = 96  # of a line, in characters
NO_DEFAULT = (PydanticUndefined, dataclasses.MISSING, None)


def trained_tasks() -> list[str]:
    """The tasks that can be trained."""
    return [name for name in TASKS if task_class(name).Recipe is not None]


def recipe_template(task: str) -> str:
    """A recipe for a task, as TOML; only its paths have to be changed.

    Raises:
        ConfigError: there is no such task, or it cannot be trained.
    """
    check_choice("task", task_class(task).name, trained_tasks())
    preset = _preset_options(task)
    schema = schema_of(parse(to_toml(preset)))
    head = (
        f"This is a recipe for {task}. Set the paths, then run: regard train FILE --dry-run.\n"
        "Paths are relative to this file. An option after # is not set; it shows the default."
    )
    lines = [*_comment(head), ""]
    for section in ("", *sections_of(schema)):
        if section:
            lines += _section_head(schema, section)
        for option in _options_in(schema, section, preset):
            lines += _comment(sentences(option.meaning))
            if option.choices:
                lines += _comment(f"One of {', '.join(map(toml_value, option.choices))}.")
            *_, name = option.key.split(".")
            values = preset.get(section) if section else preset
            if values and name in values:
                lines += [to_toml({name: values[name]}).rstrip(), ""]
            else:
                lines += [f"# {name} = {option.default or '   (not set)'}", ""]
    return "\n".join(lines).rstrip() + "\n"


@dataclasses.dataclass(frozen=True)
class RecipeOption:
    """One option: its dotted name, default in TOML ("": not set), values and meaning."""

    key: str
    default: str
    choices: tuple[str, ...]
    meaning: str


def options_of_task(task: str) -> Iterator[RecipeOption]:
    """Every option of a task's recipes, with the model that its template names."""
    preset = _preset_options(task)
    schema = schema_of(parse(to_toml(preset)))
    for section in ("", *sections_of(schema)):
        yield from _options_in(schema, section, preset)


def _options_in(schema: Any, section: str, preset: Mapping[str, Any]) -> Iterator[RecipeOption]:
    """The options of a section; for random weights the docstrings are the model's `Config`'s."""
    kind = section_class(schema, section) if section else schema
    name: Any = (preset.get(section) or {}).get("name")
    docstrings = _docstrings(model_class(name).Config if name in MODELS else kind)
    for name in names_in(schema, section):
        key = f"{section}.{name}" if section else name
        if not names_in(schema, key):
            yield _option(kind, name, key, docstrings)


def options_of_model(name: str) -> Iterator[RecipeOption]:
    """Every option of [model] for the model of this name, trained from random weights."""
    config = model_class(name).Config
    docstrings = _docstrings(config)
    for field in dataclasses.fields(config):
        if field.name not in NO_OPTIONS:
            yield _option(config, field.name, f"model.{field.name}", docstrings)


def _option(kind: Any, name: str, key: str, docstrings: Mapping[str, str]) -> RecipeOption:
    choices = tuple(_choices(_type(kind, name)))
    return RecipeOption(key, _toml_default(kind, name), choices, docstrings.get(name, ""))


def _toml_default(kind: Any, name: str) -> str:
    """The default of an option, as a recipe would set it; "" without one."""
    default = _default(kind, name)
    if isinstance(default, Mapping) or any(default is value for value in NO_DEFAULT):
        return ""
    return toml_value(default)


def _preset_options(task: str) -> dict[str, Any]:
    """The options that the template sets."""
    kind = task_class(task)
    fields = kind.Recipe.model_fields
    section: Any = fields["data"].annotation
    file = f"train.{'txt' if section.running_text else kind.file_ending}"
    train = [file] if section.several_files else file
    preset: dict[str, Any] = {"task": task, "data": {"train": train, "valid": 0.1}}
    if list in kind.input_columns.values():  # such rows have names
        preset["data"]["columns"] = [*kind.input_columns, "label"]
    if kind.new_model:
        return {**preset, "model": {"name": kind.new_model}}
    if "teacher" in fields and fields["teacher"].is_required():
        preset["teacher"] = {"path": "path/to/teacher"}
    return {**preset, "model": {"path": "path/to/model"}}


def _section_head(schema: Any, section: str) -> Iterator[str]:
    """What a section is for, and its name; a comment where it is not there by default."""
    outer, _, name = section.rpartition(".")
    kind = section_class(schema, outer) if outer else schema
    absent = "# " if _default(kind, name) is None else ""
    paragraph = (inspect.getdoc(section_class(schema, section)) or "").split("\n\n")[0]
    about = " ".join(paragraph.split()).removeprefix(f"[{section}]")
    if not about.startswith("A section of a recipe:"):  # made from a model's configuration
        yield from _comment(sentences(about.lstrip(":. ")))
    yield f"{absent}[{section}]"


def sentences(text: str) -> str:
    """A docstring as sentences: "the width; None: any" becomes "The width; not set: any." """
    text = re.sub(r"\bNone(?=( means)?\b)", "not set", text)
    text = re.sub(r"(^|[.] )not set", r"\1Not set", text).strip()
    if not text:
        return ""
    first = text if text.startswith("sacreBLEU") else text[0].upper() + text[1:]
    return first if first[-1] in ".)" else f"{first}."


def _comment(text: str) -> list[str]:
    return [f"# {line}" for part in text.splitlines() for line in textwrap.wrap(part, WIDTH)]


def _type(kind: Any, name: str) -> Any:
    if issubclass(kind, BaseModel):
        return kind.model_fields[name].annotation
    return get_type_hints(kind)[name]


def _choices(option: Any) -> list[str]:
    """The values of a `Literal` of texts; [] for other types."""
    values = get_args(option) if get_origin(option) is Literal else ()
    return [value for value in values if isinstance(value, str)]


def _default(kind: Any, name: str) -> Any:
    if issubclass(kind, BaseModel):
        return kind.model_fields[name].get_default(call_default_factory=True)
    field = next(field for field in dataclasses.fields(kind) if field.name == name)
    return field.default


@cache
def _docstrings(kind: type) -> dict[str, str]:
    """The meaning of each field of a class and of its bases, by the name of the field.

    It stands under the field, behind it as a comment, or in the docstring of the class as a line
    `field: meaning`; of a usual field of models it is in `USUAL_FIELDS`.
    """
    meanings = dict(USUAL_FIELDS) if dataclasses.is_dataclass(kind) else {}
    for base in reversed(kind.__mro__):
        try:
            source = textwrap.dedent(inspect.getsource(base))
        except (OSError, TypeError):  # a class made at run time, or in C, has no source
            continue
        (tree,) = ast.parse(source).body
        if isinstance(tree, ast.ClassDef):
            lines = source.splitlines()
            meanings |= _described_in(ast.get_docstring(tree) or "")
            for field, below in zip(tree.body, [*tree.body[1:], None], strict=True):
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    comment = lines[field.lineno - 1][field.end_col_offset or 0 :]
                    if text := comment.partition("# ")[2]:
                        meanings[field.target.id] = text
                    if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                        text = inspect.cleandoc(str(below.value.value))
                        meanings[field.target.id] = " ".join(text.split())
    fields = kind.model_fields.items() if issubclass(kind, BaseModel) else ()
    return meanings | {name: field.description for name, field in fields if field.description}


def _described_in(docstring: str) -> dict[str, str]:
    """The fields that a docstring describes: `name, other: meaning`, and indented lines."""
    described: dict[str, str] = {}
    names: list[str] = []
    for line in docstring.splitlines():
        if start := re.match(r"(\w+(?:, \w+)*): (.*)", line):
            names = start[1].split(", ")
            described |= dict.fromkeys(names, start[2])
        elif names and line.startswith("    "):
            described |= {name: f"{described[name]} {line.strip()}" for name in names}
        else:
            names = []
    return described
