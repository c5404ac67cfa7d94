"""Models with fewer layers, more embeddings or another vocabulary."""

import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.layers.adaptive_softmax import AdaptiveSoftmax
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


def with_vocabulary(
    model: EncoderWithHeads, vocab_size: int, **ids: int | None
) -> EncoderWithHeads:
    """The same encoder and heads with an embedding of `vocab_size` rows, if it has fewer.

    New rows are drawn as all rows were when the model began.

    ids: the options of the configuration that name tokens (bos, pad), where they change.
    """
    size = max(vocab_size, model.config.vocab_size)
    kind: Any = type(model.encoder)
    device = next(model.parameters()).device
    # Drawn on the CPU, the same on every machine; a model on the meta device stays there.
    with torch.device(device if device.type == "meta" else "cpu"):
        grown = assembled(kind(replace(model.config, vocab_size=size, **ids)), model.outputs())
    tensors = grown.state_dict()
    for name, old in model.state_dict().items():
        rows = old.size(0) if old.dim() else 0
        tensors[name] = torch.cat([old, tensors[name][rows:].to(old)]) if rows else old
    grown.load_state_dict(tensors)
    grown.labels = model.labels
    return grown.to(device).train(model.training)


def exchange_vocabulary(model: nn.Module, rows: Sequence[int], **ids: int | None) -> nn.Module:
    """The same model for a vocabulary whose token n has row `rows[n]` of the model, -1 for none.

    ids: the options of the configuration that name tokens (bos, eos, pad), where they change.

    Raises:
        ConfigError: the rows of its vocabulary are divided, as in an adaptive softmax, or stand
            for more than tokens.
    """
    of_tokens = _tensors_of_tokens(model)
    exchanged = _like(model, len(rows), **ids)
    index = torch.tensor(rows)
    tensors = {
        name: _exchanged(old, index) if name in of_tokens else old
        for name, old in model.state_dict().items()
    }
    exchanged.load_state_dict(tensors)
    exchanged.train(model.training)
    return exchanged.to(next(model.parameters()).device)


def _exchanged(old: Tensor, index: Tensor) -> Tensor:
    """(V, ...) -> (V', ...)"""
    rows = old[index.clamp(min=0).to(old.device)]
    new = (index < 0).to(old.device).view(-1, *[1] * (old.dim() - 1))
    return torch.where(new, old.mean(0, keepdim=True), rows)


def _tensors_of_tokens(model: nn.Module) -> set[str]:
    """The names of tensors that have a row for each token.

    Raises:
        ConfigError: others depend on the size of the vocabulary, too.
    """
    config: Any = model.config
    size = config.vocab_size
    if any(isinstance(part, AdaptiveSoftmax) and part.clusters.cutoffs for part in model.modules()):
        raise _divided(model, "it is divided into clusters by the order of its tokens")
    with torch.device("meta"):
        shapes, larger = (
            {name: tensor.shape for name, tensor in _like(model, count).state_dict().items()}
            for count in (size, size + 1)
        )
    names = {name for name, shape in shapes.items() if larger.get(name) != shape}
    for name in names:
        if shapes[name][:1] != (size,) or larger.get(name) != (size + 1, *shapes[name][1:]):
            raise _divided(model, f"{name} has no row for each token")
    return names


def _divided(model: nn.Module, why: str) -> ConfigError:
    return ConfigError(
        f"The vocabulary of {type(model).__name__} cannot be exchanged: {why}. Leave [tokenizer] "
        "out."
    )


def _like(model: nn.Module, vocab_size: int, **ids: int | None) -> nn.Module:
    """A new model with the same options but for those of the vocabulary."""
    config: Any = replace(model.config, vocab_size=vocab_size, **ids)  # type: ignore[type-var]
    if not isinstance(model, EncoderWithHeads):
        plain: nn.Module = type(model)(config)
        return plain
    kind: Any = type(model.encoder)
    grown = assembled(kind(config), model.outputs())
    grown.labels, grown.architecture = model.labels, model.architecture
    return grown
