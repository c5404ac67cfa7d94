"""Zero-, one- and few-shot evaluation of language models (Brown et al. 2020, section 2.4).

A prompt is k solved examples and a question:

    PromptTemplate("{sentence}\\nSentiment:", answer="label", choices={"0": "bad", "1": "good"})

    it is dull                            an example of the pool, with its answer
    Sentiment: bad

    a fine film                           the row
    Sentiment:                            good, or bad?

Of several choices the model prefers the one with the largest log p(choice | prompt), or the largest
per token, or per byte; without choices it generates an answer, which must be equal to the right
one. Nothing is learned.
"""

import json
import math
import random
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from string import Formatter
from typing import Any

from regard.data.readers import Location, field_value, open_table, text_of
from regard.errors import ConfigError, DataError, TextError, TextTooLong, check_at_least
from regard.metrics import Score
from regard.models.protocols import Generator
from regard.tasks.batching import TooLong, check_too_long, prompt_capacity
from regard.tasks.language_modeling import TextGenerator
from regard.tasks.log_likelihoods import token_log_probs

ANSWER_TOKENS = 32  # of a generated answer, at most; fewer where the context is shorter
Rows = str | PathLike[str] | Iterable[Mapping[str, Any]]


@dataclass(frozen=True)
class PromptQuestion:
    """A row as a prompt, its choices, none where the answer is generated, and the right answer."""

    prompt: str
    choices: tuple[str, ...]
    answer: str


@dataclass(frozen=True)
class PromptTemplate:
    """How rows become prompts.

    template: names fields in braces, also `{question.stem}`; `{{` is a brace.
    answer: the field with the right answer: a label of `choices`, the number of a choice from 0, or
        a choice itself.
    choices: the texts of all labels, which may be numbers or truth values as in the rows; or the
        field with the list of the choices of each row; None: the answer is generated, and the field
        `answer` has its text.
    separator: between examples.

    Raises:
        ConfigError: the template names no field, or two labels have one text.
    """

    template: str
    answer: str
    choices: Mapping[Any, str] | str | None = None
    separator: str = "\n\n"

    def __post_init__(self) -> None:
        if not any(name for _, name in self.parts):
            raise ConfigError(
                f"The template {self.template!r} names no field. Write fields in braces, such as "
                "{sentence}."
            )
        if isinstance(self.choices, Mapping) and len({*self.choices.values()}) < max(
            2, len(self.choices)
        ):
            raise ConfigError(
                "`choices` must be at least two labels with a text of their own, such as "
                f'{{"0": "bad", "1": "good"}}, but is {dict(self.choices)!r:.200}.'
            )

    @cached_property
    def parts(self) -> list[tuple[str, str | None]]:
        """Literal text, and the field behind it."""
        try:
            return [(literal, name) for literal, name, _, _ in Formatter().parse(self.template)]
        except ValueError as error:
            problem = f"The template {self.template!r} cannot be read: {error}."
            raise ConfigError(f"{problem} Write a brace as {{{{ or }}}}.") from None

    @property
    def space(self) -> str:
        """What is between a prompt and its answer: a space, if the prompt does not end in one."""
        return "" if self.template[-1:].isspace() else " "

    def questions(self, rows: Rows) -> list[PromptQuestion]:
        """The rows of a CSV, TSV, JSONL or Parquet file, or mappings, as questions.

        Raises:
            DataError: a row lacks a field, or its answer is none of its choices; there is no row.
        """
        table = open_table(rows)
        return [self.question(row, (table.name, line)) for line, row in table.numbered()]

    def question(self, row: Mapping[str, Any], location: Location) -> PromptQuestion:
        """One row; see `questions`."""
        prompt = "".join(
            literal + ("" if name is None else _text(row, name, location))
            for literal, name in self.parts
        )
        answer = _text(row, self.answer, location)
        if self.choices is None:
            return PromptQuestion(prompt, (), answer)
        if isinstance(self.choices, Mapping):
            choice_of = {_shown(label): text for label, text in self.choices.items()}
        else:
            values = field_value(row, self.choices, location)
            if not isinstance(values, list | tuple) or len(values) < 2:
                problem = f"field {self.choices!r} must be a list of at least two choices."
                raise DataError(*location, problem)
            choice_of = {
                str(i): text_of(self.choices, value, location) for i, value in enumerate(values)
            }
        choices, right = tuple(choice_of.values()), choice_of.get(answer, answer)
        if right not in choices:
            names = ", ".join(map(repr, choice_of))
            raise DataError(*location, f"has the answer {answer!r}, but the choices are {names}.")
        return PromptQuestion(prompt, choices, right)

    def solved(self, question: PromptQuestion) -> str:
        """The question with its answer, and what separates it from the next."""
        return f"{question.prompt}{self.space}{question.answer}{self.separator}"


