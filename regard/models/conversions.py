"""The same model changed: with low-rank adapters, fewer layers, another vocabulary, quantized.

    insert_updates(model, {"blocks.0.attention.query_key_value": {"query": update}})
    freeze_base(model)          only the adapters and the heads are trained
    plain = merged(model)       the same function without adapters

`regard.checkpoints.adapters` chooses the layers by their published names.
"""

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeVar, get_args

import torch
from torch import Tensor, nn

from regard import ops
from regard.errors import ConfigError, check_choice, warn
from regard.layers import quantized
from regard.layers.linear import Linear, LowRankLinear, LowRankUpdate
from regard.layers.recurrent import RecurrentLayer, ResetFirstGRU
from regard.layers.softmax import AdaptiveSoftmax, Softmax
from regard.models.encoder_with_heads import EncoderWithHeads, assembled
from regard.registry import kernel_package


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


# ----------------------------------------------------------------- fewer layers, another vocabulary
#
# Models with fewer layers, more embeddings or another vocabulary.


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


# -------------------------------------------------------------------------------- quantized weights
#
# A model with quantized weights.
#
# prepare(model, dtype="int8")
#
# Quantized layers replace the others, and nothing else changes: every decoding method, attention
# capture and head gating work as before. Without compiled kernels the layers compute by their
# definitions in plain PyTorch (`regard.layers.quantized`), with the same results up to the order of
# rounding. Whole steps in one compiled call are wrappers around the model: see
# `regard.models.wrappers`.


GPUS = {"cuda"}
AnyModel = TypeVar("AnyModel", bound=nn.Module)


def prepare(model: AnyModel, dtype: quantized.WeightType = "int8") -> AnyModel:
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
    check_choice("dtype", dtype, get_args(quantized.WeightType))
    devices = {parameter.device.type for parameter in model.parameters()} - {"cpu"}
    if devices and devices <= GPUS and dtype == "bfloat16":
        return halved(model)
    if devices:
        raise ConfigError(
            f"{dtype} weights are for the CPU, but the model is on "
            f'{", ".join(sorted(devices))}. Give device="cpu" or, on a GPU, quantize="bfloat16".'
        )
    if not ops.load_kernels() and kernel_package() is None:  # where compiling fails, that warns
        warn(
            f"{type(model).__name__} is quantized, but this installation has no compiled kernels: "
            "quantized weights save memory, but are slower than float32 ones",
        )
    return quantize_layers(model, dtype)


def halved(model: AnyModel) -> AnyModel:
    """A model that computes in bfloat16 by torch's own operations, in place.

    Norms, softmax and log-probabilities are float32 inside. The states of recurrent layers would
    accumulate rounding errors from token to token: a model with such layers stays float32, and a
    warning says so.
    """
    model.eval().requires_grad_(False)
    if any(isinstance(module, RecurrentLayer) for module in model.modules()):
        warn(
            f"{type(model).__name__} keeps its float32 weights: on a GPU recurrent layers are not "
            "converted to bfloat16",
        )
        return model
    return model.to(torch.bfloat16)


def quantize_layers(model: AnyModel, dtype: quantized.WeightType) -> AnyModel:
    """Replace layers by quantized ones, in place; the rest becomes float32."""
    tied: dict[int, quantized.QuantizedMatrix] = {}
    softmaxes = [module for module in model.modules() if isinstance(module, Softmax)]
    shared = {id(softmax.weight) for softmax in softmaxes}
    _quantize_children(model, dtype, tied, shared)
    model.eval().requires_grad_(False)
    return model.float()


def _quantize_children(
    parent: nn.Module,
    dtype: quantized.WeightType,
    tied: dict[int, quantized.QuantizedMatrix],
    shared: set[int],
) -> None:
    """Replace child modules, innermost first. A `ResetFirstGRU` stays float32: its product is of
    r h, and the quantized recurrence has no such step.

    shared: the ids of the weights of softmaxes; an embedding with such a weight is quantized too.
    tied: the matrices made of these weights, which embeddings and softmaxes share.
    """
    for name, child in list(parent.named_children()):
        _quantize_children(child, dtype, tied, shared)
        new: nn.Module | None = None
        if isinstance(child, Linear):
            new = quantized.QuantizedLinear(child, dtype)
        elif isinstance(child, RecurrentLayer) and not isinstance(child, ResetFirstGRU):
            new = quantized.QuantizedRecurrent(child, dtype)
        elif isinstance(child, Softmax):
            new = quantized.QuantizedSoftmax(child, _once(child.weight, dtype, tied))
        elif isinstance(child, nn.Embedding) and id(child.weight) in shared:
            new = quantized.QuantizedEmbedding(_once(child.weight, dtype, tied))
        if new is not None:
            setattr(parent, name, new)


def _once(
    weight: Tensor, dtype: quantized.WeightType, tied: dict[int, quantized.QuantizedMatrix]
) -> quantized.QuantizedMatrix:
    if id(weight) not in tied:
        tied[id(weight)] = quantized.QuantizedMatrix(weight, dtype)
    return tied[id(weight)]
