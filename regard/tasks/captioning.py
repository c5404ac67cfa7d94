"""Captioning: an image, and a text that describes it.

    image file -> regions -> encoder-decoder -> caption

The model is one that reads regions: "show-attend-tell" (Xu et al. 2015) or "region-transformer".
The regions are the last features of EfficientNet-Lite0, or patches of pixels. A training adds Xu's
term (section 4.2.1, equation 14), which wants every region to be attended to once in a caption:

    weight * sum over the regions i of (1 - sum over the words t of alpha_ti)^2
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal, cast, get_args

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from regard import decoding
from regard.attention.capture import label, muted
from regard.checkpoints.efficientnet_lite import load_efficientnet_lite
from regard.data.batches import PairBatch, Sequences
from regard.data.bucketing import Buckets, sorted_batches
from regard.data.images import read_image
from regard.data.readers import RowReader, read
from regard.data.regions import (
    PATCH_FEATURES,
    PATCH_SIDE,
    PATCHES,
    RegionTable,
    patches,
)
from regard.data.sampler import EpochSampler
from regard.data.splits import Fold, group_folds, group_split
from regard.data.token_arrays import EncodedExamples, FieldEncoder, encode
from regard.decoding.beam import Beam
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.steps import evaluating
from regard.errors import ConfigError, DataError, TextError
from regard.layers.efficientnet_lite import REGION_FEATURES, region_features
from regard.metrics import BLEU, CIDEr, Metric, Score
from regard.models.protocols import EncoderDecoder
from regard.models.show_attend_tell import ATTENTION_WEIGHTS
from regard.recipe import RecipePath
from regard.tasks.batching import (
    ELSEWHERE,
    TOKENS_AT_ONCE,
    TooLong,
    device_of,
    watched,
)
from regard.tasks.finite_checks import NonFiniteScores
from regard.tasks.inputs import as_list, checked_columns, checked_texts
from regard.tasks.reinforce import Reinforce, RewardMean
from regard.tasks.sections import DataSection, DecodingRecipe, FoldOption, Share, TokenizerSection
from regard.tasks.text_to_text import (
    SAMPLES,
    TextToText,
    TextToTextEvaluation,
    TextToTextObjective,
    output_loss,
    text_to_text_output,
)
from regard.text import Tokenizer

RegionKind = Literal["efficientnet-lite0", "patches"]
WIDTHS: dict[RegionKind, int] = {"efficientnet-lite0": REGION_FEATURES, "patches": PATCH_FEATURES}
GRID = 7  # regions of a row, and of a column


class ImageCaptionsData(DataSection):
    """[data]: a table with an image and one of its captions in each row."""

    train: RecipePath
    valid: RecipePath | Share | FoldOption
    """A table; or a share or a fold of the training images, with all their captions."""
    test: RecipePath | None = None
    columns: tuple[int | str, ...] = ("image", "caption")
    format: str | None = None
    """tsv, csv, jsonl or parquet, where the file's ending does not say it."""
    images: RecipePath | None = None
    """The folder in which the images are; None: that of the table."""
    regions: RegionKind = "efficientnet-lite0"
    """efficientnet-lite0: 49 vectors of 1,280 numbers, of a network that was trained to classify
    images. patches: 49 squares of 8 x 8 pixels."""
    features: RecipePath | None = None
    """A folder for the regions of the images, which another training then maps; None: every start
    computes them."""
    max_length: int = Field(default=64, ge=2)
    """Of a caption, `</s>` included."""
    too_long: Literal["error", "truncate", "skip"] = "truncate"
    max_tokens_per_batch: int = Field(default=1600, ge=1)
    """Regions in a batch: 49 for each caption."""

    def read(self, source: Any, part: str) -> RowReader:
        """Pairs of an image's file and a caption."""
        return ImageRows(read(source, self.columns, format=self.format), self.images)

    def texts(self) -> Iterator[str]:
        """The captions, from which a tokenizer learns."""
        return (caption for _, caption in self.records("train"))

    def split(self, examples: Any) -> np.ndarray:
        """Which of the training rows are validation data, (N,) bool: all captions of an image."""
        images = [image for image, _ in examples]
        if isinstance(self.valid, Fold):
            return self.valid.mask(group_folds(images, self.valid.of, self.split_seed))
        return group_split(images, cast(float, self.valid), self.split_seed)


