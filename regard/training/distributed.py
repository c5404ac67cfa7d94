"""Training by several processes: a model in shards (FSDP2), one loss, one process that writes.

    torchrun --nproc-per-node 4 -m regard train RECIPE

Each process ("rank" in torch) holds a part of every parameter and of the optimizer's state, and
gathers a layer's parameters while it computes that layer (FSDP2: Zhao et al. 2023, "PyTorch FSDP").
All make the same batches and each reads its rows of them, so that the number of processes changes
neither a batch nor their order. Losses and gradients are sums over all processes, divided by the
counts of the whole batch. The first process (rank 0) decides, validates and writes.

Where there is one process, `Processes` and `WholeModel` exchange nothing. Random numbers (dropout)
differ from process to process, and so with the number of processes.
"""

import os
import pickle
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from regard import ops
from regard.checkpoints import store
from regard.checkpoints.filling import load_weights
from regard.data.batches import Losses
from regard.errors import CheckpointError, ConfigError, RegardError
from regard.file_writing import not_written
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.protocols import Model
from regard.ops import WeightCopies, weight_copies
from regard.state import State
from regard.training.callbacks import Trainable
from regard.training.interrupt import Interrupted
from regard.training.optimizers import trained

Value = TypeVar("Value")
SEED_STEP = 0x9E3779B97F4A7C15  # between the seeds of two processes, modulo 2^63


