"""evaluate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer

from regard.cli.console import AsJson, Model, Quantize, loaded, show, tracked, with_decoding
from regard.cli.using import refuse_decoding, report, unfinished
from regard.errors import ConfigError

Part = Literal["valid", "test"]


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
    last_word: Annotated[
        bool, typer.Option("--last-word", help="How well each line's last word is predicted.")
    ] = False,
    window: Annotated[
        int | None, typer.Option(help="Tokens that a language model reads at a time.")
    ] = None,
    stride: Annotated[
        int | None, typer.Option(help="By how many the window moves; its length by default.")
    ] = None,
    quantize: Quantize = None,
    as_json: AsJson = False,
    *,
    decoding: dict[str, Any],
) -> None:
    """Score a model on the test data of its recipe, or on other data.

    Each score stands with the signature under which it may be compared.
    """
    task, files = loaded(model, quantize=quantize), [*(data or ()), *(more or ())]
    from regard.tasks.batching import watching
    from regard.tasks.language_modeling import LanguageModeling

    if files and valid:
        raise ConfigError("--valid is of the recipe's data, and --data names other. Leave one out.")
    chosen: list[int | str] = [
        int(c) if c.isdecimal() else c for c in (columns or "").split(",") if c
    ]
    part: Part = "valid" if valid else "test"
    if task.decodes and not files:
        files, named = _data_of(*_recipe(model), part)
        chosen = chosen or (named if len(files) == 1 else [])
    windows = {name: n for name, n in (("window", window), ("stride", stride)) if n is not None}
    if windows and (last_word or not isinstance(task, LanguageModeling)):
        raise ConfigError("--window and --stride are for the perplexity of a language model.")
    with watching(lambda batches: tracked(batches, "evaluating")):
        if last_word or isinstance(task, LanguageModeling):
            refuse_decoding("Perplexity", decoding)
            scores, counts = _likelihood(task, files, chosen, last_word, windows), Counter[str]()
        elif task.decodes:
            scores, counts = _answers(task, files, chosen, decoding)
            report(counts, task.model.config.max_length)
        else:
            refuse_decoding(task.name, decoding)
            scores, files, counts = *_headed(task, model, files, chosen, part), Counter[str]()
    keys = ("name", "value", "signature", "count")
    plain = [{key: getattr(score, key) for key in keys} for score in scores]
    facts = {"model": model, "data": files, "scores": plain, **counts}
    show(facts, "\n".join(map(str, scores)), as_json)


def refuse_columns(why: str) -> NoReturn:
    """Says why --columns would be without effect."""
    raise ConfigError(f"--columns would be without effect: {why}. Leave it out.")


def _recipe(model: Path) -> tuple[Path, Any]:
    """The run that a model belongs to, and its recipe."""
    from regard.experiments.runs import read_recipe

    place = next((p for p in (model, model.parent) if (p / "recipe.toml").exists()), None)
    if place is None:
        raise ConfigError(f"{model} has no recipe that would name data. Name some with --data.")
    return place, read_recipe(place / "recipe.toml")


def _data_of(place: Path, recipe: Any, part: Part) -> tuple[list[Path], list[int | str]]:
    """The files of the recipe of a run, and which columns of a table."""
    files = getattr(recipe.data, part) or ()
    if not files:
        raise ConfigError(f"The recipe of {place} names no {part} data. Name some with --data.")
    several = [files] if isinstance(files, Path) else list(files)
    return several, list(getattr(recipe.data, "columns", ()))


def _headed(
    task: Any, model: Path, files: list[Path], columns: list[int | str], part: Part
) -> tuple[list[Any], list[Path]]:
    """Scores of what the head of a model answers, and the files that they are of."""
    task.require("evaluate", model, f"Nothing scores the task {task.name} here.")
    if columns and not files:
        refuse_columns("the recipe names those of its data")
    if len(files) > 1:
        raise ConfigError(f"{task.name} is scored on one file, but is given {len(files)}.")
    if files:
        return task.evaluate(task.rows_to_evaluate(files, columns)), files
    place, recipe = _recipe(model)
    (file, *_), _ = _data_of(place, recipe, part)
    return task.evaluate(task.part_of(recipe, part)), [file]


def _answers(
    task: Any, files: Sequence[Path], columns: Sequence[int | str], decoding: dict[str, Any]
) -> tuple[list[Any], Counter[str]]:
    """Scores of the answers to the first column against the second, and what was cut."""
    from regard.tasks.translation import fields_of, pairs_of

    if len(files) > 1 and columns:
        refuse_columns("lines of two files have none")
    sources, references = fields_of(pairs_of(files, columns or (0, 1)))
    long = task.long_ones(sources)
    found = task.hypotheses(sources, too_long="truncate", **decoding)
    best = [words[0] for words in task.spelled(sources, found)]
    counts = {"texts": len(sources), "truncated": len(long), "unfinished": unfinished(found)}
    return task.scores(best, references), Counter(counts)


def _likelihood(
    task: Any,
    files: Sequence[Path],
    columns: Sequence[int | str],
    last_word: bool,
    windows: dict[str, int],
) -> list[Any]:
    """Perplexity of texts, or of the last words of their lines."""
    from regard.data import read
    from regard.tasks.language_modeling import LanguageModeling

    if last_word and not isinstance(task, LanguageModeling):
        raise ConfigError(f"{task.name} predicts no next word: --last-word is for language models.")
    if columns:
        refuse_columns("running text has none")
    if not last_word:
        return [task.evaluate(read(file, format=task.format), **windows) for file in files]
    return [score for file in files for score in task.lambada(passages(file))]


def passages(file: Path) -> list[str]:
    """The lines of a file; of JSONL, the field "text" of each."""
    from regard.data import read

    fields = ["text"] if file.suffix in (".jsonl", ".json") else []
    return [row[0] for row in read(file, fields)]
