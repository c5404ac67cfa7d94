"""evaluate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

from typer import Argument, Option

from regard.cli.console import load_task, say_truncated, say_unfinished, show, with_progress
from regard.cli.options import (
    AsJson,
    ModelFolder,
    Opening,
    check_no_decoding,
    column_names,
    with_decoding,
    with_flags,
    with_opening,
)
from regard.cli.zero_shot import ZeroShotOptions
from regard.errors import ConfigError

if TYPE_CHECKING:
    from regard.tasks.task import Task
    from regard.tasks.text_to_text import TextToText

Part = Literal["valid", "test"]
Columns = list[int | str]  # of a table, by number or name
Files = list[Path] | None


@dataclass(frozen=True)
class PerplexityOptions:
    """How a text is read for its perplexity, where it differs from the model's own settings."""

    window: Annotated[
        int | None, Option(help="Perplexity: score the text in windows of N tokens.")
    ] = None
    stride: Annotated[int | None, Option(help="Perplexity: begin a new window every N tokens.")] = (
        None
    )
    target_length: Annotated[
        int | None, Option(help="Perplexity: let a recurrent state read N tokens at a time.")
    ] = None
    memory_length: Annotated[
        int | None, Option(help="Perplexity: keep N positions in Transformer-XL's memory.")
    ] = None
    max_distance: Annotated[
        int | None, Option(help="Perplexity: clamp distances of Transformer-XL at N positions.")
    ] = None
    neural_cache: Annotated[
        int | None,
        Option(help="Perplexity: add a neural cache of N positions (Grave et al. 2017)."),
    ] = None
    neural_cache_theta: Annotated[
        float | None, Option(help="The flatness theta of the neural cache's distribution.")
    ] = None
    neural_cache_weight: Annotated[
        float | None,
        Option(help="The weight of the neural cache in the interpolated distribution."),
    ] = None

    def given(self) -> dict[str, Any]:
        """The options that are not None."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@with_opening
@with_decoding
@with_flags("zero_shot", ZeroShotOptions)
@with_flags("perplexity", PerplexityOptions)
def evaluate(
    model: ModelFolder,
    more: Annotated[
        Files, Argument(metavar="FILE", help="Further files of data, after those of --data.")
    ] = None,
    data: Annotated[
        Files, Option(metavar="FILE", help="Score on this table, text, or two parallel files.")
    ] = None,
    columns: Annotated[
        str | None,
        Option(metavar="COLUMNS", help="The columns of the table in --data, such as 0,1 or en,de."),
    ] = None,
    delimiter: Annotated[
        str | None,
        Option(metavar="SIGN", help="The sign between the fields of the CSV table in --data."),
    ] = None,
    valid: Annotated[
        bool, Option("--valid", help="Score on the validation data of the recipe.")
    ] = False,
    last_word: Annotated[
        bool, Option("--last-word", help="Score the prediction of the last word of each line.")
    ] = False,
    as_json: AsJson = False,
    *,
    opening: Opening,
    perplexity: PerplexityOptions,
    zero_shot: ZeroShotOptions,
    decoding: dict[str, Any],
) -> None:
    """Score a model on the test data of its recipe, or others.

    Each score has a signature; scores with equal signatures may be compared.
    """
    task, files = load_task(model, **vars(opening)), [*(data or ()), *(more or ())]
    from regard.tasks.batching import watching
    from regard.tasks.language_modeling import TextGenerator

    asked = zero_shot.check(valid=valid, last_word=last_word, columns=columns)
    if files and valid:
        raise ConfigError("--valid is for the recipe's data, --data for other data. Leave one out.")
    if delimiter is not None and not files:
        raise ConfigError("--delimiter is for the table in --data. Leave it out, or name a table.")
    chosen: Columns = [int(c) if c.isdecimal() else c for c in column_names(columns)]
    part: Part = "valid" if valid else "test"
    if task.decodes and not files and not asked:
        files, recipe_columns = _data_of(*_recipe(model), part)
        chosen = chosen or (recipe_columns if len(files) == 1 else [])
    is_perplexity = isinstance(task, TextGenerator) and not (last_word or asked)
    if (given := perplexity.given()) and not is_perplexity:
        named = "--" + next(iter(given)).replace("_", "-")
        raise ConfigError(f"{named} is for the perplexity of a language model.")
    counts = Counter[str]()
    with watching(lambda batches: with_progress(batches, "evaluating")):
        if asked:
            check_no_decoding(asked, decoding)
            scores = zero_shot.scores(task, files)
        elif last_word or isinstance(task, TextGenerator):
            check_no_decoding("Perplexity", decoding)
            scores = _likelihood(task, files, chosen, last_word, given)
        elif task.decodes:
            scores, counts = _outputs(task, files, chosen, delimiter, decoding)
            say_truncated(counts, task.module.config.max_length)
            say_unfinished(counts)
        else:
            check_no_decoding(task.name, decoding)
            scores, files = _predictions(task, model, files, chosen, delimiter, part)
    facts = {"model": model, "data": files, "scores": list(map(_facts, scores)), **counts}
    tables = [str(one.report) for one in scores if asked and one.report]
    show(facts, "\n".join([*tables, *map(str, scores)]), as_json)


def _facts(score: Any) -> dict[str, Any]:
    """A score as JSON has it, by label where it has such a report."""
    from regard.metrics import Score

    if isinstance(score, Score):
        return score.facts()
    return {key: getattr(score, key) for key in ("name", "value", "signature", "count")}


def _no_columns(why: str) -> NoReturn:
    raise ConfigError(f"--columns would be without effect: {why}. Leave it out.")


def _recipe(model: Path) -> tuple[Path, Any]:
    """The run that a model belongs to, and its recipe."""
    from regard.experiments.recipe_options import read_recipe

    run = next((path for path in (model, model.parent) if (path / "recipe.toml").exists()), None)
    if run is None:
        raise ConfigError(f"{model} has no recipe that names data. Name some with --data.")
    return run, read_recipe(run / "recipe.toml")


def _data_of(run: Path, recipe: Any, part: Part) -> tuple[list[Path], Columns]:
    """The files of the recipe of a run, and which columns of a table."""
    files = getattr(recipe.data, part) or ()
    if not files:
        raise ConfigError(f"The recipe of {run} names no {part} data. Name some with --data.")
    if part == "valid" and recipe.data.splits_train:
        raise ConfigError(
            f"The validation data of {run} are a part of its training data, and scores of them are "
            "in its metrics.jsonl. Name other data with --data."
        )
    several = [files] if isinstance(files, Path) else list(files)
    return several, list(getattr(recipe.data, "columns", ()))


def _predictions(
    task: Task,
    model: Path,
    files: list[Path],
    columns: Columns,
    delimiter: str | None,
    part: Part,
) -> tuple[list[Any], list[Path]]:
    """Scores of the predictions of a model's head, and the files that were read."""
    from regard.tasks.calls import recipe_columns
    from regard.tasks.inputs import rows_of

    task.require("evaluate", model, f"Nothing scores the task {task.name} here.")
    if columns and not files:
        _no_columns("the recipe names those of its data")
    if len(files) > 1:
        raise ConfigError(f"{task.name} is scored on one file, but is given {len(files)}.")
    if files:
        chosen = columns or recipe_columns(model, files[0])
        return [*task.evaluate(rows_of(task, files, chosen, delimiter)).named], files
    run, recipe = _recipe(model)
    if part == "valid" and recipe.data.splits_train and not recipe.data.of_documents:
        return [*task.evaluate(recipe.data.records(part)).named], [Path(recipe.data.train)]
    files, _ = _data_of(run, recipe, part)
    return [*task.evaluate(recipe.data.records(part)).named], files


