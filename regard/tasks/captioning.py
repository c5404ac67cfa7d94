"""Captioning: an image, and a text that describes it.

    image file -> regions -> encoder-decoder -> caption

The model is one that reads regions: "show-attend-tell" (Xu et al. 2015) or "region-transformer".
`region_features` computes them. A training adds Xu's term (section 4.2.1, equation 14), which wants
every region to be attended to once in a caption:

    weight * sum over the regions i of (1 - sum over the words t of alpha_ti)^2
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from regard import decoding
from regard.attention.capture import label, muted
from regard.data.batches import PairBatch, Sequences
from regard.data.images import RegionTable
from regard.data.readers import RowReader, read
from regard.data.sampler import Buckets, sorted_batches
from regard.data.token_arrays import EncodedExamples, FieldEncoder, encode
from regard.decoding.beam import Beam
from regard.decoding.steps import Hypothesis, evaluating, labels_of
from regard.errors import ConfigError, DataError
from regard.metrics import BLEU, CIDEr, Metric, Scores
from regard.models.protocols import EncoderDecoder, Output
from regard.models.show_attend_tell import ATTENTION_WEIGHTS
from regard.tasks.batching import (
    ELSEWHERE,
    TOKENS_AT_ONCE,
    TooLong,
    check_too_long,
    device_of,
    watched,
)
from regard.tasks.image_captions import (
    GRID,
    WIDTHS,
    ImageCaptionsData,
    ImageRows,
    RegionFeatures,
    RowNumbers,
    grouped,
)
from regard.tasks.inputs import as_list, checked_columns, checked_texts
from regard.tasks.methods import results_of
from regard.tasks.prompts import warn_of_length_ends, without_length_warnings
from regard.tasks.reinforce import Reinforce
from regard.tasks.sections import DecodingRecipe, TokenizerSection
from regard.tasks.task import of_training
from regard.tasks.text_to_text import (
    SAMPLES,
    TextToText,
    TextToTextEvaluation,
    TextToTextObjective,
    TrainingPairs,
)
from regard.text import Tokenizer


class CaptioningObjective(TextToTextObjective):
    """[objective]"""

    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """This share of the target's probability is spread over all labels or tokens."""
    doubly_stochastic: float | None = Field(default=None, ge=0)
    """The weight of equation 14, for a model that gives its attention weights; None: 1."""


class CaptioningRecipe(DecodingRecipe):
    """A recipe's sections besides [model] and [training]."""

    new_tokenizer: ClassVar[TokenizerSection] = TokenizerSection(kind="words", lowercase=True)

    data: ImageCaptionsData
    objective: CaptioningObjective = CaptioningObjective()
    evaluation: TextToTextEvaluation = TextToTextEvaluation()


@dataclass(frozen=True)
class CaptionedImages(TrainingPairs):
    """Encoded training and validation captions, and what they describe.

    references: of each validation image, its captions.
    table: the regions of all images.  images: those of validation, each once.
    """

    table: RegionTable
    images: list[int]


