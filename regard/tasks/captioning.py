"""Captioning: an image, and a text that describes it.

    image file -> pixels -> regions (S=49, F) -> encoder-decoder -> caption

The regions are EfficientNet-Lite0's last features, or patches of pixels: 7 x 7 vectors, computed,
or kept in a folder for the next training. The model is one that reads regions: "show-attend-tell"
(Xu et al. 2015) or "region-transformer". A training adds Xu's term (section 4.2.1, equation 14),
which wants every region to be attended to once in a caption:

    weight * sum over the regions i of (1 - sum over the words t of alpha_ti)^2
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar, Literal, cast, get_args

import numpy as np
from pydantic import Field
from torch import Tensor, nn

from regard import decoding
from regard.attention.capture import muted
from regard.checkpoints import efficientnet_lite
from regard.data.batches import Losses, PairBatch, Sequences
from regard.data.images import PATCH_FEATURES, PATCH_SIDE, PATCHES, RegionTable, patches, read_image
from regard.data.in_memory import column_names, is_path
from regard.data.readers import Column, Numbered, RowReader, open_table
from regard.data.sampler import Buckets, sorted_batches
from regard.data.splits import group_folds, group_split
from regard.data.token_arrays import EncodedExamples, FieldEncoder, TokenArray, encode
from regard.decoding.steps import Hypotheses, Hypothesis
from regard.errors import ConfigError, DataError, TextError, check_choice
from regard.metrics import BLEU, CIDEr, Metric, Scores
from regard.models.protocols import EncoderDecoder, Output
from regard.models.show_attend_tell import ATTENTION_WEIGHTS
from regard.recipe import RecipePath
from regard.tasks import batching, text_to_text
from regard.tasks.inputs import as_list, checked_texts, named_columns, rows_of
from regard.tasks.reinforce import Reinforce
from regard.tasks.sections import DataSection, DecodingRecipe, FoldOption, Share, TokenizerSection
from regard.tasks.task import Task, of_training
from regard.text import Tokenizer

RegionKind = Literal["efficientnet-lite0", "patches"]
WIDTHS: dict[RegionKind, int] = {
    "efficientnet-lite0": efficientnet_lite.REGION_FEATURES,
    "patches": PATCH_FEATURES,
}
GRID = 7  # regions of a row, and of a column


@dataclass(frozen=True)
class RegionFeatures:
    """From image files to the vectors of their regions.

    kind: what a region is; see [data] `regions` of captioning.
    """

    kind: RegionKind

    @classmethod
    def of(cls, kind: str, width: int) -> RegionFeatures:
        """Those of this kind, whose vectors must be as wide as the model reads them.

        Raises:
            ConfigError: there is no such kind, or its vectors have another width.
        """
        check_choice("regions", kind, get_args(RegionKind))
        features = cls(cast(RegionKind, kind))
        if features.width != width:
            raise ConfigError(
                f'Regions of the kind "{kind}" have {features.width:,} numbers, but the model '
                f"reads {width:,}: set [model] d_region = {features.width}."
            )
        return features

    @property
    def width(self) -> int:
        """F, the numbers of a vector."""
        return WIDTHS[self.kind]

    @cached_property
    def _compute(self) -> Callable[[str], Tensor]:
        """From the name of a file to its regions (S, F)."""
        if self.kind == "patches":
            return lambda name: patches(read_image(name, PATCH_SIDE * PATCHES))
        network = efficientnet_lite.load_efficientnet_lite()
        return lambda name: efficientnet_lite.region_features(network, read_image(name))

    def of_files(self, names: Sequence[str], numbers: Sequence[int] = ()) -> np.ndarray:
        """(N, S, F) float32.

        Args:
            numbers: of the names among the texts that were given, from 0, for errors.

        Raises:
            TextError: a file is no image; without numbers a DataError.
        """
        regions = np.zeros((len(names), GRID * GRID, self.width), np.float32)
        for row, name in enumerate(batching.watched(list(names))):
            try:
                regions[row] = self._compute(name).numpy()
            except DataError as error:
                if not numbers:
                    raise
                raise TextError(numbers[row], str(error)) from None
        return regions

    def table(self, names: Sequence[str], folder: Path | None) -> RegionTable:
        """The regions of image files. In the folder one file holds them, whose name depends on the
        contents of all images; it is mapped where it exists.

        Raises:
            DataError: a file cannot be read, or is no image.
        """
        if folder is None:
            return RegionTable(self.of_files(names))
        path = folder / f"regions-{self._digest(names)}.npy"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(".part.npy")
            np.save(part, self.of_files(names))
            part.replace(path)
        return RegionTable(np.load(path, mmap_mode="r"))

    def _digest(self, names: Sequence[str]) -> str:
        """Sixteen digits of the kind and the contents of all files."""
        digest = hashlib.sha256(self.kind.encode())
        for name in names:
            digest.update(hashlib.sha256(_content(name)).digest())
        return digest.hexdigest()[:16]


def _content(name: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise DataError(name, None, f"cannot be read: {error.strerror}.") from None


class ImageCaptionsData(DataSection):
    """[data]: a table with an image and one of its captions in each row."""

    train: RecipePath
    """The file of the training data."""
    valid: RecipePath | Share | FoldOption
    """A table; or a share or a fold of the training images, with all their captions."""
    test: RecipePath | None = None
    """The file that the trained model is scored on."""
    columns: tuple[int | str, int | str] = ("image", "caption")
    """The columns of images and of captions, by number from 0 or by name."""
    format: str | None = None
    """The format is tsv, csv, jsonl or parquet, where the file's ending does not say it."""
    images: RecipePath | None = None
    """The folder in which the images are; None: that of the table."""
    regions: RegionKind = "efficientnet-lite0"
    """efficientnet-lite0: 49 vectors of 1,280 numbers, of a network that was trained to classify
    images. patches: 49 squares of 8 x 8 pixels."""
    features: RecipePath | None = None
    """A folder for the regions of the images, which another training then maps; None: every start
    computes them."""
    max_length: int = Field(default=64, ge=2)
    """The most tokens of a caption, `</s>` included."""
    too_long: Literal["error", "truncate", "skip"] = "truncate"
    """What happens to examples that are longer than the model reads."""
    max_tokens_per_batch: int = Field(default=1600, ge=1)
    """Regions in a batch: 49 for each caption."""

    def read(self, source: Any, part: str) -> RowReader:
        """Rows of an image's file and a caption."""
        return image_rows(source, self.columns, self.images, format=self.format)

    def texts(self) -> Iterator[str]:
        """The captions, from which a tokenizer learns."""
        rows = self.records("train")
        return (rows.text(row, "caption", line) for line, row in rows.numbered())

    def split(self, examples: Any) -> np.ndarray:
        """Which of the training rows are validation data, (N,) bool: all captions of an image."""
        return self.split_by([row["image"] for row in examples], group_split, group_folds)


