"""Rows of one text or two with a target at the end: what classes and numbers have in common.

Files become examples, pairs are read in one order or in both, and answers are scored by metrics
that go by name.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor

from regard.data import RowReader, read
from regard.data.batches import moved
from regard.data.datasets.glue import GlueReader, read_glue
from regard.data.encoder_inputs import EncodedInputs
from regard.data.grouped_inputs import GroupBatch, GroupedInputs
from regard.data.token_arrays import ReadReport
from regard.errors import ConfigError, DataError
from regard.metrics import METRICS, Score, metric_class
from regard.metrics.glue import TASKS as GLUE
from regard.metrics.glue import metrics as glue_metrics
from regard.models.headed import Headed
from regard.recipe import Options
from regard.suggest import nearest
from regard.tasks.batching import TooLong
from regard.tasks.encoding import (
    EncoderData,
    EncoderTask,
    NextWords,
    Part,
    Parts,
    keep_short,
)
from regard.tasks.inputs import is_single
from regard.tasks.sections import differing
from regard.text import Tokenizer
from regard.text.templates import EncoderInput

SAMPLES = 12  # rows that a run's report shows
SEPARATOR = " | "  # between the two texts of a pair there
PARTS = ("train", "valid", "test")
OF_ONE_TEXT = ("cola", "sst2")  # the other tasks of GLUE ask for pairs
GLUE_PARTS = {"train": "train", "valid": "dev"}


class TextsData(EncoderData):
    """[data]: tables of one text or two and their label, or the files of a task of GLUE."""

    columns: tuple[int | str, ...] = (0, 1)
    """One text or two, and then the label: by number from 0, or by name from a header."""
    format: str | None = None
    """tsv, csv, jsonl or parquet, where a file's ending does not say it."""
    header: bool | None = None
    glue: str = ""
    """A task of GLUE (`regard.metrics.glue`): `train` and the others are then its files, or its
    folder."""
    test_part: Literal["test", "dev"] = "test"
    """What of a folder of GLUE is scored at the end: most of its tests hide their labels."""

    @field_validator("columns")
    @classmethod
    def _one_text_or_two(cls, columns: tuple[int | str, ...]) -> tuple[int | str, ...]:
        if len(columns) not in (2, 3):
            raise ValueError(
                f"must name one text or two, and then the label, but names {len(columns)} columns"
            )
        return columns

    @field_validator("glue")
    @classmethod
    def _known(cls, name: str) -> str:
        """The name as the metrics have it; MRPC and SST-2 are understood too."""
        plain = name.lower()
        plain = plain if plain in GLUE else plain.replace("-", "")
        if name and plain not in GLUE:
            offered = nearest(name.lower(), [one for one in GLUE if one.startswith(plain)] or GLUE)
            raise ValueError(f"is {name!r}, which is no task of GLUE. {offered}")
        return plain


class TextObjective(Options):
    """[objective]"""

    both_orders: bool = False
    """Read each pair as (a, b) and as (b, a) and add what stands before the head: for questions in
    which the order says nothing (Radford et al. 2018, section 3.3)."""
    aux_lm_weight: float = Field(default=0.0, ge=0)
    """Weight of the loss of predicting the texts themselves (lambda of equation 5, there 0.5)."""


class MetricsSection(Options):
    """[evaluation]"""

    metrics: tuple[str, ...] = ()
    """Names of metrics, the goal first; without any those of the task of GLUE, or accuracy, or for
    numbers both correlations."""