class Processes:
    """The processes of a training: here the only one; `SeveralProcesses` are several.

    rank: of this process, from 0.  size: the number of processes.
    """

    rank, size = 0, 1

    @property
    def first(self) -> bool:
        """Whether this process decides, validates and writes."""
        return self.rank == 0

    def from_first(self, function: Callable[[], Value]) -> Value:
        """Call a function in the first process; its value is returned in all of them.

        An error that it raises in the first process is raised in all of them.
        """
        return function()

    def maximum(self, number: int) -> int:
        """The greatest of the numbers that the processes have."""
        return number

    def write_folder(
        self,
        folder: Path,
        tensors: Mapping[str, Mapping[str, Tensor]],
        facts: Mapping[str, Any],
        same: Mapping[str, Path],
    ) -> None:
        """As `store.write_folder`: every process writes a file with its tensors; the first one
        writes the facts.

        same: of tables that have not changed, an earlier folder to share the file with.

        Raises:
            CheckpointError: in all of them, where one cannot write.
        """
        store.write_folder(folder, tensors, facts, same)

    def seed(self, number: int) -> None:
        """Seed torch's generators; each process draws numbers of its own."""
        torch.manual_seed((number + self.rank * SEED_STEP) % 2**63 if self.rank else number)

    def rows(self, count: int) -> range:
        """The rows of a batch of `count` that this process reads."""
        return range(self.rank * count // self.size, (self.rank + 1) * count // self.size)


class SeveralProcesses(Processes):
    """The processes that torchrun has started; `connected` connects them."""

    def __init__(self) -> None:
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        self._answering = False
        self.raised: BaseException | None = None  # the error of the first process, in the others

    def from_first(self, function: Callable[[], Value]) -> Value:
        if self._answering:  # the others wait for the answer of an outer function
            return function()
        answer: list[Any] = [None, None]  # the value, or the error
        if self.first:
            self._answering = True
            try:
                answer[0] = function()
            except BaseException as error:
                sent = [None, _picklable(error)]
                distributed.broadcast_object_list(sent, src=0)
                raise
            finally:
                self._answering = False
        distributed.broadcast_object_list(answer, src=0)
        value, self.raised = answer
        if self.raised is not None:
            raise self.raised
        return value

    def maximum(self, number: int) -> int:
        greatest = torch.tensor(number)
        distributed.all_reduce(greatest, distributed.ReduceOp.MAX)
        return int(greatest)

    def write_folder(
        self,
        folder: Path,
        tensors: Mapping[str, Mapping[str, Tensor]],
        facts: Mapping[str, Any],
        same: Mapping[str, Path],
    ) -> None:
        self.from_first(lambda: _begin_folder(folder))
        names = {table: store.shard_name(table, self.rank, self.size) for table in tensors}
        files = {names[table]: values for table, values in tensors.items()}
        unchanged = {names[table]: checkpoint for table, checkpoint in same.items()}
        checksums: dict[str, str] = {}
        problem = ""
        try:
            checksums = store.write_files(folder, files, unchanged)
        except OSError as error:
            problem = f"process {self.rank}: {error}"
        reports: list[Any] = [None] * self.size
        distributed.all_gather_object(reports, (problem, checksums, store.rows_of(tensors)))
        self.from_first(lambda: _complete_folder(folder, facts, reports))


def _picklable(error: BaseException) -> BaseException:
    """The error, or a `RegardError` with its message where it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RegardError(str(error))
    return error


def _begin_folder(folder: Path) -> None:
    try:
        store.begin_folder(folder)
    except OSError as error:
        raise not_written(folder, error) from error


def _complete_folder(
    folder: Path,
    facts: Mapping[str, Any],
    reports: Sequence[tuple[str, Mapping[str, str], store.Rows]],
) -> None:
    """Complete a folder whose files all processes have written.

    reports: of each process an error message or "", the checksums of its files, and its rows.
    """
    try:
        if problems := [problem for problem, _, _ in reports if problem]:
            raise OSError("; ".join(problems))
        index = store.index_of([rows for _, _, rows in reports])
        checksums = {name: checksum for _, files, _ in reports for name, checksum in files.items()}
        store.complete_folder(folder, {store.FACTS: facts, store.INDEX: index}, checksums)
    except OSError as error:
        store.abandon_folder(folder)
        raise not_written(folder, error) from error


_active = [Processes()]


def processes() -> Processes:
    """The processes of the training that this process takes part in."""
    return _active[-1]


@contextmanager
def active(group: Processes) -> Iterator[None]:
    """Inside, `processes` gives these."""
    _active.append(group)
    try:
        yield
    finally:
        _active.pop()


# The timeout of collective operations: the other processes wait in one while process 0 validates.
# That a process has died is what torchrun notices, which ends the others.
WAIT = timedelta(days=7)
_numbers = count()  # of the connections of this process


def started_by_torchrun() -> bool:
    """Whether this is one of several processes."""
    return distributed.is_torchelastic_launched() and int(os.environ["WORLD_SIZE"]) > 1


def is_first() -> bool:
    """Whether this is the only process, or the first of those that torchrun has started."""
    return not started_by_torchrun() or os.environ["RANK"] == "0"


@contextmanager
def connected(device: str | None = None) -> Iterator[str | None]:
    """Connect this process to the others that torchrun has started; yields its device.

    If there is only one process, nothing is connected, and `device` is yielded as it is. An error
    or an interruption of all is reported by the first process; the others end with its exit code.

    Raises:
        ConfigError: there are more processes than GPUs on this machine, or a device has a number.
    """
    if not started_by_torchrun() or processes().size > 1:
        yield device
        return
    device = _device(device)
    _connect("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo", next(_numbers))
    group = SeveralProcesses()
    try:
        with active(group), _warnings_of(group):
            yield device
    except Interrupted as stop:  # in all of them, after they have saved
        if not group.first:
            raise SystemExit(stop.code) from None
        raise
    except Exception as error:
        if error is group.raised:
            raise SystemExit(1) from None
        raise
    finally:
        distributed.destroy_process_group()


def _connect(backend: str, number: int) -> None:
    """Make the group of all processes. Each connection of a program has its own keys in the store
    of torchrun: by those of an earlier one processes would wait for each other at old addresses.
    """
    store, rank, size = next(rendezvous("env://", timeout=WAIT))
    store.set_timeout(WAIT)
    keys = PrefixStore(f"regard/group/{number}", store)
    distributed.init_process_group(backend, store=keys, rank=rank, world_size=size, timeout=WAIT)


@contextmanager
def _warnings_of(here: SeveralProcesses) -> Iterator[None]:
    """Inside, only the first process shows warnings."""
    with warnings.catch_warnings():
        # No model changes the output of a part in place: a test compares all gradients.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
        if not here.first:
            warnings.simplefilter("ignore")
        yield


def _device(given: str | None) -> str:
    """The device of this process, "cuda" (a GPU for each process of this machine) or "cpu".

    Raises:
        ConfigError: there are fewer GPUs than processes, or `given` is neither.
    """
    local_rank, count = (int(os.environ[f"LOCAL_{name}"]) for name in ("RANK", "WORLD_SIZE"))
    device = given or ("cuda" if torch.cuda.is_available() else "cpu")
    if device not in ("cpu", "cuda"):
        raise ConfigError(f"--device of several processes must be cpu or cuda, but is {device}.")
    if device == "cuda":
        if count > torch.cuda.device_count():
            gpus = torch.cuda.device_count()
            raise ConfigError(f"{count} processes need {count} GPUs, not {gpus}. Or: --device cpu.")
        torch.cuda.set_device(local_rank)
    return device


# ---- a model in shards

LossesOfBatches = list[dict[str, Tensor]]  # of a step: one entry for each batch


class WholeModel:
    """The model of a task, in one process; `FSDPModel` divides it among several.

    trained: the shards of the trained parameters in this process, by name; tied ones once.
    """

    def __init__(self, task: Trainable):
        self.task, self.model = task, task.module
        self.trained: dict[str, Tensor] = {**trained(task.module)}

    def losses(self, batch: Any, carry: Any) -> tuple[Losses, Any]:
        """`Trainable.losses` of this process's rows of the batch."""
        return self.task.losses(batch, carry)

    def reduced(
        self, losses: LossesOfBatches, gradients: Callable[[], list[Tensor]]
    ) -> tuple[LossesOfBatches, Tensor]:
        """The losses and the norm of the gradient over all processes.

        gradients: returns the gradients of `trained`, after the backward pass.
        """
        return losses, ops.gradient_norm(gradients())

    def with_whole_model(self, function: Callable[[], Value]) -> Value:
        """`Processes.from_first` while the first process has the whole model."""
        return function()

    def gather_on_first(self) -> None:
        """Gather the whole model in the first process; training cannot continue afterwards."""

    def local_state(self) -> dict[str, Tensor]:
        """`model.state_dict()`: the shards of this process; in the first also unsharded tensors."""
        return dict(self.model.state_dict())

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Fill the model with unsharded weights.

        Raises:
            CheckpointError: they do not fit.
        """
        load_weights(self.model, weights)

    def local_parts(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The shards in this process of tensors that have the shapes of parameters.

        tensors: by the name of the parameter, to which `/` and more may be added.
        """
        return dict(tensors)


class FSDPAdditions:
    """What FSDP adds to a module: its class, attributes and hooks.

    It is created before the module is sharded; `find` is called after that.
    """

    def __init__(self, module: nn.Module):
        self.module, self.plain = module, type(module)
        self._known = {*vars(module)}, [{*hooks} for hooks in self._hooks()]

    def _hooks(self) -> list[OrderedDict[int, Any]]:
        """The hooks of the module, of the kinds that FSDP adds."""
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
            for hooks, earlier_keys in zip(self._hooks(), keys, strict=True)
            for key, hook in hooks.items()
            if key not in earlier_keys
        ]

    def remove(self) -> None:
        """Make it a plain module."""
        self.module.__class__ = self.plain
        for name in self.attributes:
            delattr(self.module, name)
        for hooks, key, _ in self.hooks:
            del hooks[key]

    def restore(self) -> None:
        """Undo `remove`."""
        self.module.__class__ = self.sharded
        for name, value in self.attributes.items():
            setattr(self.module, name, value)
        for hooks, key, hook in self.hooks:
            hooks[key] = hook
            hooks.move_to_end(key, last=False)