def image_rows(
    source: Any, columns: Sequence[Column], folder: Path | None, **options: Any
) -> RowReader:
    """Rows with the columns `image`, the path of its file, and `caption`.

    folder: of the images; None: that of the table.  options: of `open_table`.

    Raises:
        ConfigError: there are not two columns.
        DataError: when it is read, for a row that names no image.
    """
    rows = open_table(source, named_columns(columns, ("image",), "caption"), **options)
    inside = folder or (Path(str(source)).parent if is_path(source) else Path())

    def change(numbered: Numbered) -> Numbered:
        for line, row in numbered:
            name = rows.text(row, "image", line)
            if not name.strip():
                raise DataError(rows.name, line, "names no image.")
            yield line, {"image": str(inside / name), "caption": row["caption"]}

    return rows.mapped(change)


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


def grouped(rows: RowReader) -> dict[str, list[str]]:
    """The captions of each image, in the order of the file."""
    captions: dict[str, list[str]] = {}
    for line, row in rows.numbered():
        captions.setdefault(row["image"], []).append(rows.text(row, "caption", line))
    return captions


class CaptioningObjective(text_to_text.TextToTextObjective):
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
    evaluation: text_to_text.TextToTextEvaluation = text_to_text.TextToTextEvaluation()


@dataclass(frozen=True)
class CaptionedImages(text_to_text.TrainingPairs):
    """Encoded training and validation captions, and what they describe.

    references: of each validation image, its captions.
    table: the regions of all images.  images: those of validation, each once.
    """

    table: RegionTable
    images: list[int]