def _text(row: Mapping[str, Any], name: str, location: Location) -> str:
    """A field as text."""
    value = field_value(row, name, location)
    return _shown(value) if isinstance(value, bool) else text_of(name, value, location)


def _shown(label: object) -> str:
    """A label as text: JSON's words for true and false."""
    return str(label).lower() if isinstance(label, bool) else str(label)


def drawn_examples(
    question: PromptQuestion, number: int, pool: Sequence[PromptQuestion], shots: int, seed: int
) -> list[PromptQuestion]:
    """`shots` questions of the pool, others for each question, and never the question itself.

    Args:
        number: of the question.

    Raises:
        ConfigError: the pool has too few.
    """
    others = [example for example in pool if example != question]
    if len(others) < shots:
        raise ConfigError(
            f"`shots` is {shots}, but the pool has {len(others)} examples other than question "
            f"{number + 1}. Give more, or ask for fewer."
        )
    return random.Random(f"{seed}:{number}").sample(others, shots)


@dataclass(frozen=True)
class Fitted:
    """A question behind examples, as the model reads it.

    rows: the ids of the prompt with each choice, or without choices of the prompt.  counts: how
    many of them are the choice's.  dropped: how many examples did not fit.  truncated: whether the
    question itself did not fit, and lost its beginning.
    """

    prompt: str
    rows: list[list[int]]
    counts: list[int]
    dropped: int
    truncated: bool


def few_shot_scores(
    task: TextGenerator,
    rows: Rows,
    template: PromptTemplate,
    *,
    shots: int = 0,
    pool: Rows | None = None,
    seed: int = 1,
    too_long: TooLong = "error",
) -> list[Score]:
    """Of choices three accuracies: by log p, by log p per token and per byte of the choice. Of
    generated answers the share that equals the right one, up to space around them.

    A prompt that is longer than the context loses whole examples, the first ones; the signature
    counts these.

    Args:
        rows: the questions.
        pool: the rows that examples are drawn from, others for each question.
        too_long: whether a question that is longer than the context by itself is an error or loses
            its beginning; the signature counts these, too.

    Raises:
        ConfigError: the pool is too small; the model reads backward.
        DataError: a row is malformed.
        TextError: a question is longer than the context and `too_long` is "error", or a choice has
            no token.
    """
    if task.module.reads_backward:
        raise ConfigError("This model reads texts from their end: it cannot answer prompts.")
    check_at_least(0, shots=shots)
    questions = template.questions(rows)
    examples = template.questions(pool) if pool is not None else []
    prefixes = [
        [template.solved(x) for x in drawn_examples(question, number, examples, shots, seed)]
        for number, question in enumerate(questions)
    ]
    check_too_long(too_long)
    fitted = [
        fitted_question(task, question, solved, template.space, number, too_long)
        for number, (question, solved) in enumerate(zip(questions, prefixes, strict=True))
    ]
    how = signature(task, questions, prefixes, fitted, shots, seed)
    if template.choices is None:
        return [_exact_match(task, questions, fitted, how)]
    return _accuracies(task, questions, fitted, how)


def signature(
    task: TextGenerator,
    questions: Sequence[PromptQuestion],
    prefixes: Sequence[Sequence[str]],
    fitted: Sequence[Fitted],
    shots: int,
    seed: int,
) -> str:
    """How prompts were made: `prompts` is a checksum of all questions, choices, answers and
    examples; how many examples were dropped, how many questions truncated, and how many have
    choices that are the same tokens, of which by log p the first one wins.
    """
    how = f"shots:{shots}" + (f"|seed:{seed}" if shots else "")
    texts = (
        [[question.prompt, *question.choices, question.answer] for question in questions],
        [*map(list, prefixes)],
    )
    how += f"|prompts:{zlib.crc32(json.dumps(texts).encode()):08x}"
    how += f"|tok:{task.tokenizer.kind}-{task.tokenizer.vocab_size}|count:{len(fitted)}"
    counted = {
        "dropped": sum(prompt.dropped for prompt in fitted),
        "truncated": sum(prompt.truncated for prompt in fitted),
        "ties": sum(len({*map(tuple, prompt.rows)}) < len(prompt.rows) for prompt in fitted),
    }
    return how + "".join(f"|{name}:{count}" for name, count in counted.items() if count)


