"""The layers of a model, from the input up: for rates that differ and for gradual unfreezing.

(Howard & Ruder 2018, sections 3.2 and 3.3.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn

from regard.errors import ConfigError
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.protocols import Generator, Model

Parameters = dict[str, nn.Parameter]


def layer_groups(model: nn.Module) -> list[Parameters]:
    """The trained parameters by name: what comes before the layers, each layer, then the heads.

    The output over tokens of a language model is a head, with an embedding that is tied to it.

    Raises:
        ConfigError: the model does not say what its layers are.
    """
    body = model.encoder if isinstance(model, EncoderWithHeads) else model
    if not isinstance(body, Model) or not body.layer_groups:
        raise ConfigError(
            f"{type(body).__name__} has no layers with rates of their own: leave out "
            "`layerwise_lr_decay` and `gradual_unfreezing_interval`."
        )
    heads: list[nn.Module] = []
    if isinstance(model, EncoderWithHeads):
        heads = [model.heads]
    elif isinstance(body, Generator):
        heads = [body.head]
    # The index of the group of each parameter; 0 for what comes before the layers.
    indices = {id(p): len(body.layer_groups) + 1 for head in heads for p in head.parameters()}
    for index, layer in enumerate(body.layer_groups, 1):
        indices |= {id(p): index for p in layer.parameters()}
    groups: list[Parameters] = [{} for _ in range(len(body.layer_groups) + 2)]
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups[indices.get(id(parameter), 0)][name] = parameter
    return [group for group in groups if group]


def frozen_groups(groups: int, epoch: int, interval: int) -> int:
    """How many of the lowest groups are not trained in an epoch (Howard & Ruder 2018, section 3.3).

    All but the highest at first, and one less after every `interval` epochs; 0, none, where that
    is 0.

    groups: how many there are.  epoch: from 0.
    """
    return max(0, groups - 1 - epoch // interval) if interval else 0


@contextmanager
def without_gradients(groups: Sequence[Parameters]) -> Iterator[None]:
    """A block in which these parameters get no gradients."""
    parameters = [p for group in groups for p in group.values()]
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)
