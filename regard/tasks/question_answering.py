"""The answer to a question as a part of its context, or that the context holds none.

A head scores each piece as the first and as the last of the answer; no answer is the span at the
first piece of the row, [CLS] (Devlin et al. 2019, sections 4.2 and 4.3). Long contexts are read in
windows that overlap; what the windows say is compared by its score.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from regard.data import Question, RecordReader, read_squad
from regard.data.batches import moved
from regard.data.encoder_inputs import EncodedInputs, InputBatch
from regard.data.token_arrays import ReadReport
from regard.data.windows import ContextWindows, EncodedContext, concatenated
from regard.errors import TextError
from regard.metrics import Score
from regard.models.headed import Headed
from regard.recipe import Options
from regard.tasks.batching import TooLong
from regard.tasks.encoding import (
    EncoderRecipe,
    EncoderTask,
    Part,
    Parts,
    RowsData,
    beginning,
    headed,
    no_columns,
)
from regard.tasks.inputs import as_list, as_strings, checked_text, is_single
from regard.tasks.spans import (
    ALWAYS,
    SpanCandidates,
    SpanPrediction,
    best_spans,
    best_threshold,
    score_of,
)
from regard.text import Tokenizer

SAMPLES = 12  # questions that a run's report shows
CHUNK = 256  # windows whose ids are held at once where nothing is learned, more or less
PARTS = ("train", "valid", "test")


class QuestionsData(RowsData):
    """[data]: files in SQuAD's format."""

    max_length: int = Field(default=384, ge=16)
    """Of one window with its question and the special pieces; never more than the model reads."""
    overlap: int = Field(default=128, ge=0)
    """Pieces of a context that neighbouring windows share, at most half of their room."""
    question_tokens: int = Field(default=64, ge=1)
    """Longer questions are cut, and counted; they never take more than half of a row."""
    misplaced: Literal["error", "skip", "move"] = "error"
    """What becomes of answers that do not stand where their start says: see `read_squad`."""


class AnswersSection(Options):
    """[answers]: what may be answered."""

    max_tokens: int = Field(default=30, ge=1)
    """Pieces of an answer."""
    threshold: float | None = Field(default=None, ge=0, le=1)
    """A question is left without an answer where the probability that it has none is larger.
    Without it: every question is answered if all of the training data's can be; otherwise it is
    the best for the validation data's F1, and a half where there is none."""


class QuestionsRecipe(EncoderRecipe):
    """A recipe's sections besides [model] and [training]."""

    data: QuestionsData
    answers: AnswersSection = AnswersSection()


