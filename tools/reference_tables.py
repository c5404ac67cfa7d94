"""Reference pages from declarations: options of recipes, methods of tasks, the command line.

    python tools/reference_tables.py FOLDER    writes FOLDER/options.md and so on

Options come from the recipes' schemas and the docstrings under their fields, commands and flags
from the functions of `regard.cli`. `make docs` builds the pages; nothing of them is committed.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import typer

from regard.cli import app
from regard.experiments.template import (
    RecipeOption,
    options_of_model,
    options_of_task,
    trained_tasks,
)
from regard.models import NAMED, model_class
from regard.serving.app import Service, application
from regard.serving.engine import Engine
from regard.serving.models import RequestCounters
from regard.serving.ui.sources import UISources
from regard.tasks import TASKS, task_class
from regard.tasks.task import METHODS


def cell(text: str) -> str:
    """A text inside a table."""
    return " ".join(text.split()).replace("|", "\\|")


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    titles = list(head)
    lines = [titles, ["---"] * len(titles), *(list(map(cell, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def code(text: str) -> str:
    return f"`{text}`" if text else ""


# ---------------------------------------------------------------------------------- options


def option_table(options: Iterable[RecipeOption]) -> str:
    rows = (
        (code(one.key.rpartition(".")[2]), code(one.default) or "not set", meaning(one))
        for one in options
    )
    return table(("option", "default", "meaning"), rows)


def meaning(option: RecipeOption) -> str:
    """What an option means, and the values that it can have where they are few."""
    values = ", ".join(f'`"{value}"`' for value in option.choices)
    return f"{option.meaning} One of {values}." if values else option.meaning


# Sections that every task shares, or nearly: they stand once, after those of single tasks.
SHARED = ("", "tokenizer", "decoding", "model", "training")


def sections_of_tasks() -> dict[str, dict[str, tuple[RecipeOption, ...]]]:
    """Task -> section -> its options."""
    sections: dict[str, dict[str, list[RecipeOption]]] = {}
    for task in trained_tasks():
        of_task = sections.setdefault(task, {})
        for option in options_of_task(task):
            of_task.setdefault(option.key.rpartition(".")[0], []).append(option)
    return {
        task: {section: tuple(options) for section, options in of_task.items()}
        for task, of_task in sections.items()
    }


def options_page() -> str:
    """The sections of each task, then those that tasks share."""
    parts = [
        "# Options of recipes",
        "First the sections of each task, then those that tasks share. `regard init TASK` writes "
        "the same as a recipe. The options of `[model]` for a training from random weights are on "
        "the page [options of models](models.md).",
    ]
    shared: dict[str, dict[tuple[RecipeOption, ...], list[str]]] = {}
    for task, sections in sections_of_tasks().items():
        parts.append(f"## Task {task}")
        for section, options in sections.items():
            if section.partition(".")[0] in SHARED:
                shared.setdefault(section, {}).setdefault(options, []).append(task)
            else:
                parts += [f"### [{section}] of {task}", option_table(options)]
    for section, variants in shared.items():
        if section == "model":  # the others name a class of models
            variants = {o: t for o, t in variants.items() if o[0].key == "model.path"}
        parts.append(f"## [{section}]" if section else "## Before the first section")
        for number, (options, tasks) in enumerate(variants.items()):
            if number:  # after the one of most tasks
                parts.append(f"Of {', '.join(tasks)}:")
            parts.append(option_table(options))
    return "\n\n".join(parts)


def models_page() -> str:
    """The options of each model that can be trained from random weights, and its named sizes."""
    parts = [
        "# Options of models",
        "`[model] name` is the title of a table; the other options are its rows. `size` names a "
        "published size, whose values then are the defaults.",
    ]
    for name in NAMED:
        kind = model_class(name)
        first = (inspect.getdoc(kind) or "").partition("\n")[0]
        sizes = ", ".join(f'`"{size}"`' for size in kind.SIZES)
        parts += [f"## {name}", first, f"Sizes: {sizes}." if sizes else ""]
        parts.append(option_table(options_of_model(name)))
    return "\n\n".join(part for part in parts if part)


# ---------------------------------------------------------------------------------- methods


def methods_page() -> str:
    """Which task has which method, and what its class is called."""
    classes = {name: task_class(name) for name in TASKS}
    tasks = (
        (
            code(name),
            f"`{kind.__module__}.{kind.__qualname__}`",
            ", ".join(map(code, kind.commands)),
            ", ".join(map(code, kind.methods())),
        )
        for name, kind in classes.items()
    )
    methods = (
        (
            code(method),
            about,
            ", ".join(code(name) for name, kind in classes.items() if kind.has(method)),
        )
        for method, about in METHODS.items()
    )
    return "\n\n".join(
        [
            "# Methods by task",
            "`regard.load(folder)` and `run.model` give an object of the class of the task. A "
            "method takes one text and gives one result, or a list and gives a list. A method that "
            "a task does not have raises an error that names those it has.",
            table(("task", "class", "commands", "methods"), tasks),
            "## Each method",
            table(("method", "what it does", "tasks"), methods),
        ]
    )


# ---------------------------------------------------------------------------------- commands


def commands(group: Any, above: str = "regard") -> Iterator[tuple[str, Any]]:
    """Name and command of each command of the command line, those of groups included."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{above} {name}")
        if not hasattr(command, "commands") or command.invoke_without_command:
            yield f"{above} {name}", command


