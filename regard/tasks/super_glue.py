"""SuperGLUE's tasks as prompts for language models (Wang et al. 2019; Brown et al. 2020).

    super_glue_scores(task, "boolq", read_super_glue("boolq", "val.jsonl"))

The prompts are close to those of Brown et al. 2020, appendix G; theirs of WSC, MultiRC and ReCoRD
differ more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from regard.data.datasets.super_glue import CONNECTIVES, SuperGlueQuestion
from regard.errors import ConfigError
from regard.metrics import Score
from regard.metrics import super_glue as metrics
from regard.suggest import nearest
from regard.tasks.batching import TooLong
from regard.tasks.few_shot import choice_log_likelihoods, few_shot_prompts, signature
from regard.tasks.language_modeling import TextGenerator
from regard.tasks.prompt_template import PromptQuestion, drawn_examples

SEPARATOR = "\n\n"  # between examples
YES_NO = {"false": "no", "true": "yes"}


@dataclass(frozen=True)
class SuperGluePrompt:
    """How a question of a task becomes a prompt.

    template: with the fields of a question in braces.  words: what stands for each label; empty
    where the choices are texts of their own, of which `shown` makes the ends of the prompt.
    """

    template: str
    words: Mapping[str, str]
    shown: Callable[[str, SuperGlueQuestion], str] = lambda choice, question: choice

    def question(self, question: SuperGlueQuestion) -> PromptQuestion:
        """The question as a prompt, its choices and the first right one."""
        fields = dict(question.fields)
        if "choice1" in fields:  # COPA: "The man fell because"
            fields["premise"] = fields["premise"].rstrip(" .")
            fields["connective"] = CONNECTIVES[fields["question"]]
        elif "question" in fields:
            fields["question"] = fields["question"].rstrip(" ?")
        choices = tuple(self._text(choice, question) for choice in question.choices)
        prompt = self.template.format(**fields).rstrip()
        return PromptQuestion(prompt, choices, self._text(question.answers[0], question))

    def _text(self, choice: str, question: SuperGlueQuestion) -> str:
        return self.words[choice] if self.words else self.shown(choice, question)


def _lowercased(choice: str, question: SuperGlueQuestion) -> str:
    return choice[:1].lower() + choice[1:]


def _completed(choice: str, question: SuperGlueQuestion) -> str:
    return choice + question.fields["after"]


PROMPTS = {
    "boolq": SuperGluePrompt("{passage}\nquestion: {question}?\nanswer:", YES_NO),
    "cb": SuperGluePrompt(
        "{premise}\nquestion: {hypothesis} true, false, or neither?\nanswer:",
        {"entailment": "true", "contradiction": "false", "neutral": "neither"},
    ),
    "copa": SuperGluePrompt("{premise} {connective}", {}, _lowercased),
    "multirc": SuperGluePrompt(
        "{passage}\nquestion: {question}?\nanswer: {answer}\ntrue or false?",
        {"false": "false", "true": "true"},
    ),
    "record": SuperGluePrompt("{passage}\n- {before}", {}, _completed),
    "rte": SuperGluePrompt(
        "{premise}\nquestion: {hypothesis} True or False?\nanswer:",
        {"entailment": "True", "not_entailment": "False"},
    ),
    "wic": SuperGluePrompt(
        "{sentence1}\n{sentence2}\nquestion: Is the word '{word}' used in the same way in the two "
        "sentences above?\nanswer:",
        YES_NO,
    ),
    "wsc": SuperGluePrompt(
        "{text}\nquestion: In the passage above, does '{span2_text}' refer to '{span1_text}'?\n"
        "answer:",
        YES_NO,
    ),
}


def super_glue_scores(
    task: TextGenerator,
    name: str,
    questions: Iterable[SuperGlueQuestion],
    *,
    shots: int = 0,
    pool: Iterable[SuperGlueQuestion] = (),
    seed: int = 1,
    too_long: TooLong = "error",
) -> list[Score]:
    """The scores of a task, from 0 to 1, by the choice with the largest log p; where choices are
    texts of their own, by the largest log p per token, as Brown et al. 2020, section 2.4.

    shots: solved examples before a question, of the `pool`, others for each question.
    too_long: whether a question that is longer than the context by itself is an error or loses its
    beginning.

    Raises:
        ConfigError: there is no such task, or there are fewer examples than are asked for.
        TextError: a question is longer than the context of the model and `too_long` is "error".
    """
    if name not in PROMPTS:
        raise ConfigError(f"There is no task {name!r} of SuperGLUE. {nearest(name, PROMPTS)}")
    prompt, asked = PROMPTS[name], list(questions)
    examples = [prompt.question(example) for example in pool] if shots else []
    rows = [prompt.question(question) for question in asked]
    prefixes = [
        [_solved(example) for example in drawn_examples(row, number, examples, shots, seed)]
        for number, row in enumerate(rows)
    ]
    fitted = few_shot_prompts(task, rows, prefixes, " ", too_long)
    sums = choice_log_likelihoods(task.generator, fitted)
    chosen = [
        _best(question, values, [1] * len(values) if prompt.words else fitted_prompt.counts)
        for question, values, fitted_prompt in zip(asked, sums, fitted, strict=True)
    ]
    how = signature(task, rows, prefixes, fitted, shots, seed)
    scores = metrics.scores(
        name,
        chosen,
        [question.answers for question in asked],
        [question.group for question in asked],
    )
    return [Score(score.name, score.value, how, score.count, score.digits) for score in scores]


def _solved(question: PromptQuestion) -> str:
    return f"{question.prompt} {question.answer}{SEPARATOR}"


def _best(question: SuperGlueQuestion, sums: Sequence[float], counts: Sequence[int]) -> str:
    """The choice with the largest log p per count."""
    means = [total / count for total, count in zip(sums, counts, strict=True)]
    return question.choices[max(range(len(means)), key=means.__getitem__)]