class Captioner(text_to_text.TextToText):
    """A model that describes an image, with its tokenizer.

    regions: what the regions of an image are; see [data] `regions`.
    doubly_stochastic: the weight of equation 14 in training.
    """

    name = "captioning"
    pipeline = "image-to-text"
    new_model = "show-attend-tell"
    commands = ("predict", "evaluate", "look")
    Recipe = CaptioningRecipe
    goal = ("cider", "max")
    metric_names = ("bleu", "cider")
    default_limit = 30
    reads_images = True
    data: CaptionedImages | None

    # its encoder reads images, not texts
    embed, embed_stream, encode = Task.embed, Task.embed_stream, Task.encode
    search, similarity = Task.search, Task.similarity

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
        self.regions = regions
        self.features = RegionFeatures.of(regions, module.config.d_region)
        self.doubly_stochastic = doubly_stochastic if ATTENTION_WEIGHTS in module.extras else 0.0

    # ---- from a recipe

    @classmethod
    def trains(cls, model: type) -> bool:
        """Whether the model generates a text for the regions of an image."""
        return issubclass(model, EncoderDecoder) and model.reads_regions

    @classmethod
    def settings_in(cls, model: nn.Module, config: Mapping[str, Any]) -> dict[str, Any]:
        """None: its sources are images."""
        return {}

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
        weight = recipe.objective.doubly_stochastic
        if weight is not None:
            model.check_extra(ATTENTION_WEIGHTS, "doubly_stochastic")
        task = cls(
            model,
            tokenizer.with_eos_template(),
            method=recipe.decoding.build(cls.default_limit),
            **cls.options_in(recipe),
        )
        task.reinforce = Reinforce.of(model, recipe.objective)
        task.data = task._captioned(recipe)
        return task

    def _captioned(self, recipe: CaptioningRecipe) -> CaptionedImages:
        """The data of a training."""
        data = recipe.data
        train_rows, valid_rows = data.records("train"), data.records("valid")
        both = chain(train_rows, valid_rows)
        names = list(dict.fromkeys(row["image"] for row in both))
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

    # ---- training

    def counts(self, batch: PairBatch) -> dict[str, int]:
        """Predicted tokens: all but the first of each caption."""
        extra = {"doubly_stochastic": batch.count} if self.doubly_stochastic else {}
        return super().counts(batch) | extra

    def further_losses(self, output: Output, batch: PairBatch) -> Losses:
        """The term of equation 14."""
        if not self.doubly_stochastic:
            return {}
        words = batch.target.keep[:, 1:]  # (B, T)
        term = doubly_stochastic(output.extras[ATTENTION_WEIGHTS], words)
        return {"doubly_stochastic": (self.doubly_stochastic * term, batch.count)}

    def _validation_outputs(self) -> Hypotheses:
        data = of_training(self.data)
        return self._decoded(data.table, data.images, self.method)

    def metrics(self) -> tuple[Metric, ...]:
        """BLEU-4 without case, and CIDEr-D."""
        return cast("tuple[Metric, ...]", (BLEU(lowercase=True), CIDEr()))

    def _loss_batches(self, examples: EncodedExamples) -> Iterable[PairBatch]:
        make, pads = batch_of(of_training(self.data).table), (0, self.module.config.pad)
        return sorted_batches(examples.columns, pads, max_tokens=4096, make=make)

    # ---- captions

    caption = text_to_text.TextToText.generate  # type: ignore[assignment]

    def checked(self, texts: Any) -> list[str]:
        """The names of image files."""
        names = [str(path) if isinstance(path, Path) else path for path in as_list(texts)]
        return checked_texts(names)

    def hypotheses(  # type: ignore[override]
        self, texts: Sequence[str], *, too_long: batching.TooLong = "error", **options: Any
    ) -> Hypotheses:
        """The hypotheses of each image file, best first; that of an empty name is empty.

        Raises:
            TextError: a file is no image.
        """
        batching.check_too_long(too_long)
        texts = self.checked(texts)
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
        batching.warn_of_length_ends([1] * len(best), best, self.module.config.max_length, method)
        grid = [f"{row},{column}" for row in range(GRID) for column in range(GRID)]
        self._read_again(table.select(range(len(best))), [grid] * len(best), best)
        return hypotheses

    def over_limit(self, texts: Sequence[str], **options: Any) -> dict[int, int]:
        """None: an image has no tokens."""
        checked_texts(texts)
        return {}

    def evaluate(  # type: ignore[override]
        self,
        pairs: Any,
        *,
        columns: Sequence[int | str] = (),
        **options: Any,
    ) -> Scores:
        """Scores of the captions of images against all rows of each image.

        pairs: rows of an image file and a caption.  columns: of both in a table.
        """
        captions = grouped(
            pairs if isinstance(pairs, RowReader) else rows_of(self, [pairs], columns)
        )
        texts = self.generate(list(captions), **options)
        return Scores(self.scores(texts, list(captions.values())), texts)  # type: ignore[arg-type]

    def rows_to_evaluate(
        self, files: Sequence[Any], columns: Sequence[Column] = (), delimiter: str | None = None
    ) -> RowReader:
        """The rows of a table; images are in its folder."""
        if len(files) != 1:
            raise ConfigError(f"Captioning reads one table, but is given {len(files)} files.")
        named = is_path(files[0]) or column_names(files[0])
        columns = columns or (("image", "caption") if named else (0, 1))
        return image_rows(files[0], columns, None, delimiter=delimiter)

    def check_test(self, recipe: Any) -> None:
        if recipe.data.test:
            grouped(recipe.data.records("test"))

    def attention_inputs(self, recipe: Any) -> list[str]:
        """The files of images."""
        rows = recipe.data.records("valid").first(text_to_text.SAMPLES)
        return [row["image"] for row in rows]

    def _outputs(self, rows: RowReader) -> list[tuple[str, str, str]]:
        captions = grouped(rows)
        names = list(islice(captions, text_to_text.SAMPLES))
        with batching.without_length_warnings():
            outputs = self.generate(names)
        return [(name, text, captions[name][0]) for name, text in zip(names, outputs, strict=True)]

    # ---- decoding

    def _decoded(self, table: RegionTable, rows: Sequence[int], method: Any) -> Hypotheses:
        """The hypotheses of these images, which do not depend on the others."""
        sources = TokenArray.of([[row] * GRID**2 for row in rows])

        def regions(batch: Sequences) -> Sequences:
            return table.select(batch.ids[:, 0].tolist())

        return batching.decode_in_order(self.module, sources, method, regions)


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
