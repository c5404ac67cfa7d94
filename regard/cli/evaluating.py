"""evaluate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.console import AsJson, Model, show, tracked, with_decoding
from regard.cli.using import report, unfinished
from regard.errors import ConfigError

CHUNK = 256  # sentences between two looks at the progress


@with_decoding
def evaluate(
    model: Model,
    more: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE", help="Further files of --data.")
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE...", help="Source and target, or a table, or a text."),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="Of a table, source and target: 0,1 or en,de.")
    ] = None,
    valid: Annotated[bool, typer.Option("--valid", help="The recipe's validation data.")] = False,
    as_json: AsJson = False,
    *,
    decoding: dict[str, Any],
) -> None:
    """Score a model on the test data of its recipe, or on other data.

    Each score stands with the signature under which it may be compared.
    """
    from regard.runs import load
    from regard.tasks.language_modeling import LanguageModeling

    task, files, chosen = load(model), [*(data or ()), *(more or ())], list[int | str]()
    if not files:
        files, chosen = _recipe_data(model, "valid" if valid else "test")
    if columns:
        chosen = [int(name) if name.isdigit() else name for name in columns.split(",")]
    if isinstance(task, LanguageModeling):
        scores, counts = _likelihood(task, files, decoding), Counter[str]()
    else:
        scores, counts = _answers(task, files, chosen or [0, 1], decoding)
        report(counts, task.model.config.max_length)
    named = ("name", "value", "signature", "count")
    plain = [{key: getattr(score, key) for key in named} for score in scores]
    facts = {"model": model, "data": files, "scores": plain, **counts}
    show(facts, "\n".join(map(str, scores)), as_json)


def _recipe_data(model: Path, part: str) -> tuple[list[Path], list[int | str]]:
    """The files of the recipe of a run, and which columns of a table."""
    from regard.runs import read_recipe

    place = next((p for p in (model, model.parent) if (p / "recipe.toml").exists()), None)
    if place is None:
        raise ConfigError(f"{model} has no recipe that would name data. Name some with --data.")
    section: Any = read_recipe(place / "recipe.toml").data  # type: ignore[attr-defined]
    files = getattr(section, part) or ()
    if not files:
        raise ConfigError(f"The recipe of {place} names no {part} data. Name some with --data.")
    several = [files] if isinstance(files, Path) else list(files)
    return several, list(getattr(section, "columns", ()))


def _answers(
    task: Any, files: Sequence[Path], columns: Sequence[int | str], decoding: dict[str, Any]
) -> tuple[list[Any], Counter[str]]:
    """Scores of the answers to the first column against the second, and what was cut."""
    from regard.tasks.translation import pairs_of

    sources, references = map(list, zip(*pairs_of(files, columns), strict=True))
    long, found = task.long_ones(sources), []
    for start in tracked(range(0, len(sources), CHUNK), "evaluating"):
        part = sources[start : start + CHUNK]
        found += task.hypotheses(part, too_long="truncate", **decoding)
    best = [words[0] for words in task.spelled(sources, found)]
    counts = {"texts": len(sources), "truncated": len(long), "unfinished": unfinished(found)}
    return task.scores(best, references), Counter(counts)


def _likelihood(task: Any, files: Sequence[Path], decoding: dict[str, Any]) -> list[Any]:
    from regard.data import read

    if decoding:
        names = ", ".join(decoding)
        raise ConfigError(f"Perplexity decodes nothing: {names} would be without effect.")
    return [task.evaluate(read(file, format=task.format)) for file in files]
