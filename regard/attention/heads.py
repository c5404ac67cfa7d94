"""Heads of attention masked, gated and ranked by importance: "Are Sixteen Heads Really Better than
One?" (Michel et al. 2019).

    with heads_masked(model, {3: [1, 6]}): ...     layer 3 without its heads 1 and 6
    scores = head_importance(model, batches, losses)
    with heads_masked(model, weakest(scores, 20)): ...

Layers and heads count from 1, as `regard.look` shows them. Layers are those of one kind of
attention ("encoder", "decoder", "cross"), which must be named where a model has several.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.capture import gated
from regard.attention.multihead import MultiHeadAttention
from regard.errors import ConfigError
from regard.ops import at_least_float32
from regard.suggest import nearest

Heads = Mapping[int, Iterable[int]]  # layer -> heads, both from 1


ModelOrTask = Any  # an `nn.Module`, or a task, whose `module` it is


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
        ConfigError: a layer or a head does not exist.
    """
    layers = attentions(model, kind)
    heads = _checked(heads, layers)
    gates = torch.ones(len(layers), layers[1].heads)
    for layer, numbers in heads.items():
        gates[layer - 1, [number - 1 for number in numbers]] = 0.0
    with heads_gated(model, gates, kind):
        yield


@contextmanager
def heads_gated(model: ModelOrTask, gates: Tensor, kind: str | None = None) -> Iterator[None]:
    """Multiply each head by a number inside the block: `gates` (L, H); gradients reach them.

    Where it acts: see `heads_masked`. The backward pass may stand outside the block, unless
    activations are computed again there (checkpointing).

    Raises:
        ConfigError: the shape is not that of the model's layers and heads.
    """
    layers = attentions(model, kind)
    shape = (len(layers), layers[1].heads)
    if tuple(gates.shape) != shape:
        raise ConfigError(f"`gates` must be {shape} (layers, heads), but is {tuple(gates.shape)}.")

    def gate(row: Tensor, x: Tensor) -> Tensor:
        return row.to(x.device, at_least_float32(x.dtype))

    with gated({part: partial(gate, gates[layer - 1]) for layer, part in layers.items()}):
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
    """How much the loss depends on each head: (L, H).

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
    scores, examples = torch.zeros(len(layers), layers[1].heads, dtype=torch.float64), 0
    with _evaluating(_module(model)):
        for batch in batches:
            count, sensitivity = _sensitivity(layers, losses, batch)
            examples += count
            for layer, attention in layers.items():
                scores[layer - 1] += sensitivity[attention]
    if not examples:
        raise ConfigError("`batches` must hold at least one example, but there is none.")
    scores /= examples
    if normalized:
        scores /= scores.norm(dim=1, keepdim=True).clamp(min=torch.finfo(scores.dtype).tiny)
    return scores


def weakest(importance: Tensor, count: int) -> dict[int, list[int]]:
    """The `count` heads of least importance (L, H), by layer, as `heads_masked` takes them.

    Raises:
        ConfigError: there are not so many heads.
    """
    flat = importance.flatten()
    if not 0 <= count <= len(flat):
        raise ConfigError(f"`count` must be from 0 to {len(flat)}, the heads there are: {count}.")
    heads: dict[int, list[int]] = {}
    for number in flat.argsort(stable=True)[:count].sort().values.tolist():
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


def _checked(heads: Heads, layers: Mapping[int, MultiHeadAttention]) -> dict[int, list[int]]:
    """The same heads, all of which there are."""
    named = {layer: list(numbers) for layer, numbers in heads.items()}
    for layer, numbers in named.items():
        if layer not in layers:
            raise ConfigError(f"`heads`: layers are 1 to {len(layers)}, but {layer!r} is named.")
        count = layers[layer].heads
        for number in numbers:
            if type(number) is not int or not 1 <= number <= count:
                has = f"layer {layer} has heads 1 to {count}"
                raise ConfigError(f"`heads`: {has}, but {number!r} is named.")
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
