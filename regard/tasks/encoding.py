"""What all tasks on an encoder share: rows of texts in, scores of a head out.

A task on an encoder owns the kind of its head, how files become examples, the loss of a batch, what
an answer is and how answers are scored; the rest is here. Any encoder serves: it says how texts
become rows (its template) and makes the head.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from regard.attention.tap import Labels, label, listening
from regard.data import Cursor
from regard.data.pieces import Encoded, Pieces, RowBatch, Texts
from regard.data.store import Report
from regard.decoding.steps import evaluating
from regard.errors import ConfigError, DataError, RegardError
from regard.models.headed import Headed
from regard.recipe import Options, Recipe, RecipePath
from regard.tasks.batching import device_of
from regard.tasks.sections import TokenizerSection
from regard.text import Tokenizer
from regard.text.templates import Row, template_of, with_template

PLACES = 8192  # of padded rows that pass an encoder at once where nothing is learned


class RowsData(Options):
    """[data] of tasks on an encoder that read texts of any length, in windows."""

    train: RecipePath
    valid: RecipePath | None = None
    test: RecipePath | None = None
    max_tokens: int = Field(default=128, ge=4)
    """Of one row, the special pieces included; never more than the model reads."""
    batch_rows: int = Field(default=32, ge=1)
    batch_tokens: int = Field(default=16384, ge=1)
    """Places in a batch, padding included; a batch of long rows has fewer than `batch_rows`."""


class EncoderData(RowsData):
    """[data] of tasks on an encoder."""

    too_long: Literal["error", "truncate", "skip"] = "truncate"
    """What happens to rows beyond `max_tokens`; those that are cut or left out are counted."""


class EncoderRecipe(Recipe):
    """A recipe's sections besides [model] and [training]."""

    data: RowsData
    tokenizer: TokenizerSection | None = None
    """Where the model is started from a folder: that of the folder."""


@dataclass(frozen=True)
class Part:
    """Encoded examples, what they should be answered with, and what became of the rows read."""

    rows: Encoded
    targets: Any
    report: Report


@dataclass(frozen=True)
class Parts:
    """What a task learns from and is validated on, and how it is batched."""

    train: Part
    valid: Part | None
    data: RowsData
    seed: int


