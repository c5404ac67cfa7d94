"""Multiple choice: which of several answers to a question about a text is right.

Each choice is a row of its own, [CLS] context [SEP] question choice [SEP] (Devlin et al. 2019,
section 4.4), or start context question delimiter choice extract for models that read to the right
(Radford et al. 2018, section 3.3). A head gives each row one number, and a softmax over the rows of
a question compares them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from regard.data.batches import Sequences, moved
from regard.data.datasets.multiple_choice import ChoiceQuestion, read_choices
from regard.data.datasets.records import RecordReader
from regard.data.grouped_inputs import GroupBatch, GroupedInputs
from regard.data.token_arrays import ReadReport
from regard.errors import DataError, RegardError, TextError
from regard.metrics import Accuracy, Score
from regard.models.gpt import GPT
from regard.recipe import Options
from regard.schema import parse_json
from regard.tasks.batching import TooLong
from regard.tasks.encoding import (
    EncoderData,
    EncoderRecipe,
    EncoderTask,
    NextWords,
    Part,
    Parts,
    beginning,
    headed,
    no_columns,
)
from regard.tasks.inputs import as_list
from regard.tasks.predictions import Prediction
from regard.tasks.shared_prefix import encode_with_shared_prefixes
from regard.tasks.transformations import transformed
from regard.text import Tokenizer
from regard.text.templates import EncoderInput

SAMPLES = 12  # questions that a run's report shows
SHOWN = 80  # characters of a context there


class ChoiceData(EncoderData):
    """[data]: files of DREAM or SWAG, or JSON lines; `batch_size` counts questions.

    What is too long loses the end of its context. Question and choice are cut only where they alone
    are too long, which is counted by itself.
    """


class ChoiceObjective(Options):
    """[objective]"""

    aux_lm_weight: float = Field(default=0.0, ge=0)
    """Weight of the loss of predicting the texts themselves (lambda of equation 5, there 0.5)."""


class ChoiceRecipe(EncoderRecipe):
    """A recipe's sections besides [model] and [training]."""

    data: ChoiceData
    objective: ChoiceObjective = ChoiceObjective()


@dataclass(frozen=True)
class ChoicePrediction(Prediction):
    """The number of the best choice from 0, its text, and the probability of each choice."""

    NAMES = {"number": "answer"}  # as in files of questions; `number` is that of a line there
    number: int
    choice: str
    probabilities: list[float]

    def __str__(self) -> str:
        return self.choice


@dataclass(frozen=True)
class ChoiceRows:
    """The rows of one question, within the limit; how many pieces the longest of them would need
    with its whole context, and how many without any.
    """

    rows: list[EncoderInput]
    needed: int
    alone: int


