"""list: what there is."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from regard.cli.console import AsJson, show
from regard.errors import DataError

# what: the module and its table of names. A value's "module:thing" says whose docstring tells.
TABLES = {
    "models": ("regard.models", "MODELS"),
    "tasks": ("regard.tasks", "TASKS"),
    "decoding": ("regard.decoding", "METHODS"),
}
CHECKOUT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Progress:
    """What the list shows of a result.json."""

    update: int
    scores: dict[str, float | None]


What = Literal["models", "tasks", "recipes", "tokenizers", "decoding", "runs"]


def list_(
    what: Annotated[What, typer.Argument(help="What to list.")],
    folder: Annotated[
        Path | None, typer.Option(help="Where recipes or runs lie; recipes/ and runs/ without it.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the models, tasks, recipes, tokenizers, decoding methods or runs that there are."""
    if what == "runs":
        rows = _runs(folder or Path("runs"))
    elif what == "recipes":
        rows = _recipes(folder or _recipe_folder())
    elif what == "tokenizers":
        from regard.text import KINDS

        places = {name: place for name, (place, _) in KINDS.items()}
        rows = [{"name": n, "about": _about(p, of_function=True)} for n, p in places.items()]
    else:
        package, table = TABLES[what]
        places = getattr(import_module(package), table)
        rows = [{"name": n, "about": _about(p, package)} for n, p in places.items()]
    wide = max((len(row["name"]) for row in rows), default=0)
    show(rows, "\n".join(f"{row['name']:<{wide}}  {row['about']}" for row in rows), as_json)


def _about(place: str, package: str = "", of_function: bool = False) -> str:
    """The first line of a docstring; the file is read and not imported, which would take long."""
    module, _, name = place.partition(":")
    found = find_spec(module if module.startswith("regard.") else f"{package}.{module}")
    if found is None or found.origin is None:
        return ""
    tree: Any = ast.parse(Path(found.origin).read_text(encoding="utf-8"))
    if of_function:
        named = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name]
        tree = named[0] if named else tree
    return (ast.get_docstring(tree) or "").split("\n")[0]


def _recipe_folder() -> Path:
    here = Path("recipes")
    return here if here.is_dir() else CHECKOUT / "recipes"


def _recipes(folder: Path) -> list[dict[str, Any]]:
    """The recipes of a folder, with the first sentence of the comment at their top."""
    from regard.schema import data_error, read_text

    _check(folder)
    rows = []
    for path in sorted(folder.glob("*.toml")):
        comment: list[str] = []
        for line in read_text(path, error=data_error(path)).splitlines():
            if not line.startswith("# "):
                break
            comment.append(line[2:])
        about = re.split(r"(?<!\bal)\. |: ", " ".join(comment))[0].rstrip(".")
        rows.append({"name": str(path), "about": about})
    return rows


def _runs(folder: Path) -> list[dict[str, Any]]:
    """The runs of a folder: the task, the model, and how far they are."""
    _check(folder)
    return [_run(path.parent) for path in sorted(folder.glob("*/recipe.toml"))]


def _run(folder: Path) -> dict[str, Any]:
    from regard.recipe import read
    from regard.schema import read_json

    recipe = read(folder / "recipe.toml")
    row: dict[str, Any] = {"name": str(folder), "task": recipe.text_at("task")}
    row["model"] = recipe.text_at("model.name") or recipe.text_at("model.path")
    if (folder / "result.json").exists():
        result = read_json(folder / "result.json", Progress)
        row |= {"finished": True, "update": result.update, "scores": result.scores}
    else:
        row |= {"finished": False, "update": _update(folder), "scores": {}}
    how = "finished" if row["finished"] else "not finished"
    scores = [f"{k} {v:.4g}" for k, v in row["scores"].items() if v is not None]
    parts = [f"{row['task']}, {row['model']}: {how} at update {row['update']:,}", *scores]
    return {**row, "about": "  ".join(parts)}


def _update(folder: Path) -> int:
    """The update of the newest checkpoint."""
    names = (path.name for path in (folder / "checkpoints").glob("step-*"))
    steps = (re.fullmatch(r"step-(\d{1,18})(\.\d+)?", name) for name in names)
    return max((int(step[1]) for step in steps if step), default=0)


def _check(folder: Path) -> None:
    if not folder.is_dir():
        raise DataError(folder, None, "there is no such folder.", "Name another with --folder.")
