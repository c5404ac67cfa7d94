"""Images and their captions as data: the section [data], rows of a table, and their numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from pydantic import Field

from regard.data.readers import RowReader, read
from regard.data.regions import RegionTable
from regard.data.splits import Fold, group_folds, group_split
from regard.errors import DataError
from regard.recipe import RecipePath
from regard.tasks.region_features import RegionKind
from regard.tasks.sections import DataSection, FoldOption, Share


class ImageCaptionsData(DataSection):
    """[data]: a table with an image and one of its captions in each row."""

    train: RecipePath
    """The file of the training data."""
    valid: RecipePath | Share | FoldOption
    """A table; or a share or a fold of the training images, with all their captions."""
    test: RecipePath | None = None
    """The file that the trained model is scored on."""
    columns: tuple[int | str, ...] = ("image", "caption")
    """The columns that are read, by number from 0 or by name."""
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
