"""Heads of attention masked, ranked by importance and pruned: "Are Sixteen Heads Really Better than
One?" (Michel et al. 2019).

    with heads_masked(model, {3: [1, 6]}): ...     layer 3 without its heads 1 and 6
    scores = head_importance(model, batches, losses)
    prune_heads(model, weakest(scores, 20))        smaller matrices, the same answers as masked

Layers and heads count from 1, as `regard.look` shows them. Layers are those of one kind of
attention ("encoder", "decoder", "cross"), which must be named where a model has several. Heads keep
their numbers when others are pruned.
"""

import copy
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, cast

import torch
from pydantic import BeforeValidator
from torch import Tensor, nn

from regard.attention.capture import gated
from regard.attention.multihead import MultiHeadAttention, PackedLinear
from regard.errors import CheckpointError, ConfigError
from regard.layers.linear import LowRankLinear
from regard.ops import at_least_float32
from regard.schema import checked
from regard.suggest import nearest

Heads = Mapping[int, Iterable[int]]  # layer -> heads, both from 1


ModelOrTask = Any  # an `nn.Module`, or a task, whose `module` it is


def _as_tuples(value: Any) -> Any:
    """Of lists in JSON, which has no tuples."""
    return tuple(map(_as_tuples, value)) if isinstance(value, list | tuple) else value


# (kind, layer, its heads that are gone)
Pruned = Annotated[tuple[tuple[str, int, tuple[int, ...]], ...], BeforeValidator(_as_tuples)]


class Prunable:
    """A model that remembers which heads were pruned.

    config: its configuration, a dataclass with a field `pruned` (`Pruned`).
    """

    config: Any


def attentions(model: ModelOrTask, kind: str | None = None) -> dict[int, MultiHeadAttention]:
    """The attention of each layer (from 1), in a model or a task.

    Raises:
        ConfigError: there is none of this kind, or `kind` is None and there are several.
    """
    kinds = _by_kind(model)
    if not kinds:
        raise ConfigError(f"{_name(model)} has no attention with several heads.")
    if kind is None and len(kinds) > 1:
        raise ConfigError(f"`kind` must be given: {_name(model)} has {', '.join(kinds)} attention.")
    chosen = next(iter(kinds)) if kind is None else kind
    if chosen not in kinds:
        raise ConfigError(f"{_name(model)} has no {chosen!r} attention. {nearest(chosen, kinds)}")
    return kinds[chosen]


# ------------------------------------------------------------------------------ masks


@contextmanager
def heads_masked(model: ModelOrTask, heads: Heads, kind: str | None = None) -> Iterator[None]:
    """Mask heads inside the block: {3: [1, 6]} are heads 1 and 6 of layer 3.

    Nothing else changes: not the speed, not the weights of the model. It acts in this thread (or
    asynchronous task) alone; blocks may stand in one another. `regard.look` shows the weights of a
    masked head as zeros, which is what reaches the result.

    Raises:
        ConfigError: a layer or a head does not exist, or was pruned.
    """
    layers = attentions(model, kind)
    heads = _checked(heads, layers)
    gates = torch.ones(len(layers), _most(layers))
    for layer, numbers in heads.items():
        gates[layer - 1, [number - 1 for number in numbers]] = 0.0
    with heads_gated(model, gates, kind):
        yield


@contextmanager
def heads_gated(model: ModelOrTask, gates: Tensor, kind: str | None = None) -> Iterator[None]:
    """Multiply each head by a number inside the block: `gates` (L, H); gradients reach them.

    Gates of heads that were pruned are not read. Where it acts: see `heads_masked`. The backward
    pass may stand outside the block, unless activations are computed again there (checkpointing).

    Raises:
        ConfigError: the shape is not that of the model's layers and heads.
    """
    layers = attentions(model, kind)
    shape = (len(layers), _most(layers))
    if tuple(gates.shape) != shape:
        raise ConfigError(f"`gates` must be {shape} (layers, heads), but is {tuple(gates.shape)}.")

    def gate(attention: MultiHeadAttention, row: Tensor, x: Tensor) -> Tensor:
        remaining = (
            row
            if len(attention.remaining_heads) == len(row)
            else row[list(attention.remaining_heads)]
        )
        return remaining.to(x.device, at_least_float32(x.dtype))

    with gated({part: partial(gate, part, gates[layer - 1]) for layer, part in layers.items()}):
        yield


