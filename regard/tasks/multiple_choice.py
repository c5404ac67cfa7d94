"""Multiple choice: which of several answers to a question about a text is right.

Each choice is an encoder input, [CLS] context [SEP] question choice [SEP] (Devlin et al. 2019,
section 4.4), or start context question delimiter choice extract for causal models (Radford et al.
2018, section 3.3). The head scores each input; the softmax is over the choices of a question.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Self

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data import RowReader
from regard.data.batches import moved
from regard.data.datasets.records import ChoiceQuestion, read_choices
from regard.data.encoder_inputs import GroupBatch, GroupedInputs
from regard.errors import DataError, RegardError, TextError
from regard.metrics import Accuracy, Scores
from regard.recipe import Options
from regard.schema import parse_json
from regard.tasks import encoding
from regard.tasks.batching import TooLong
from regard.tasks.encoder_training import AuxiliaryLM, headed, transformed
from regard.tasks.encoding import kept_examples
from regard.tasks.inputs import as_list
from regard.tasks.sections import EncoderData, EncoderRecipe
from regard.tasks.task import Prediction, Predicts, Task
from regard.text import Tokenizer
from regard.text.templates import EncoderInput

SHOWN = 80  # characters of a context in a report


class ChoiceData(EncoderData):
    """[data]: files of DREAM or SWAG, or JSON lines; `batch_size` counts questions.

    What is too long loses the end of its context. Question and choice are truncated only where they
    alone are too long.
    """

    def read(self, source: Any, part: str) -> RowReader:
        """All examples of a file."""
        return read_choices(source)

    def texts(self) -> Iterator[str]:
        """Contexts, questions and choices of the training data, from which a tokenizer learns."""
        for question in self.records("train"):
            yield from (question.context, question.question, *question.choices)


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
    """The index of the best choice from 0, its text, and the probability of each choice."""

    answer: int
    choice: str
    probabilities: list[float]

    @property
    def result(self) -> str:
        """The choice."""
        return self.choice


@dataclass(frozen=True)
class EncodedChoices:
    """The choices of one question as encoder inputs, truncated.

    length: tokens of the longest with the whole context.
    """

    inputs: list[EncoderInput]
    length: int

    def __len__(self) -> int:
        return self.length


class MultipleChoice(encoding.EncoderTask):
    """The best of several answers."""

    name = "multiple-choice"
    prediction_type = ChoicePrediction
    predict: Predicts[str | Mapping[str, Any], str, ChoicePrediction]
    head = "multiple_choice"
    pipeline = "multiple-choice"
    file_ending = "json"
    input_columns = {}
    read_records = staticmethod(read_choices)
    Recipe = ChoiceRecipe
    goal = ("accuracy", "max")
    metric_names = ("accuracy", "loss")

    # ---- from a recipe

    @classmethod
    def from_recipe(cls, recipe: ChoiceRecipe, model: nn.Module, tokenizer: Tokenizer) -> Self:
        """The task with its data and a head that scores choices, ready to be trained.

        Raises:
            ConfigError: the model is not an encoder, or options do not fit together.
            DataError: a question is too long and that is an error; no question is left.
        """
        data, source = recipe.data, headed(model)
        model, tokenizer = transformed(source.with_head(cls.head, 1), tokenizer, source)
        task = cls(model, tokenizer, **cls.options_in(recipe))
        task.aux_lm = AuxiliaryLM.of(model, recipe.objective.aux_lm_weight)
        train = task._part(data.records("train"), data)
        valid = None if data.valid is None else task._part(data.records("valid"), data)
        task.parts = encoding.Parts(train, valid, data, recipe.seed)
        return task

    def _part(self, records: RowReader, data: ChoiceData) -> encoding.Part:
        numbered = list(records.numbered())
        records.report.read = len(numbered)
        _check_answers(records.name, [question for _, question in numbered])
        encoded = self.encoder_inputs([question for _, question in numbered])
        indices = kept_examples(
            list(map(len, encoded)),
            self.input_format.max_length,
            [number for number, _ in numbered],
            data,
            records.report,
        )
        targets = torch.tensor([numbered[i][1].answer for i in indices])
        return encoding.Part(self.arranged([encoded[i] for i in indices]), targets, records.report)

    # ---- encoder inputs

    def encoder_inputs(self, texts: list[ChoiceQuestion]) -> list[EncodedChoices]:
        """The choices of each question, their contexts truncated to the limit of the model."""
        flat = [
            text.strip()
            for question in texts
            for text in (question.context, question.question, *question.choices)
        ]
        starting = iter(self.input_format.tokenizer.encode_many(flat))
        # A text that follows another in one part of an input has a space before it.
        spaced = [f" {text}" if text else "" for text in flat]
        following = iter(self.input_format.tokenizer.encode_many(spaced))
        counts = [2 + len(question.choices) for question in texts]
        return [
            self._choices_of(list(islice(starting, n)), list(islice(following, n))) for n in counts
        ]

    def truncated(self, item: EncodedChoices) -> EncodedChoices:
        """As it is: its context is truncated."""
        return item

    def arranged(self, examples: Sequence[Any]) -> GroupedInputs:
        return GroupedInputs.of([choices.inputs for choices in examples])

    def _choices_of(
        self, starting: Sequence[list[int]], following: Sequence[list[int]]
    ) -> EncodedChoices:
        """From the ids of context, question and choices, as they start a part and as they follow
        another text.
        """
        limit, special = self.input_format.max_length, self.input_format.template.special_count(2)
        inputs, longest = [], 0
        for choice in range(2, len(starting)):
            context, rest = starting[0], self._rest(starting, following, choice)
            length = sum(map(len, rest)) + special
            longest = max(longest, length)
            if limit is not None:
                context = context[: max(0, limit - length)]
            encoder_input = self.input_format.template.apply([context + rest[0], rest[1]])
            inputs.append(self.input_format.truncate(encoder_input))
        return EncodedChoices(inputs, longest + len(starting[0]))

    def _rest(
        self, starting: Sequence[list[int]], following: Sequence[list[int]], choice: int
    ) -> tuple[list[int], list[int]]:
        """What follows the context in the first part of an input, and the second part."""
        context, question = starting[0], starting[1]
        if not context or not question:
            return question, starting[choice]
        if self.module.encoder.is_causal:
            return following[1], starting[choice]
        return [], question + following[choice]

    # ---- training

    def scores_of(self, pooled: Tensor, batch: GroupBatch) -> Tensor:
        """The scores of the choices of each question, (B, C); -inf where it has fewer."""
        return batch.scores_by_example(super().scores_of(pooled, batch)[:, 0].float())

    def loss(self, scores: Tensor, batch: GroupBatch, targets: Tensor) -> tuple[Tensor, int]:
        """The sum of the cross-entropies over the choices in nats, and the number of questions.

        scores: (B, C).  targets: (N,), of all questions.
        """
        answers = moved(targets[batch.numbers.cpu()], scores.device)
        return F.cross_entropy(scores, answers, reduction="sum"), len(batch)

    def measured(self, valid: encoding.Part) -> dict[str, float]:
        """Accuracy and cross-entropy on the validation data."""
        right, total = 0, 0.0
        for batch, scores in self.passes(valid.inputs):
            right += int((scores.argmax(-1) == valid.targets[batch.numbers]).sum())
            total += float(self.loss(scores, batch, valid.targets)[0])
        count = len(valid.inputs)
        return {"accuracy": right / count, "loss": total / count}

    # ---- predictions

    def is_one(self, texts: Any) -> bool:
        """Whether this is one question: an object, a mapping, or JSON."""
        return isinstance(texts, ChoiceQuestion | Mapping | str)

    def choose(self, questions: Any, *, too_long: TooLong = "error") -> Any:
        return self.predict(questions, too_long=too_long)

    def _predictions(
        self, questions: Sequence[Any], *, too_long: TooLong = "error"
    ) -> list[ChoicePrediction]:
        """The best choice of each question, with the probabilities of all choices.

        A question is a `ChoiceQuestion`, a mapping with `context`, `question` and `choices`, or
        such an object as JSON.
        """
        checked = self.checked(questions)
        predictions = [ChoicePrediction(0, "", [])] * len(checked)
        for batch, scores in self.passes(self.encoded(checked, too_long)):
            for number, logits in zip(batch.numbers.tolist(), scores, strict=True):
                choices = checked[number].choices
                shares = logits[: len(choices)].softmax(-1)
                best = int(shares.argmax())
                predictions[number] = ChoicePrediction(best, choices[best], shares.tolist())
        return predictions

    def are_finite(self, scores: Tensor, batch: Any) -> Tensor:
        """(B,) bool: whether the scores of all choices are finite; beyond them they are -inf."""
        present = torch.arange(scores.size(1)) < batch.sizes[:, None]
        return (scores.isfinite() | ~present).all(1)

    def checked(self, texts: Any) -> list[Any]:
        """Questions as objects; a str holds one as JSON, a mapping also a dialogue of DREAM.

        Raises:
            TextError: an item is not a question.
            RegardError: this is not a list of questions.
        """
        return [
            question for i, item in enumerate(as_list(texts)) for question in _questions(item, i)
        ]

    def evaluate(
        self,
        rows: RowReader | Iterable[Any],
        *,
        columns: Sequence[int | str] = (),
    ) -> Scores:
        """The accuracy of the predictions for questions whose answer is known.

        Raises:
            DataError: a question has no answer.
        """
        records = self.opened(rows, columns)
        questions = list(records)
        _check_answers(records.name, questions)
        self.warn_if_truncated(questions)
        metric = Accuracy()
        predictions = self._predictions(questions, too_long="truncate")
        metric.add(
            [prediction.answer for prediction in predictions],
            [question.answer for question in questions],
        )
        return Scores([metric.result()])

    def sample(self, row: ChoiceQuestion) -> tuple[Any, str, str]:
        right = "" if row.answer is None else row.choices[row.answer]
        return row, f"{row.context[:SHOWN]} | {row.question}", right

    attention_inputs = Task.attention_inputs  # whole contexts are too large for a page


def _check_answers(name: str, questions: Sequence[ChoiceQuestion]) -> None:
    """Check that the right answer of each question is one of its choices.

    name: says where the questions are from.

    Raises:
        DataError: the answer of a question is none of them.
    """
    for number, question in enumerate(questions, 1):
        if question.answer is None or not 0 <= question.answer < len(question.choices):
            problem = (
                f"has the answer {question.answer}, which is none of its "
                f"{len(question.choices)} choices."
            )
            raise DataError(name, None, f"question {number} {problem}", "Number them from 0.")


def _questions(item: Any, index: int) -> list[ChoiceQuestion]:
    """The question of an item, which may be JSON, or those of a dialogue of DREAM."""
    try:
        if isinstance(item, str):
            item = parse_json(item, "This", RegardError)
        return list(read_choices([item], labels=False))
    except DataError as error:
        raise TextError(index, error.problem, error.hint, what="Question") from None
    except RegardError as error:
        problem = f"must be an object with `context`, `question` and `choices`: {error}"
        hint = 'Write for example {"question": "2 + 2 =", "choices": ["4", "5"]}.'
        raise TextError(index, problem, hint, what="Question") from None