@dataclass(frozen=True, eq=False)
class ImageRows(RowReader):
    """Rows of an image and a caption, in which the name of the image begins with its folder."""

    reader: RowReader
    folder: Path | None

    def file_of(self, field: int) -> str:
        """See `RowReader`."""
        return self.reader.file_of(field)

    def numbered(self) -> Iterator[tuple[int, tuple[str, ...]]]:
        """See `RowReader`."""
        folder = self.folder or Path(self.file_of(0)).parent
        for line, row in self.reader.numbered():
            if not row[0].strip():
                raise DataError(self.file_of(0), line, "names no image.")
            yield line, (str(folder / row[0]), *row[1:])


class CaptioningObjective(TextToTextObjective):
    """[objective]"""

    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    doubly_stochastic: float | None = Field(default=None, ge=0)
    """The weight of equation 14, for a model that gives its attention weights; None: 1."""


class CaptioningRecipe(DecodingRecipe):
    """A recipe's sections besides [model] and [training]."""

    new_tokenizer: ClassVar[TokenizerSection] = TokenizerSection(kind="words", lowercase=True)

    data: ImageCaptionsData
    objective: CaptioningObjective = CaptioningObjective()
    evaluation: TextToTextEvaluation = TextToTextEvaluation()


@dataclass(frozen=True)
class RowNumbers:
    """ "Encodes" the name of an image as its row in a table, and a checksum, in S numbers."""

    rows: Mapping[str, int]
    table: RegionTable
    vocab_size: int = 1 << 31

    def encode_many(self, texts: list[str]) -> list[list[int]]:
        """For a batch of `select`; the checksum tells a resumed training that images changed."""
        rest = [0] * (self.table.features.shape[1] - 2)
        checksums = self.table.checksums
        rows = (self.rows[text] for text in texts)
        return [[row, checksums[row] % self.vocab_size, *rest] for row in rows]


@dataclass(frozen=True)
class CaptionedImages:
    """Encoded training and validation captions, and what they describe.

    table: the regions of all images.  valid: captions.  images: those of validation, each once.
    references: of each of these, its captions.  notes: what was left out or truncated.
    """

    table: RegionTable
    valid: EncodedExamples
    images: list[int]
    references: list[list[str]]
    batches: Buckets
    notes: list[str]