def _outputs(
    task: TextToText,
    files: Sequence[Path],
    columns: Columns,
    delimiter: str | None,
    decoding: Mapping[str, Any],
) -> tuple[list[Any], Counter[str]]:
    """Scores of the outputs for the first column against the second, and what was truncated."""
    from regard.decoding import unfinished
    from regard.tasks.inputs import rows_of
    from regard.tasks.text_to_text import fields_of

    if len(files) > 1 and columns:
        _no_columns("lines of two files have none")
    rows = rows_of(task, files, columns, delimiter)
    sources, references = fields_of(rows)
    long = task.over_limit(sources)
    found = task.hypotheses(sources, too_long="truncate", **decoding)
    best = [texts[0] for texts in task.spelled(sources, found)]
    counts = {"texts": len(sources), "truncated": len(long), "unfinished": unfinished(found)}
    return [*task.scores(best, references), *task.reference_scores(rows)], Counter(counts)


def _likelihood(
    task: Task,
    files: Sequence[Path],
    columns: Columns,
    last_word: bool,
    options: Mapping[str, Any],
) -> list[Any]:
    """Perplexity of texts, or scores of the last words of their lines."""
    from regard.tasks.language_modeling import TextGenerator

    if not isinstance(task, TextGenerator):
        raise ConfigError(f"{task.name} predicts no next word: --last-word is for language models.")
    if columns:
        _no_columns("running text has none")
    if not last_word:
        return [score for file in files for score in task.evaluate(file, **options).named]
    return [score for file in files for score in task.lambada(_passages(file))]


def _passages(file: Path) -> list[str]:
    """The lines of a file; of JSONL, the field "text" of each."""
    from regard.data import read

    fields = ["text"] if file.suffix in (".jsonl", ".json") else []
    return [row[0] for row in read(file, fields)]
