"""The regions of image files: 7 x 7 vectors, computed, or kept in a folder for the next training.

image file -> pixels -> EfficientNet-Lite0's last features, or patches of pixels -> (S=49, F)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, cast, get_args

import numpy as np
from torch import Tensor

from regard.checkpoints.efficientnet_lite import load_efficientnet_lite
from regard.data.images import read_image
from regard.data.regions import PATCH_FEATURES, PATCH_SIDE, PATCHES, RegionTable, patches
from regard.errors import ConfigError, DataError, TextError
from regard.layers.efficientnet_lite import REGION_FEATURES, region_features
from regard.tasks.batching import watched

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
