"""A model with quantized weights.

prepare(model, dtype="int8")

Quantized layers replace the others, and nothing else changes: every decoding method, attention
capture and head gating work as before. Without compiled kernels the layers compute by their
definitions in plain PyTorch (`regard.layers.panels`), with the same results up to the order of
rounding. Whole steps in one compiled call are wrappers around the model: see
`regard.models.wrappers`.
"""

import warnings
from typing import TypeVar, get_args

import torch
from torch import Tensor, nn

from regard import ops
from regard.errors import ConfigError
from regard.layers.linear import Linear
from regard.layers.quantized import (
    QuantizedEmbedding,
    QuantizedLinear,
    QuantizedMatrix,
    QuantizedRecurrent,
    QuantizedSoftmax,
    WeightType,
)
from regard.layers.recurrent import RecurrentLayer, ResetFirstGRU
from regard.layers.softmax import Softmax
from regard.registry import kernel_package
from regard.suggest import nearest

GPUS = {"cuda"}
AnyModel = TypeVar("AnyModel", bound=nn.Module)


def prepare(model: AnyModel, dtype: WeightType = "int8") -> AnyModel:
    """Quantize the weights of a model, in place.

    dtype: "int8", a quarter of the size of float32, or "bfloat16", half of it. The matrices of
    layers, of the output and of an embedding that is tied to it are quantized; what is small
    (norms, biases, positions) becomes float32. The outputs are the same up to rounding, but the
    model cannot be trained any more, be pruned, or be saved as other libraries publish it. Without
    compiled kernels a quantized model takes less memory than the float32 one, but is slower, and a
    warning says so.

    On a GPU "bfloat16" is torch's own: see `halved`.

    Raises:
        ConfigError: no such `dtype`, or 8-bit weights of a model that is not on the CPU.
    """
    check_dtype(dtype)
    devices = {parameter.device.type for parameter in model.parameters()} - {"cpu"}
    if devices and devices <= GPUS and dtype == "bfloat16":
        return halved(model)
    if devices:
        raise ConfigError(
            f"{dtype} weights are for the CPU, but the model is on "
            f'{", ".join(sorted(devices))}. Give device="cpu" or, on a GPU, quantize="bfloat16".'
        )
    if not ops.load_kernels() and kernel_package() is None:  # where compiling fails, that warns
        warnings.warn(
            f"{type(model).__name__} is quantized, but this installation has no compiled kernels: "
            "quantized weights save memory, but are slower than float32 ones",
            stacklevel=2,
        )
    return quantize_layers(model, dtype)


def check_dtype(dtype: str, name: str = "dtype") -> None:
    """Check the type of quantized weights; `name` is what the caller calls it.

    Raises:
        ConfigError: weights cannot be quantized to this type.
    """
    kinds = get_args(WeightType)
    if dtype not in kinds:
        raise ConfigError(
            f"`{name}` must be {' or '.join(kinds)}, but is {dtype!r}. {nearest(dtype, kinds)}"
        )


def halved(model: AnyModel) -> AnyModel:
    """A model that computes in bfloat16 by torch's own operations, in place.

    Norms, softmax and log-probabilities are float32 inside. The states of recurrent layers would
    accumulate rounding errors from token to token: a model with such layers stays float32, and a
    warning says so.
    """
    model.eval().requires_grad_(False)
    if any(isinstance(module, RecurrentLayer) for module in model.modules()):
        warnings.warn(
            f"{type(model).__name__} keeps its float32 weights: on a GPU recurrent layers are not "
            "converted to bfloat16",
            stacklevel=3,
        )
        return model
    return model.to(torch.bfloat16)


def quantize_layers(model: AnyModel, dtype: WeightType) -> AnyModel:
    """Replace layers by quantized ones, in place; the rest becomes float32."""
    tied: dict[int, QuantizedMatrix] = {}
    softmaxes = [module for module in model.modules() if isinstance(module, Softmax)]
    shared = {id(softmax.weight) for softmax in softmaxes}
    _replace(model, dtype, tied, shared)
    model.eval().requires_grad_(False)
    return model.float()


def _replace(
    parent: nn.Module, dtype: WeightType, tied: dict[int, QuantizedMatrix], shared: set[int]
) -> None:
    """Replace child modules, innermost first. A `ResetFirstGRU` stays float32: its product is of
    r h, and the quantized recurrence has no such step.

    shared: the ids of the weights of softmaxes; an embedding with such a weight is quantized too.
    tied: the matrices made of these weights, which embeddings and softmaxes share.
    """
    for name, child in list(parent.named_children()):
        _replace(child, dtype, tied, shared)
        new: nn.Module | None = None
        if isinstance(child, Linear):
            new = QuantizedLinear(child, dtype)
        elif isinstance(child, RecurrentLayer) and not isinstance(child, ResetFirstGRU):
            new = QuantizedRecurrent(child, dtype)
        elif isinstance(child, Softmax):
            new = QuantizedSoftmax(child, _once(child.weight, dtype, tied))
        elif isinstance(child, nn.Embedding) and id(child.weight) in shared:
            new = QuantizedEmbedding(_once(child.weight, dtype, tied))
        if new is not None:
            setattr(parent, name, new)


def _once(weight: Tensor, dtype: WeightType, tied: dict[int, QuantizedMatrix]) -> QuantizedMatrix:
    if id(weight) not in tied:
        tied[id(weight)] = QuantizedMatrix(weight, dtype)
    return tied[id(weight)]