def shard(task: Trainable, processes: Processes) -> WholeModel:
    """The model of a task, divided among the processes where there are several."""
    return FSDPModel(task, processes) if processes.size > 1 else WholeModel(task)


class Root(nn.Module):
    """A task as a module, which FSDP shards: it has the parameters that are in no sharded layer,
    and these are gathered during the whole computation.
    """

    def __init__(self, task: Trainable):
        super().__init__()
        self.model, self.task = task.module, task

    def forward(self, batch: Any, carry: Any) -> tuple[Losses, Any]:
        return self.task.losses(batch, carry)


class FSDPModel(WholeModel):
    """A model whose parameters are cut along their first dimension (FSDP2).

    replicated: the parameters without a dimension, which every process has.
    sharded: all parameters by name, tied ones under each name, as FSDP has them.
    shards: this process's shard of each, as a parameter in the same memory.
    """

    def __init__(self, task: Trainable, here: Processes):
        self.task, self.model, self.here = task, task.module, here
        self.device = next(self.model.parameters()).device
        with torch.no_grad():
            for tensor in (*self.model.parameters(), *self.model.buffers()):
                distributed.broadcast(tensor, src=0)
        self.replicated = {p for p in self.model.parameters() if not p.dim()}
        self.additions = self._shard()
        self.sharded = dict(self.model.named_parameters(remove_duplicate=False))
        shards = {p: self._shard_of(p) for p in self.sharded.values()}
        self.shards = {name: shards[p] for name, p in self.sharded.items()}
        self.trained = {name: self.shards[name] for name in trained(self.model)}
        self._whole = False

    def _shard(self) -> list[FSDPAdditions]:
        """Shard each layer, and what is in none; what FSDP has added to each module."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, fully_shard

        additions = [FSDPAdditions(module) for module in self.model.modules()]
        options: dict[str, Any] = {
            "mesh": init_device_mesh(self.device.type, (self.here.size,)),
            "ignored_params": self.replicated,
        }
        for layer in layers_of(self.model):
            fully_shard(layer, **options)
        root = Root(self.task)
        self.root: Any = fully_shard(root, **options)
        for module in root.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)  # gradients are sums
                module.set_force_sum_reduction_for_comms(True)
        for addition in additions:
            addition.find()
        return additions

    def _shard_of(self, parameter: nn.Parameter) -> nn.Parameter:
        """This process's shard of a parameter, as a parameter in the same memory."""
        if parameter in self.replicated:
            return parameter
        return nn.Parameter(_local(parameter), parameter.requires_grad)

    def losses(self, batch: Any, carry: Any) -> tuple[Losses, Any]:
        """See `WholeModel`. A process without rows computes the first one, too, since all must
        take part in the collective operations, and multiplies its losses with 0.
        """
        rows = self.here.rows(len(batch))
        indices = torch.arange(rows.start, rows.stop) if rows else torch.zeros(1).long()
        # Without the low-precision copies of an earlier pass: FSDP gathers other values into
        # parameters of the same version.
        with weight_copies(WeightCopies()):
            losses, carry = self.root(batch.select(indices), carry)
        if not torch.is_grad_enabled():
            self._reshard()
        if isinstance(carry, State) and carry.rows != len(rows):
            counts = f"{len(rows)} of {len(batch)} rows, and {carry.rows} are carried"
            raise ConfigError(f"A process has {counts}. Choose a larger `batch_size`.")
        if not rows:
            losses = {name: (0.0 * value, count) for name, (value, count) in losses.items()}
        return losses, carry

    def _reshard(self) -> None:
        """Free the gathered parameters; after a backward pass FSDP does so itself."""
        from torch.distributed.fsdp import FSDPModule

        for module in self.root.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def reduced(
        self, losses: LossesOfBatches, gradients: Callable[[], list[Tensor]]
    ) -> tuple[LossesOfBatches, Tensor]:
        self._take_gradients()
        # The first process alone adds the gradients that all have to the squared norm.
        replicated = {id(p.grad) for p in self.replicated}
        own_gradients = [g for g in gradients() if self.here.first or id(g) not in replicated]
        square = (
            ops.gradient_norm(own_gradients).to(self.device) ** 2
            if own_gradients
            else torch.zeros(())
        )
        values = [square, *(value for of_batch in losses for value in of_batch.values())]
        totals = torch.stack([value.to(self.device, torch.float64) for value in values])
        distributed.all_reduce(totals)
        sums, norm = iter(totals[1:]), totals[0].sqrt().to(square.dtype)
        return [{name: next(sums) for name in of_batch} for of_batch in losses], norm

    def _take_gradients(self) -> None:
        """Move the gradients to the shards, where the optimizer reads them."""
        for name, shard in self.trained.items():
            parameter = self.sharded[name]
            if parameter.grad is None:
                continue
            if shard is parameter:
                distributed.all_reduce(parameter.grad)
                continue
            local: Any = _local(parameter)
            if shard.data_ptr() != local.data_ptr():  # FSDP pads a shard on its first use
                shard.data = local
            shard.grad, parameter.grad = _local(parameter.grad), None

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
            if parameter not in self.replicated:
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
        parts = {name: self.shards[name] for name in names if names[name] not in self.replicated}
        if not self.here.first:
            return {name: part.detach() for name, part in parts.items()}
        return {
            name: self.shards[name].detach() if name in parts else tensor
            for name, tensor in self.model.state_dict().items()
            if name in names or name not in self.sharded
        }

    def load(self, weights: Mapping[str, Tensor]) -> None:
        expected = {name: p.shape for name, p in self.model.named_parameters()}
        wrong = [n for n, size in expected.items() if n not in weights or weights[n].shape != size]
        if wrong:
            raise CheckpointError(f"weights do not fit the model: {', '.join(wrong)}.")
        parameters = {name: weights[name] for name in expected}
        with torch.no_grad():
            for name, part in self.local_parts(parameters).items():
                self.shards[name].copy_(part)
            for name, buffer in self.model.named_buffers():
                if name in weights:
                    buffer.copy_(weights[name])

    def local_parts(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {
            name: self._part(name.partition("/")[0], tensor) for name, tensor in tensors.items()
        }

    def _part(self, name: str, tensor: Tensor) -> Tensor:
        """This process's shard of a tensor that belongs to the parameter of this name."""
        if not tensor.dim() or self.sharded[name] in self.replicated:
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
    """The shard of a distributed tensor in this process."""
    part: Tensor = tensor.detach().to_local()
    return part


def _whole(tensor: Any) -> Tensor:
    """All of a distributed tensor."""
    values: Tensor = tensor.detach().full_tensor()
    return values