class TextTask(EncoderTask):
    """A task whose examples are one text or two, and what they should be answered with.

    KNOWN are the metrics that it can be scored by, DEFAULT those that score it unless others are
    named.
    """

    head = "classes"
    reads_pairs = True
    KNOWN: ClassVar[tuple[str, ...]]
    DEFAULT: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        model: Headed,
        tokenizer: Tokenizer,
        *,
        glue: str = "",
        metrics: Sequence[str] = (),
        both_orders: bool = False,
        max_length: int | None = None,
    ):
        super().__init__(model, tokenizer, max_length=max_length)
        self.glue, self.metrics, self.both_orders = glue, tuple(metrics), both_orders
        self.goal = (key_of(self.new_metrics()[0]), "max")

    # ---- what a task of this kind says

    @abstractmethod
    def target(self, text: str, file: str, line: int) -> int | float:
        """What a row's last field asks for; it stands in this file on this line."""

    @abstractmethod
    def answered(self, scores: Tensor, targets: Tensor) -> tuple[list[Any], list[Any]]:
        """What the head's scores (N, O) answer, and what the targets (N,) ask for, as metrics have
        them.
        """

    @abstractmethod
    def errors(self, scores: Tensor, targets: Tensor) -> Tensor:
        """The loss of each example, (N,)."""

    def metric(self, name: str) -> Any:
        """A new metric of this name."""
        return metric_class(name)()

    # ---- from a recipe

    @classmethod
    def texts(cls, recipe: Any) -> Iterator[str]:
        """What a tokenizer learns from: the training texts."""
        return (text for row in rows_of(recipe.data, "train") for text in row[:-1])

    @classmethod
    def files(cls, recipe: Any) -> list[str]:
        """The files of data, for the record of a run."""
        parts = [part for part in PARTS if getattr(recipe.data, part) is not None]
        return [name for part in parts for name in _files(rows_of(recipe.data, part))]

    @classmethod
    def example(cls, recipe: Any, words: int) -> Any:
        """A batch as the recipe asks for, if every text had `words` tokens: for estimates."""
        data = recipe.data
        pair = data.glue not in ("", *OF_ONE_TEXT) or len(data.columns) == 3
        batch = super().example(recipe, words * 2 if pair else words)
        if not (pair and recipe.objective.both_orders):
            return batch
        rows, numbers = torch.arange(len(batch)).repeat_interleave(2), batch.numbers
        return GroupBatch(batch.texts.select(rows), torch.full_like(numbers, 2), numbers)

    @classmethod
    def problems(cls, recipe: Any) -> Iterator[tuple[str, str]]:
        """Options without effect, or without what they need."""
        yield from super().problems(recipe)
        data, metrics = recipe.data, recipe.evaluation.metrics
        if data.glue:
            why = "is of tables, and `glue` says what is read"
            yield from differing(data, "data", ("format", "header"), why)
            if wrong := cls._wrong_glue(data.glue):
                yield "data.glue", f"cannot be learned: {wrong}"
        if not (data.glue and data.test is not None):
            yield from differing(data, "data", ("test_part",), "is of `test`, a folder of GLUE")
        if any(isinstance(one, str) for one in data.columns) and data.header is False:
            yield "data.header", "must not be false where `columns` are names: a header has them."
        if metrics and data.valid is None and data.test is None:
            yield "evaluation.metrics", "needs `valid` or `test` in [data], or it scores nothing."
        yield from cls._unknown(metrics)

    @classmethod
    def _wrong_glue(cls, glue: str) -> str:
        """Why this task of GLUE is not of this kind; "" where it is."""
        key = key_of(glue_metrics(glue)[0])
        other = "regression" if cls.name == "classification" else "classification"
        said = f'{glue} is scored by {key}, which is not of {cls.name}: say task = "{other}".'
        return "" if key in cls.KNOWN else said

    @classmethod
    def _unknown(cls, metrics: Sequence[str]) -> Iterator[tuple[str, str]]:
        for name in metrics:
            if name not in cls.KNOWN:
                problem = f"names {name!r}, which does not score {cls.name}."
                yield "evaluation.metrics", f"{problem} {nearest(name, cls.KNOWN)}"

    def begin(self, recipe: Any, remarks: Sequence[str] = ()) -> None:
        """Read the data and the second objective that a recipe asks for."""
        data, self.remarks = recipe.data, list(remarks)
        self.next_words = NextWords.of(self.model, recipe.objective.aux_lm_weight)
        train = self._part(rows_of(data, "train"), data)
        valid = None if data.valid is None else self._part(rows_of(data, "valid"), data)
        self.parts = Parts(train, valid, data, recipe.seed)

    def _part(self, rows: RowReader, data: TextsData) -> Part:
        """Encoded rows with their targets, which `self.target` reads."""
        report, texts, targets, lines = ReadReport((rows.file_of(0),)), [], [], []
        for line, (*fields, target) in rows.numbered():
            report.read += 1
            if not any(field.strip() for field in fields):
                report.note("empty, row left out", line)
                continue
            texts.append(tuple(fields))
            targets.append(self.target(target, rows.file_of(0), line))
            lines.append(line)
        found = self.pieces.encode(texts)
        kept = keep_short(found, lines, self.pieces, data, report)
        report.kept = len(kept)
        if not kept:
            raise DataError(rows.file_of(0), None, f"no example is left. {report}.")
        wanted = torch.tensor([targets[i] for i in kept])
        return Part(self.laid([found[i] for i in kept]), wanted, report)

    # ---- the pairs' orders

    def laid(self, rows: Sequence[EncoderInput]) -> EncodedInputs | GroupedInputs:
        """Row i is example i; or row i and its pair the other way round are."""
        if not self.both_orders:
            return super().laid(rows)
        return GroupedInputs.of([self._orders(row) for row in rows])

    def _orders(self, row: EncoderInput) -> list[EncoderInput]:
        texts = row.texts()
        return [row] if len(texts) == 1 else [row, self.pieces.template.apply(texts[::-1])]

    def scores_of(self, read: Tensor, batch: Any) -> Tensor:
        """The head's scores (B, O); of what both orders of a pair give, added."""
        if isinstance(batch, GroupBatch):
            read = batch.sum_by_example(read)
        return super().scores_of(read, batch)

    # ---- learning

    def loss(self, scores: Tensor, batch: Any, targets: Any) -> tuple[Tensor, int]:
        """The sum of the losses of a batch, and the number of its examples."""
        wanted = moved(targets[batch.numbers.cpu()], scores.device)
        return self.errors(scores, wanted).sum(), len(batch)

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The metrics that are named, or the usual ones, and the loss."""
        return (*map(key_of, self.new_metrics()), "loss")

    def measured(self, valid: Part) -> dict[str, float]:
        """The metrics on the validation data, and the loss."""
        scores = self.text_scores(valid.rows)
        metrics = self.new_metrics()
        results = self.scored(metrics, scores, valid.targets)
        found = {key_of(m): r.value for m, r in zip(metrics, results, strict=True)}
        return {**found, "loss": float(self.errors(scores, valid.targets).mean())}

    # ---- using

    def predict(self, texts: Any, *, too_long: TooLong = "error") -> Any:
        """The answer to each text or pair: a list for a list, one for one.

        A text is a str, a pair a tuple of two.
        """
        if is_single(texts):
            return self.value(self.predictions([texts], too_long=too_long)[0])
        return [self.value(answer) for answer in self.predictions(texts, too_long=too_long)]

    @staticmethod
    @abstractmethod
    def value(answer: Any) -> Any:
        """What of an answer stands for it."""

    def evaluate(self, rows: RowReader | Iterable[Sequence[str]]) -> list[Score]:
        """The metrics of the answers to rows of one text or two and their target."""
        rows = rows if isinstance(rows, RowReader) else read(rows)
        numbered = list(rows.numbered())
        texts, targets = [], []
        for line, row in numbered:
            if len(row) not in (2, 3):
                problem = f"has {len(row)} fields, but must have one text or two, and the target."
                raise DataError(rows.file_of(0), line, problem)
            texts.append(row[:-1])
            targets.append(self.target(row[-1], rows.file_of(0), line))
        self.warn_if_cut(texts)
        scores = self.text_scores(self.encoded(texts, "truncate"))
        return self.scored(self.new_metrics(), scores, torch.tensor(targets))

    @classmethod
    def part_of(cls, recipe: Any, part: str) -> Any:
        """The rows of one part of a recipe's data."""
        return rows_of(recipe.data, part)

    def samples(self, recipe: Any) -> list[tuple[str, str, str]]:
        """The first validation rows: (text, answer, label)."""
        part = "train" if recipe.data.valid is None else "valid"
        rows = list(islice(rows_of(recipe.data, part), SAMPLES))
        found = self.predictions([row[:-1] for row in rows], too_long="truncate")
        return [
            (SEPARATOR.join(row[:-1]), str(answer), row[-1])
            for row, answer in zip(rows, found, strict=True)
        ]

    def asked(self, row: Sequence[str]) -> list[tuple[str, ...]] | None:
        """What to predict in order to see the model at work on a sample; None: it is too long."""
        pair = tuple(row[0].split(SEPARATOR, 1))
        return None if self.long_ones([pair]) else [pair]

    def rows_to_evaluate(self, files: Sequence[Any], columns: Sequence[int | str]) -> RowReader:
        """Rows of a file that a user names."""
        return read(files[0], tuple(columns) or (0, 1))

    def settings(self) -> dict[str, Any]:
        """What `load` must know beside model and tokenizer."""
        options = {"metrics": list(self.metrics), "both_orders": self.both_orders}
        return {**super().settings(), "glue": self.glue, **options}

    # ---- scores

    def scored(self, metrics: Sequence[Any], scores: Tensor, targets: Tensor) -> list[Score]:
        """The metrics of the head's scores (N, O) against targets (N,)."""
        found, wanted = self.answered(scores, targets)
        for metric in metrics:
            metric.add(found, wanted)
        return [metric.result() for metric in metrics]

    def new_metrics(self) -> list[Any]:
        """Those that are named, or those of the task of GLUE, or the usual ones.

        Raises:
            ConfigError: one of them does not score answers of this kind.
        """
        if self.glue and not self.metrics:
            if wrong := self._wrong_glue(self.glue):
                raise ConfigError(wrong)
            return list(glue_metrics(self.glue))
        for name in self.metrics:
            if name not in self.KNOWN:
                raise ConfigError(
                    f"[evaluation] `metrics` names {name!r}, which does not score {self.name}. "
                    f"{nearest(name, self.KNOWN)}"
                )
        return [self.metric(name) for name in self.metrics or self.DEFAULT]


def rows_of(data: TextsData, part: str) -> RowReader:
    """The rows of one part of a recipe's data: one text or two, then the target."""
    path = getattr(data, part)
    if not data.glue:
        return read(path, data.columns, format=data.format, header=data.header)
    task, _, half = data.glue.partition("-")  # MNLI is validated on one of two halves
    name = data.test_part if part == "test" else GLUE_PARTS[part]
    name += f"_{half}" if half and part != "train" else ""
    return read_glue(task, path, name if path.is_dir() else "")


def key_of(metric: Any) -> str:
    """The name of a metric in recipes and records."""
    return next(name for name in METRICS if metric_class(name) is type(metric))


def _files(rows: RowReader) -> list[str]:
    return list(rows.paths) if isinstance(rows, GlueReader) else [rows.file_of(0)]
