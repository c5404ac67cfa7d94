"""Training by several processes: a model in shards, one loss, one process that writes.

    torchrun --nproc-per-node 4 -m regard train RECIPE

Each process ("rank" in torch) holds a part of every parameter and of the optimizer's state, and
gathers a layer's parameters while it computes that layer (FSDP2: Zhao et al. 2023, "PyTorch FSDP").
All make the same batches and each reads its rows of them, so that the number of processes changes
neither a batch nor their order. Losses and gradients are sums over all processes, divided by the
counts of the whole batch. The first process (rank 0) decides, validates and writes.

`OneProcess` and `WholeModel` are the same where there is one process: nothing is exchanged. Random
numbers (dropout) differ from process to process, and so with the number of processes.
"""

from __future__ import annotations

import os
import pickle
import warnings
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn

from regard import ops
from regard.checkpoints import shards, store
from regard.checkpoints.filling import load_weights
from regard.data.batches import HasRows
from regard.errors import CheckpointError, ConfigError, RegardError
from regard.file_writing import not_written
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.protocols import Model
from regard.ops import WeightCopies, weight_copies
from regard.state import State
from regard.training.heartbeat import ADVICE, Heartbeat, store_of_torchrun
from regard.training.interrupt import Interrupted
from regard.training.optimizers import trained
from regard.training.task import Losses, Task

Value = TypeVar("Value")
Found = list[dict[str, Tensor]]  # the losses of each batch of an update
WAIT = timedelta(days=7)  # for the first process, which validates; `Heartbeat` notices a death
STREAMS = 0x9E3779B97F4A7C15  # seeds of further processes differ by this, modulo 2^63


class OtherProcessFailed(RegardError):
    """The first process has failed; its own message says why."""


# ------------------------------------------------------------------------------- processes