class Captioning(TextToText):
    """A model that describes an image, with its tokenizer.

    regions: what the regions of an image are; see [data] `regions`.
    doubly_stochastic: the weight of equation 14 in training.
    """

    name = "captioning"
    verbs = ("predict", "evaluate", "look")
    Recipe = CaptioningRecipe
    goal = ("cider", "max")
    metric_names = ("bleu", "cider")
    default_max_tokens = "30"
    reads_images = True
    images: CaptionedImages | None = None

    def __init__(
        self,
        model: EncoderDecoder,
        tokenizer: Tokenizer,
        *,
        regions: str = "efficientnet-lite0",
        doubly_stochastic: float = 1.0,
        method: Any = None,
        label_smoothing: float = 0.0,
    ):
        super().__init__(model, tokenizer, method=method, label_smoothing=label_smoothing)
        self.regions = checked_kind(regions, model.config.d_region)
        self.doubly_stochastic = doubly_stochastic if ATTENTION_WEIGHTS in model.extras else 0.0

    # ---- from a recipe

    @classmethod
    def trains(cls, model: type) -> bool:
        """Whether the model generates a text for the regions of an image."""
        return issubclass(model, EncoderDecoder) and model.reads_regions

    @classmethod
    def problems(cls, recipe: Any) -> Iterator[tuple[str, str]]:
        """Options without effect, or without what they need."""
        yield from recipe.decoding.problems()
        if len(recipe.data.columns) != 2:
            count = len(recipe.data.columns)
            yield "data.columns", f"must name the image and the caption, but names {count} columns."

    @classmethod
    def from_recipe(  # type: ignore[override]
        cls, recipe: CaptioningRecipe, model: EncoderDecoder, tokenizer: Tokenizer
    ) -> Captioning:
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
            method=recipe.decoding.build(cls.default_max_tokens),
            label_smoothing=recipe.objective.label_smoothing,
        )
        task.reinforce = Reinforce.of(model, recipe.objective)
        task.images = task._captioned(recipe)
        return task

    def _captioned(self, recipe: CaptioningRecipe) -> CaptionedImages:
        """The data of a training."""
        data = recipe.data
        train_rows, valid_rows = data.records("train"), data.records("valid")
        names = list(dict.fromkeys(image for rows in (train_rows, valid_rows) for image, _ in rows))
        table = self._table(names, data.features)
        numbers = {name: row for row, name in enumerate(names)}
        train = encode(train_rows, self._fields(numbers, table, data.max_length, data.too_long))
        fields = self._fields(numbers, table, data.max_length, "truncate")
        valid = encode(valid_rows, fields, empty="keep")
        budget, pads = data.max_tokens_per_batch, (0, self.model.config.pad)
        batches = Buckets(
            train.columns, pads, max_tokens=budget, seed=recipe.seed, make=batch_of(table)
        )
        several = grouped(valid_rows)
        chosen = list(islice(several, recipe.evaluation.valid_sentences or None))
        parts = {"training data": train.report, "validation data": valid.report}
        notes = [f"{part}: {report}" for part, report in parts.items() if report.events]
        references = [several[name] for name in chosen]
        images = [numbers[name] for name in chosen]
        return CaptionedImages(table, valid, images, references, batches, notes)

    def _fields(
        self, rows: Mapping[str, int], table: RegionTable, limit: int, too_long: Any
    ) -> tuple[FieldEncoder, FieldEncoder]:
        config = self.model.config
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
            "regions": self.regions,
            "doubly_stochastic": self.doubly_stochastic,
        }

    # ---- training

    def train_batches(self) -> EpochSampler:
        """Batches without end, of captions of similar lengths with their images."""
        return EpochSampler(self._images().batches)

    def notes(self) -> list[str]:
        """Which rows of the data were left out or truncated."""
        return self._images().notes

    def counts(self, batch: PairBatch) -> dict[str, int]:
        """Predicted tokens: all but the first of each caption."""
        extra = {"doubly_stochastic": batch.count} if self.doubly_stochastic else {}
        return super().counts(batch) | extra

    def losses(
        self, batch: PairBatch, carry: RewardMean | None = None
    ) -> tuple[dict[str, tuple[Tensor, int]], RewardMean | None]:
        """See `TextToText.losses`; and the term of equation 14."""
        here, count = batch.to(device_of(self.model)), batch.count
        output, targets = text_to_text_output(self.model, here)
        found = {"loss": output_loss(self.model, output, targets, self.label_smoothing, count)}
        if self.reinforce is not None:
            term, carry = self.reinforce.loss(self.model, output, targets, carry)
            found["reinforce"] = term, count
        if self.doubly_stochastic:
            words = here.target.keep[:, 1:]  # (B, T)
            term = doubly_stochastic(output.extras[ATTENTION_WEIGHTS], words)
            found["doubly_stochastic"] = self.doubly_stochastic * term, count
        return found, carry

    def validate(self) -> dict[str, float]:
        """Scores of the captions, and the cross-entropy of the references per token."""
        data = self._images()
        try:
            found = self._decoded(data.table, data.images, self.method)
        except NonFiniteScores:
            return dict.fromkeys((*self.metric_names, "loss"), float("nan"))
        texts = self.tokenizer.decode_many(several[0].tokens for several in found)
        scores = self.scores(texts, data.references)  # type: ignore[arg-type]
        loss, count = self._total_loss(data.valid)
        values = {n: one.value for n, one in zip(self.metric_names, scores, strict=True)}
        return {**values, "loss": loss / count}

    def metrics(self) -> tuple[Metric, ...]:
        """BLEU-4 without case, and CIDEr-D."""
        return cast("tuple[Metric, ...]", (BLEU(lowercase=True), CIDEr()))

    @torch.no_grad()
    def _total_loss(self, examples: EncodedExamples) -> tuple[float, int]:
        pads, total, count = (0, self.model.config.pad), 0.0, 0
        make = batch_of(self._images().table)
        with evaluating(self.model):
            for batch in sorted_batches(examples.columns, pads, max_tokens=4096, make=make):
                here = batch.to(device_of(self.model))
                output, targets = text_to_text_output(self.model, here)
                loss, tokens = output_loss(self.model, output, targets, 0.0, batch.count)
                total, count = total + float(loss), count + tokens
        return total, count

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
        names = [str(one) if isinstance(one, Path) else one for one in as_list(texts)]
        found = self.hypotheses(names, **options)
        return [several[0] for several in self.spelled(names, found)]

    predict = caption = generate

    def hypotheses(  # type: ignore[override]
        self, texts: Sequence[str], *, too_long: TooLong = "error", **options: Any
    ) -> list[list[Hypothesis]]:
        """The hypotheses of each image file, best first; that of an empty name is empty.

        Raises:
            TextError: a file is no image.
        """
        texts = checked_texts(texts)
        named = [number for number, text in enumerate(texts) if text.strip()]
        method = decoding.with_options(self.method, **options)
        table = RegionTable(self._features([texts[number] for number in named], named))
        found = [[Hypothesis([], 0.0, 0.0, True)] for _ in texts]
        with muted():
            decoded = self._decoded(table, range(len(named)), method)
        for number, several in zip(named, decoded, strict=True):
            found[number] = several
        self._capture_captions(table, [several[0].tokens for several in decoded])
        return found

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
    ) -> tuple[list[Score], list[str]]:
        """Scores of the captions of images against all rows of each image; and these captions.

        pairs: rows of an image file and a caption.  columns: of both in a table.
        """
        named = checked_columns(columns) if columns else ()
        rows = pairs if isinstance(pairs, RowReader) else read(pairs, named)
        several = grouped(rows)
        if not several:
            raise DataError(rows.file_of(0), None, "has no row: there is nothing to score.")
        texts = self.generate(list(several), **options)
        return self.scores(texts, list(several.values())), texts  # type: ignore[arg-type]

    def rows_to_evaluate(self, files: Sequence[Any], columns: Sequence[int | str]) -> RowReader:
        """The rows of a table; images are in its folder."""
        if len(files) != 1:
            raise ConfigError(f"Captioning reads one table, but is given {len(files)} files.")
        return ImageRows(read(files[0], tuple(columns) or ("image", "caption")), None)

    def check_test(self, recipe: Any) -> None:
        """See `TaskVerbs`."""
        if recipe.data.test:
            grouped(recipe.data.records("test"))

    def _outputs(self, rows: RowReader) -> list[tuple[str, str, str]]:
        several = grouped(rows)
        names = list(islice(several, SAMPLES))
        found = self.generate(names)
        return [(n, text, several[n][0]) for n, text in zip(names, found, strict=True)]

    # ---- regions

    @cached_property
    def _regions_of(self) -> Callable[[str], Tensor]:
        """From the name of a file to its regions (S, F)."""
        if self.regions == "patches":
            return lambda name: patches(read_image(name, PATCH_SIDE * PATCHES))
        network = load_efficientnet_lite()
        return lambda name: region_features(network, read_image(name))

    def _features(self, names: Sequence[str], numbers: Sequence[int] = ()) -> np.ndarray:
        """(N, S, F) of image files.

        numbers: of the files among what was given, for errors.
        """
        found = np.zeros((len(names), GRID * GRID, WIDTHS[self.regions]), np.float32)
        for row, name in enumerate(watched(list(names))):
            try:
                found[row] = self._regions_of(name).numpy()
            except DataError as error:
                if not numbers:
                    raise
                raise TextError(numbers[row], str(error)) from None
        return found

    def _table(self, names: Sequence[str], folder: Path | None) -> RegionTable:
        """The regions of images; in a folder a file holds them, named by the contents of
        all images.
        """
        if folder is None:
            return RegionTable(self._features(names))
        digest = hashlib.sha256(self.regions.encode())
        for name in names:
            digest.update(hashlib.sha256(_content(name)).digest())
        path = folder / f"regions-{digest.hexdigest()[:16]}.npy"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(".part.npy")
            np.save(part, self._features(names))
            part.replace(path)
        return RegionTable(np.load(path, mmap_mode="r"))

    def _decoded(
        self, table: RegionTable, rows: Sequence[int], method: Any
    ) -> list[list[Hypothesis]]:
        """The hypotheses of these images, which do not depend on the others."""
        device = device_of(self.model)
        width = method.size if isinstance(method, Beam) else 1
        count = max(1, TOKENS_AT_ONCE.get(device.type, ELSEWHERE) // (GRID * GRID * width))
        batches = [rows[start : start + count] for start in range(0, len(rows), count)]
        found: list[list[Hypothesis]] = []
        with torch.no_grad(), evaluating(self.model):
            for chosen in watched(batches):
                found += decoding.generate(self.model, table.select(chosen).to(device), method)
        return found

    def _capture_captions(self, table: RegionTable, captions: list[list[int]]) -> None:
        """One pass over images and captions, where attention capture is on."""
        config, text_of = self.model.config, self.tokenizer.label
        grid = [[f"{row},{column}" for row in range(GRID) for column in range(GRID)]]
        targets = [[config.bos, *ids, config.eos] for ids in captions]
        if label(grid * len(targets), [[text_of(i) for i in row] for row in targets]):
            with torch.no_grad(), evaluating(self.model):
                device = device_of(self.model)
                read_words = Sequences.of([row[:-1] for row in targets], config.pad)
                source = table.select(range(len(targets)))
                self.model(source.to(device), read_words.to(device))

    def _images(self) -> CaptionedImages:
        if self.images is None:
            raise ConfigError("This model was loaded to be used: it has no data to train on.")
        return self.images


def checked_kind(regions: str, width: int) -> RegionKind:
    """The kind of regions, whose vectors must have the model's width.

    Raises:
        ConfigError: there is no such kind, or they have another width.
    """
    if regions not in get_args(RegionKind):
        known = ", ".join(get_args(RegionKind))
        raise ConfigError(f"`regions` must be one of {known}, but is {regions!r}.")
    kind = cast(RegionKind, regions)
    if WIDTHS[kind] != width:
        raise ConfigError(
            f'Regions of the kind "{kind}" have {WIDTHS[kind]:,} numbers, but the model reads '
            f"{width:,}: set [model] d_region = {WIDTHS[kind]}."
        )
    return kind


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


def grouped(rows: RowReader) -> dict[str, list[str]]:
    """The captions of each image, in the order of the file.

    Raises:
        DataError: a row does not have two fields.
    """
    found: dict[str, list[str]] = {}
    for line, row in rows.numbered():
        if len(row) != 2:
            problem = f"has {len(row)} fields, but must have two: an image and its caption."
            raise DataError(rows.file_of(0), line, problem)
        found.setdefault(row[0], []).append(row[1])
    return found


def _content(name: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise DataError(name, None, f"cannot be read: {error.strerror}.") from None
