"""Quantized weights in a file: what it holds, and the prepared model again.

A matrix lies as it would be written down, line after line, and not in the panels of the kernels,
which another processor or another release may want otherwise: int8 under its own name with its
scales beside it (`NAME.scale`), or bfloat16. All else is float32. To put them into panels takes 20
milliseconds for 124 million weights. Where nothing can be compiled they become float32 again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from regard.checkpoints.filling import SkipInit, assign, check_finite, check_fit, unique_tensors
from regard.errors import CheckpointError
from regard.layers.quantized import Stored, Weights, quantize_matrix
from regard.models.quantize import prepare, quantize_layers

SCALE = ".scale"
QUANTIZED = (torch.int8, torch.bfloat16)


def tensors_of(model: nn.Module, weights: Weights) -> dict[str, Tensor]:
    """What the file of a model with such weights holds; the model is quantized afterwards.

    The matrices that quantizing replaces are quantized.
    """
    wide = unique_tensors(model.state_dict())
    left = quantize_layers(model, weights).state_dict()
    found: dict[str, Tensor] = {}
    for name, tensor in wide.items():
        kept = name in left and left[name].shape == tensor.shape
        if kept or tensor.dim() != 2:
            found[name] = tensor.float() if tensor.is_floating_point() else tensor
            continue
        found[name], scale = quantize_matrix(tensor, weights)
        if scale is not None:
            found[name + SCALE] = scale
    return found


def opened(
    build: Callable[[], nn.Module], tensors: Mapping[str, Tensor], weights: Weights
) -> nn.Module:
    """The prepared model that a file holds; `build` gives one with any weights.

    Raises:
        CheckpointError: the tensors are not those of this model.
    """
    model, quantized = _filled(build, tensors)
    model = prepare(model, weights)
    if not all(one.used for one in quantized.values()):  # a layer made its matrix of several
        model, quantized = _filled(build, tensors)
        _widen(model, quantized)
        return prepare(model, weights)
    _widen(model, quantized)
    return model


def widened(build: Callable[[], nn.Module], tensors: Mapping[str, Tensor]) -> nn.Module:
    """The same with float32 in the place of quantized weights.

    Raises:
        CheckpointError: the tensors are not those of this model.
    """
    model, quantized = _filled(build, tensors)
    _widen(model, quantized)
    return model


def _filled(
    build: Callable[[], nn.Module], tensors: Mapping[str, Tensor]
) -> tuple[nn.Module, dict[str, Stored]]:
    """The model, in which quantized matrices only hang on their parameters; and these by name."""
    matrices, scales = _scaled(tensors)
    with SkipInit():
        model = build()
    check_fit(model, {name: _as_wide(tensor) for name, tensor in matrices.items()})
    check_finite(tensors)
    quantized = {
        name: Stored(tensor, scales.get(name))
        for name, tensor in matrices.items()
        if tensor.dtype in QUANTIZED
    }
    assign(model, {name: tensor for name, tensor in matrices.items() if name not in quantized})
    places = model.state_dict(keep_vars=True)
    for name, one in quantized.items():
        places[name].stored = one
    return model, quantized


def _scaled(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The weights of a file, and the scales of those that are 8-bit, by their names.

    Raises:
        CheckpointError: an 8-bit matrix has no scales, or they are not one for each of its rows; a
            tensor is low-precision and no matrix.
    """
    scales: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.dtype in QUANTIZED and tensor.dim() != 2:
            raise CheckpointError(
                f"{name} is {tensor.dtype} of shape {tuple(tensor.shape)}, but only matrices are."
            )
        if tensor.dtype != torch.int8:
            continue
        scale = tensors.get(name + SCALE)
        if scale is None or scale.dtype != torch.float32 or scale.shape != tensor.shape[:1]:
            found = "missing" if scale is None else f"{scale.dtype} {tuple(scale.shape)}"
            raise CheckpointError(
                f"{name}{SCALE} must be float32 of shape {tuple(tensor.shape[:1])}, one number for "
                f"each row of {name}, but is {found}."
            )
        scales[name] = scale
    of_scales = {name + SCALE for name in scales}
    return {name: one for name, one in tensors.items() if name not in of_scales}, scales


def _as_wide(tensor: Tensor) -> Tensor:
    """What stands for a low-precision matrix where types and shapes are compared."""
    return torch.empty(tensor.shape, device="meta") if tensor.dtype in QUANTIZED else tensor


def _widen(model: nn.Module, quantized: Mapping[str, Stored]) -> None:
    """Quantized matrices become float32 where they are still parameters of the model."""
    places = model.state_dict(keep_vars=True)
    for name, one in quantized.items():
        if name in places:
            places[name].data = one.wide()
            del places[name].stored