class EncoderTask(ABC):
    """A task on an encoder with one head."""

    name: ClassVar[str]
    head: ClassVar[str]
    Recipe: ClassVar[type[EncoderRecipe]]
    decodes: ClassVar[bool] = False

    def __init__(
        self,
        model: Headed,
        tokenizer: Tokenizer,
        *,
        max_tokens: int | None = None,
        parts: Parts | None = None,
    ):
        limits = [limit for limit in (max_tokens, model.config.max_length) if limit is not None]
        template = template_of(tokenizer) or model.encoder.template(tokenizer)
        self.model, self.tokenizer = model, with_template(tokenizer, template)
        self.pieces = Pieces(tokenizer, template, min(limits, default=None), model.config.pad)
        self.parts = parts

    # ---- learning

    def train_batches(self) -> Cursor:
        """Batches without end, similar lengths together."""
        parts = self._parts()
        rows, tokens = parts.data.batch_rows, parts.data.batch_tokens
        buckets = parts.train.rows.buckets(
            self.pieces.pad, rows=rows, tokens=tokens, seed=parts.seed
        )
        return Cursor(buckets)

    def counts(self, batch: Any) -> dict[str, int]:
        """Examples."""
        return {"loss": len(batch)}

    def losses(
        self, batch: RowBatch, carry: None = None
    ) -> tuple[dict[str, tuple[Tensor, int]], None]:
        """The loss of the head's scores."""
        here = batch.to(device_of(self.model))
        scores = self.model.scores(self.head, here.texts)
        return {"loss": self.loss(scores.float(), here, self._parts().train.targets)}, None

    @abstractmethod
    def loss(self, scores: Tensor, batch: RowBatch, targets: Any) -> tuple[Tensor, int]:
        """The sum of the losses of a batch, and the number of its items."""

    def notes(self) -> list[str]:
        """What of the data is not used as it stands: rows left out or cut, and how many."""
        parts = self._parts()
        reports = {"training data": parts.train.report}
        if parts.valid is not None:
            reports["validation data"] = parts.valid.report
        return [f"{part}: {report}" for part, report in reports.items() if report.events]

    def settings(self) -> dict[str, Any]:
        """What `load` must know beside model and tokenizer."""
        return {"max_tokens": self.pieces.limit}

    # ---- using

    def passes(self, rows: Encoded) -> Iterator[tuple[RowBatch, Tensor]]:
        """Every row once, batch by batch: the rows, and the head's scores in float32."""
        if not len(rows):
            return
        with torch.no_grad(), evaluating(self.model):
            for batch in rows.in_order(self.pieces.pad, tokens=PLACES):
                if listening.get() is not None:
                    label(self._labels(batch))
                scores = self.model.scores(self.head, batch.texts.to(device_of(self.model)))
                yield batch, scores.float().cpu()

    def text_scores(self, rows: Encoded) -> Tensor:
        """The scores of a head that reads a text as a whole, (N, O), in the order of the rows."""
        found = torch.zeros(len(rows), self.model.heads[self.head].outputs)  # type: ignore
        for batch, scores in self.passes(rows):
            found[batch.numbers] = scores
        return found

    def encoded(self, texts: Sequence[Any], too_long: Literal["error", "truncate"]) -> Encoded:
        """Texts or pairs of texts, as a user gives them.

        Raises:
            RegardError: a text is longer than the model reads and `too_long` is "error".
        """
        rows = self.pieces.rows([as_texts(one) for one in texts])
        long = self.pieces.long_ones(rows)
        if long and too_long == "error":
            raise RegardError(
                f"Text {long[0] + 1} has {len(rows[long[0]])} tokens, but this model reads at most "
                f"{self.pieces.limit}. Shorten it, or cut its end with too_long='truncate'."
            )
        return Encoded.of([self.pieces.shortened(row) for row in rows])

    def long_ones(self, texts: Sequence[Any]) -> dict[int, int]:
        """The places of texts longer than the model's limit, and how many tokens each has."""
        rows = self.pieces.rows([as_texts(one) for one in texts])
        return {i: len(rows[i]) for i in self.pieces.long_ones(rows)}

    def warn_if_cut(self, texts: Sequence[Texts]) -> None:
        """Say how many of the texts are too long for the model."""
        if cut := self.long_ones(texts):
            warnings.warn(
                f"{len(cut):,} of {len(texts):,} rows were cut to {self.pieces.limit:,} tokens, "
                "which is what this model reads",
                stacklevel=3,
            )

    def _labels(self, batch: RowBatch) -> Labels:
        """The pieces of each row, for whoever looks."""
        lengths = batch.texts.lengths.tolist()
        rows = zip(batch.texts.ids.tolist(), lengths, strict=True)
        return [[self.tokenizer.label(i) for i in row[:length]] for row, length in rows]

    def _parts(self) -> Parts:
        if self.parts is None:
            raise RegardError("This model was loaded to be used: it has no data to train on.")
        return self.parts


def as_texts(given: Any) -> Texts:
    """A text or a pair of texts, as a user gives it."""
    texts = (given,) if isinstance(given, str) else tuple(given)
    if len(texts) not in (1, 2) or not all(isinstance(text, str) for text in texts):
        raise RegardError(f"Give a text, or a pair of texts (a, b), but this is {given!r:.80}.")
    return texts


def headed(model: Any) -> Headed:
    """A model as tasks on encoders take it.

    Raises:
        ConfigError: the model is no encoder.
    """
    if isinstance(model, Headed):
        return model
    if not all(hasattr(model, verb) for verb in ("encode", "layers", "new_head")):
        raise ConfigError(
            f"{type(model).__name__} is no encoder: this task reads hidden states of a whole text. "
            "Choose a model such as bert, or start from a folder that holds one."
        )
    return Headed(model, {})


def keep_short(
    rows: list[Row], lines: Sequence[int], pieces: Pieces, data: EncoderData, report: Report
) -> list[int]:
    """Shorten the rows in place as [data] says; the numbers of those that are kept.

    Raises:
        DataError: a row is too long and that is an error.
    """
    out = set()
    for i in pieces.long_ones(rows):
        if data.too_long == "error":
            problem = f"has {len(rows[i])} tokens, more than {pieces.limit}."
            hint = "Raise max_tokens if the model allows, or choose too_long = 'truncate'."
            raise DataError(report.files[0], lines[i], problem, hint)
        done = "row left out" if data.too_long == "skip" else "truncated"
        report.note(f"longer than {pieces.limit} tokens, {done}", lines[i])
        if data.too_long == "skip":
            out.add(i)
        rows[i] = pieces.shortened(rows[i])
    return [i for i in range(len(rows)) if i not in out]
