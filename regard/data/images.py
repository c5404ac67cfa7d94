"""Images from files, as a network reads them.

An image of any size and mode becomes a square of `side` columns and rows in red, green and blue;
the whole image is kept, so its proportions change. Values are (v - 127) / 128 of v from 0 to 255,
as EfficientNet-Lite was trained.
"""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.errors import ConfigError, DataError

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
