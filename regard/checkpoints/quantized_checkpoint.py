"""Quantized weights in a file: what it holds, and the quantized model that it becomes.

A matrix is stored row by row, not in panels, whose layout may change with the processor or the
release: int8 under its own name with the scales of its rows beside it (`NAME.scale`), or bfloat16.
All else is float32. Packing the matrices into panels takes 20 milliseconds for 124 million weights.
Such a file opens with and without compiled kernels.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from regard.checkpoints.filling import SkipInit, assign, check_finite, check_fit, unique_tensors
from regard.errors import CheckpointError
from regard.layers.quantized import StoredMatrix, WeightType, quantize_matrix
from regard.models.conversions import prepare, quantize_layers
from regard.schema import check_same

SCALE = ".scale"
QUANTIZED = (torch.int8, torch.bfloat16)


def quantized_tensors(model: nn.Module, dtype: WeightType) -> dict[str, Tensor]:
    """What a file holds of a model whose weights are quantized to `dtype`, by name.

    The model is quantized afterwards. The file has those matrices quantized that quantizing the
    model replaces.
    """
    tensors = unique_tensors(model.state_dict())
    remaining = quantize_layers(model, dtype).state_dict()
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        unchanged = name in remaining and remaining[name].shape == tensor.shape
        if unchanged or tensor.dim() != 2:
            result[name] = tensor.float() if tensor.is_floating_point() else tensor
            continue
        result[name], scale = quantize_matrix(tensor, dtype)
        if scale is not None:
            result[name + SCALE] = scale
    return result


def read_quantized(
    build: Callable[[], nn.Module], tensors: Mapping[str, Tensor], dtype: WeightType
) -> nn.Module:
    """The quantized model that a file holds.

    build: gives the model, with any weights.

    Raises:
        CheckpointError: the tensors are not those of this model.
    """
    model, matrices = _filled(build, tensors)
    for matrix in matrices.values():
        stored = "int8" if matrix.scale is not None else "bfloat16"
        check_same("config.json", "regard.weights", dtype, "the type of the tensors", stored)
    model = prepare(model, dtype)
    if all(matrix.used for matrix in matrices.values()):
        _dequantize(model, matrices)
        return model
    # A layer computed its matrix from several: it needs them as float32, before it is quantized.
    return prepare(read_dequantized(build, tensors), dtype)


def read_dequantized(build: Callable[[], nn.Module], tensors: Mapping[str, Tensor]) -> nn.Module:
    """The model that a file holds, its quantized weights as float32.

    build: gives the model, with any weights.

    Raises:
        CheckpointError: the tensors are not those of this model.
    """
    model, matrices = _filled(build, tensors)
    _dequantize(model, matrices)
    return model


def _filled(
    build: Callable[[], nn.Module], tensors: Mapping[str, Tensor]
) -> tuple[nn.Module, dict[str, StoredMatrix]]:
    """The model, whose parameters only refer to their quantized matrices, and these by name."""
    weights, scales = _without_scales(tensors)
    with SkipInit():
        model = build()
    floats = {
        name: torch.empty(tensor.shape, device="meta") if tensor.dtype in QUANTIZED else tensor
        for name, tensor in weights.items()
    }
    check_fit(model, floats)
    check_finite(tensors)
    matrices = {
        name: StoredMatrix(tensor, scales.get(name))
        for name, tensor in weights.items()
        if tensor.dtype in QUANTIZED
    }
    assign(model, {name: tensor for name, tensor in weights.items() if name not in matrices})
    parameters = model.state_dict(keep_vars=True)
    for name, matrix in matrices.items():
        parameters[name].stored = matrix
    return model, matrices


def _without_scales(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The weights of a file, and the scales of those that are 8-bit, by their names.

    Raises:
        CheckpointError: an 8-bit matrix has no scales, or they are not one for each of its rows; a
            quantized tensor is no matrix.
    """
    scales: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.dtype in QUANTIZED and tensor.dim() != 2:
            raise CheckpointError(f"{name} is {tensor.dtype}, but only matrices are.")
        if tensor.dtype != torch.int8:
            continue
        scale = tensors.get(name + SCALE)
        if scale is None or scale.dtype != torch.float32 or scale.shape != tensor.shape[:1]:
            must = f"float32 of shape {tuple(tensor.shape[:1])}, a number for each row of {name}"
            raise CheckpointError(f"{name}{SCALE} must be {must}.")
        scales[name] = scale
    of_scales = {name + SCALE for name in scales}
    return {name: tensor for name, tensor in tensors.items() if name not in of_scales}, scales


def _dequantize(model: nn.Module, matrices: Mapping[str, StoredMatrix]) -> None:
    """Quantized matrices become float32 where they are still parameters of the model."""
    parameters = model.state_dict(keep_vars=True)
    for name, matrix in matrices.items():
        if name in parameters:
            parameters[name].data = matrix.dequantized()
            del parameters[name].stored
