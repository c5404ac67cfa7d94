"""evaluate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument

from regard.cli import console, options
from regard.cli.options import check_none, flag, given
from regard.errors import ConfigError

if TYPE_CHECKING:
    from regard.metrics import Score
    from regard.tasks.language_modeling import TextGenerator
    from regard.tasks.task import Task
    from regard.tasks.text_to_text import TextToText

Part = Literal["valid", "test"]
Columns = list[int | str]  # of a table, by number or name
Files = list[Path] | None
PAIRS, PROMPTS = "--minimal-pairs", "--template"
OF_PROMPTS = ("answer", "choices", "shots", "examples", "examples_seed", "too_long")


@dataclass(frozen=True)
class PerplexityOptions:
    """How a text is read for its perplexity, where it differs from the model's own settings."""

    window: int | None = flag("Perplexity: score the text in windows of N tokens.")
    stride: int | None = flag("Perplexity: begin a new window every N tokens.")
    target_length: int | None = flag("Perplexity: let a recurrent state read N tokens at a time.")
    memory_length: int | None = flag("Perplexity: keep N positions in Transformer-XL's memory.")
    max_distance: int | None = flag("Perplexity: clamp distances of Transformer-XL at N positions.")
    neural_cache: int | None = flag(
        "Perplexity: add a neural cache of N positions (Grave et al. 2017)."
    )
    neural_cache_theta: float | None = flag(
        "The flatness theta of the neural cache's distribution."
    )
    neural_cache_weight: float | None = flag(
        "The weight of the neural cache in the interpolated distribution."
    )


@dataclass(frozen=True)
class ZeroShotOptions:
    """Minimal pairs, or questions as prompts; by default none of them."""

    minimal_pairs: bool = flag("Score pairs of which one sentence is grammatical.", False)
    pairs_per_set: int | None = flag("Minimal pairs: use the first N pairs of each set.")
    template: str | None = flag(
        "Few-shot evaluation: turn each row into this prompt, with fields such as {text}."
    )
    answer: str | None = flag(
        "Few-shot evaluation: the field with the right answer.", metavar="FIELD"
    )
    choices: str | None = flag(
        "Few-shot evaluation: labels with texts, 0=bad,1=good, or the field of choices.",
        metavar="CHOICES",
    )
    shots: int | None = flag("Few-shot evaluation: write N solved examples before each question.")
    examples: Path | None = flag(
        "Few-shot evaluation: draw the solved examples from this file.", metavar="FILE"
    )
    examples_seed: int | None = flag("Few-shot evaluation: draw the examples with this seed.")
    too_long: Literal["error", "truncate"] | None = flag(
        "Few-shot evaluation: what happens to prompts beyond the context."
    )

    def test(self) -> str | None:
        """The option that says what is asked; None where none does.

        Raises:
            ConfigError: an option would be without effect, or lacks another.
        """
        if not self.minimal_pairs:
            check_none(f"without {PAIRS}", {"pairs_per_set": self.pairs_per_set})
        if self.template is None:
            check_none(f"without {PROMPTS}", {name: getattr(self, name) for name in OF_PROMPTS})
            return PAIRS if self.minimal_pairs else None
        check_none(f"with {PROMPTS}, another test", {"minimal_pairs": self.minimal_pairs})
        if not self.answer:
            raise ConfigError(f"{PROMPTS} needs --answer, the field with the right answer.")
        if bool(self.shots) != (self.examples is not None):
            raise ConfigError("--shots and --examples need each other: give both or none.")
        if not self.shots:
            check_none("without --shots", {"examples_seed": self.examples_seed})
        return PROMPTS

    def scores(self, task: Task, files: Sequence[Path]) -> list[Score]:
        """The scores of what is asked.

        Raises:
            ConfigError: no file is given, or the model cannot be asked that.
        """
        if not files:
            raise ConfigError("The test needs --data: the file of its rows.")
        if self.template is None or self.answer is None:
            from regard.data import read_minimal_pairs
            from regard.tasks.log_likelihoods import minimal_pair_scores

            several = (read_minimal_pairs(file, pairs_per_set=self.pairs_per_set) for file in files)
            return [minimal_pair_scores(task, [pair for pairs in several for pair in pairs])]
        from regard.tasks.few_shot import PromptTemplate, few_shot_scores

        model = _language_model(task, PROMPTS)
        text = self.template.replace("\\n", "\n")  # a shell gives two characters
        template = PromptTemplate(text, self.answer, self.texts_of_choices())
        shown: Any = {
            "shots": self.shots or 0,
            "pool": self.examples,
            "seed": 1 if self.examples_seed is None else self.examples_seed,
            "too_long": self.too_long or "error",
        }
        return [
            score for file in files for score in few_shot_scores(model, file, template, **shown)
        ]

    def texts_of_choices(self) -> dict[str, str] | str | None:
        """The text of each label; or the field with the choices of each row.

        Raises:
            ConfigError: a part is no label with its text, or repeats one.
        """
        if self.choices is None or "=" not in self.choices:
            return self.choices
        texts: dict[str, str] = {}
        for part in self.choices.split(","):
            label, is_pair, text = (side.strip() for side in part.partition("="))
            if not is_pair or not text or label in texts:
                problem = "repeats a label" if label in texts else "is no label with its text"
                raise ConfigError(
                    f"--choices: {part!r} {problem}. Write labels with texts, such as "
                    "0=bad,1=good; texts with commas are those of a field of each row."
                )
            texts[label] = text
        return texts


