"""Optimizers: torch's fused ones, with weight decay on matrices alone.

Fused is the fastest on the CPU as well: for 3M parameters in 80 tensors on one thread, Adam takes
1.6 ms fused, 4.7 ms plain and 9.9 ms with foreach; SGD is equal in all three.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.training.options import OptimizerOptions


def optimizer(model: nn.Module, options: OptimizerOptions) -> torch.optim.Optimizer:
    """The optimizer that the options name, over all parameters that are to be trained."""
    o = options
    groups = [
        {"params": list(decayed(model).values()), "weight_decay": o.weight_decay},
        {"params": list(undecayed(model).values()), "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if not groups:
        raise ConfigError("the model has no parameter to train: all have requires_grad=False.")
    match o.name:
        case "adam":
            return torch.optim.Adam(groups, o.learning_rate, o.betas, o.eps, fused=True)
        case "adamw":
            return torch.optim.AdamW(groups, o.learning_rate, o.betas, o.eps, fused=True)
        case "sgd":
            return torch.optim.SGD(groups, o.learning_rate, o.momentum, fused=True)
    raise ConfigError(f"`optimizer.name` must be adam, adamw or sgd, but is {o.name!r}")


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that learn, by name; a tied one comes once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def decayed(model: nn.Module) -> dict[str, nn.Parameter]:
    """Those that weight decay touches: matrices that are not an embedding."""
    looked_up = {
        id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()
    }
    return {n: p for n, p in trained(model).items() if p.ndim >= 2 and id(p) not in looked_up}


def undecayed(model: nn.Module) -> dict[str, nn.Parameter]:
    """The others: biases, norms (one dimension) and embeddings."""
    touched = decayed(model)
    return {name: p for name, p in trained(model).items() if name not in touched}


def clip(parameters: Iterable[Tensor], limit: float) -> Tensor:
    """Scale the gradients down to a joint norm of `limit` (0: leave them); gives the norm before.

    Waits for the device once, which the loop needs anyway to refuse a gradient that is not finite;
    a gradient within the limit is then not touched at all.
    """
    parameters = list(parameters)
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    if limit and norm > limit:
        torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)
    return norm


def named_state(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """The optimizer's memory as `parameter/key` -> tensor, for a checkpoint."""
    return {
        f"{name}/{key}": value
        for name, parameter in trained(model).items()
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def restore_state(
    optimizer: torch.optim.Optimizer, model: nn.Module, tensors: dict[str, Tensor]
) -> None:
    """Put back what `named_state` gave; torch moves each tensor to where the optimizer wants it."""
    names = {id(parameter): name for name, parameter in trained(model).items()}
    order = [names[id(p)] for group in optimizer.param_groups for p in group["params"]]
    states: dict[str, dict[str, Tensor]] = {}
    for full, tensor in tensors.items():
        name, _, key = full.rpartition("/")
        states.setdefault(name, {})[key] = tensor
    layout = optimizer.state_dict()
    layout["state"] = {i: states[name] for i, name in enumerate(order) if name in states}
    optimizer.load_state_dict(layout)