# ------------------------------------------------------------------------- importance


def head_importance(
    model: ModelOrTask,
    batches: Iterable[Any],
    losses: Callable[[Any], Tensor],
    kind: str | None = None,
    *,
    normalized: bool = True,
) -> Tensor:
    """How much the loss depends on each head: (L, H), NaN where a head was pruned.

        I_h = E_x |d L(x) / d xi_h| at xi_h = 1        (Michel et al. 2019, section 4.1)

    It is measured with the fused kernels, in evaluation mode, one backward pass a batch.

    Args:
        model: a model or a task.
        batches: whatever `losses` takes; each example counts once.
        losses: runs the model on a batch and gives the loss of each of its examples, (B,). The
            rows that the model reads are those of the examples, or several side by side for each.
        kind: which attention, where there are several.
        normalized: divide each layer by the norm of its scores, as the paper does to compare
            layers.

    Raises:
        ConfigError: there are no batches, or a loss is not one number an example.
    """
    layers = attentions(model, kind)
    scores = torch.zeros(len(layers), _most(layers), dtype=torch.float64)
    examples = 0
    with _evaluating(_module(model)):
        for batch in batches:
            count, sensitivity = _sensitivity(layers, losses, batch)
            examples += count
            for layer, attention in layers.items():
                scores[layer - 1, list(attention.remaining_heads)] += sensitivity[attention]
    if not examples:
        raise ConfigError("`batches` must hold at least one example, but there is none.")
    scores /= examples
    if normalized:
        scores /= scores.norm(dim=1, keepdim=True).clamp(min=torch.finfo(scores.dtype).tiny)
    for layer, attention in layers.items():
        gone = [head for head in range(scores.size(1)) if head not in attention.remaining_heads]
        scores[layer - 1, gone] = math.nan
    return scores


def weakest(importance: Tensor, count: int) -> dict[int, list[int]]:
    """The `count` heads of least importance (L, H), by layer, as `prune_heads` takes them.

    Raises:
        ConfigError: there are not so many heads.
    """
    flat = importance.flatten()
    available = int((~flat.isnan()).sum())
    if not 0 <= count <= available:
        raise ConfigError(f"`count` must be from 0 to {available}, the heads there are: {count}.")
    heads: dict[int, list[int]] = {}
    for number in flat.argsort(stable=True)[:count].sort().values.tolist():  # NaN comes last
        layer, head = divmod(number, importance.size(1))
        heads.setdefault(layer + 1, []).append(head + 1)
    return heads


def _sensitivity(
    layers: Mapping[int, MultiHeadAttention], losses: Callable[[Any], Tensor], batch: Any
) -> tuple[int, dict[nn.Module, Tensor]]:
    """How many examples, and for each attention the sum over them of |dL / d gate|, (H)."""
    leaves: dict[nn.Module, dict[int, Tensor]] = {attention: {} for attention in layers.values()}

    def gate(attention: MultiHeadAttention, x: Tensor) -> Tensor:
        rows = x.size(0)
        if rows not in leaves[attention]:
            leaf = x.new_ones(rows, attention.heads, dtype=torch.float32)
            leaves[attention][rows] = leaf.requires_grad_()
        return leaves[attention][rows].to(at_least_float32(x.dtype))

    with torch.enable_grad(), gated({part: partial(gate, part) for part in layers.values()}):
        loss = losses(batch)
        if loss.dim() != 1 or any(rows % len(loss) for gates in leaves.values() for rows in gates):
            rows_read = sorted({rows for gates in leaves.values() for rows in gates})
            raise ConfigError(
                "`losses` must give one loss for each example, (B,), but gives the shape "
                f"{tuple(loss.shape)} where the model reads {rows_read} rows."
            )
        flat = [leaf for gates in leaves.values() for leaf in gates.values()]
        gradients = torch.autograd.grad(loss.sum(), flat, allow_unused=True)
    sensitivity: dict[nn.Module, Tensor] = {}
    by_leaf = dict(zip(map(id, flat), gradients, strict=True))
    for attention in layers.values():
        total = torch.zeros(len(loss), attention.heads, dtype=torch.float64)
        for leaf in leaves[attention].values():
            gradient = by_leaf[id(leaf)]
            if gradient is not None:  # (B * R, H) -> (B, R, H) -> (B, H)
                total += gradient.double().cpu().unflatten(0, (len(loss), -1)).sum(1)
        sensitivity[attention] = total.abs().sum(0)
    return len(loss), sensitivity


