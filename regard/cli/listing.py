"""list, init; kernels, and kernels build."""

import ast
import re
from importlib import import_module
from importlib.util import find_spec
from inspect import getdoc
from pathlib import Path
from textwrap import TextWrapper
from typing import Annotated, Any, Literal

import typer
from typer import Argument

from regard.cli import console, options
from regard.errors import RegardError

# what: the module and its table of names. A value is "module:name", whose docstring is shown.
TABLES = {
    "models": ("regard.models", "NAMED"),
    "tasks": ("regard.tasks", "TASKS"),
    "decoding": ("regard.decoding", "METHODS"),
}
WIDTH = 100  # of a line, in characters
What = Literal["models", "tasks", "recipes", "tokenizers", "decoding"]


def list_(
    what: Annotated[What, Argument(help="One of: models, tasks, recipes, tokenizers, decoding.")],
    as_json: options.AsJson = False,
) -> None:
    """List models, tasks, recipes, tokenizers or decoding."""
    if what == "recipes":
        rows = _recipes()
    elif what == "tokenizers":
        from regard.text import KINDS

        rows = [{"name": n, "about": _about(where)} for n, (where, _) in KINDS.items()]
    else:
        package, table = TABLES[what]
        entries = getattr(import_module(package), table)
        rows = [{"name": n, "about": _about(where, package)} for n, where in entries.items()]
    width = max((len(row["name"]) for row in rows), default=0)
    lines = [f"{row['name']:<{width}}  {row['about']}" for row in rows]
    layout = TextWrapper(WIDTH, subsequent_indent=" " * (width + 2), break_on_hyphens=False)
    console.show(rows, "\n".join(map(layout.fill, lines)), as_json)


def _first_sentence(text: str) -> str:
    """The first sentence of a paragraph; "et al." ends none."""
    return re.split(r"(?<=\.)(?<!\bal\.) (?=\W?[A-Z])", " ".join(text.split()), maxsplit=1)[0]


def _about(where: str | type, package: str = "") -> str:
    """The first sentence of the docstring of the class or function that "module:name" names.

    The file is parsed and not imported, which would take long. Of a registered class: its own.
    """
    if isinstance(where, type):
        return _first_sentence((getdoc(where) or "").split("\n\n")[0])
    module, _, name = where.partition(":")
    spec = find_spec(module if module.startswith("regard.") else f"{package}.{module}")
    if spec is None or spec.origin is None:
        return ""
    tree: Any = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    named = next((n for n in tree.body if getattr(n, "name", "") == name), tree)
    return _first_sentence((ast.get_docstring(named) or "").split("\n\n")[0])


def _recipes() -> list[dict[str, Any]]:
    """The recipes that can be named, with their first comment's sentence."""
    from regard.recipe import recipe_files
    from regard.schema import data_error, read_text

    files = recipe_files()
    rows = []
    for name, path in files.items():
        comment: list[str] = []
        for line in read_text(path, error=data_error(path)).splitlines():
            if not line.startswith("# "):
                break
            comment.append(line[2:])
        about = _first_sentence(" ".join(comment))
        rows.append({"name": name, "about": about, "file": str(path)})
    return rows


def init(
    task: Annotated[
        str, Argument(help="The task to train (regard list tasks), or how its name begins.")
    ],
    out: Annotated[
        Path | None,
        Argument(metavar="FILE", help="The recipe that is written; default: TASK.toml."),
    ] = None,
    force: options.Force = False,
) -> None:
    """Write a recipe with every option of a task and its default."""
    from regard.experiments.template import recipe_template, trained_tasks
    from regard.file_writing import write_text
    from regard.habit_names import task_name

    begun = [name for name in trained_tasks() if name.startswith(task)]
    task = begun[0] if len(begun) == 1 else task_name(task)
    text, out = recipe_template(task), out or Path(f"{task}.toml")
    options.check_out(out, force)
    write_text(out, text)
    console.emit(f"{out}: set its paths, then: regard train {out} --dry-run\n")


app = typer.Typer(
    help="List the implementations of operations, or compile kernels.",
    invoke_without_command=True,
)


@app.callback()
def kernels(context: typer.Context, as_json: options.AsJson = False) -> None:
    """List the implementations of each operation and the state of the compiled kernels."""
    if context.invoked_subcommand is not None:
        return
    from regard import ops
    from regard.registry import implementation_names, kernel_package

    implementation_names()  # imports the modules that register some
    package = kernel_package()
    status = (
        "the package of compiled kernels is not installed" if package is None else package.status()
    )
    operations = {
        name: {i.name: "off" if ops.is_disabled(i.name) else "on" for i in op.implementations}
        for name, op in sorted(ops.OPERATIONS.items())
    }
    lines = [f"compiled kernels: {status}", ""]
    for name, states in operations.items():
        tried = [key if state == "on" else f"{key} ({state})" for key, state in states.items()]
        lines.append(f"{name:<24} {', '.join([*tried, 'definition'])}")
    console.show({"kernels": status, "operations": operations}, "\n".join(lines), as_json)


@app.command()
def build() -> None:
    """Compile the kernels now, or report why they cannot be compiled."""
    from regard import ops
    from regard.registry import kernel_package

    package = kernel_package()
    status = (
        "The package of compiled kernels is not installed." if package is None else package.status()
    )
    if package is None or not ops.load_kernels():
        raise RegardError(status)
    console.say(status)
