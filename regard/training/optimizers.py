"""Optimizers: torch's, with weight decay on matrices alone, in few passes over memory; schedules.

torch's fused updates are the fastest, on the CPU as well: for 3M parameters in 80 tensors on one
thread Adam takes 1.6 ms, the plain one 4.7 and the one with foreach 9.9 ms; SGD is equal in all
three.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.errors import ConfigError, check_choice
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.protocols import Generator, Model
from regard.training.options import (
    OptimizerOptions,
    ScheduleOptions,
    defaults_of,
    known,
    optimizer_with_defaults,
)

Parameters = dict[str, nn.Parameter]


def layer_groups(model: nn.Module) -> list[Parameters]:
    """The trained parameters by name: what comes before the layers, each layer, then the heads.

    The output over tokens of a language model is a head, with an embedding that is tied to it.

    Raises:
        ConfigError: the model does not say what its layers are.
    """
    body = model.encoder if isinstance(model, EncoderWithHeads) else model
    if not isinstance(body, Model) or not body.layer_groups:
        options = "`layerwise_lr_decay` and `gradual_unfreezing_interval`"
        raise ConfigError(f"{type(body).__name__} has no layers for {options}: leave them out.")
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


SCALE = "rate_scale"  # in a group of parameters: its rate divided by that of the highest layer
TINY = 1e-6  # keeps the clipped norm below the limit


def optimizer(
    model: nn.Module, options: OptimizerOptions, shards: Mapping[str, Tensor] | None = None
) -> torch.optim.Optimizer:
    """The optimizer that the options name, over all parameters that are to be trained.

    shards: by the name of each of these parameters the tensor that the optimizer changes: this
        process's shard of it; None: the parameter itself.

    Raises:
        ConfigError: no parameter is trained, or the model has no layers where rates differ.
    """
    o = optimizer_with_defaults(options, defaults_of(model))
    rate = known(o.learning_rate)
    tensors = trained(model) if shards is None else shards
    layers = layer_groups(model) if o.layerwise_lr_decay != 1 else [trained(model)]
    matrices = decayed(model)
    others = {name: p for name, p in trained(model).items() if name not in matrices}
    kinds = (matrices, known(o.weight_decay)), (others, 0.0)
    scales = [o.layerwise_lr_decay ** (len(layers) - 1 - n) for n in range(len(layers))]
    groups = [
        {"params": [tensors[n] for n in kind if n in layer], "weight_decay": decay, SCALE: scale}
        for layer, scale in zip(layers, scales, strict=True)
        for kind, decay in kinds
    ]
    groups = [group for group in groups if group["params"]]
    if not groups:
        raise ConfigError("the model has no parameter to train: all have requires_grad=False.")
    chosen: torch.optim.Optimizer
    match o.name:
        case "adam":
            chosen = torch.optim.Adam(groups, rate, o.betas, o.eps, fused=True)
        case "adamw":
            chosen = torch.optim.AdamW(groups, rate, o.betas, o.eps, fused=True)
        case "sgd":
            chosen = torch.optim.SGD(groups, rate, o.momentum, fused=True)
        case _:
            raise ConfigError(f"`optimizer.name` must be adam, adamw or sgd, but is {o.name!r}")
    chosen.register_step_post_hook(_after_step)
    return chosen


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the rate of the highest layer, and those of the others in their ratio to it."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group[SCALE]


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters to train, by name; a tied one comes once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def decayed(model: nn.Module) -> dict[str, nn.Parameter]:
    """Those with weight decay: matrices that are not an embedding."""
    looked_up = {
        id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()
    }
    return {n: p for n, p in trained(model).items() if p.ndim >= 2 and id(p) not in looked_up}


def _after_step(optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
    """Scale no further gradients, and mark the parameters as changed: fused updates do not."""
    optimizer.grad_scale = None  # type: ignore[attr-defined]
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    torch.autograd.graph.increment_version(parameters)


def clip(optimizer: torch.optim.Optimizer, norm: float, limit: float) -> None:
    """Let the next step scale the gradient, whose norm is `norm`, down to a norm of `limit` if it
    is greater.

    limit: 0: no limit.
    """
    if not limit or not norm > limit:
        return
    scaled = gradients(optimizer)
    if scaled[0].dtype == torch.float64:  # fused updates read `grad_scale` in float32
        torch._foreach_mul_(scaled, limit / (norm + TINY))
    else:  # they divide the gradients by it
        optimizer.grad_scale = torch.tensor((norm + TINY) / limit)  # type: ignore[attr-defined]


def gradients(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The gradients that there are, in the order of the parameters."""
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    return [p.grad for p in parameters if p.grad is not None]