# ---------------------------------------------------------------------------- pruning


def prune_heads(model: ModelOrTask, heads: Heads, kind: str | None = None) -> None:
    """Take heads away for good, in place: their rows and columns leave the matrices.

    The model computes what it computed with these heads masked, with less work; a layer may lose
    all its heads. Its configuration remembers them (`pruned`), so that it is saved and loaded so.
    An optimizer made before holds the old matrices: make it after pruning.

    Raises:
        ConfigError: a layer or a head does not exist or is gone already, or the model's
            configuration cannot remember it, or its weights are quantized.
    """
    layers = attentions(model, kind)
    heads = _checked(heads, layers)
    owners = _owners(_module(model))
    if not owners:
        raise ConfigError(f"{_name(model)} cannot be pruned: its config has no field `pruned`.")
    _check_cuttable(model)
    for layer, numbers in heads.items():
        _cut(layers[layer], {number - 1 for number in numbers})
    for owner in owners:
        owner.config = replace(owner.config, pruned=pruned_heads(cast(nn.Module, owner)))


def _check_cuttable(model: ModelOrTask) -> None:
    """Check that rows and columns can be taken out of the matrices of a model.

    Raises:
        ConfigError: they are quantized, or have low-rank adapters.
    """
    from regard.layers.quantized import QuantizedMatrix  # models that are not pruned need none

    for layers in _by_kind(model).values():
        for part in (part for attention in layers.values() for part in attention.modules()):
            if isinstance(part, LowRankLinear | QuantizedMatrix):
                raise ConfigError(
                    f"{_name(model)} has adapters or quantized weights, which cannot be cut. Merge "
                    "adapters before, and load the model without `quantize`."
                )


def pruned_heads(model: ModelOrTask) -> Pruned:
    """Which heads are gone: (kind, layer, heads), counted from 1."""
    return tuple(
        (
            kind,
            layer,
            tuple(
                head + 1
                for head in range(attention.total_heads)
                if head not in attention.remaining_heads
            ),
        )
        for kind, layers in _by_kind(model).items()
        for layer, attention in layers.items()
        if len(attention.remaining_heads) < attention.total_heads
    )


def prune_as_configured(model: nn.Module, pruned: Any) -> None:
    """Give a model that was just built the shape that `pruned` of its configuration says.

    Raises:
        ConfigError: it names what does not exist.
    """
    try:
        for kind, layer, numbers in pruned:
            layers = attentions(model, kind)
            _checked({layer: numbers}, layers)
            _cut(layers[layer], {number - 1 for number in numbers})
    except ConfigError as error:
        raise ConfigError(f"config.json: `pruned`: {error}") from None


def with_all_heads(model: nn.Module) -> nn.Module:
    """A copy with zeros where heads were pruned, which computes the same; itself if none was."""
    if not pruned_heads(model):
        return model
    grown = copy.deepcopy(model)
    for layers in _by_kind(grown).values():
        for attention in layers.values():
            _grow(attention)
    for owner in _owners(grown):
        owner.config = replace(owner.config, pruned=())
    return grown


def prune_zero_heads(model: nn.Module, pruned: Any) -> None:
    """The inverse of `with_all_heads`, in place: heads that are zero and named are pruned.

    Raises:
        ConfigError: what is named does not exist.
        CheckpointError: the output of a head that is named is not zero.
    """
    for kind, layer, numbers in checked(pruned, Pruned, "pruned heads", ConfigError):
        layers = attentions(model, kind)
        _checked({layer: numbers}, layers)
        attention = layers[layer]
        columns = attention.output.weight.unflatten(1, (attention.heads, attention.head_dim))
        for number in numbers:
            if columns[:, attention.remaining_heads.index(number - 1)].any():
                raise CheckpointError(
                    f"config.json names head {number} of {kind} layer {layer} among the pruned "
                    "ones, but its weights are not zero. Remove it there to keep the head."
                )
        prune_heads(model, {layer: numbers}, kind)