class MultipleChoice(EncoderTask):
    """The best of several answers."""

    name = "multiple-choice"
    prediction_type = ChoicePrediction
    head = "multiple_choice"
    Recipe = ChoiceRecipe
    goal = ("accuracy", "max")

    # ---- from a recipe

    @classmethod
    def from_recipe(cls, recipe: Any, model: Any, tokenizer: Tokenizer) -> Any:
        """The task with its data and a head that compares, ready to be trained."""
        data, source = recipe.data, headed(model)
        model, tokenizer = transformed(source.with_head(cls.head, 1), tokenizer, source)
        task = cls(model, tokenizer, max_length=data.max_length)
        task.next_words = NextWords.of(model, recipe.objective.aux_lm_weight)
        train = task._part(read_choices(data.train), data)
        valid = None if data.valid is None else task._part(read_choices(data.valid), data)
        task.parts = Parts(train, valid, data, recipe.seed)
        return task

    @staticmethod
    def texts(recipe: Any) -> Iterable[str]:
        """What a tokenizer learns from: contexts, questions and choices of the training data."""
        for one in read_choices(recipe.data.train):
            yield from (one.context, one.question, *one.choices)

    @staticmethod
    def files(recipe: Any) -> list[str]:
        """The files of data, for the record of a run."""
        data = recipe.data
        return [str(path) for path in (data.train, data.valid, data.test) if path is not None]

    @classmethod
    def example(cls, recipe: Any, words: int) -> GroupBatch:
        """A batch of questions with four choices, each in a full row: for estimates."""
        data, choices = recipe.data, 4
        rows = max(
            1, min(data.batch_size, data.max_tokens_per_batch // (choices * data.max_length))
        )
        texts = Sequences.alike(choices * rows, data.max_length)
        return GroupBatch(texts, torch.full((rows,), choices), torch.arange(rows))

    def _part(self, records: RecordReader[ChoiceQuestion], data: ChoiceData) -> Part:
        numbered = list(records.numbered())
        report = ReadReport((records.name,), len(numbered), unit=records.report.unit)
        found = self._made_rows([one for _, one in numbered])
        kept = []
        for i, (number, _) in enumerate(numbered):
            if self._keeps(found[i], number, data, report):
                kept.append(i)
        report.kept = len(kept)
        if not kept:
            raise DataError(records.name, None, f"no question is left. {report}.")
        targets = torch.tensor([numbered[i][1].answer for i in kept])
        return Part(GroupedInputs.of([found[i].rows for i in kept]), targets, report)

    def _keeps(self, one: ChoiceRows, number: int, data: ChoiceData, report: ReadReport) -> bool:
        """Whether a question is learned from; what is done to it is counted."""
        limit = self.pieces.max_length
        if limit is None or one.needed <= limit:
            return True
        if data.too_long == "error":
            problem = f"question {number} has {one.needed} tokens, more than {limit}."
            hint = "Raise max_length if the model allows, or choose too_long = 'truncate'."
            raise DataError(report.files[0], None, problem, hint)
        if data.too_long == "skip":
            report.note(f"longer than {limit} tokens, question left out", number)
            return False
        cut = "context" if one.alone <= limit else "question or choice"
        report.note(f"longer than {limit} tokens, {cut} truncated", number)
        return True

    # ---- rows

    def _made_rows(self, questions: list[ChoiceQuestion]) -> list[ChoiceRows]:
        """The rows of each question, their contexts as long as there is room."""
        flat = [
            text
            for one in questions
            for text in (one.context.strip(), one.question.strip(), *map(str.strip, one.choices))
        ]
        firsts = self.pieces.tokenizer.encode_many(flat)
        # A text that follows another in one part of a row has a space before it.
        seconds = self.pieces.tokenizer.encode_many([f" {text}" if text else "" for text in flat])
        found, at = [], 0
        for one in questions:
            count = 2 + len(one.choices)
            part = slice(at, at + count)
            found.append(self._rows_of(firsts[part], seconds[part]))
            at += count
        return found

    def _rows_of(self, firsts: Sequence[list[int]], seconds: Sequence[list[int]]) -> ChoiceRows:
        """From the ids of context, question and choices, as beginning a part and as going on."""
        limit, room = self.pieces.max_length, self.pieces.template.special_count(2)
        rows, longest = [], 0
        for choice in range(2, len(firsts)):
            context, rest = firsts[0], self._rest(firsts, seconds, choice)
            alone = sum(map(len, rest)) + room
            longest = max(longest, alone)
            if limit is not None:
                context = context[: max(0, limit - alone)]
            row = self.pieces.template.apply([context + rest[0], rest[1]])
            rows.append(self.pieces.truncate(row))
        return ChoiceRows(rows, longest + len(firsts[0]), longest)

    def _rest(
        self, firsts: Sequence[list[int]], seconds: Sequence[list[int]], choice: int
    ) -> tuple[list[int], list[int]]:
        """What follows the context in the first part of a row, and the second part."""
        context, question = firsts[0], firsts[1]
        if not context or not question:
            return question, firsts[choice]
        if self.model.encoder.continues:
            return seconds[1], firsts[choice]
        return [], question + seconds[choice]

    # ---- learning

    def read(self, texts: Sequences) -> Tensor:
        """What the head reads; of a causal model the prefix that choices share is read once."""
        encoder = self.model.encoder
        if isinstance(encoder, GPT):
            hidden = encode_with_shared_prefixes(encoder, texts)
            if hidden is not None:
                return self.model.pooled(self.head, hidden, texts)
        return super().read(texts)

    def scores_of(self, read: Tensor, batch: GroupBatch) -> Tensor:
        """The scores of the choices of each question, (B, C); -inf where it has fewer."""
        return batch.scores_by_example(super().scores_of(read, batch)[:, 0].float())

    def loss(self, scores: Tensor, batch: GroupBatch, targets: Any) -> tuple[Tensor, int]:
        """Cross-entropy over the choices, in nats."""
        wanted = moved(targets[batch.numbers.cpu()], scores.device)
        return F.cross_entropy(scores, wanted, reduction="sum"), len(batch)

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Accuracy and cross-entropy."""
        return ("accuracy", "loss")

    def measured(self, valid: Part) -> dict[str, float]:
        """Accuracy and cross-entropy on the validation data."""
        right, total = 0, 0.0
        for batch, scores in self.passes(valid.rows):
            right += int((scores.argmax(-1) == valid.targets[batch.numbers]).sum())
            total += float(self.loss(scores, batch, valid.targets)[0])
        count = len(valid.rows)
        return {"accuracy": right / count, "loss": total / count}

    # ---- using

    def predict(self, questions: Any, *, too_long: TooLong = "error") -> list[str] | str:
        """The best choice of each question (a list for several, one for one).

        A question is a `ChoiceQuestion`, a mapping with `context`, `question` and `choices`, or
        such an object as JSON.
        """
        if isinstance(questions, ChoiceQuestion | Mapping | str):
            return self.predictions([questions], too_long=too_long)[0].choice
        return [answer.choice for answer in self.predictions(questions, too_long=too_long)]

    def predictions(
        self, questions: Sequence[Any], *, too_long: TooLong = "error"
    ) -> list[ChoicePrediction]:
        """The best choice of each question, with the probabilities of all choices."""
        asked = as_questions(questions)
        found = [ChoicePrediction(0, "", [])] * len(asked)
        for batch, scores in self.passes(self._encoded(asked, too_long)):
            for number, row in zip(batch.numbers.tolist(), scores, strict=True):
                choices = asked[number].choices
                shares = row[: len(choices)].softmax(-1)
                best = int(shares.argmax())
                found[number] = ChoicePrediction(best, choices[best], shares.tolist())
        return found

    def are_finite(self, scores: Tensor, batch: Any) -> Tensor:
        """(B,) bool: the scores of all choices are numbers; there is -inf where one has fewer."""
        places = torch.arange(scores.size(1)) < batch.sizes[:, None]
        return (scores.isfinite() | ~places).all(1)

    def checked(self, texts: Any) -> list[Any]:
        """Questions."""
        return as_questions(texts)

    def long_ones(self, questions: Sequence[Any]) -> dict[int, int]:
        """The places of questions longer than the model's limit, and how many tokens they have."""
        limit = self.pieces.max_length
        needed = [one.needed for one in self._kept_rows(as_questions(questions))]
        return {i: count for i, count in enumerate(needed) if limit and count > limit}

    def evaluate(self, rows: RecordReader[ChoiceQuestion] | Iterable[Any]) -> list[Score]:
        """The accuracy of the answers to questions whose answer is known."""
        records = rows if isinstance(rows, RecordReader) else read_choices(rows)
        asked = list(records)
        self.warn_if_cut(asked)
        metric = Accuracy()
        found = self.predictions(asked, too_long="truncate")
        metric.add([one.number for one in found], [one.answer for one in asked])
        return [metric.result()]

    @classmethod
    def part_of(cls, recipe: Any, part: str) -> Any:
        """The questions of one part of a recipe's data."""
        return read_choices(getattr(recipe.data, part))

    def samples(self, recipe: Any) -> list[tuple[str, str, str]]:
        """The first validation questions: (context and question, answer, right answer)."""
        asked = list(islice(read_choices(recipe.data.valid or recipe.data.train), SAMPLES))
        found = self.predictions(asked, too_long="truncate")
        return [
            (f"{one.context[:SHOWN]} | {one.question}", answer.choice, _right(one))
            for one, answer in zip(asked, found, strict=True)
        ]

    def asked(self, row: Sequence[str]) -> None:
        """Nothing: attention over whole contexts is too large for a page."""

    @staticmethod
    def excerpt(recipe: Any) -> tuple[str, str]:
        """The beginning of a context, and a question with a choice, for a picture of one pass."""
        one = next(iter(read_choices(recipe.data.valid or recipe.data.train)))
        return beginning(one.context), f"{one.question} {one.choices[0]}".strip()

    @staticmethod
    def rows_to_evaluate(
        files: Sequence[Any], columns: Sequence[int | str]
    ) -> RecordReader[ChoiceQuestion]:
        """Questions of a file that a user names."""
        no_columns(columns)
        return read_choices(files[0])

    def _encoded(self, questions: Sequence[ChoiceQuestion], too_long: TooLong) -> GroupedInputs:
        found = self._kept_rows(list(questions))
        for i, one in enumerate(found):
            limit = self.pieces.max_length
            if too_long == "error" and limit is not None and one.needed > limit:
                problem = f"has {one.needed} tokens, but this model reads at most {limit}."
                hint = "Shorten its context, or cut the end with too_long='truncate'."
                raise TextError(i, problem, hint, what="Question")
        return GroupedInputs.of([one.rows for one in found])


def as_questions(given: Any) -> list[ChoiceQuestion]:
    """Questions as a user gives them; a str holds one as JSON.

    Raises:
        TextError: something is no question.
        RegardError: this is no list of questions.
    """
    return [one for place, item in enumerate(as_list(given)) for one in _questions(item, place)]


def _questions(item: Any, place: int) -> list[ChoiceQuestion]:
    """The question that an item is, or those of a dialogue of DREAM."""
    if isinstance(item, str):
        item = _from_json(item, place)
    try:
        return list(read_choices([item], labels=False))
    except DataError as error:
        raise TextError(place, error.problem, error.hint, what="Question") from None


def _from_json(text: str, place: int) -> Any:
    problem = f"must be an object with `context`, `question` and `choices`, but is {text!r:.60}."
    hint = 'Write for example {"question": "2 + 2 =", "choices": ["4", "5"]}.'
    try:
        found = parse_json(text, "This", RegardError)
    except RegardError as error:
        raise TextError(place, problem, f"{error} {hint}", what="Question") from None
    if not isinstance(found, dict):
        raise TextError(place, problem, hint, what="Question")
    return found


def _right(one: ChoiceQuestion) -> str:
    return "" if one.answer is None else one.choices[one.answer]
