"""Narrow weights in a file: what it holds, and the prepared model again.

A matrix lies as it would be written down, line after line, and not in the panels of the kernels,
which another processor or another release may want otherwise: int8 under its own name with its
scales beside it (`NAME.scale`), or bfloat16. All else is float32. To put them into panels takes 20
milliseconds for 124 million weights. Where nothing can be compiled they become float32 again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from regard.checkpoints import Undrawn, adopt, check_fit, distinct
from regard.layers.quantized import Stored, Weights, narrowed
from regard.native.engine import prepare, replaced

SCALE = ".scale"


def tensors_of(model: nn.Module, weights: Weights) -> dict[str, Tensor]:
    """What the file of a model with such weights holds; the model is narrow afterwards.

    Narrow are the matrices that are no parameters any more when it is prepared.
    """
    wide = distinct(model.state_dict())
    left = replaced(model, weights).state_dict()
    found: dict[str, Tensor] = {}
    for name, tensor in wide.items():
        kept = name in left and left[name].shape == tensor.shape
        if kept or tensor.dim() != 2:
            found[name] = tensor.float() if tensor.is_floating_point() else tensor
            continue
        found[name], scale = narrowed(tensor, weights)
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
    model, narrow = _filled(build, tensors)
    model = prepare(model, weights)
    if not all(one.used for one in narrow.values()):  # a layer made its matrix of several
        model, narrow = _filled(build, tensors)
        _widen(model, narrow)
        return prepare(model, weights)
    _widen(model, narrow)
    return model


def widened(build: Callable[[], nn.Module], tensors: Mapping[str, Tensor]) -> nn.Module:
    """The same with float32 in the place of narrow weights.

    Raises:
        CheckpointError: the tensors are not those of this model.
    """
    model, narrow = _filled(build, tensors)
    _widen(model, narrow)
    return model


def _filled(
    build: Callable[[], nn.Module], tensors: Mapping[str, Tensor]
) -> tuple[nn.Module, dict[str, Stored]]:
    """The model, in which narrow matrices only hang on their parameters; and these by name."""
    integers = [name for name, tensor in tensors.items() if tensor.dtype == torch.int8]
    scales = {name: tensors[name + SCALE] for name in integers if name + SCALE in tensors}
    of_scales = {name + SCALE for name in scales}
    matrices = {name: tensor for name, tensor in tensors.items() if name not in of_scales}
    with Undrawn():
        model = build()
    check_fit(model, matrices)
    narrow = {
        name: Stored(tensor, scales.get(name))
        for name, tensor in matrices.items()
        if tensor.dtype in (torch.int8, torch.bfloat16)
    }
    adopt(model, {name: tensor for name, tensor in matrices.items() if name not in narrow})
    places = model.state_dict(keep_vars=True)
    for name, one in narrow.items():
        places[name].stored = one
    return model, narrow


def _widen(model: nn.Module, narrow: Mapping[str, Stored]) -> None:
    """Narrow matrices become float32 where they are still parameters of the model."""
    places = model.state_dict(keep_vars=True)
    for name, one in narrow.items():
        if name in places:
            places[name].data = one.wide()
            del places[name].stored
