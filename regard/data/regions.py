"""Regions of images as the source of an encoder-decoder: vectors instead of tokens.

A batch of images is a `Sequences` whose extra "regions" has the vectors, (B, S, F). Its ids hold no
tokens: the first of each row is a checksum of the image's vectors, the others are 0.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from regard.data.batches import Sequences
from regard.errors import RegardError

REGIONS = "regions"  # among the extras of `Sequences`


@dataclass(frozen=True, eq=False)
class RegionTable:
    """The regions of N images.

    features: (N, S, F) float32; it may be mapped from a file.
    """

    features: np.ndarray

    @cached_property
    def checksums(self) -> list[int]:
        """Of each image."""
        return [zlib.crc32(np.ascontiguousarray(image).tobytes()) for image in self.features]

    def __len__(self) -> int:
        """The number of images, N."""
        return len(self.features)

    def select(self, rows: Sequence[int] | np.ndarray) -> Sequences:
        """A batch of these images, as a source."""
        regions = torch.from_numpy(np.array(self.features[np.asarray(rows, np.int64)], np.float32))
        ids = torch.zeros(regions.shape[:2], dtype=torch.long)
        if ids.numel():
            ids[:, 0] = torch.tensor([self.checksums[row] for row in rows])
        lengths = torch.full((len(ids),), regions.size(1))
        return Sequences(ids, lengths, extras={REGIONS: regions})


def regions_of(source: Sequences, like: Tensor) -> Tensor:
    """The vectors (B, S, F) of a source, or (1, N, F) without padding, in the type of a weight.

    Raises:
        RegardError: it has none.
    """
    if REGIONS not in source.extras:
        raise RegardError(
            'This model reads regions of images, but its source has no extra "regions". '
            "`regard.data.regions.RegionTable` makes such a source."
        )
    return source.extras[REGIONS].to(like.dtype)


PATCH_SIDE, PATCHES = 8, 7  # columns of a patch, and patches of a row
PATCH_FEATURES = 3 * PATCH_SIDE**2


def patches(image: Tensor) -> Tensor:
    """The pixels of a small image cut into squares, row by row: (3, 56, 56) -> (49, 192)."""
    cut = image.unflatten(2, (PATCHES, PATCH_SIDE)).unflatten(1, (PATCHES, PATCH_SIDE))
    # (3, row, y, column, x) -> (row, column, 3, y, x) -> (S, 192)
    return cut.permute(1, 3, 0, 2, 4).flatten(2).flatten(0, 1)