class Processes(ABC):
    """The processes of a training, seen by one of them.

    rank: the number of this one, from 0.  size: how many there are.
    """

    rank: int
    size: int

    @property
    def first(self) -> bool:
        """Whether this process decides, validates and writes."""
        return self.rank == 0

    @abstractmethod
    def agree(self, function: Callable[[], Value]) -> Value:
        """What the first process computes, in all of them; the others do not call the function.

        Raises:
            OtherProcessFailed: in the others, where it raises an error.
        """

    @abstractmethod
    def greatest(self, number: int) -> int:
        """The greatest of the numbers that the processes have."""

    @abstractmethod
    def write_folder(
        self,
        folder: Path,
        tensors: Mapping[str, Mapping[str, Tensor]],
        facts: Mapping[str, Any],
        same: Mapping[str, Path],
    ) -> None:
        """`store.write_folder` of what all processes hold, in a file each; facts of the first.

        Raises:
            CheckpointError: in all of them, where one cannot write.
        """

    @abstractmethod
    def shard(self, task: Task) -> ShardedModel:
        """The model of a task, divided among the processes."""

    def seed(self, number: int) -> None:
        """Seed torch's generators; each process draws numbers of its own."""
        torch.manual_seed((number + self.rank * STREAMS) % 2**63 if self.rank else number)

    def rows(self, count: int) -> range:
        """The rows of a batch of `count` that this process reads."""
        return range(self.rank * count // self.size, (self.rank + 1) * count // self.size)


class OneProcess(Processes):
    """A training in one process."""

    rank, size = 0, 1

    def agree(self, function: Callable[[], Value]) -> Value:
        return function()

    def greatest(self, number: int) -> int:
        return number

    def write_folder(
        self,
        folder: Path,
        tensors: Mapping[str, Mapping[str, Tensor]],
        facts: Mapping[str, Any],
        same: Mapping[str, Path],
    ) -> None:
        store.write_folder(folder, tensors, facts, same)

    def shard(self, task: Task) -> ShardedModel:
        return WholeModel(task)


class SeveralProcesses(Processes):
    """The processes that torchrun has started; `connected` connects them."""

    def __init__(self) -> None:
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        self._answering = False
        self.raised: BaseException | None = None  # the error of the first process, in the others

    def agree(self, function: Callable[[], Value]) -> Value:
        if self._answering:  # the others wait for the answer of an outer function
            return function()
        answer: list[Any] = [None, None]  # the value, or the error
        if self.first:
            self._answering = True
            try:
                answer[0] = function()
            except BaseException as error:
                sent = [None, _sendable(error)]
                distributed.broadcast_object_list(sent, src=0)
                raise
            finally:
                self._answering = False
        distributed.broadcast_object_list(answer, src=0)
        value, self.raised = answer
        if self.raised is not None:
            raise self.raised
        return value

    def greatest(self, number: int) -> int:
        found = torch.tensor(number)
        distributed.all_reduce(found, distributed.ReduceOp.MAX)
        return int(found)

    def write_folder(
        self,
        folder: Path,
        tensors: Mapping[str, Mapping[str, Tensor]],
        facts: Mapping[str, Any],
        same: Mapping[str, Path],
    ) -> None:
        self.agree(lambda: _begun(folder))
        names = {table: shards.shard_name(table, self.rank, self.size) for table in tensors}
        mine = {names[table]: one for table, one in tensors.items()}
        earlier = {names[table]: at for table, at in same.items()}
        sums: dict[str, str] = {}
        problem = ""
        try:
            sums = store.write_files(folder, mine, earlier)
        except OSError as error:
            problem = f"process {self.rank}: {error}"
        told: list[Any] = [None] * self.size
        distributed.all_gather_object(told, (problem, sums, shards.rows_of(tensors)))
        self.agree(lambda: _completed(folder, facts, told))

    def shard(self, task: Task) -> ShardedModel:
        return FSDPModel(task, self)


def _sendable(error: BaseException) -> BaseException:
    """An error that another process can make again."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RegardError(str(error))
    return error


def _begun(folder: Path) -> None:
    try:
        store.begin_folder(folder)
    except OSError as error:
        raise not_written(folder, error) from error


def _completed(
    folder: Path,
    facts: Mapping[str, Any],
    told: Sequence[tuple[str, Mapping[str, str], shards.Rows]],
) -> None:
    """Complete a folder whose files all processes have written.

    told: of each process its problem, the checksums of its files, and the rows that it holds.
    """
    try:
        if problems := [problem for problem, _, _ in told if problem]:
            raise OSError("; ".join(problems))
        index = shards.index_of([rows for _, _, rows in told])
        sums = {name: one for _, files, _ in told for name, one in files.items()}
        store.complete_folder(folder, {store.FACTS: facts, shards.INDEX: index}, sums)
    except OSError as error:
        store.abandon_folder(folder)
        raise not_written(folder, error) from error


_here: list[Processes] = [OneProcess()]


def processes() -> Processes:
    """The processes of the training that this process takes part in."""
    return _here[-1]


def started_by_torchrun() -> bool:
    """Whether this is one of several processes."""
    return distributed.is_torchelastic_launched() and int(os.environ["WORLD_SIZE"]) > 1


def is_first() -> bool:
    """Whether this is the only process, or the first of those that torchrun has started."""
    return not started_by_torchrun() or os.environ["RANK"] == "0"


@contextmanager
def connected(device: str | None = None) -> Iterator[str | None]:
    """Inside, this process is one of those that torchrun has started; yields its device.

    Where there is one process alone, `device` is as it was given.

    Raises:
        ConfigError: there are more processes than GPUs on this machine, or a device has a number.
    """
    if not started_by_torchrun() or len(_here) > 1:
        yield device
        return
    device = _device(device)
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    distributed.init_process_group(backend, timeout=WAIT)
    here = SeveralProcesses()
    heartbeat = Heartbeat(store_of_torchrun(), here.rank, here.size)
    heartbeat.start()
    _here.append(here)
    failed = True
    try:
        with warnings.catch_warnings():
            # No model changes the output of a part in place: a test compares all gradients.
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
            if not here.first:
                warnings.simplefilter("ignore")
            yield device
        failed = False
    except Interrupted as stop:  # in all of them, after they have saved; one says so
        failed = False
        if not here.first:
            raise SystemExit(stop.code) from None
        raise
    except Exception as error:
        if error is here.raised:
            raise OtherProcessFailed(f"process {here.rank} ends, because process 0 does.") from None
        if _is_lost_connection(error):
            raise OtherProcessFailed(
                f"Process {here.rank} of {here.size} has lost the connection to another one, which "
                f"has ended.{ADVICE}"
            ) from error
        raise
    finally:
        _here.pop()
        heartbeat.leave(failed=failed)
        distributed.destroy_process_group()


def _is_lost_connection(error: Exception) -> bool:
    """Whether torch says that another process is gone."""
    said = str(error).lower()
    own = isinstance(error, RuntimeError) and ("gloo" in said or "nccl" in said)
    return own or isinstance(error, distributed.DistError)


def _device(given: str | None) -> str:
    """ "cuda", a GPU for each process of this machine, or "cpu"."""
    local, many = (int(os.environ[f"LOCAL_{name}"]) for name in ("RANK", "WORLD_SIZE"))
    device = given or ("cuda" if torch.cuda.is_available() else "cpu")
    if device not in ("cpu", "cuda"):
        raise ConfigError(
            f"Several processes take one GPU each: the device must be cpu or cuda, but is {device}."
        )
    if device == "cuda":
        if many > torch.cuda.device_count():
            raise ConfigError(
                f"{many} processes need {many} GPUs, but this machine has "
                f"{torch.cuda.device_count()}. Set --nproc-per-node to that, or train on the CPU: "
                "--device cpu."
            )
        torch.cuda.set_device(local)
    return device


# --------------------------------------------------------------------------- a model in shards


class ShardedModel(ABC):
    """The model of a task as the processes of a training hold it.

    trained: the parameters to train as this process holds them, by name; a tied one comes once.
    """

    trained: dict[str, Tensor]

    @abstractmethod
    def losses(self, batch: Any, carry: Any) -> tuple[Losses, Any]:
        """`Task.losses` of the rows of this process."""

    @abstractmethod
    def reduced(self, losses: Found, gradients: Callable[[], list[Tensor]]) -> tuple[Found, Tensor]:
        """The losses and the norm of the gradient over all processes.

        gradients: those of `trained`; they are there when it is called.
        """

    @abstractmethod
    def on_first(self, function: Callable[[], Value]) -> Value:
        """`Processes.agree` while the first process has the whole model."""

    @abstractmethod
    def merge(self) -> None:
        """Give the first process the whole model for good: nothing can be trained afterwards."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """`model.state_dict()`: the parts of this process, and the rest in the first."""

    @abstractmethod
    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Fill the model with weights, which are whole.

        Raises:
            CheckpointError: they do not fit.
        """

    @abstractmethod
    def parts(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What this process holds of tensors in the shapes of the parameters of these names; a
        name may end in `/` and something more."""


class WholeModel(ShardedModel):
    """That of one process."""

    def __init__(self, task: Task):
        self.task, self.model = task, task.model
        self.trained = {**trained(task.model)}

    def losses(self, batch: Any, carry: Any) -> tuple[Losses, Any]:
        return self.task.losses(batch, carry)

    def reduced(self, losses: Found, gradients: Callable[[], list[Tensor]]) -> tuple[Found, Tensor]:
        return losses, ops.gradient_norm(gradients())

    def on_first(self, function: Callable[[], Value]) -> Value:
        return function()

    def merge(self) -> None:
        pass

    def state(self) -> dict[str, Tensor]:
        return dict(self.model.state_dict())

    def load(self, weights: Mapping[str, Tensor]) -> None:
        load_weights(self.model, weights)

    def parts(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(tensors)


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

    def _shard(self) -> list[Additions]:
        """Shard layers and the rest; what FSDP has added to each module."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, fully_shard

        additions = [Additions(module) for module in self.model.modules()]
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

    def reduced(self, losses: Found, gradients: Callable[[], list[Tensor]]) -> tuple[Found, Tensor]:
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

    def on_first(self, function: Callable[[], Value]) -> Value:
        if self._whole:
            return self.here.agree(function)
        with self._gathered():
            return self.here.agree(function)

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
                added.put_back()

    def merge(self) -> None:
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
            added.take_off()
        return before

    def state(self) -> dict[str, Tensor]:
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
            for name, part in self.parts(found).items():
                self.held[name].copy_(part)
            for name, buffer in self.model.named_buffers():
                if name in weights:
                    buffer.copy_(weights[name])

    def parts(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
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


class Additions:
    """What FSDP adds to a module: its class, attributes and hooks. It is made before, `find` comes
    after that.
    """

    def __init__(self, module: nn.Module):
        self.module, self.plain = module, type(module)
        self._known = {*vars(module)}, [{*hooks} for hooks in self._hooks()]

    def _hooks(self) -> list[OrderedDict[int, Any]]:
        """Those of the kinds that FSDP adds."""
        module: Any = self.module
        return [
            module._forward_pre_hooks,
            module._forward_pre_hooks_with_kwargs,
            module._forward_hooks,
            module._load_state_dict_post_hooks,
        ]

    def find(self) -> None:
        """Find out what was added."""
        attributes, keys = self._known
        self.sharded = type(self.module)
        self.attributes = {
            n: value for n, value in vars(self.module).items() if n not in attributes
        }
        self.hooks = [
            (hooks, key, hook)
            for hooks, known in zip(self._hooks(), keys, strict=True)
            for key, hook in hooks.items()
            if key not in known
        ]

    def take_off(self) -> None:
        """Make it a plain module."""
        self.module.__class__ = self.plain
        for name in self.attributes:
            delattr(self.module, name)
        for hooks, key, _ in self.hooks:
            del hooks[key]

    def put_back(self) -> None:
        """Undo `take_off`."""
        self.module.__class__ = self.sharded
        for name, value in self.attributes.items():
            setattr(self.module, name, value)
        for hooks, key, hook in self.hooks:
            hooks[key] = hook
            hooks.move_to_end(key, last=False)


def _local(tensor: Any) -> Tensor:
    """The part of a distributed tensor that this process holds."""
    part: Tensor = tensor.detach().to_local()
    return part


def _whole(tensor: Any) -> Tensor:
    """All of a distributed tensor."""
    values: Tensor = tensor.detach().full_tensor()
    return values
