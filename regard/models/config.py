"""Types and ranges of the fields of a model's configuration.

Every model has a config, a frozen dataclass whose fields have these types. The same types check the
section [model] of a recipe and, through `regard.models.check_config`, the config.json of folders.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

# Of one dimension: the bytes of a square matrix of this size fit into 64 bits.
LARGEST_SIZE = 2**28
MOST_LAYERS = 10_000

Size = Annotated[int, Field(ge=1, le=LARGEST_SIZE)]
"""A dimension, a number of heads, or a number of layers that is at least 1."""
Count = Annotated[int, Field(ge=0, le=LARGEST_SIZE)]
"""A number of layers that may be 0."""
TokenId = Annotated[int, Field(ge=0, le=LARGEST_SIZE)]
Probability = Annotated[float, Field(ge=0, lt=1)]
"""A dropout probability, below 1."""
Epsilon = Annotated[float, Field(gt=0, lt=1)]
"""The constant that a layer norm adds to the variance."""
InitScale = Annotated[float, Field(ge=0, le=100)]
"""The standard deviation, or the bound, of the initial parameters."""
Limit = Annotated[float, Field(gt=0, le=1e6)]
"""The largest absolute value that states are clipped to."""


def _as_tuple(value: Any) -> Any:
    """A list of a file as the tuple of a configuration."""
    return tuple(value) if isinstance(value, list) else value


Sizes = Annotated[tuple[Size, ...], BeforeValidator(_as_tuple), Field(max_length=MOST_LAYERS)]
Dilation = Annotated[int, Field(ge=1, le=2**16)]
"""Positions between those that a convolution reads; a step remembers all between them."""
Dilations = Annotated[
    tuple[Dilation, ...], BeforeValidator(_as_tuple), Field(max_length=MOST_LAYERS)
]


LayerNumber = Annotated[int, Field(ge=-MOST_LAYERS, le=MOST_LAYERS)]
FeatureLayers = (
    LayerNumber
    | Annotated[
        tuple[LayerNumber, ...],
        BeforeValidator(_as_tuple),
        Field(min_length=1, max_length=MOST_LAYERS),
    ]
    | None
)
"""The layers whose states are features; 0: the embeddings, -1: the last."""
CombineFeatures = (
    Literal["concat", "sum", "mean", "mix"]
    | Annotated[tuple[float, ...], BeforeValidator(_as_tuple), Field(max_length=MOST_LAYERS)]
)
"""How several layers become one vector; numbers: the weights of a sum."""


def _as_tuples(value: Any) -> Any:
    """Lists in a list as tuples in a tuple."""
    return tuple(map(_as_tuple, value)) if isinstance(value, list | tuple) else value


Filters = Annotated[
    tuple[Annotated[tuple[Size, Size], BeforeValidator(_as_tuple)], ...],
    BeforeValidator(_as_tuples),
    Field(max_length=MOST_LAYERS),
]
"""Of convolutions: the width and the number of each kind of filter, or of each layer."""
AttentionKind = Literal["global", "local"]
AttentionKinds = Annotated[
    tuple[AttentionKind, ...],
    BeforeValidator(_as_tuple),
    Field(min_length=1, max_length=MOST_LAYERS),
]
"""Whether layers see all earlier tokens or a window of them: of the first ones, and repeated."""
TokenIds = Annotated[tuple[TokenId, ...], BeforeValidator(_as_tuple)]
Counts = Annotated[tuple[Count, ...], BeforeValidator(_as_tuple)]
Flags = Annotated[tuple[bool, ...], BeforeValidator(_as_tuple)]

Activation = Literal[
    "relu",
    "gelu",
    "gelu-tanh",
    "gelu-10",
    "quick-gelu",
    "swish",
    "hard-swish",
    "mish",
    "relu-squared",
    "relu6",
    "leaky-relu",
    "laplace",
    "tanh",
    "sigmoid",
    "linear",
]
"""The names of `regard.layers.feedforward.ACTIVATIONS`."""

Positions = Literal["sinusoidal", "learned", "none", "shaw", "t5", "transformer-xl"]
"""The kinds of positions of `regard.attention.relative`, of which any model can have one."""

EncoderPositions = Literal[
    "sinusoidal",
    "learned",
    "none",
    "shaw",
    "t5",
    "transformer-xl",
    "dependency-absolute",
    "dependency-relative",
]
"""All of them: of a model that reads whole texts, which can have dependency trees."""


NARROW, LARGE = 256, 1024  # widths; between them lie the published base and small models
BASE_WIDTH = 128  # the width that the rates of random weights are for
WIDTH_EXPONENT = -0.8  # of the rate over the width; fitted to table 2.1 of Brown et al. 2020
ADAPTERS = 10  # the rate of low-rank adapters, divided by that of all weights


@dataclass(frozen=True)
class TrainingDefaults:
    """The options of a training that depend on the model and on where its weights come from."""

    learning_rate: float
    weight_decay: float
    epochs: int


@dataclass(frozen=True)
class TrainingFamily:
    """What models of a family have in common.

    learning_rate: from random weights, for a width of 128 and less; wider models learn at a rate
        that is lower by (width / 128) ** -0.8.
    weight_decay: from random weights.
    fine_tuning_rate: of weights that were trained before, of a base or small published model;
        2/5 of it from a width of 1024 on, 4 times it below a width of 256.
    """

    learning_rate: float
    weight_decay: float
    fine_tuning_rate: float

    def of_random_weights(self, width: int) -> TrainingDefaults:
        """The defaults of a model that is so wide."""
        rate = self.learning_rate * (max(width, BASE_WIDTH) / BASE_WIDTH) ** WIDTH_EXPONENT
        return TrainingDefaults(float(f"{rate:.1e}"), self.weight_decay, epochs=10)

    def of_trained_weights(self, width: int, *, adapters: bool = False) -> TrainingDefaults:
        """The defaults of a model that is so wide; adapters: whether these alone are trained."""
        factor = 0.4 if width >= LARGE else 1.0 if width >= NARROW else 4.0
        rate = self.fine_tuning_rate * factor * (ADAPTERS if adapters else 1)
        return TrainingDefaults(float(f"{rate:.1e}"), 0.01, epochs=3)


TRANSFORMER = TrainingFamily(2e-3, 0.01, fine_tuning_rate=5e-5)
RECURRENT = TrainingFamily(1e-2, 0.0, fine_tuning_rate=5e-4)
CONVOLUTIONAL = TrainingFamily(5e-3, 0.0, fine_tuning_rate=5e-4)
