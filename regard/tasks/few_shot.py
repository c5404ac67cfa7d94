"""Zero-, one- and few-shot evaluation of language models (Brown et al. 2020, section 2.4).

A prompt is k solved examples and a question. Of several choices the model prefers the one with the
largest log p(choice | prompt), or the largest per token, or per byte; without choices it generates
an answer, which must be equal to the right one. Nothing is learned.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from regard.data.grouped_inputs import GroupedInputs
from regard.decoding.steps import evaluating
from regard.errors import ConfigError, TextError, TextTooLong
from regard.metrics import Score
from regard.models.protocols import Generator
from regard.tasks.batching import TooLong, check_too_long, watched
from regard.tasks.embedder import batch_budget
from regard.tasks.finite_checks import check_finite
from regard.tasks.language_modeling import TextGenerator
from regard.tasks.log_likelihoods import ending_log_likelihoods
from regard.tasks.prompt_template import PromptQuestion, PromptTemplate, Rows, drawn_examples
from regard.tasks.prompts import prompt_capacity
from regard.text.templates import EncoderInput

ANSWER_TOKENS = 32  # of a generated answer, at most; fewer where the context is shorter


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
        ConfigError: examples are asked for without a pool, or from one that is too small; the model
            reads backward.
        DataError: a row is malformed.
        TextError: a question is longer than the context and `too_long` is "error", or a choice has
            no token.
    """
    if shots and pool is None:
        raise ConfigError(f"`shots` is {shots}, but there is no pool of examples (`--examples`).")
    if task.module.reads_backward:
        raise ConfigError("This model reads texts from their end: it cannot answer prompts.")
    questions = template.questions(rows)
    examples = template.questions(pool) if shots and pool is not None else []
    solved = partial(drawn_examples, pool=examples, shots=shots, seed=seed)
    prefixes = [
        [template.solved(example) for example in solved(question, number)]
        for number, question in enumerate(questions)
    ]
    fitted = few_shot_prompts(task, questions, prefixes, template.space, too_long)
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
    texts = [[one.prompt, *one.choices, one.answer] for one in questions], [*map(list, prefixes)]
    how += f"|prompts:{zlib.crc32(json.dumps(texts).encode()):08x}"
    how += f"|tok:{task.tokenizer.kind}-{task.tokenizer.vocab_size}|count:{len(fitted)}"
    dropped, truncated = (
        sum(prompt.dropped for prompt in fitted),
        sum(prompt.truncated for prompt in fitted),
    )
    ties = sum(len({*map(tuple, prompt.rows)}) < len(prompt.rows) for prompt in fitted)
    counted = {"dropped": dropped, "truncated": truncated, "ties": ties}
    return how + "".join(f"|{name}:{count}" for name, count in counted.items() if count)


def few_shot_prompts(
    task: TextGenerator,
    questions: Sequence[PromptQuestion],
    prefixes: Sequence[Sequence[str]],
    space: str,
    too_long: TooLong = "error",
) -> list[Fitted]:
    """Each question behind as many of its solved examples as fit into the context, the last ones.

    space: what is between a prompt and its answer.  too_long: of questions, see `few_shot_scores`.

    Raises:
        TextError: a question is longer than the context, or has an empty prompt or a choice without
            a token.
    """
    pairs = enumerate(zip(questions, prefixes, strict=True))
    return [_fitted(task, question, solved, space, n, too_long) for n, (question, solved) in pairs]


