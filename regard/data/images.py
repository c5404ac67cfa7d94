"""Images from files, as a network reads them, and their regions as a source of texts.

An image of any size and mode becomes a square of `side` columns and rows in red, green and blue;
the whole image is kept, so its proportions change. Values are (v - 127) / 128 of v from 0 to 255,
as EfficientNet-Lite was trained.

Regions are the source of an encoder-decoder: vectors instead of tokens. A batch of images is a
`Sequences` whose extra "regions" has the vectors, (B, S, F). Its ids hold no tokens: the first of
each row is a checksum of the image's vectors, the others are 0.
"""

import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.data.batches import Sequences
from regard.errors import ConfigError, DataError, RegardError

SIDE = 224


def open_image(path: str | Path) -> Any:
    """The image of a file, a `PIL.Image.Image` in red, green and blue, turned as its camera says.

    Grey images, of 8 or 16 bits, get three equal channels; what is transparent becomes white.

    Raises:
        ConfigError: Pillow is not installed.
        DataError: there is no such file, it is no whole image, or its pixels have 32 bits.
    """
    image_module, ops = _pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", image_module.DecompressionBombWarning)
            with image_module.open(path) as image:
                image.load()  # the file may be truncated
                upright = ops.exif_transpose(image)
    except Exception as error:  # decoders raise errors of any kind
        raise DataError(path, None, f"cannot be read as an image: {error}.") from None
    if upright.mode.startswith(("I", "F")):
        values = np.asarray(upright)
        if values.dtype.kind == "f" or values.min() < 0 or values.max() > 65535:
            raise DataError(path, None, "has pixels of 32 bits. Save it with 8 or 16 bits.")
        # Grey values from 0 to 65535 as such from 0 to 255; Pillow itself would clip them at 255.
        upright = image_module.fromarray((values // 257).astype(np.uint8))
    if "transparency" in upright.info or upright.mode in ("RGBA", "LA", "PA"):
        upright = upright.convert("RGBA")
        white = image_module.new("RGBA", upright.size, "white")
        upright = image_module.alpha_composite(white, upright)
    return upright.convert("RGB")


def read_image(path: str | Path, side: int = SIDE) -> Tensor:
    """An image as (3, side, side), float32.

    Raises:
        ConfigError, DataError: see `open_image`.
    """
    image_module, _ = _pillow()
    image = open_image(path).resize((side, side), image_module.Resampling.BICUBIC)
    values = torch.from_numpy(np.asarray(image, dtype=np.float32))
    return (values.permute(2, 0, 1).contiguous() - 127) / 128  # (H, W, 3) -> (3, H, W)


def _pillow() -> tuple[Any, Any]:
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise ConfigError(
            'Images are read with Pillow, which is not installed: pip install "regard[images]".'
        ) from None
    return Image, ImageOps


# ------------------------------------------------------------------------------------------ regions


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
            "`regard.data.images.RegionTable` makes such a source."
        )
    return source.extras[REGIONS].to(like.dtype)


PATCH_SIDE, PATCHES = 8, 7  # columns of a patch, and patches of a row
PATCH_FEATURES = 3 * PATCH_SIDE**2


def patches(image: Tensor) -> Tensor:
    """The pixels of a small image cut into squares, row by row: (3, 56, 56) -> (49, 192)."""
    cut = image.unflatten(2, (PATCHES, PATCH_SIDE)).unflatten(1, (PATCHES, PATCH_SIDE))
    # (3, row, y, column, x) -> (row, column, 3, y, x) -> (S, 192)
    return cut.permute(1, 3, 0, 2, 4).flatten(2).flatten(0, 1)