def command_line() -> Any:
    return typer.main.get_command(app)


def commands_page() -> str:
    """Every command with its arguments and flags."""
    parts = [
        "# Commands and flags",
        "As `regard COMMAND --help` prints them. Exit codes, pipes and JSON are described under "
        "[command line](../reference/command-line.md).",
    ]
    for name, command in commands(command_line()):
        usage = [f"{name} [OPTIONS]", *(_metavar(one) for one in _arguments(command))]
        parts += [f"## {name}", f"```text\n{' '.join(usage)}\n```", command.help or ""]
        hints = get_type_hints(command.callback)
        flags = (_flag_row(flag, _choices(hints.get(flag.name))) for flag in _flags(command))
        rows = [*map(_argument_row, _arguments(command)), *flags]
        if rows:
            parts.append(table(("argument or flag", "default", "meaning"), rows))
    return "\n\n".join(part for part in parts if part)


def _arguments(command: Any) -> list[Any]:
    return [one for one in command.params if one.param_type_name == "argument"]


def _flags(command: Any) -> list[Any]:
    return [one for one in command.params if one.param_type_name == "option" and not one.hidden]


def _metavar(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    name += "..." if argument.nargs == -1 else ""
    return name if argument.required else f"[{name}]"


def _argument_row(argument: Any) -> tuple[str, str, str]:
    return code(_metavar(argument)), _shown_default(argument), argument.help or ""


def _flag_row(flag: Any, choices: tuple[str, ...]) -> tuple[str, str, str]:
    names = ", ".join(code(name) for name in (*flag.opts, *flag.secondary_opts))
    values = f" One of {', '.join(map(code, choices))}." if choices else ""
    return names, _shown_default(flag), f"{flag.help or ''}{values}"


def _choices(annotation: Any) -> tuple[str, ...]:
    """The values of the `Literal` in an annotation, such as `list[Literal["a", "b"]] | None`."""
    if get_origin(annotation) is Literal:
        return tuple(map(str, get_args(annotation)))
    return tuple(value for inside in get_args(annotation) for value in _choices(inside))


def _shown_default(parameter: Any) -> str:
    default = parameter.default
    if default is None or default is False or callable(default) or default in ((), []):
        return ""
    return code(str(default))


# ------------------------------------------------------------------------------------ routes


def routes_page() -> str:
    """The routes of the server with their fields, and those of its web page."""
    counters = RequestCounters()
    service = Service(Engine(1, counters), counters, ui=UISources({}))
    described = application(service).openapi()
    paths, schemas = described["paths"], described["components"]["schemas"]
    gets = [(path, methods["get"]) for path, methods in paths.items() if "get" in methods]
    posts = [(path, methods["post"]) for path, methods in paths.items() if "post" in methods]
    parts = [
        "# Routes of the server",
        "A POST has a JSON body with the fields of its route; `/openapi.json` of a server has an "
        "example of each. `/docs` shows the same as a page.",
        table(("GET", "what it does"), ((code(path), get["description"]) for path, get in gets)),
    ]
    for path, post in posts:
        if not path.startswith("/ui/"):
            schema = post["requestBody"]["content"]["application/json"]["schema"]["$ref"]
            fields = schemas[schema.rpartition("/")[2]]
            parts += [f"## {path}", post["summary"], _fields(fields)]
    of_page = (
        (code(path), post.get("description", post["summary"]))
        for path, post in posts
        if path.startswith("/ui/")
    )
    parts += ["## Routes of the web page", table(("POST", "what it does"), of_page)]
    return "\n\n".join(parts)


def _fields(schema: Mapping[str, Any]) -> str:
    required = schema.get("required", [])
    rows = (
        (
            code(name),
            "required" if name in required else code(json.dumps(field.get("default"))),
            field.get("description", ""),
        )
        for name, field in schema["properties"].items()
    )
    return table(("field", "default", "meaning"), rows)


# ------------------------------------------------------------------------------------- pages


PAGES: Mapping[str, Callable[[], str]] = {
    "options": options_page,
    "models": models_page,
    "methods": methods_page,
    "commands": commands_page,
    "routes": routes_page,
}


def write(folder: Path) -> None:
    """One Markdown file for each of `PAGES`; a page that has not changed keeps its time."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        path, text = folder / f"{name}.md", page().rstrip() + "\n"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