class Captioner(TextToText):
    """A model that describes an image, with its tokenizer.

    regions: what the regions of an image are; see [data] `regions`.
    doubly_stochastic: the weight of equation 14 in training.
    """

    name = "captioning"
    commands = ("predict", "evaluate", "look")
    Recipe = CaptioningRecipe
    goal = ("cider", "max")
    metric_names = ("bleu", "cider")
    default_limit = 30
    reads_images = True
    data: CaptionedImages | None

    def __init__(
        self,
        module: EncoderDecoder,
        tokenizer: Tokenizer,
        *,
        regions: str = "efficientnet-lite0",
        doubly_stochastic: float = 1.0,
        method: Any = None,
        label_smoothing: float = 0.0,
    ):
        super().__init__(module, tokenizer, method=method, label_smoothing=label_smoothing)
        self.features = RegionFeatures.of(regions, module.config.d_region)
        self.doubly_stochastic = doubly_stochastic if ATTENTION_WEIGHTS in module.extras else 0.0

    # ---- from a recipe

    @classmethod
    def trains(cls, model: type) -> bool:
        """Whether the model generates a text for the regions of an image."""
        return issubclass(model, EncoderDecoder) and model.reads_regions

    @classmethod
    def from_recipe(  # type: ignore[override]
        cls, recipe: CaptioningRecipe, model: EncoderDecoder, tokenizer: Tokenizer
    ) -> Captioner:
        """The task with its data, ready to be trained.

        Raises:
            ConfigError: the regions are not as wide as the model reads them, or the weight of a
                term is given that the model does not have.
            DataError: an image cannot be read, or a caption is too long and that is an error.
        """
        data, weight = recipe.data, recipe.objective.doubly_stochastic
        if weight is not None and ATTENTION_WEIGHTS not in model.extras:
            raise ConfigError(
                "[objective] `doubly_stochastic` is of models that give the weights of each word, "
                f"which {type(model).__name__} does not. Leave it out."
            )
        task = cls(
            model,
            tokenizer.with_eos_template(),
            regions=data.regions,
            doubly_stochastic=1.0 if weight is None else weight,
            method=recipe.decoding.build(cls.default_limit),
            label_smoothing=recipe.objective.label_smoothing,
        )
        task.reinforce = Reinforce.of(model, recipe.objective)
        task.data = task._captioned(recipe)
        return task

    def _captioned(self, recipe: CaptioningRecipe) -> CaptionedImages:
        """The data of a training."""
        data = recipe.data
        train_rows, valid_rows = data.records("train"), data.records("valid")
        names = list(dict.fromkeys(image for rows in (train_rows, valid_rows) for image, _ in rows))
        table = self.features.table(names, data.features)
        numbers = {name: row for row, name in enumerate(names)}
        train = encode(train_rows, self._fields(numbers, table, data.max_length, data.too_long))
        fields = self._fields(numbers, table, data.max_length, "truncate")
        valid = encode(valid_rows, fields, empty="keep")
        budget, pads = data.max_tokens_per_batch, (0, self.module.config.pad)
        batches = Buckets(
            train.columns, pads, max_tokens=budget, seed=recipe.seed, make=batch_of(table)
        )
        captions = grouped(valid_rows)
        chosen = list(islice(captions, recipe.evaluation.valid_sentences or None))
        parts = {"training data": train.report, "validation data": valid.report}
        notes = [f"{part}: {report}" for part, report in parts.items() if report.events]
        references = [captions[name] for name in chosen]
        images = [numbers[name] for name in chosen]
        return CaptionedImages(valid, references, batches, notes, table, images)

    def _fields(
        self, rows: Mapping[str, int], table: RegionTable, limit: int, too_long: Any
    ) -> tuple[FieldEncoder, FieldEncoder]:
        config = self.module.config
        limit = min(limit, config.max_length or limit)
        start, end = (config.bos,), (config.eos,)
        target = FieldEncoder("caption", self.tokenizer, start, end, limit, too_long)
        return FieldEncoder("image", RowNumbers(rows, table)), target

    @staticmethod
    def example(recipe: Any, words: int) -> PairBatch:
        """A batch as the recipe asks for, if every caption had `words` tokens: for estimates."""
        count = GRID * GRID
        rows = max(1, recipe.data.max_tokens_per_batch // count)
        width = WIDTHS[recipe.data.regions]
        table = RegionTable(np.zeros((1, count, width), np.float32))
        return PairBatch(table.select([0] * rows), Sequences.dummy(rows, words))

    def settings(self) -> dict[str, Any]:
        """What `load` must know beside model, tokenizer and decoding method."""
        return {
            "label_smoothing": self.label_smoothing,
            "regions": self.features.kind,
            "doubly_stochastic": self.doubly_stochastic,
        }

    # ---- training

    def counts(self, batch: PairBatch) -> dict[str, int]:
        """Predicted tokens: all but the first of each caption."""
        extra = {"doubly_stochastic": batch.count} if self.doubly_stochastic else {}
        return super().counts(batch) | extra

    def further_losses(self, output: Output, batch: PairBatch) -> dict[str, tuple[Tensor, int]]:
        """The term of equation 14."""
        if not self.doubly_stochastic:
            return {}
        words = batch.target.keep[:, 1:]  # (B, T)
        term = doubly_stochastic(output.extras[ATTENTION_WEIGHTS], words)
        return {"doubly_stochastic": (self.doubly_stochastic * term, batch.count)}

    def _validation_outputs(self) -> list[list[Hypothesis]]:
        data = of_training(self.data)
        return self._decoded(data.table, data.images, self.method)

    def metrics(self) -> tuple[Metric, ...]:
        """BLEU-4 without case, and CIDEr-D."""
        return cast("tuple[Metric, ...]", (BLEU(lowercase=True), CIDEr()))

    def _loss_batches(self, examples: EncodedExamples) -> Iterable[PairBatch]:
        make, pads = batch_of(of_training(self.data).table), (0, self.module.config.pad)
        return sorted_batches(examples.columns, pads, max_tokens=4096, make=make)

    # ---- captions

    def generate(  # type: ignore[override]
        self, texts: Sequence[str | Path] | str | Path, **options: Any
    ) -> Any:
        """The caption of an image file; for a list of them, a list.

        Args:
            options: how to decode, by name (`beams=4`), where not as the model's own method.

        Raises:
            TextError: a file is no image.
        """
        if isinstance(texts, str | Path):
            return self.generate([texts], **options)[0]
        names = [str(path) if isinstance(path, Path) else path for path in as_list(texts)]
        hypotheses = self.hypotheses(names, **options)
        return results_of(self.spelled(names, hypotheses), options)

    caption = generate  # type: ignore[assignment]

    def hypotheses(  # type: ignore[override]
        self, texts: Sequence[str], *, too_long: TooLong = "error", **options: Any
    ) -> list[list[Hypothesis]]:
        """The hypotheses of each image file, best first; that of an empty name is empty.

        Raises:
            TextError: a file is no image.
        """
        check_too_long(too_long)
        texts = checked_texts(texts)
        numbers = [number for number, text in enumerate(texts) if text.strip()]
        method = decoding.with_options(self.method, **options)
        files = [texts[number] for number in numbers]
        table = RegionTable(self.features.of_files(files, numbers))
        hypotheses = [[Hypothesis([], 0.0, 0.0, True)] for _ in texts]
        with muted():
            decoded = self._decoded(table, range(len(numbers)), method)
        for number, ranked in zip(numbers, decoded, strict=True):
            hypotheses[number] = ranked
        best = [ranked[0] for ranked in decoded]
        warn_of_length_ends([1] * len(best), best, self.module.config.max_length, method)
        self._capture_captions(table, best)
        return hypotheses

    def over_limit(self, texts: Sequence[str], **options: Any) -> dict[int, int]:
        """None: an image has no tokens."""
        checked_texts(texts)
        return {}

    def evaluate(  # type: ignore[override]
        self,
        pairs: RowReader | Iterable[Sequence[str]],
        *,
        columns: Sequence[int | str] = (),
        **options: Any,
    ) -> Scores:
        """Scores of the captions of images against all rows of each image.

        pairs: rows of an image file and a caption.  columns: of both in a table.
        """
        named = checked_columns(columns) if columns else ()
        rows = pairs if isinstance(pairs, RowReader) else read(pairs, named)
        captions = grouped(rows)
        if not captions:
            raise DataError(rows.file_of(0), None, "has no row: there is nothing to score.")
        texts = self.generate(list(captions), **options)
        return Scores(self.scores(texts, list(captions.values())), texts)  # type: ignore[arg-type]

    def rows_to_evaluate(self, files: Sequence[Any], columns: Sequence[int | str]) -> RowReader:
        """The rows of a table; images are in its folder."""
        if len(files) != 1:
            raise ConfigError(f"Captioning reads one table, but is given {len(files)} files.")
        return ImageRows(read(files[0], tuple(columns) or ("image", "caption")), None)

    def check_test(self, recipe: Any) -> None:
        if recipe.data.test:
            grouped(recipe.data.records("test"))

    def _outputs(self, rows: RowReader) -> list[tuple[str, str, str]]:
        captions = grouped(rows)
        names = list(islice(captions, SAMPLES))
        with without_length_warnings():
            outputs = self.generate(names)
        return [(name, text, captions[name][0]) for name, text in zip(names, outputs, strict=True)]

    # ---- decoding

    def _decoded(
        self, table: RegionTable, rows: Sequence[int], method: Any
    ) -> list[list[Hypothesis]]:
        """The hypotheses of these images, which do not depend on the others."""
        device = device_of(self.module)
        width = method.size if isinstance(method, Beam) else 1
        count = max(1, TOKENS_AT_ONCE.get(device.type, ELSEWHERE) // (GRID * GRID * width))
        batches = [rows[start : start + count] for start in range(0, len(rows), count)]
        hypotheses: list[list[Hypothesis]] = []
        with torch.no_grad(), evaluating(self.module):
            for batch in watched(batches):
                hypotheses += decoding.generate(self.module, table.select(batch).to(device), method)
        return hypotheses

    def _capture_captions(self, table: RegionTable, captions: Sequence[Hypothesis]) -> None:
        """One pass over images and captions, where attention capture is on."""
        config, text_of = self.module.config, self.tokenizer.label
        grid = [[f"{row},{column}" for row in range(GRID) for column in range(GRID)]]
        targets = [[config.bos, *caption.tokens, config.eos] for caption in captions]
        named = [labels_of(*pair, text_of) for pair in zip(captions, targets, strict=True)]
        if label(grid * len(targets), named):
            with torch.no_grad(), evaluating(self.module):
                device = device_of(self.module)
                read_words = Sequences.of([row[:-1] for row in targets], config.pad)
                source = table.select(range(len(targets)))
                self.module(source.to(device), read_words.to(device))


def batch_of(table: RegionTable) -> Callable[[Sequences, Sequences], PairBatch]:
    """Makes a batch of rows in the table, as `RowNumbers` gives them, and captions."""
    return lambda rows, captions: PairBatch(table.select(rows.ids[:, 0].tolist()), captions)


def doubly_stochastic(weights: Tensor, words: Tensor) -> Tensor:
    """The sum over images and regions of (1 - sum over the words of alpha)^2.

    Args:
        weights: (B, T, S).
        words: (B, T) bool, False for padding.
    """
    total = (weights.float() * words[..., None]).sum(1)  # (B, S)
    return ((1 - total) ** 2).sum()
