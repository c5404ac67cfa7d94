"""A training as tensors and facts, and back, bit for bit.

Weights, the optimizer's memory, the carried state of a recurrent model, all random generators, the
sums of losses that are not logged yet; the place in the data, the counters, the best score, the
length of metrics.jsonl. Together they make a resumed run end like one that never stopped.
"""

from __future__ import annotations

import platform
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard import __version__
from regard.checkpoints.filling import load_weights
from regard.training.folder import Tables
from regard.training.loop import Loop
from regard.training.memory import (
    Counters,
    isolated_random,
    random_facts,
    random_tensors,
    restore_random,
)
from regard.training.optimizers import named_state, restore_state
from regard.training.precision import casting, resolve
from regard.training.record import Record
from regard.training.report import Report
from regard.training.saver import Saver
from regard.training.utilization import Utilization


def begin(loop: Loop, seed: int) -> None:
    """Start anew, with a checkpoint before the first update."""
    torch.manual_seed(seed)
    loop.precision = resolve(loop.options.precision, loop.task, loop.batches, loop.device)
    loop.report, loop.saver = _report(loop, 0), _saver(loop)
    loop.saver.save(0, "")


def gather(loop: Loop) -> tuple[Tables, dict[str, Any]]:
    """All that `restore` needs: tensors by file and name, and facts for JSON."""
    groups = {
        "optimizer": named_state(loop.optimizer, loop.model),
        "carry": loop.carry.tensors() if loop.carry is not None else {},
        "random": random_tensors(),
        "meters": loop.report.meters.sums,
    }
    memory = {f"{group}/{name}": t for group, ts in groups.items() for name, t in ts.items()}
    facts = {
        "identity": loop.identity,
        "counters": asdict(loop.counters),
        "position": loop.batches.position(),
        "precision": loop.precision,
        "scores": loop.scores,
        "learning_rate": loop.learning_rate,
        "norm": loop.norm,
        "counts": loop.report.meters.counts,
        "metrics_bytes": loop.report.record.length(),
        "random": random_facts(),
        "machine": _machine(),
    }
    return {"weights": loop.model.state_dict(), "memory": memory}, facts


def restore(loop: Loop, path: Path, tensors: Tables, facts: dict[str, Any]) -> None:
    """Put a training back to where `gather` found it."""
    load_weights(loop.model, tensors["weights"])
    memory = _grouped(tensors["memory"])
    restore_state(loop.optimizer, loop.model, memory.get("optimizer", {}))
    loop.batches.restore(facts["position"])
    at = restore_counters(loop, facts)
    loop.precision, loop.scores = facts["precision"], facts["scores"]
    loop.learning_rate, loop.norm = facts["learning_rate"], facts["norm"]
    if "carry" in memory:
        loop.carry = _carry(loop, memory["carry"])
    loop.report = _report(loop, facts["metrics_bytes"])
    sums = memory.get("meters", {})
    loop.report.meters.sums = {name: value.to(loop.device) for name, value in sums.items()}
    loop.report.meters.counts = facts["counts"]
    loop.saver.resumed(at.update)
    restore_random(memory["random"], facts["random"])
    loop.progress.say(f"going on from {path} (update {at.update:,})")
    for name, now in _machine().items():
        if facts["machine"].get(name) != now:
            loop.progress.warn(
                f"{name} was {facts['machine'].get(name)!r} and is {now!r}: the result will be as "
                "good, but not equal in every bit."
            )


def restore_counters(loop: Loop, facts: dict[str, Any]) -> Counters:
    """Put back how far a training is, and which checkpoint is the best."""
    loop.saver = _saver(loop)
    known = {field.name for field in fields(Counters)}
    loop.counters = Counters(**{k: v for k, v in facts["counters"].items() if k in known})
    return loop.counters


def _carry(loop: Loop, tensors: dict[str, Tensor]) -> Any:
    """The saved values, in a state of the kind that a first batch carries on."""
    place = loop.batches.position()
    with isolated_random(), torch.no_grad(), casting(loop.precision, loop.device):
        _, carry = loop.task.losses(next(loop.batches), None)
    loop.batches.restore(place)
    return carry.with_tensors({name: t.to(loop.device) for name, t in tensors.items()})


def _saver(loop: Loop) -> Saver:
    options, warn = loop.options.checkpoints, loop.progress.warn
    return Saver(loop.place, options, lambda: gather(loop), warn)


def _report(loop: Loop, length: int) -> Report:
    record = Record(
        loop.place.path,
        length,
        tensorboard=loop.options.tensorboard,
        update=loop.counters.update,
    )
    work = Utilization(loop.task, loop.device, loop.precision)
    return Report(record, loop.progress, loop.items, loop.counters, work)


def _grouped(memory: dict[str, Tensor]) -> Tables:
    groups: Tables = {}
    for full, tensor in memory.items():
        group, _, name = full.partition("/")
        groups.setdefault(group, {})[name] = tensor
    return groups


def _machine() -> dict[str, Any]:
    """What the last bit of a result depends on beside the recipe."""
    return {
        "regard": __version__,
        "torch": torch.__version__,
        "processor": platform.machine(),
        "threads": torch.get_num_threads(),
    }
