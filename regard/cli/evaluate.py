"""evaluate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from typer import Argument

from regard.call_options import PerplexityFields
from regard.cli import console, options
from regard.cli.options import check_none, flag
from regard.errors import ConfigError

if TYPE_CHECKING:
    from regard.metrics import Score
    from regard.tasks.language_modeling import TextGenerator
    from regard.tasks.task import Task
    from regard.tasks.text_to_text import TextToText

Part = Literal["valid", "test"]
Columns = list[int | str]  # of a table, by number or name
Files = list[Path] | None


class FewShotFields(TypedDict, total=False):
    """Questions as prompts: how each row becomes one, and which solved examples are before it."""

    template: Annotated[str | None, "Turn each row into this prompt, with fields such as {text}."]
    answer: Annotated[str | None, "With --template: the field with the right answer."]
    choices: Annotated[
        str | None,
        "With --template: labels with texts, 0=bad,1=good, or the field of choices.",
    ]
    shots: Annotated[int | None, "With --template: write N solved examples before each question."]
    examples: Annotated[Path | None, "With --template: draw the solved examples from this file."]
    examples_seed: Annotated[int | None, "With --template: draw the examples with this seed."]
    too_long: Annotated[
        Literal["error", "truncate"] | None,
        "With --template: what happens to prompts beyond the context.",
    ]


def _checked(prompts: dict[str, Any]) -> dict[str, Any]:
    """The options of questions as prompts.

    Raises:
        ConfigError: the field with the answer is missing, or what turns a row into a prompt.
    """
    if "template" not in prompts:
        check_none("without --template", prompts)
    elif "answer" not in prompts:
        raise ConfigError("--template needs --answer, the field with the right answer.")
    return prompts


def _few_shot(task: Task, files: Sequence[Path], prompts: dict[str, Any]) -> list[Score]:
    """The scores of a language model on questions as prompts.

    Raises:
        ConfigError: an option would have no effect.
    """
    from regard.tasks.few_shot import PromptTemplate, few_shot_scores

    if not prompts.get("shots"):
        names = ("examples", "examples_seed")
        check_none("without --shots", {name: prompts.get(name) for name in names})
    choices: Any = prompts.get("choices")
    if choices is not None and "=" in choices:
        pairs = (part.partition("=") for part in choices.split(","))
        choices = {label.strip(): text.strip() for label, _, text in pairs}
    text = prompts["template"].replace("\\n", "\n")  # a shell gives two characters
    template = PromptTemplate(text, prompts["answer"], choices)
    shown: Any = {
        "shots": prompts.get("shots", 0),
        "pool": prompts.get("examples"),
        "seed": prompts.get("examples_seed", 1),
        "too_long": prompts.get("too_long", "error"),
    }
    model = _language_model(task, "--template")
    return [score for file in files for score in few_shot_scores(model, file, template, **shown)]


def _minimal_pairs(task: Task, files: Sequence[Path], count: int | None) -> list[Score]:
    """The scores of the likelihoods of pairs of sentences; count: of the pairs of each set."""
    from regard.data import read_minimal_pairs
    from regard.tasks.log_likelihoods import minimal_pair_scores

    several = (read_minimal_pairs(file, pairs_per_set=count) for file in files)
    return minimal_pair_scores(task, [pair for pairs in several for pair in pairs])


def _language_model(task: Task, flag: str) -> TextGenerator:
    from regard.tasks.language_modeling import TextGenerator

    if not isinstance(task, TextGenerator):
        raise ConfigError(f"{task.name} continues no prompt: {flag} is for language models.")
    return task


@options.with_opening
@options.with_decoding
@options.with_flags("few_shot", FewShotFields, _checked)
@options.with_flags("perplexity", PerplexityFields)
def evaluate(
    model: options.ModelFolder,
    more: Annotated[
        Files, Argument(metavar="FILE", help="Further files of data, after those of --data.")
    ] = None,
    data: Files = flag("Score on this table, text, or two parallel files."),
    columns: str | None = flag("The columns of the table in --data, such as 0,1 or en,de."),
    delimiter: options.Delimiter = None,
    valid: bool = flag("Score on the validation data of the recipe.", False),
    last_word: bool = flag("Score the prediction of the last word of each line.", False),
    minimal_pairs: bool = flag("Score pairs of which one sentence is grammatical.", False),
    pairs_per_set: int | None = flag("With --minimal-pairs: use the first N pairs of each set."),
    as_json: options.AsJson = False,
    *,
    opening: options.Opening,
    perplexity: dict[str, Any],
    few_shot: dict[str, Any],
    decoding: dict[str, Any],
) -> None:
    """Score a model on the test data of its recipe, or others.

    Each score has a signature; scores with equal signatures may be compared.
    """
    task, files = console.load_task(model, **vars(opening)), [*(data or ()), *(more or ())]
    from regard.tasks.batching import watching
    from regard.tasks.language_modeling import TextGenerator

    if minimal_pairs or few_shot:
        if not files:
            raise ConfigError("The test needs --data: the file of its rows.")
        others: dict[str, Any] = {"columns": columns, "delimiter": delimiter}
        others |= {"last_word": last_word, **decoding, **perplexity}
        check_none("with --minimal-pairs or --template", others)
    if files:
        check_none("with --data: it is for the recipe's data", {"valid": valid})
    else:
        check_none("without --data", {"delimiter": delimiter})
    if not minimal_pairs:
        check_none("without --minimal-pairs", {"pairs_per_set": pairs_per_set})
    chosen: Columns = [int(c) if c.isdecimal() else c for c in options.column_names(columns)]
    part: Part = "valid" if valid else "test"
    if task.decodes and not files:
        files, recipe_columns = _data_of(*_recipe(model), part)
        chosen = chosen or (recipe_columns if len(files) == 1 else [])
    if last_word or not isinstance(task, TextGenerator):
        check_none("but on the perplexity of a language model", perplexity)
    counts = Counter[str]()
    with watching(lambda batches: console.with_progress(batches, "evaluating")):
        if minimal_pairs:
            check_none("with --minimal-pairs, another test", few_shot)
            scores = _minimal_pairs(task, files, pairs_per_set)
        elif few_shot:
            scores = _few_shot(task, files, few_shot)
        elif last_word or isinstance(task, TextGenerator):
            check_none("on a perplexity", decoding)
            scores = _likelihood(task, files, chosen, delimiter, last_word, perplexity)
        elif task.decodes:
            scores, counts = _outputs(task, files, chosen, delimiter, decoding)
            limit = task.module.config.max_length
            console.warn_truncated(counts["truncated"], counts["texts"], limit)
            console.warn_unfinished(counts["unfinished"], counts["texts"])
        else:
            check_none(f"on the task {task.name}", decoding)
            scores, files = _predictions(task, model, files, chosen, delimiter, part)
    facts = {"model": model, "data": files, "scores": list(map(_facts, scores)), **counts}
    tables = [str(score.report) for score in scores if minimal_pairs and score.report]
    console.show(facts, "\n".join([*tables, *map(str, scores)]), as_json)


def _facts(score: Any) -> dict[str, Any]:
    """A score as JSON has it, by label where it has such a report."""
    from regard.metrics import Score

    if isinstance(score, Score):
        return score.facts()
    return {key: getattr(score, key) for key in ("name", "value", "signature", "count")}


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
    from regard.tasks.folders import recipe_columns
    from regard.tasks.inputs import rows_of

    task.require("evaluate", model, f"Nothing scores the task {task.name} here.")
    if not files:
        check_none("without --data: the recipe names those of its data", {"columns": columns})
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

    if len(files) > 1:
        check_none("on lines of two files", {"columns": columns, "delimiter": delimiter})
    rows = rows_of(task, files, columns, delimiter)
    sources, references = fields_of(rows)
    long = task.over_limit(sources)
    outputs = task.hypotheses(sources, too_long="truncate", **decoding)
    best = [texts[0] for texts in task.spelled(sources, outputs)]
    counts = {"texts": len(sources), "truncated": len(long), "unfinished": unfinished(outputs)}
    return task.scores(best, references), Counter(counts)


def _likelihood(
    task: Task,
    files: Sequence[Path],
    columns: Columns,
    delimiter: str | None,
    last_word: bool,
    options: Mapping[str, Any],
) -> list[Any]:
    """Perplexity of texts, or scores of the last words of their lines."""
    model = _language_model(task, "--last-word")
    check_none("on running text", {"columns": columns, "delimiter": delimiter})
    if not last_word:
        return [score for file in files for score in model.evaluate(file, **options).named]
    return [score for file in files for score in model.lambada(_passages(file))]


def _passages(file: Path) -> list[str]:
    """The lines of a file; of JSONL, the field "text" of each."""
    from regard.data import open_table

    return [*open_table(file, ["text"] if file.suffix in (".jsonl", ".json") else []).texts()]