def fitted_question(
    task: TextGenerator,
    question: PromptQuestion,
    solved: Sequence[str],
    space: str,
    number: int,
    too_long: TooLong,
) -> Fitted:
    """The question behind as many of the last examples as fit into the context; where not even the
    question does and it is truncated, its end.
    """
    endings = [space + choice for choice in question.choices] or [""]
    if question.choices:  # the last token is not read
        capacity = None if task.context is None else task.context + 1
    else:
        capacity = prompt_capacity(task.context, {"max_tokens": _answer_tokens(task)})
    truncated = False
    for dropped in range(len(solved) + 1):
        prompt = "".join(solved[dropped:]) + question.prompt
        rows = task.prompt_ids([prompt + ending for ending in endings])
        longest = max(map(len, rows))
        if capacity is None or longest <= capacity:
            break
    else:
        assert capacity is not None
        if too_long == "error":
            problem = f"has {longest:,} tokens, but {capacity:,} fit into the context of this model"
            if not question.choices:
                problem += f" beside an answer of up to {_answer_tokens(task)}"
            shorten, cut = "Shorten it, leave it out", "cut its beginning"
            raise TextTooLong(number, f"{problem}.", shorten, cut, what="Question")
        rows, truncated = [ids[-capacity:] for ids in rows], True
    counts = [
        sum(end > len(prompt) for _, end in task.tokenizer.encode(prompt + ending).offsets)
        for ending in endings
    ]
    for ending, count, ids in zip(endings, counts, rows, strict=True):
        if count >= len(ids) or (question.choices and not count):
            problem = (
                f"has no tokens of the prompt, or none of the choice {ending!r:.80}, among the "
                f"{len(ids):,} that fit into the context of this model."
            )
            raise TextError(number, problem, "Rewrite it, or leave it out.", what="Question")
    return Fitted(prompt, rows, counts, dropped, truncated)


def _answer_tokens(task: TextGenerator) -> int:
    """The most tokens of a generated answer."""
    return min(ANSWER_TOKENS, task.context or ANSWER_TOKENS)


def _accuracies(
    task: TextGenerator, questions: Sequence[PromptQuestion], fitted: Sequence[Fitted], how: str
) -> list[Score]:
    likelihoods = choice_log_likelihoods(task.generator, fitted)
    right = dict.fromkeys(("accuracy", "accuracy per token", "accuracy per byte"), 0)
    for question, prompt, sums in zip(questions, fitted, likelihoods, strict=True):
        sizes = [len(choice.encode()) for choice in question.choices]
        for name, divisors in zip(right, ([1] * len(sums), prompt.counts, sizes), strict=True):
            means = [total / size for total, size in zip(sums, divisors, strict=True)]
            best = max(range(len(means)), key=means.__getitem__)
            right[name] += question.choices[best] == question.answer
    count = len(questions)
    return [Score(name, hits / count, how, count, 4) for name, hits in right.items()]


def choice_log_likelihoods(model: Generator, fitted: Sequence[Fitted]) -> list[list[float]]:
    """log p of each choice behind its prompt, in nats, for each question.

    Raises:
        RegardError: one is not finite.
    """
    rows = [ids for prompt in fitted for ids in prompt.rows]
    counts = [count for prompt in fitted for count in prompt.counts]
    owners = [number for number, prompt in enumerate(fitted) for _ in prompt.rows]
    scored = iter(token_log_probs(model, rows, counts, texts=owners))
    return [[math.fsum(next(scored).own) for _ in prompt.rows] for prompt in fitted]


def _exact_match(
    task: TextGenerator, questions: Sequence[PromptQuestion], fitted: Sequence[Fitted], how: str
) -> Score:
    """The first line of what is generated against the right answer."""
    prompts = [question.prompt for question in fitted]
    capacity = _answer_tokens(task)
    hypotheses = task.hypotheses(prompts, too_long="truncate", max_tokens=capacity)
    texts = task.tokenizer.decode_many([ranked[0].tokens for ranked in hypotheses])
    right = sum(
        text.strip().split("\n")[0].strip() == question.answer.strip()
        for text, question in zip(texts, questions, strict=True)
    )
    return Score("exact match", right / len(questions), how, len(questions), 4)