class QuestionAnswering(EncoderTask):
    """The part of a context that answers a question.

    threshold: the probability of no answer above which a question is left without one; 1: never.
    The others are as in `QuestionsData` and `AnswersSection`.
    """

    name = "question-answering"
    head = "span"
    prediction_type = SpanPrediction
    reads_pairs = True
    Recipe = QuestionsRecipe
    items = "windows"
    goal = ("f1", "max")

    def __init__(
        self,
        model: Headed,
        tokenizer: Tokenizer,
        *,
        max_length: int | None = 384,
        overlap: int = 128,
        question_tokens: int = 64,
        answer_tokens: int = 30,
        threshold: float = ALWAYS,
    ):
        super().__init__(model, tokenizer, max_length=max_length or 384)
        assert self.pieces.max_length is not None
        room = self.pieces.max_length - self.pieces.template.special_count(2)
        self.overlap, self.question_tokens = overlap, min(question_tokens, room // 2)
        self.answer_tokens, self.threshold = answer_tokens, threshold
        self._tuned: dict[bytes, float] | None = None

    # ---- from a recipe

    @classmethod
    def from_recipe(cls, recipe: Any, model: Any, tokenizer: Tokenizer) -> Any:
        """The task with its data and a head for spans, ready to be trained."""
        data, answers = recipe.data, recipe.answers
        task = cls(
            headed(model).with_head(cls.head, 2),
            tokenizer,
            max_length=data.max_length,
            overlap=data.overlap,
            question_tokens=data.question_tokens,
            answer_tokens=answers.max_tokens,
        )
        train = task._train_part(questions_of(data, "train"))
        valid = None if data.valid is None else task._valid_part(questions_of(data, "valid"))
        task.parts = Parts(train, valid, data, recipe.seed)
        if answers.threshold is not None:
            task.threshold = answers.threshold
        elif task._impossible:
            task.threshold = 0.5
            task._tuned = None if valid is None else {}
        return task

    @classmethod
    def texts(cls, recipe: Any) -> Iterator[str]:
        """What a tokenizer learns from: each context once, and all questions."""
        seen: set[str] = set()
        for one in questions_of(recipe.data, "train"):
            if one.context not in seen:
                seen.add(one.context)
                yield one.context
            yield one.question

    @classmethod
    def files(cls, recipe: Any) -> list[str]:
        """The files of data, for the record of a run."""
        return [str(path) for part in PARTS if (path := getattr(recipe.data, part)) is not None]

    @classmethod
    def example(cls, recipe: Any, words: int) -> Any:
        """A batch of full windows: contexts are longer than that."""
        return super().example(recipe, recipe.data.max_length)

    def _train_part(self, records: RecordReader[Question]) -> Part:
        """All windows of all questions, each with the places of its answer's first and last piece.

        Of several answers the first is learned. What has none points to the first place.
        """
        rows: list[ContextWindows] = []
        places: list[np.ndarray] = []
        self._impossible = False
        numbered = records.numbered()
        while several := list(islice(numbered, CHUNK)):
            lines, asked = [line for line, _ in several], [one for _, one in several]
            contexts = self._contexts(asked)
            wanted = [_span(one, context) for one, context in zip(asked, contexts, strict=True)]
            self._impossible |= any(one.impossible for one in asked)
            self._note_cut(records.report, asked, lines)
            kept = [i for i, one in enumerate(asked) if one.impossible or wanted[i]]
            for i in sorted(set(range(len(asked))) - set(kept)):
                records.report.kept -= 1
                records.report.note("an answer without tokens, question left out", lines[i])
            found = self._rows([asked[i] for i in kept], [contexts[i] for i in kept])
            rows.append(found)
            places.append(found.span_positions([wanted[i] for i in kept]))
        targets = torch.from_numpy(np.concatenate(places))
        return Part(concatenated([one.inputs for one in rows]), targets, records.report)

    def _valid_part(self, records: RecordReader[Question]) -> Part:
        """Questions that are validated on; their rows are made when they are needed."""
        numbered = list(records.numbered())
        questions = [one for _, one in numbered]
        self._note_cut(records.report, questions, [line for line, _ in numbered])
        return Part(EncodedInputs.of([]), questions, records.report)

    def _note_cut(
        self, report: ReadReport, asked: Sequence[Question], lines: Sequence[int]
    ) -> None:
        for i in self._long(asked):
            report.note(f"question longer than {self.question_tokens} tokens, cut", lines[i])

    # ---- learning

    def loss(self, scores: Tensor, batch: InputBatch, targets: Tensor) -> tuple[Tensor, int]:
        """The mean of the cross-entropies, in nats, of the first and of the last place."""
        wanted = moved(targets[batch.numbers.cpu()], scores.device)  # (B, 2)
        inside = scores.masked_fill(~batch.texts.keep[:, :, None], -torch.inf)
        return F.cross_entropy(inside, wanted, reduction="sum") / 2, len(batch)

    @property
    def metric_names(self) -> tuple[str, ...]:
        """F1 and exact match."""
        return ("f1", "exact")

    def measured(self, valid: Part) -> dict[str, float]:
        """F1 and exact match in percent on the validation data."""
        questions: list[Question] = valid.targets
        found = list(self._answered(questions, "truncate"))
        if self._tuned is not None:
            self.threshold = best_threshold(found, questions)
            self._tuned[self._key()] = self.threshold
        score = score_of(found, questions, self.threshold)
        return {"f1": score.value, "exact": score.exact}

    def settings(self) -> dict[str, Any]:
        """What `load` must know beside model and tokenizer."""
        if self._tuned is not None and self._parts().valid is not None:
            # The weights that are saved need not be those that were validated last.
            if self._key() not in self._tuned:
                self.validate()
            self.threshold = self._tuned.get(self._key(), 0.5)  # none where scores are not finite
        return {
            **super().settings(),
            "overlap": self.overlap,
            "question_tokens": self.question_tokens,
            "answer_tokens": self.answer_tokens,
            "threshold": self.threshold,
        }

    def _key(self) -> bytes:
        """Tells the model's present weights from others."""
        head = self.model.heads[self.head]
        return b"".join(w.detach().float().cpu().numpy().tobytes() for w in head.parameters())

    # ---- using

    def predict(self, texts: Any, *, too_long: TooLong = "error") -> list[str] | str:
        """The answer to one pair (question, context), or to each of a list of pairs."""
        one = is_single(texts)
        found = [
            answer.text for answer in self.predictions([texts] if one else texts, too_long=too_long)
        ]
        return found[0] if one else found

    def answer(self, question: str, context: str) -> SpanPrediction:
        """The answer to a question from a context, with the passages that come next."""
        return self.predictions([(question, context)], n_best=20)[0]

    def predictions(
        self, texts: Sequence[Any], *, too_long: TooLong = "error", n_best: int = 1
    ) -> list[SpanPrediction]:
        """The answers to pairs (question, context), each with the `n_best` best passages.

        Raises:
            RegardError: what is given is no pair; a question is longer than `question_tokens` and
                `too_long` is "error".
        """
        return list(self._answered(self.checked(texts), too_long, n_best))

    def checked(self, texts: Any) -> list[Any]:
        """Questions with their contexts."""
        return [_asked(place, pair) for place, pair in enumerate(as_list(texts))]

    def long_ones(self, texts: Sequence[Any]) -> dict[int, int]:
        """The pairs of which the question is too long, and how many tokens that has.

        Contexts are read whole, whatever their length.
        """
        return self._long(self.checked(texts))

    def _long(self, asked: Sequence[Question]) -> dict[int, int]:
        long: dict[int, int] = {}
        for start in range(0, len(asked), CHUNK):
            ids = self.tokenizer.encode_many([one.question for one in asked[start : start + CHUNK]])
            counts = enumerate(map(len, ids), start)
            long |= {i: count for i, count in counts if count > self.question_tokens}
        return long

    # ---- windows

    def _answered(
        self, asked: Sequence[Question], too_long: TooLong, n_best: int = 1
    ) -> Iterator[SpanPrediction]:
        """The answers in order. What is held at once does not grow with the number of questions."""
        if too_long == "error" and (long := self._long(asked)):
            first = min(long)
            problem = f"has {long[first]} tokens, but at most {self.question_tokens} are read."
            hint = "Shorten it, or cut its end with too_long='truncate'."
            raise TextError(first, problem, hint, what="Question")
        done = 0
        for together, contexts in self._chunks(asked):
            rows = self._rows(together, contexts)
            candidates = [SpanCandidates(max(n_best, 1)) for _ in together]
            self._search(rows, candidates, done)
            done += len(together)
            for context, found in zip(contexts, candidates, strict=True):
                yield found.answer(context, self.threshold)

    def _chunks(
        self, asked: Sequence[Question]
    ) -> Iterator[tuple[list[Question], list[EncodedContext]]]:
        """Neighbouring questions with their contexts, until they make about CHUNK windows."""
        several: list[Question] = []
        contexts: list[EncodedContext] = []
        kept: dict[str, EncodedContext] = {}
        windows, step = 0.0, self.pieces.max_length or 1
        for one in asked:
            context = kept.get(one.context)
            if context is None:
                context = EncodedContext.of(one.context, self.tokenizer.encode(one.context))
                kept = {**(kept if several else {}), one.context: context}
            several.append(one)
            contexts.append(context)
            windows += 1 + len(context.ids) / (step - self.overlap)
            if windows >= CHUNK:
                yield several, contexts
                # Questions about one context stand together: the last may come again.
                several, contexts, windows, kept = [], [], 0.0, {one.context: context}
        if several:
            yield several, contexts

    def _search(
        self, rows: ContextWindows, candidates: Sequence[SpanCandidates], before: int
    ) -> None:
        """Gather the best spans of each question over its windows; `before` others came first."""
        for batch, scores in self.passes(rows.inputs, (rows.questions + before).tolist()):
            numbers = batch.numbers.numpy()
            first, counts = (torch.from_numpy(c[numbers]) for c in (rows.input_starts, rows.counts))
            most = candidates[0].most
            spans = best_spans(scores, first, counts, longest=self.answer_tokens, most=most)
            nothing = scores[:, 0].sum(-1).tolist()
            for row, found, none in zip(numbers.tolist(), spans, nothing, strict=True):
                shift = int(rows.context_starts[row] - rows.input_starts[row])
                moved = [(score, a + shift, b + shift) for score, a, b in found]
                candidates[rows.questions[row]].add(moved, none)

    def _rows(
        self, asked: Sequence[Question], contexts: Sequence[EncodedContext]
    ) -> ContextWindows:
        # Byte-level pieces carry the space before a word; one before the question means nothing.
        ids = self.tokenizer.encode_many([one.question.lstrip() for one in asked])
        cut = [own[: self.question_tokens] for own in ids]
        return ContextWindows.of(cut, contexts, self.pieces, self.overlap)

    def _contexts(self, asked: Sequence[Question]) -> list[EncodedContext]:
        """The contexts of questions, each encoded once."""
        distinct = {
            text: EncodedContext.of(text, self.tokenizer.encode(text))
            for text in dict.fromkeys(one.context for one in asked)
        }
        return [distinct[one.context] for one in asked]

    # ---- scores

    def evaluate(self, rows: RecordReader[Question] | Iterable[Any]) -> list[Score]:
        """F1 and exact match of the answers to records of `read_squad`, or to what that reads.

        Where some questions have no answer, version 2.0's measures, with the best thresholds.
        """
        questions = list(rows if isinstance(rows, RecordReader) else read_squad(rows))
        if long := self._long(questions):
            warnings.warn(
                f"{len(long):,} of {len(questions):,} questions were cut to "
                f"{self.question_tokens:,} tokens",
                stacklevel=2,
            )
        return [score_of(list(self._answered(questions, "truncate")), questions, self.threshold)]

    @classmethod
    def part_of(cls, recipe: Any, part: str) -> Any:
        """The questions of one part of a recipe's data."""
        return questions_of(recipe.data, part)

    def samples(self, recipe: Any) -> list[tuple[str, str, str]]:
        """The first validation questions: (question, answer, right answer)."""
        part = "train" if recipe.data.valid is None else "valid"
        asked = list(islice(questions_of(recipe.data, part), SAMPLES))
        found = self._answered(asked, "truncate")
        return [
            (one.question, answer.text, one.answers[0].text if one.answers else "")
            for one, answer in zip(asked, found, strict=True)
        ]

    def asked(self, row: Sequence[str]) -> None:
        """Nothing: attention over whole contexts is too large for a page."""

    @staticmethod
    def excerpt(recipe: Any) -> tuple[str, str]:
        """A question and the beginning of its context, for a picture of one pass."""
        one = next(
            iter(questions_of(recipe.data, "train" if recipe.data.valid is None else "valid"))
        )
        return one.question, beginning(one.context)

    def rows_to_evaluate(
        self, files: Sequence[Any], columns: Sequence[int | str]
    ) -> RecordReader[Question]:
        """The questions of a file that a user names."""
        no_columns(columns)
        return read_squad(files[0])


def questions_of(data: QuestionsData, part: str) -> RecordReader[Question]:
    """The questions of one part of a recipe's data."""
    return read_squad(getattr(data, part), misplaced=data.misplaced)


def _span(question: Question, context: EncodedContext) -> tuple[int, int] | None:
    """The pieces of the first answer."""
    if not question.answers:
        return None
    return context.token_span(*question.answers[0])


def _asked(place: int, pair: Any) -> Question:
    texts = as_strings(pair) or ()
    if len(texts) != 2:
        hint = "Give pairs of two texts, (question, context)"
        raise TextError(
            place,
            f"must be a question and its context, but is {pair!r:.80}.",
            f"{hint}.",
            said=f"{hint}, but item {place} is {pair!r:.80}.",
        )
    question, context = (checked_text(text, place) for text in texts)
    return Question(str(place), context=context, question=question)