def _cut(attention: MultiHeadAttention, gone: set[int]) -> None:
    """Shrink the matrices by the heads of these numbers (from 0, of the unpruned layer)."""
    stay = [
        position for position, number in enumerate(attention.remaining_heads) if number not in gone
    ]
    _reshape(attention, len(stay), lambda parts: parts[:, stay])
    attention.remaining_heads = tuple(attention.remaining_heads[position] for position in stay)


def _grow(attention: MultiHeadAttention) -> None:
    """The inverse of `_cut`, with zeros."""
    full, remaining = attention.total_heads, list(attention.remaining_heads)

    def placed(parts: Tensor) -> Tensor:
        grown = parts.new_zeros(parts.size(0), full, *parts.shape[2:])
        grown[:, remaining] = parts
        return grown

    _reshape(attention, full, placed)
    attention.remaining_heads = tuple(range(full))


def _reshape(attention: MultiHeadAttention, heads: int, change: Callable[[Tensor], Tensor]) -> None:
    """Change every matrix as (parts, H, ...) and put it back flat, for so many heads."""
    width = attention.head_dim
    for name in attention.projections:
        joined: PackedLinear = getattr(attention, name)
        sizes = (joined.parts, attention.heads, width)
        for kind, parameter in list(joined.named_parameters()):
            split = parameter.detach().unflatten(0, sizes)
            _replace(joined, kind, change(split).flatten(0, 2))
        joined.out_features = joined.parts * heads * width
    output = attention.output
    # (D, H * K) -> (D, H, K), the first dimension instead of the parts
    columns = output.weight.detach().unflatten(1, (attention.heads, width))
    _replace(output, "weight", change(columns).flatten(1))
    output.in_features, attention.heads = heads * width, heads


def _replace(module: nn.Module, name: str, values: Tensor) -> None:
    old = getattr(module, name)
    setattr(module, name, nn.Parameter(values.contiguous().clone(), old.requires_grad))


# ------------------------------------------------------------------------------ parts


def _module(model: ModelOrTask) -> nn.Module:
    return model if isinstance(model, nn.Module) else model.module


def _name(model: ModelOrTask) -> str:
    return type(_module(model)).__name__


def _by_kind(model: ModelOrTask) -> dict[str, dict[int, MultiHeadAttention]]:
    by_kind: dict[str, dict[int, MultiHeadAttention]] = {}
    counted: Counter[str] = Counter()
    for module in _module(model).modules():
        if isinstance(module, MultiHeadAttention):
            kind = module.capture.kind
            counted[kind] += 1
            by_kind.setdefault(kind, {})[counted[kind]] = module
    return by_kind


def _owners(module: nn.Module) -> list[Prunable]:
    """The modules whose own configuration can remember heads; some only pass one on."""
    return [part for part in module.modules() if isinstance(part, Prunable)]


def _most(layers: Mapping[int, MultiHeadAttention]) -> int:
    return max(attention.total_heads for attention in layers.values())


def _checked(heads: Heads, layers: Mapping[int, MultiHeadAttention]) -> dict[int, list[int]]:
    """The same heads, all of which there are."""
    named = {layer: list(numbers) for layer, numbers in heads.items()}
    for layer, numbers in named.items():
        if layer not in layers:
            raise ConfigError(f"`heads`: layers are 1 to {len(layers)}, but {layer!r} is named.")
        attention = layers[layer]
        for number in numbers:
            if type(number) is not int or not 1 <= number <= attention.total_heads:
                raise ConfigError(
                    f"`heads`: layer {layer} has heads 1 to {attention.total_heads}, "
                    f"but {number!r} is named."
                )
            if number - 1 not in attention.remaining_heads:
                raise ConfigError(f"`heads`: head {number} of layer {layer} was pruned already.")
    return named


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block, then every part as it was."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode
