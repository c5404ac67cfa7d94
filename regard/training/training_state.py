"""The state of a training as tensors and plain values, restored exactly.

A checkpoint holds the weights, the optimizer's state, the carried state of a recurrent model, all
random generators and the sums of losses that are not logged yet; the position in the data, the
counters, the best score and the length of metrics.jsonl. A resumed run ends like one that never
stopped.
"""

import platform
from typing import Any

import torch
from torch import Tensor

from regard import __version__
from regard.training.checkpointing import AVERAGED, FROZEN, Checkpoint, Checkpointer, Facts, Tables
from regard.training.compiling import casting, resolve
from regard.training.counters_and_rng import isolated_rng, restore_rng, rng_facts, rng_tensors
from regard.training.distributed.processes import Processes
from regard.training.loop import Loop
from regard.training.metrics_log import MetricsLog
from regard.training.optimizers import named_state, restore_state
from regard.training.options import description
from regard.training.report import Report


def start_run(loop: Loop, seed: int) -> None:
    """Start a training from its first step, with a checkpoint before it."""
    loop.processes.seed(seed)
    resolved = resolve(loop.options.precision, loop.model)
    # The processes may run on different machines: the first one's counts.
    loop.precision = loop.processes.from_first(lambda: resolved)
    loop.progress.say(description(loop.options, loop.precision))
    loop.report, loop.checkpointer = _report(loop, 0), checkpointer(loop)
    loop.checkpointer.save()


def checkpointer(loop: Loop) -> Checkpointer:
    """What writes the checkpoints of a training."""
    return Checkpointer(
        loop.folder,
        loop.options.checkpoints,
        loop.counters,
        lambda: gather(loop),
        loop.progress.warn,
        loop.callback,
        loop.processes,
    )


def gather(loop: Loop) -> tuple[Tables, Facts]:
    """All that `restore` needs: tensors by file and name, and facts for JSON."""
    groups = {
        "optimizer": named_state(loop.optimizer, loop.sharded.trained),
        "carry": loop.carry.tensors() if loop.carry is not None else {},
        "random": rng_tensors(),
        "meters": loop.report.meters.sums,
    }
    memory = {f"{group}/{name}": t for group, ts in groups.items() for name, t in ts.items()}
    facts = Facts(
        identity=loop.identity,
        counters=loop.counters,
        position=loop.batches.position(),
        precision=loop.precision,
        scores=loop.scores,
        learning_rate=loop.learning_rate,
        norm=loop.norm,
        counts=loop.report.meters.counts,
        metrics_bytes=loop.report.length(),
        random=rng_facts(),
        machine=_machine(loop.processes),
    )
    tables = {**_weights(loop), "memory": memory}
    averaged = loop.average.tensors()
    return tables | ({AVERAGED: averaged} if averaged else {}), facts


def _weights(loop: Loop) -> Tables:
    """The state of the model: what is trained, and what is frozen, where something is."""
    state = loop.sharded.local_state()
    parameters = loop.model.named_parameters(remove_duplicate=False)
    names = {name for name, parameter in parameters if not parameter.requires_grad}
    frozen = {name: tensor for name, tensor in state.items() if name in names}
    trained = {name: tensor for name, tensor in state.items() if name not in names}
    return {"weights": trained, FROZEN: frozen} if frozen else {"weights": trained}


def restore(loop: Loop, checkpoint: Checkpoint) -> None:
    """Restore the training that `gather` stored: it continues after the checkpoint's step."""
    facts, memory = checkpoint.facts, _grouped(checkpoint.tensors["memory"])
    loop.sharded.load(checkpoint.weights)
    restore_average(loop, checkpoint)
    state = loop.sharded.local_parts(memory.get("optimizer", {}))
    restore_state(loop.optimizer, loop.sharded.trained, state)
    loop.batches.restore(facts.position)
    loop.precision, loop.scores = facts.precision, facts.scores
    loop.learning_rate, loop.norm = facts.learning_rate, facts.norm
    if "carry" in memory:
        loop.carry = _carry(loop, memory["carry"])
    loop.report, loop.checkpointer = _report(loop, facts.metrics_bytes), checkpointer(loop)
    sums = memory.get("meters", {})
    loop.report.meters.sums = {name: value.to(loop.device) for name, value in sums.items()}
    loop.report.meters.counts = facts.counts
    loop.checkpointer.resumed(checkpoint.path)
    if "random" in memory:
        restore_rng(memory["random"], facts.random)
    else:  # another number of processes has saved it
        loop.processes.seed(facts.identity["seed"] + loop.counters.step)
    loop.progress.say(f"going on from {checkpoint.path} (step {loop.counters.step:,})")
    before = {"processes": 1, **facts.machine}
    for name, now in _machine(loop.processes).items():
        if before.get(name) != now:
            loop.progress.warn(
                f"{name} was {before.get(name)!r} and is {now!r}: the result will be as good, but "
                "not equal in every bit."
            )


def restore_average(loop: Loop, checkpoint: Checkpoint) -> None:
    """Put back the counters and the mean of the weights that they count."""
    loop.counters = loop.average.counters = checkpoint.facts.counters
    loop.average.restore(loop.sharded.local_parts(checkpoint.tensors.get(AVERAGED, {})))


def _carry(loop: Loop, tensors: dict[str, Tensor]) -> Any:
    """The carried state with the saved values; a state of its kind comes from a first batch."""
    position = loop.batches.position()
    with isolated_rng(), torch.no_grad(), casting(loop.precision, loop.device):
        _, carry = loop.sharded.losses(next(loop.batches), None)
    loop.batches.restore(position)
    own_rows: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        rows = loop.processes.rows(tensor.size(0))
        own_rows[name] = tensor[rows.start : rows.stop].to(loop.device)
    return carry.with_tensors(own_rows)


def _report(loop: Loop, length: int) -> Report:
    """The report of a training whose metrics.jsonl has so many bytes."""
    log = None
    if loop.processes.first:
        tensorboard, step = loop.options.tensorboard, loop.counters.step
        log = MetricsLog(loop.folder.path, length, tensorboard=tensorboard, step=step)
    return Report(log, loop.progress, loop.items, loop.counters, loop.callback)


def _grouped(memory: dict[str, Tensor]) -> Tables:
    """The tensors of `memory.safetensors` by group and name, from `group/name` -> tensor."""
    groups: Tables = {}
    for full, tensor in memory.items():
        group, _, name = full.partition("/")
        groups.setdefault(group, {})[name] = tensor
    return groups


def _machine(processes: Processes) -> dict[str, Any]:
    """What the last bit of a result depends on beside the recipe."""
    return {
        "regard": __version__,
        "torch": torch.__version__,
        "processor": platform.machine(),
        "threads": torch.get_num_threads(),
        "processes": processes.size,
    }
