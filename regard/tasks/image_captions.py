"""Images and their captions as data: the section [data], rows of a table, and the regions of image
files: 7 x 7 vectors, computed, or kept in a folder for the next training.

image file -> pixels -> EfficientNet-Lite0's last features, or patches of pixels -> (S=49, F)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
from pydantic import Field
from torch import Tensor

from regard.checkpoints.efficientnet_lite import load_efficientnet_lite
from regard.data.images import PATCH_FEATURES, PATCH_SIDE, PATCHES, RegionTable, patches, read_image
from regard.data.readers import RowReader, read
from regard.data.splits import Fold, group_folds, group_split
from regard.errors import ConfigError, DataError, TextError
from regard.layers.convolution import REGION_FEATURES, region_features
from regard.recipe import RecipePath
from regard.tasks.batching import watched
from regard.tasks.sections import DataSection, FoldOption, Share

RegionKind = Literal["efficientnet-lite0", "patches"]
WIDTHS: dict[RegionKind, int] = {"efficientnet-lite0": REGION_FEATURES, "patches": PATCH_FEATURES}
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
        if kind not in get_args(RegionKind):
            kinds = ", ".join(get_args(RegionKind))
            raise ConfigError(f"`regions` must be one of {kinds}, but is {kind!r}.")
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
        network = load_efficientnet_lite()
        return lambda name: region_features(network, read_image(name))

    def of_files(self, names: Sequence[str], numbers: Sequence[int] = ()) -> np.ndarray:
        """(N, S, F) float32.

        Args:
            numbers: of the names among the texts that were given, from 0, for errors.

        Raises:
            TextError: a file is no image; without numbers a DataError.
        """
        regions = np.zeros((len(names), GRID * GRID, self.width), np.float32)
        for row, name in enumerate(watched(list(names))):
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
        return self.reader.file_of(field)

    def numbered(self) -> Iterator[tuple[int, tuple[str, ...]]]:
        folder = self.folder or Path(self.file_of(0)).parent
        for line, row in self.reader.numbered():
            if not row[0].strip():
                raise DataError(self.file_of(0), line, "names no image.")
            yield line, (str(folder / row[0]), *row[1:])


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
    """The captions of each image, in the order of the file.

    Raises:
        DataError: a row does not have two fields.
    """
    captions: dict[str, list[str]] = {}
    for line, row in rows.numbered():
        if len(row) != 2:
            problem = f"has {len(row)} fields, but must have two: an image and its caption."
            raise DataError(rows.file_of(0), line, problem)
        captions.setdefault(row[0], []).append(row[1])
    return captions
