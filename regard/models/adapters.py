"""A model with low-rank adapters: `LowRankLinear` replaces `Linear`.

    insert_updates(model, {"blocks.0.attention.query_key_value": {"query": update}})
    freeze_base(model)          only the adapters and the heads are trained
    plain = merged(model)       the same function without adapters

`regard.checkpoints.adapters` chooses the layers by their published names.
"""

import copy
from collections.abc import Mapping
from typing import Any

from torch import nn

from regard.layers.linear import Linear
from regard.layers.low_rank import LowRankLinear, LowRankUpdate
from regard.models.encoder_with_heads import EncoderWithHeads


def insert_updates(model: nn.Module, updates: Mapping[str, Mapping[str, LowRankUpdate]]) -> None:
    """Add low-rank updates to layers, in place.

    updates: name of a layer -> name of a projection in it -> its update.
    """
    for name, of_layer in updates.items():
        layer = model.get_submodule(name)
        assert isinstance(layer, Linear)
        _replace(model, name, LowRankLinear(layer, of_layer))


def adapted_layers(model: nn.Module) -> dict[str, LowRankLinear]:
    """The layers of a model that have low-rank updates, by name."""
    return {name: m for name, m in model.named_modules() if isinstance(m, LowRankLinear)}


def freeze_base(model: nn.Module) -> None:
    """Freeze all parameters but those of low-rank updates and of an encoder's heads, in place.

    A head that shares its matrix with the embedding was pre-trained, and is frozen too.
    """
    trained: set[int] = set()
    if isinstance(model, EncoderWithHeads):
        encoder: Any = model.encoder
        body = {id(parameter) for parameter in encoder.parameters()}
        for head in model.heads.values():
            of_head = {id(parameter) for parameter in head.parameters()}
            trained |= of_head if of_head.isdisjoint(body) else set()
    for layer in adapted_layers(model).values():
        trained |= {id(parameter) for parameter in layer.updates.parameters()}
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in trained)


def merged(model: nn.Module) -> nn.Module:
    """A model that computes the same without adapters; the given model if it has none.

    The updates are added to copies of the matrices; all other parameters are shared.
    """
    if not (layers := adapted_layers(model)):
        return model
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    without_adapters: nn.Module = copy.deepcopy(model, shared)  # type: ignore[arg-type]
    for name, layer in layers.items():
        _replace(without_adapters, name, layer.merged())
    return without_adapters


def insert_updates_like(model: nn.Module, other: nn.Module) -> None:
    """Add new adapters to a model where another of the same configuration has some, in place.

    Parameters that are frozen in the other are frozen.
    """
    for name, layer in adapted_layers(other).items():
        base = model.get_submodule(name)
        assert isinstance(base, Linear)
        _replace(model, name, layer.new_around(base))
    trained = {name: parameter.requires_grad for name, parameter in other.named_parameters()}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trained[name])


def _replace(model: nn.Module, name: str, layer: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, layer)