def _fitted(
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
    check_too_long(too_long)
    endings = [space + choice for choice in question.choices] or [""]
    most, truncated = _prompt_limit(task, question), False
    for dropped in range(len(solved) + 1):
        prompt = "".join(solved[dropped:]) + question.prompt
        rows = task.prompt_ids([prompt + ending for ending in endings])
        longest = max(map(len, rows))
        if most is None or longest <= most:
            break
    else:
        assert most is not None
        if too_long == "error":
            beside = (
                "" if question.choices else f" beside an answer of up to {_answer_tokens(task)}"
            )
            problem = f"has {longest:,} tokens, but {most:,} fit into the context of this model"
            shorten, cut = "Shorten it, leave it out", "cut its beginning"
            raise TextTooLong(number, f"{problem}{beside}.", shorten, cut, what="Question")
        rows, truncated = [ids[-most:] for ids in rows], True
    counts = [_count(task, prompt, ending) for ending in endings]
    _check_counts(question, number, counts, [len(ids) for ids in rows], truncated)
    return Fitted(prompt, rows, counts, dropped, truncated)


def _prompt_limit(task: TextGenerator, question: PromptQuestion) -> int | None:
    """The most tokens of a prompt: with its longest choice, or before a generated answer."""
    if question.choices:
        return None if task.context is None else task.context + 1  # the last one is not read
    return prompt_capacity(task.context, {"max_tokens": _answer_tokens(task)})


def _answer_tokens(task: TextGenerator) -> int:
    """The most tokens of a generated answer."""
    return min(ANSWER_TOKENS, task.context or ANSWER_TOKENS)


def _check_counts(
    question: PromptQuestion,
    number: int,
    counts: Sequence[int],
    lengths: Sequence[int],
    truncated: bool,
) -> None:
    """Check that each choice has tokens, and that tokens of the prompt are before them.

    Args:
        counts, lengths: of each choice its tokens, and those of the prompt with it.

    Raises:
        TextError: one has none.
    """
    for choice, count in zip(question.choices, counts, strict=False):
        if not count:
            problem = f"has the choice {choice!r}, of which this tokenizer keeps no token."
            raise TextError(number, problem, "Write it otherwise.", what="Question")
    for count, length in zip(counts, lengths, strict=True):
        if count < length:
            continue
        problem, hint = "has an empty prompt.", "Write text in the template."
        if truncated:
            problem = (
                f"has a choice of {count:,} tokens, but with the prompt before it {length:,} fit"
            )
            problem, hint = f"{problem} into the context of this model.", "Leave it out."
        raise TextError(number, problem, hint, what="Question")


def _count(task: TextGenerator, prompt: str, ending: str) -> int:
    """How many tokens of a prompt with its ending reach into the ending."""
    offsets = task.tokenizer.encode(prompt + ending).offsets
    return sum(end > len(prompt) for _, end in offsets)


def _accuracies(
    task: TextGenerator, questions: Sequence[PromptQuestion], fitted: Sequence[Fitted], how: str
) -> list[Score]:
    likelihoods = choice_log_likelihoods(task.generator, fitted)
    right = dict.fromkeys(("accuracy", "accuracy per token", "accuracy per byte"), 0)
    for question, fitted_prompt, sums in zip(questions, fitted, likelihoods, strict=True):
        sizes = [len(choice.encode()) for choice in question.choices]
        for name, divisors in zip(
            right, ([1] * len(sums), fitted_prompt.counts, sizes), strict=True
        ):
            means = [total / size for total, size in zip(sums, divisors, strict=True)]
            best = max(range(len(means)), key=means.__getitem__)
            right[name] += question.choices[best] == question.answer
    count = len(questions)
    return [Score(name, hits / count, how, count, 4) for name, hits in right.items()]


@torch.no_grad()
def choice_log_likelihoods(model: Generator, fitted: Sequence[Fitted]) -> list[list[float]]:
    """log p of each choice behind its prompt, in nats, for each question.

    Of a model with a key/value cache the prompt is read once for all choices of a question.

    Raises:
        RegardError: one is not finite.
    """
    inputs = GroupedInputs.of([[_input(ids) for ids in question.rows] for question in fitted])
    likelihoods: list[list[float]] = [[] for _ in fitted]
    with evaluating(model):
        batches = inputs.longest_first(model.config.pad, max_tokens=batch_budget(model))
        for batch in watched(batches):
            counts = torch.tensor([c for n in batch.numbers.tolist() for c in fitted[n].counts])
            sums, _ = ending_log_likelihoods(model, batch.texts, counts)
            sums_by_question = sums.split(batch.sizes.tolist())
            for number, question_sums in zip(batch.numbers.tolist(), sums_by_question, strict=True):
                likelihoods[number] = question_sums.tolist()
    finite = torch.tensor([all(map(torch.isfinite, torch.tensor(row))) for row in likelihoods])
    check_finite(finite, range(len(likelihoods)), "log-likelihoods of choices")
    return likelihoods


def _input(ids: list[int]) -> EncoderInput:
    return EncoderInput(ids, [0] * len(ids), (0,), (len(ids),))


def _exact_match(
    task: TextGenerator, questions: Sequence[PromptQuestion], fitted: Sequence[Fitted], how: str
) -> Score:
    """The first line of what is generated against the right answer."""
    prompts = [question.prompt for question in fitted]
    most = _answer_tokens(task)
    hypotheses = task.hypotheses(prompts, too_long="truncate", max_tokens=most)
    texts = task.tokenizer.decode_many([ranked[0].tokens for ranked in hypotheses])
    right = sum(
        text.strip().split("\n")[0].strip() == question.answer.strip()
        for text, question in zip(texts, questions, strict=True)
    )
    return Score("exact match", right / len(questions), how, len(questions), 4)