def _language_model(task: Task, flag: str) -> TextGenerator:
    from regard.tasks.language_modeling import TextGenerator

    if not isinstance(task, TextGenerator):
        raise ConfigError(f"{task.name} continues no prompt: {flag} is for language models.")
    return task


@options.with_opening
@options.with_decoding
@options.with_flags("zero_shot", ZeroShotOptions)
@options.with_flags("perplexity", PerplexityOptions, given)
def evaluate(
    model: options.ModelFolder,
    more: Annotated[
        Files, Argument(metavar="FILE", help="Further files of data, after those of --data.")
    ] = None,
    data: Files = flag("Score on this table, text, or two parallel files.", metavar="FILE"),
    columns: str | None = flag(
        "The columns of the table in --data, such as 0,1 or en,de.", metavar="COLUMNS"
    ),
    delimiter: options.Delimiter = None,
    valid: bool = flag("Score on the validation data of the recipe.", False),
    last_word: bool = flag("Score the prediction of the last word of each line.", False),
    as_json: options.AsJson = False,
    *,
    opening: options.Opening,
    perplexity: dict[str, Any],
    zero_shot: ZeroShotOptions,
    decoding: dict[str, Any],
) -> None:
    """Score a model on the test data of its recipe, or others.

    Each score has a signature; scores with equal signatures may be compared.
    """
    task, files = console.load_task(model, **vars(opening)), [*(data or ()), *(more or ())]
    from regard.tasks.batching import watching
    from regard.tasks.language_modeling import TextGenerator

    asked = zero_shot.test()
    if asked:
        others = {"valid": valid, "last_word": last_word, "columns": columns}
        check_none(f"with {asked}", {**others, "delimiter": delimiter})
    if files:
        check_none("with --data: it is for the recipe's data", {"valid": valid})
    if not files:
        check_none("without --data", {"delimiter": delimiter})
    chosen: Columns = [int(c) if c.isdecimal() else c for c in options.column_names(columns)]
    part: Part = "valid" if valid else "test"
    if task.decodes and not files and not asked:
        files, recipe_columns = _data_of(*_recipe(model), part)
        chosen = chosen or (recipe_columns if len(files) == 1 else [])
    is_perplexity = isinstance(task, TextGenerator) and not (last_word or asked)
    if not is_perplexity:
        check_none("but on the perplexity of a language model", perplexity)
    counts = Counter[str]()
    with watching(lambda batches: console.with_progress(batches, "evaluating")):
        if asked:
            check_none(f"with {asked}", decoding)
            scores = zero_shot.scores(task, files)
        elif last_word or isinstance(task, TextGenerator):
            check_none("on a perplexity", decoding)
            scores = _likelihood(task, files, chosen, delimiter, last_word, perplexity)
        elif task.decodes:
            scores, counts = _outputs(task, files, chosen, delimiter, decoding)
            console.warn_truncated(
                counts["truncated"], counts["texts"], task.module.config.max_length
            )
            console.warn_unfinished(counts["unfinished"], counts["texts"])
        else:
            check_none(f"on the task {task.name}", decoding)
            scores, files = _predictions(task, model, files, chosen, delimiter, part)
    facts = {"model": model, "data": files, "scores": list(map(_facts, scores)), **counts}
    tables = [str(score.report) for score in scores if asked and score.report]
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
    return [*task.scores(best, references), *task.reference_scores(rows)], Counter(counts)


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
    from regard.data import read

    fields = ["text"] if file.suffix in (".jsonl", ".json") else []
    return [row[0] for row in read(file, fields)]
