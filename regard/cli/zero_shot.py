"""Options of `evaluate` for what a model is asked without being trained for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Option

from regard.errors import ConfigError

if TYPE_CHECKING:
    from regard.metrics import Score
    from regard.tasks.language_modeling import TextGenerator
    from regard.tasks.task import Task

PAIRS, PROMPTS = "--minimal-pairs", "--template"
OF_PROMPTS = ("answer", "choices", "shots", "examples", "examples_seed", "too_long")
BELONGING = {"pairs_per_set": PAIRS, **dict.fromkeys(OF_PROMPTS, PROMPTS)}  # option -> its test


@dataclass(frozen=True)
class ZeroShotOptions:
    """Minimal pairs, or questions as prompts; by default none of them."""

    minimal_pairs: Annotated[
        bool, Option("--minimal-pairs", help="Score pairs of which one sentence is grammatical.")
    ] = False
    pairs_per_set: Annotated[
        int | None, Option(help="Minimal pairs: use the first N pairs of each set.")
    ] = None
    template: Annotated[
        str | None,
        Option(
            help="Few-shot evaluation: turn each row into this prompt, with fields such as {text}."
        ),
    ] = None
    answer: Annotated[
        str | None,
        Option(metavar="FIELD", help="Few-shot evaluation: the field with the right answer."),
    ] = None
    choices: Annotated[
        str | None,
        Option(
            metavar="CHOICES",
            help="Few-shot evaluation: labels with texts, 0=bad,1=good, or the field of choices.",
        ),
    ] = None
    shots: Annotated[
        int | None,
        Option(help="Few-shot evaluation: write N solved examples before each question."),
    ] = None
    examples: Annotated[
        Path | None,
        Option(
            metavar="FILE", help="Few-shot evaluation: draw the solved examples from this file."
        ),
    ] = None
    examples_seed: Annotated[
        int | None, Option(help="Few-shot evaluation: draw the examples with this seed.")
    ] = None
    too_long: Annotated[
        Literal["error", "truncate"] | None,
        Option(help="Few-shot evaluation: what happens to prompts beyond the context."),
    ] = None

    def check(self, **others: Any) -> str | None:
        """The option that says what is asked; None where none does.

        others: options of `evaluate` that have no effect on these.

        Raises:
            ConfigError: an option would be without effect, or lacks another.
        """
        given = {name for name, value in asdict(self).items() if value not in (None, False)}
        tests = {PAIRS: self.minimal_pairs, PROMPTS: self.template}
        asked = [name for name, here in tests.items() if here]
        if len(asked) > 1:
            raise ConfigError(f"{asked[0]} and {asked[1]} are different tests: give one of them.")
        for name, of in BELONGING.items():
            if name in given and of not in asked:
                raise ConfigError(f"{_flag(name)} is for {of}. Leave it out.")
        if asked and (ignored := [_flag(name) for name, value in others.items() if value]):
            raise ConfigError(f"{ignored[0]} would be without effect on {asked[0]}. Leave it out.")
        if self.template and not self.answer:
            raise ConfigError(f"{PROMPTS} needs --answer, the field with the right answer.")
        if asked != [PAIRS] and bool(self.shots) != (self.examples is not None):
            raise ConfigError("--shots and --examples need each other: give both or none.")
        return asked[0] if asked else None

    def scores(self, task: Task, files: Sequence[Path]) -> list[Score]:
        """The scores of what is asked.

        Raises:
            ConfigError: no file is given, or the model cannot be asked that.
        """
        if not files:
            raise ConfigError("The test needs --data: the file of its rows.")
        return (self._pairs if self.minimal_pairs else self._prompts)(task, files)

    def _pairs(self, task: Task, files: Sequence[Path]) -> list[Score]:
        from regard.data import read_minimal_pairs
        from regard.tasks.minimal_pairs import minimal_pair_scores

        several = (read_minimal_pairs(file, pairs_per_set=self.pairs_per_set) for file in files)
        return [minimal_pair_scores(task, [pair for pairs in several for pair in pairs])]

    def _options(self) -> dict[str, Any]:
        seed = 1 if self.examples_seed is None else self.examples_seed
        return {"seed": seed, "too_long": self.too_long or "error"}

    def _prompts(self, task: Task, files: Sequence[Path]) -> list[Score]:
        from regard.tasks.few_shot import few_shot_scores
        from regard.tasks.prompt_template import PromptTemplate

        model = _language_model(task, PROMPTS)
        assert self.template is not None and self.answer is not None
        # A shell gives \n as two characters.
        template = PromptTemplate(
            self.template.replace("\\n", "\n"), self.answer, self.texts_of_choices()
        )
        given: Any = {"shots": self.shots or 0, "pool": self.examples, **self._options()}
        return [
            score for file in files for score in few_shot_scores(model, file, template, **given)
        ]

    def texts_of_choices(self) -> dict[str, str] | str | None:
        """The text of each label; or the field with the choices of each row.

        Raises:
            ConfigError: a part is no label with its text, or repeats one.
        """
        if self.choices is None or "=" not in self.choices:
            return self.choices
        found: dict[str, str] = {}
        for part in self.choices.split(","):
            label, is_pair, text = (one.strip() for one in part.partition("="))
            if not is_pair or not text or label in found:
                problem = "repeats a label" if label in found else "is no label with its text"
                raise ConfigError(
                    f"--choices: {part!r} {problem}. Write labels with texts, such as "
                    "0=bad,1=good; texts with commas are those of a field of each row."
                )
            found[label] = text
        return found


def _language_model(task: Task, flag: str) -> TextGenerator:
    from regard.tasks.language_modeling import TextGenerator

    if not isinstance(task, TextGenerator):
        raise ConfigError(f"{task.name} continues no prompt: {flag} is for language models.")
    return task


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