def named_state(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The optimizer's state as `parameter/key` -> tensor, for a checkpoint.

    parameters: those that are trained, each under one name.
    """
    return {
        f"{name}/{key}": value
        for name, parameter in parameters.items()
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def restore_state(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
) -> None:
    """Put back what `named_state` gave; torch moves each tensor to where the optimizer wants it."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    order = [names[id(p)] for group in optimizer.param_groups for p in group["params"]]
    states: dict[str, dict[str, Tensor]] = {}
    for full, tensor in tensors.items():
        name, _, key = full.rpartition("/")
        states.setdefault(name, {})[key] = tensor
    layout = optimizer.state_dict()
    layout["state"] = {i: states[name] for i, name in enumerate(order) if name in states}
    optimizer.load_state_dict(layout)


# ---- how the learning rate changes: pure functions from the step to a multiplier of the peak rate
#
# Steps count from 1. Decays reach their end one step after the last, so that the last step still
# learns.


@dataclass(frozen=True)
class ScheduleStep:
    """What a schedule depends on.

    step: the step to be made, from 1.
    epoch: its epoch, from 0.
    total: the number of all steps: an estimate where the end is given in epochs or tokens,
        infinity as long as none can be made.
    """

    step: int
    epoch: int
    total: float


def warm(step: int, warmup: float) -> float:
    """Linear growth: step / warmup, and 1 afterwards."""
    return min(1.0, step / warmup) if warmup else 1.0


def inverse_square_root(step: int, warmup: float) -> float:
    """1 at the end of the warm-up, then sqrt(warmup / step): equation 3 of Vaswani et al. 2017
    relative to its peak, (d_model * warmup)^-0.5."""
    return min(step / warmup, math.sqrt(warmup / step))


def linear(step: int, total: float, warmup: float, min_lr_ratio: float) -> float:
    """Up to 1 in `warmup` steps, then a straight line down to `min_lr_ratio`."""
    left = _left(step, total, warmup)
    return min(warm(step, warmup), min_lr_ratio + (1 - min_lr_ratio) * left)


def cosine(step: int, total: float, warmup: float, min_lr_ratio: float) -> float:
    """Up to 1 in `warmup` steps, then half a cosine wave down to `min_lr_ratio`."""
    wave = 0.5 * (1 - math.cos(math.pi * _left(step, total, warmup)))
    return min(warm(step, warmup), min_lr_ratio + (1 - min_lr_ratio) * wave)


def step_decay(epoch: int, constant_epochs: int, gamma: float) -> float:
    """1 during the first `constant_epochs`, then multiplied by `gamma` at each epoch (Zaremba et
    al. 2014: 4 and 0.5 for the small model of Penn Treebank)."""
    return gamma ** max(0, epoch + 1 - constant_epochs)


def slanted_triangular(step: int, total: float, warmup: float, div_factor: float) -> float:
    """Up from 1 / div_factor to 1 in the share `warmup` of all steps, then down again (Howard &
    Ruder 2018, equation 3)."""
    if math.isinf(total):
        return 1 / div_factor  # the start
    top = max(1.0, math.floor(total * warmup))
    if step < top:
        share = step / top
    else:
        share = max(0.0, 1 - (step - top) / (top * (1 / warmup - 1)))
    return (1 + share * (div_factor - 1)) / div_factor


def warmup_steps(warmup: float, total: float) -> float:
    """The steps of a warm-up: those given, or the next whole number above a share of `total`."""
    if warmup >= 1 or not warmup:
        return warmup
    if math.isinf(total):
        return total
    return math.ceil(round(total * warmup, 6))  # `total` is a quotient, and seldom exact


def _left(step: int, total: float, warmup: float) -> float:
    """The part of the decay that lies ahead: 1 at the end of the warm-up, 0 after the last."""
    if math.isinf(total):
        return 1.0
    span = max(1.0, total + 1 - warmup)
    return min(1.0, max(0.0, (total + 1 - step) / span))


def schedule(options: ScheduleOptions) -> Callable[[ScheduleStep], float]:
    """The multiplier of the learning rate at a step, by the name in the options."""
    o, share = options, options.warmup_or_default()

    def warmup(at: ScheduleStep) -> float:
        return warmup_steps(share, at.total)

    table: dict[str, Callable[[ScheduleStep], float]] = {
        "constant": lambda at: warm(at.step, warmup(at)),
        "inverse-sqrt": lambda at: inverse_square_root(at.step, warmup(at)),
        "linear": lambda at: linear(at.step, at.total, warmup(at), o.min_lr_ratio),
        "cosine": lambda at: cosine(at.step, at.total, warmup(at), o.min_lr_ratio),
        "step": lambda at: (
            warm(at.step, warmup(at)) * step_decay(at.epoch, o.constant_epochs, o.gamma)
        ),
        "slanted-triangular": lambda at: slanted_triangular(at.step, at.total, share, o.div_factor),
    }
    check_choice("schedule.name", o.name, table)
    return table[o.name]
