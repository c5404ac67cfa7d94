"""A model whose parameters are divided among the processes (FSDP2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, distributed, nn

from regard import ops
from regard.data.batches import HasRows
from regard.errors import CheckpointError, ConfigError
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.protocols import Model
from regard.ops import WeightCopies, weight_copies
from regard.state import State
from regard.training.distributed.fsdp_additions import FSDPAdditions
from regard.training.distributed.processes import Processes
from regard.training.distributed.sharded_model import (
    LossesOfBatches,
    ShardedModel,
    Value,
    WholeModel,
)
from regard.training.optimizers import trained
from regard.training.task import Losses, Task


def shard(task: Task, processes: Processes) -> ShardedModel:
    """The model of a task, divided among the processes where there are several."""
    return FSDPModel(task, processes) if processes.size > 1 else WholeModel(task)


class Root(nn.Module):
    """A task as a module: FSDP gathers what its layers do not hold around the whole computation."""

    def __init__(self, task: Task):
        super().__init__()
        self.model, self.task = task.model, task

    def forward(self, batch: Any, carry: Any) -> tuple[Losses, Any]:
        return self.task.losses(batch, carry)


class FSDPModel(ShardedModel):
    """A model whose parameters are cut by their first dimension (FSDP2).

    Parameters without a dimension are held by all processes.
    """

    def __init__(self, task: Task, here: Processes):
        self.task, self.model, self.here = task, task.model, here
        self.device = next(self.model.parameters()).device
        with torch.no_grad():
            for tensor in (*self.model.parameters(), *self.model.buffers()):
                distributed.broadcast(tensor, src=0)
        self.common = {p for p in self.model.parameters() if not p.dim()}
        self.additions = self._shard()
        self.sharded = dict(self.model.named_parameters(remove_duplicate=False))
        held = {p: self._held(p) for p in self.sharded.values()}
        self.held = {name: held[p] for name, p in self.sharded.items()}
        self.trained = {name: self.held[name] for name in trained(self.model)}
        self._whole = False

    def _shard(self) -> list[FSDPAdditions]:
        """Shard layers and the rest; what FSDP has added to each module."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, fully_shard

        additions = [FSDPAdditions(module) for module in self.model.modules()]
        options: dict[str, Any] = {
            "mesh": init_device_mesh(self.device.type, (self.here.size,)),
            "ignored_params": self.common,
        }
        for layer in layers_of(self.model):
            fully_shard(layer, **options)
        root = Root(self.task)
        self.root: Any = fully_shard(root, **options)
        for module in root.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)  # gradients are sums
                module.set_force_sum_reduction_for_comms(True)
        for one in additions:
            one.find()
        return additions

    def _held(self, parameter: nn.Parameter) -> nn.Parameter:
        """What this process holds of a parameter, as one of its own in the same memory."""
        if parameter in self.common:
            return parameter
        return nn.Parameter(_local(parameter), parameter.requires_grad)

    def losses(self, batch: Any, carry: Any) -> tuple[Losses, Any]:
        """See `ShardedModel`; a process without rows computes with the first, which counts 0."""
        if not isinstance(batch, HasRows):
            raise ConfigError(
                f"A batch of the type {type(batch).__name__} cannot be divided among processes: it "
                "needs `len` and `select(rows)`, as `regard.data.batches.Sequences` has them."
            )
        rows = self.here.rows(len(batch))
        mine = batch.select(torch.arange(rows.start, rows.stop) if rows else torch.zeros(1).long())
        # Copies of weights would be of those before, which have the same versions.
        with weight_copies(WeightCopies()):
            losses, carry = self.root(mine, carry)
        if not torch.is_grad_enabled():
            self._reshard()
        if isinstance(carry, State) and carry.rows != len(rows):
            raise ConfigError(
                "Several processes need a row of each batch each, and what is carried from batch "
                f"to batch must be of its rows: this process has {len(rows)} rows of {len(batch)}, "
                f"and {carry.rows} are carried. Choose a larger `batch_size` or fewer processes."
            )
        if not rows:
            losses = {name: (0.0 * value, count) for name, (value, count) in losses.items()}
        return losses, carry

    def _reshard(self) -> None:
        """Give back what was gathered; after a backward pass FSDP does so itself."""
        from torch.distributed.fsdp import FSDPModule

        for module in self.root.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def reduced(
        self, losses: LossesOfBatches, gradients: Callable[[], list[Tensor]]
    ) -> tuple[LossesOfBatches, Tensor]:
        self._take_gradients()
        common = {id(p.grad) for p in self.common}
        own = [g for g in gradients() if self.here.first or id(g) not in common]
        square = ops.gradient_norm(own).to(self.device) ** 2 if own else torch.zeros(())
        found = [square, *(value for one in losses for value in one.values())]
        joint = torch.stack([one.to(self.device, torch.float64) for one in found])
        distributed.all_reduce(joint)
        sums, norm = iter(joint[1:]), joint[0].sqrt().to(square.dtype)
        return [{name: next(sums) for name in one} for one in losses], norm

    def _take_gradients(self) -> None:
        """Put the gradients where the optimizer looks for them."""
        for name, held in self.trained.items():
            parameter = self.sharded[name]
            if parameter.grad is None:
                continue
            if held is parameter:
                distributed.all_reduce(parameter.grad)
                continue
            local: Any = _local(parameter)
            if held.data_ptr() != local.data_ptr():  # FSDP pads a part on its first use
                held.data = local
            held.grad, parameter.grad = _local(parameter.grad), None

    def with_whole_model(self, function: Callable[[], Value]) -> Value:
        if self._whole:
            return self.here.from_first(function)
        with self._gathered():
            return self.here.from_first(function)

    @contextmanager
    def _gathered(self) -> Iterator[None]:
        """Inside, the first process has a plain model with all weights."""
        plain = self._install_whole()
        self._whole = True
        try:
            yield
        finally:
            self._whole = False
            for module, name, parameter in plain:
                setattr(module, name, parameter)
            for added in self.additions:
                added.restore()

    def gather_on_first(self) -> None:
        self._install_whole()
        self._whole = True

    def _install_whole(self) -> list[tuple[nn.Module, str, nn.Parameter]]:
        """Gather all weights, and take FSDP out of the model of the first process.

        Returns what was there: modules, names and parameters.
        """
        whole: dict[nn.Parameter, nn.Parameter] = {}
        for parameter in dict.fromkeys(self.sharded.values()):
            if parameter not in self.common:
                values = _whole(parameter)
                if self.here.first:
                    whole[parameter] = nn.Parameter(values, parameter.requires_grad)
        before = [
            (module, name, parameter)
            for module in self.model.modules()
            for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False)
            if parameter in whole
        ]
        for module, name, parameter in before:
            setattr(module, name, whole[parameter])
        for added in self.additions:
            added.remove()
        return before

    def local_state(self) -> dict[str, Tensor]:
        names = dict(self.model.named_parameters())
        parts = {name: self.held[name] for name in names if names[name] not in self.common}
        if not self.here.first:
            return {name: part.detach() for name, part in parts.items()}
        return {
            name: self.held[name].detach() if name in parts else tensor
            for name, tensor in self.model.state_dict().items()
            if name in names or name not in self.sharded
        }

    def load(self, weights: Mapping[str, Tensor]) -> None:
        expected = {name: p.shape for name, p in self.model.named_parameters()}
        wrong = [n for n, size in expected.items() if n not in weights or weights[n].shape != size]
        if wrong:
            raise CheckpointError(f"weights do not fit the model: {', '.join(wrong)}.")
        found = {name: weights[name] for name in expected}
        with torch.no_grad():
            for name, part in self.local_parts(found).items():
                self.held[name].copy_(part)
            for name, buffer in self.model.named_buffers():
                if name in weights:
                    buffer.copy_(weights[name])

    def local_parts(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: self._part(name.partition("/")[0], one) for name, one in tensors.items()}

    def _part(self, name: str, tensor: Tensor) -> Tensor:
        if not tensor.dim() or self.sharded[name] in self.common:
            return tensor
        length = -(-tensor.size(0) // self.here.size)  # as `torch.chunk` cuts
        start = min(self.here.rank * length, tensor.size(0))
        return tensor[start : start + length]


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The layers that are sharded each on their own: those that share no parameter."""
    parts = model.sharded_parts if isinstance(model, Model | EncoderWithHeads) else []
    blocks = list(dict.fromkeys(parts))
    owners: dict[nn.Parameter, int] = {}
    for block in blocks:
        for parameter in block.parameters():
            owners[parameter] = owners.get(parameter, 0) + 1
    inside = {module for block in blocks for module in block.modules()}
    outside = {p for m in model.modules() if m not in inside for p in m.parameters(recurse=False)}
    return [
        block
        for block in blocks
        if all(owners[p] == 1 and p not in outside for p in block.parameters())
    ]


def _local(tensor: Any) -> Tensor:
    """The part of a distributed tensor that this process holds."""
    part: Tensor = tensor.detach().to_local()
    return part


def _whole(tensor: Any) -> Tensor:
    """All of a distributed tensor."""
    values: Tensor = tensor.detach().full_tensor()
    return values
