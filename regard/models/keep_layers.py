"""An encoder with fewer layers: some of the layers of a trained one, with their weights.

DistilBERT is initialized so, with one layer out of two (Sanh et al. 2019, section 3).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from torch import Tensor, nn

from regard.errors import ConfigError
from regard.models.encoder_with_heads import EncoderWithHeads, assembled

# The name of a parameter of a layer: of its block, or of its relative positions.
OF_LAYER = re.compile(r"(encoder\.(?:blocks|relations\.layers)\.)(\d+)(\..*)")


def keep_layers(model: nn.Module, layers: Sequence[int]) -> EncoderWithHeads:
    """A copy of an encoder and its heads with only these layers; all else stays as it is.

    layers: indices from 0, in the order in which the copy has the layers.

    Raises:
        ConfigError: the model has no such layers; it is no encoder, has parameters that belong to
            several layers together, or lacks heads that were pruned.
    """
    if not isinstance(model, EncoderWithHeads):
        raise _unsuited(model)
    encoder, options = model.encoder, asdict(model.config)
    count = len(encoder.repeated_blocks)
    if not count or options.get("layers") != count or options.get("pruned"):
        raise _unsuited(encoder)
    if not layers or any(not 0 <= layer < count for layer in layers):
        raise ConfigError(
            f"`layers` must name some of the layers 0 to {count - 1} of this model, but is "
            f"{[*layers]}."
        )
    kind: Any = type(encoder)
    copy = assembled(kind(replace(model.config, layers=len(layers))), model.outputs())
    weights, expected = _chosen(model.state_dict(), layers, count), copy.state_dict()
    if {name: weight.shape for name, weight in weights.items()} != {
        name: weight.shape for name, weight in expected.items()
    }:
        raise _unsuited(encoder)
    copy.load_state_dict(weights)
    copy.labels = model.labels
    return copy.train(model.training)


def _unsuited(model: object) -> ConfigError:
    return ConfigError(
        f"[model] `layers` chooses among the layers of an encoder that have parameters of their "
        f"own and all their heads. {type(model).__name__} is not such a model: leave it out."
    )


def _chosen(weights: dict[str, Tensor], layers: Sequence[int], count: int) -> dict[str, Tensor]:
    """The weights of a model of `count` layers with these alone, under the names that they have
    there. Relative positions that all layers share stay as they are.
    """
    parts = {name: OF_LAYER.fullmatch(name) for name in weights}
    of_layers = [part for part in parts.values() if part is not None]
    prefixes = {part[1] for part in of_layers if int(part[2]) == count - 1}  # has all the layers
    chosen = {}
    for name, weight in weights.items():
        part = parts[name]
        if part is None or part[1] not in prefixes:
            chosen[name] = weight
            continue
        for index, layer in enumerate(layers):
            if layer == int(part[2]):
                chosen[f"{part[1]}{index}{part[3]}"] = weight
    return chosen
