"""What a training will cost, before anything long starts: parameters, FLOPs, memory, time.

Conventions:

    FLOPs        of matrix products, 2 a multiply-add, counted in one forward pass of the real code
                 over tensors without numbers (the meta device); a backward pass is twice as much
    memory       weights, gradients and the optimizer's tables, and what the forward pass keeps for
                 the backward pass; the program itself comes on top
    time         a few rows of the batch timed on this machine and scaled up to the whole batch, as
                 if nothing else ran on it: the time that the main thread had a processor

What is kept for the backward pass is measured on the same rows, since kernels differ in it: those
of an LSTM keep twice of what its formulas need. Without measuring it is that of the formulas.

Where the data is there and not large, it is read, the tokenizer learned, and real batches counted.
Else the vocabulary is the recipe's and every sentence has `ASSUMED_WORDS` tokens.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from regard.data.files import split_member
from regard.models import model_class
from regard.runs import build_model, read_recipe
from regard.tasks import task_class
from regard.training.optimizers import optimizer
from regard.training.options import TrainingOptions
from regard.training.precision import casting

ASSUMED_WORDS = 30  # tokens of a sentence, both ends included, as in WMT's news
LARGEST = 64 << 20  # bytes of data that are read for an estimate
BATCHES = 4  # real batches that are counted
ENOUGH, PATIENCE = 0.5, 15.0  # seconds of one timed pass of its own, and of all by the wall clock
BUSY = 0.7  # of its time on a processor; where the main thread had less, it is told


@dataclass(frozen=True)
class Figure:
    """A printed number to compare with, and where it stands."""

    quantity: str
    value: float
    source: str


@dataclass(frozen=True)
class Estimate:
    """What a training of a recipe will cost; what cannot be known is None.

    parameters: by part of the model.  memory: bytes by use.  tokens: predicted in one update.
    flops: of one update, for the batch that `batch` describes.  seconds: of one update.
    measured: how seconds and activations were found.
    """

    model: str
    vocabulary: str
    batch: str
    parameters: dict[str, int]
    memory: dict[str, int]
    tokens: float
    flops: float
    updates: int | None
    seconds: float | None
    measured: str
    published: tuple[Figure, ...] = ()

    def totals(self) -> dict[str, Any]:
        """The sums over parts and updates."""
        updates, seconds = self.updates, self.seconds
        return {
            "parameters": sum(self.parameters.values()),
            "memory": sum(self.memory.values()),
            "flops_per_token": self.flops / self.tokens,
            "flops": None if updates is None else self.flops * updates,
            "tokens": None if updates is None else self.tokens * updates,
            "seconds": None if updates is None or seconds is None else seconds * updates,
        }

    def facts(self) -> dict[str, Any]:
        """All of it as plain values, for a program."""
        return {**asdict(self), "totals": self.totals()}

    def text(self) -> str:
        """All of it for a person, one quantity a line."""
        totals = self.totals()
        lines = [
            ("model", self.model),
            ("vocabulary", self.vocabulary),
            ("batch", self.batch),
            ("parameters", f"{totals['parameters']:,}"),
            *((f"  {part}", f"{number:,}") for part, number in self.parameters.items()),
            ("memory", f"{_bytes(totals['memory'])} beside the program"),
            *((f"  {use}", _bytes(number)) for use, number in self.memory.items()),
            ("FLOPs", f"{_number(totals['flops'])}, 3 times the forward pass's products"),
            ("  a token", _number(totals["flops_per_token"])),
            ("  an update", f"{_number(self.flops)} for {self.tokens:,.0f} predicted tokens"),
            ("updates", "depend on the data" if self.updates is None else f"{self.updates:,}"),
            ("time", _duration(totals["seconds"])),
            ("  an update", _duration(self.seconds)),
            ("measured", self.measured),
        ]
        lines += [
            (f"published {one.quantity}", f"{_number(one.value)} ({one.source})")
            for one in self.published
        ]
        wide = max(len(name) for name, _ in lines)
        return "\n".join(f"{name:<{wide}}  {value}" for name, value in lines)


@dataclass(frozen=True)
class Sample:
    """What batches look like: some of them, how many an epoch has, and how that is known."""

    tokenizer: Any  # a Tokenizer, or what a model needs to know of one
    batches: Sequence[Any]
    an_epoch: int | None
    vocabulary: str
    how: str


def estimate(path: str | Path, overrides: Sequence[str] = (), *, measure: bool = True) -> Estimate:
    """What training this recipe will cost.

    measure: also time a small pass on this machine, a few seconds.

    Raises:
        ConfigError, DataError: the recipe, or the data where it is there, cannot be used.
    """
    recipe: Any = read_recipe(path, overrides, keep_unset=True)
    options: TrainingOptions = recipe.training
    sample = read_sample(recipe)
    with torch.device("meta"):
        task = task_class(recipe.task)(build_model(recipe.model, sample.tokenizer), None)
    counted = [count(task, batch) for batch in sample.batches]
    mean = [sum(column) / len(counted) for column in zip(*counted, strict=True)]
    tokens, flops = mean[0] * options.accumulate, mean[1] * options.accumulate
    found = Measured(None, max(kept for _, _, kept in counted), "nothing: all is counted")
    if measure:
        found = measured(recipe, sample, found)
    return Estimate(
        model=recipe.model.name + (f", size {recipe.model.size}" if recipe.model.size else ""),
        vocabulary=sample.vocabulary,
        batch=sample.how,
        parameters=parameters_of(task.model),
        memory=memory_of(task.model, options, found.activations),
        tokens=tokens,
        flops=flops,
        updates=updates_of(options, sample.an_epoch, tokens),
        seconds=found.seconds,
        measured=found.how,
        published=published(recipe.model),
    )


def _number(value: float | None) -> str:
    """2,617,344 and 9.32e+17"""
    if value is None:
        return "unknown: they depend on the data"
    return f"{value:.3g}" if value >= 1e9 else f"{value:,.0f}"


def _bytes(value: float | None) -> str:
    value = value or 0.0
    return f"{value / 1e9:.2f} GB" if value >= 1e9 else f"{value / 1e6:,.1f} MB"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:.3g} seconds"


# -------------------------------------------------------------------------------- batches


def read_sample(recipe: Any) -> Sample:
    """Real batches where the data is there and not large, assumed ones elsewhere."""
    kind = task_class(recipe.task)
    places = [split_member(file)[0] for file in kind.files(recipe)]
    missing = next((str(place) for place in places if not place.exists()), "")
    if "$" in missing:
        return _assumed(recipe, f"there is no variable for {missing[missing.index('$') :]}")
    if missing:
        return _assumed(recipe, f"{missing} is not there")
    size = sum(place.stat().st_size for place in places)
    if size > LARGEST:
        return _assumed(recipe, f"{size / 1e6:,.0f} MB of data are not read for an estimate")
    tokenizer = recipe.tokenizer.build(lambda: kind.texts(recipe))
    with torch.device("meta"):
        model = build_model(recipe.model, tokenizer)
    cursor = kind.from_recipe(recipe, model, tokenizer).train_batches()
    batches = list(islice(cursor, min(BATCHES, cursor.batches_per_epoch)))
    how = f"{shape_of(batches[0])}; mean of {len(batches)} of {cursor.batches_per_epoch:,} an epoch"
    vocabulary = f"{tokenizer.vocab_size:,} pieces, learned from the data"
    return Sample(tokenizer, batches, cursor.batches_per_epoch, vocabulary, how)


def _assumed(recipe: Any, why: str) -> Sample:
    size = recipe.tokenizer.vocab_size
    tokenizer = SimpleNamespace(vocab_size=size, pad_id=0, bos_id=1, eos_id=2)
    batch = task_class(recipe.task).example(recipe, ASSUMED_WORDS)
    how = f"{shape_of(batch)}; sentences of {ASSUMED_WORDS} tokens are assumed: {why}"
    return Sample(tokenizer, [batch], None, f"{size:,} pieces, as the recipe says", how)


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors in a batch, in the order of its fields."""
    if isinstance(value, Tensor):
        return [value]
    parts = [getattr(value, f.name) for f in fields(value)] if is_dataclass(value) else []
    return [tensor for part in parts for tensor in tensors_of(part)]


def first_rows(value: Any, rows: int) -> Any:
    """A batch with its first rows alone."""
    if isinstance(value, Tensor):
        return value[:rows]
    if not is_dataclass(value):
        return value
    cut = {f.name: first_rows(getattr(value, f.name), rows) for f in fields(value)}
    return replace(value, **cut)  # type: ignore[type-var]


def shape_of(batch: Any) -> str:
    """(833, 30) and (833, 30) tokens"""
    grids = [str(tuple(tensor.shape)) for tensor in tensors_of(batch) if tensor.dim() > 1]
    return " and ".join(dict.fromkeys(grids)) + " tokens"


# ------------------------------------------------------------------------------- counting


def count(task: Any, batch: Any) -> tuple[int, int, int]:
    """Predicted tokens, FLOPs and bytes kept for the backward pass, of one batch.

    `task.model` is on the meta device, where a tensor has a shape and no numbers.
    """
    tokens, head = batch.count, task.model.head

    def loss(hidden: Tensor, targets: Tensor, smoothing: float = 0.0) -> tuple[Tensor, int]:
        # The head's own loss looks at the targets, which have no numbers here. It takes the same
        # product slice by slice, and keeps its gradients instead of what they are made from.
        return head.logits(hidden[:tokens]).sum(), tokens

    task.model.train()
    head.loss = loss
    try:
        with FlopCounterMode(display=False) as counter:
            kept = kept_by(task.model, lambda: task.losses(batch.to("meta"), None))
    finally:
        del head.loss
    return tokens, 3 * counter.get_total_flops(), kept + bytes_of(head)


def kept_by(model: nn.Module, forward: Callable[[], Any]) -> int:
    """Bytes that a forward pass keeps for the backward pass, beside the model's own."""
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        forward()
    for parameter in model.parameters():
        kept.pop(parameter.untyped_storage()._cdata, None)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def parameters_of(model: nn.Module) -> dict[str, int]:
    """Trained numbers by part; what parts share is counted in the first of them."""
    parts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        part = name.split(".")[0]
        parts[part] = parts.get(part, 0) + parameter.numel()
    return parts if "head" in parts else {**parts, "head (tied)": 0}


def bytes_of(module: nn.Module) -> int:
    """Of its parameters."""
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


def memory_of(model: nn.Module, options: TrainingOptions, activations: int) -> dict[str, int]:
    """Bytes that a training holds at its peak."""
    weights, chosen = bytes_of(model), options.optimizer
    tables = 2 if chosen.name in ("adam", "adamw") else int(chosen.momentum > 0)
    return {
        "weights": weights,
        "gradients": weights,
        f"{chosen.name}'s tables": tables * weights,
        "activations": activations,
    }


def updates_of(options: TrainingOptions, an_epoch: int | None, tokens: float) -> int | None:
    """Updates until the first limit is reached; None where that depends on data that is not there.

    Early stopping is not foreseen.
    """
    limits = []
    if options.updates is not None:
        limits.append(options.updates)
    if options.tokens is not None:
        limits.append(math.ceil(options.tokens / tokens))
    if options.epochs is not None and an_epoch is not None:
        limits.append(options.epochs * math.ceil(an_epoch / options.accumulate))
    return min(limits, default=None)


def published(section: Any) -> tuple[Figure, ...]:
    """What was printed for this size, unless the recipe has changed the size."""
    model = model_class(section.name)
    size = model.SIZES.get(section.size)
    if size is None or any(getattr(section, name) != value for name, value in size.items()):
        return ()
    # Its own table: what a model inherits was printed for another one.
    printed = vars(model).get("PUBLISHED", {}).get(section.size, {})
    return tuple(Figure(quantity, *figure) for quantity, figure in printed.items())


# ------------------------------------------------------------------------------ measuring


@dataclass(frozen=True)
class Measured:
    """Of one update: seconds, bytes kept for the backward pass, and how they were found."""

    seconds: float | None
    activations: int
    how: str


def measured(recipe: Any, sample: Sample, counted: Measured) -> Measured:
    """A few rows of a batch on this machine; what was counted where the machine is too small."""
    options: TrainingOptions = recipe.training
    batch = sample.batches[0]
    with torch.device("meta"):
        needed = 5 * bytes_of(build_model(recipe.model, sample.tokenizer))
    if needed > free_memory():
        return replace(counted, how=f"nothing: {needed / 1e9:.1f} GB of memory would be needed")
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(recipe.seed)
    task = task_class(recipe.task)(build_model(recipe.model, sample.tokenizer), None)
    task.model.train()
    clock = Clock()
    seconds, rows = whole_batch(
        lambda n: clock.time(lambda: _losses(task, first_rows(batch, n), options).backward()),
        len(batch),
    )
    step = optimizer(task.model, options.optimizer).step
    step()  # makes the tables
    whole = options.accumulate * seconds + clock.time(step).own
    threads = torch.get_num_threads()
    how = (
        f"{rows:,} of the {len(batch):,} rows of a batch, on this machine with "
        f"{threads} thread{'s' * (threads > 1)}, without validation"
    )
    if rows == 1 < len(batch):
        how += " (what the weights cost is counted with every row: an upper bound)"
    if clock.share < BUSY:
        how += f"; other programs took {1 - clock.share:.0%} of its time, which is not in the time"
    return Measured(whole, activations_of(task, batch, options, max(rows, 2)), how)


@dataclass(frozen=True)
class Seconds:
    """own: those that the main thread had a processor.  wall: those that went by."""

    own: float
    wall: float


class Clock:
    """Times work, and knows which share of the time was its own."""

    def __init__(self) -> None:
        self.own = self.wall = 0.0

    def time(self, work: Callable[[], Any]) -> Seconds:
        """Do it, and tell how long it took."""
        own, wall = time.thread_time(), time.perf_counter()
        work()
        taken = Seconds(time.thread_time() - own, time.perf_counter() - wall)
        self.own, self.wall = self.own + taken.own, self.wall + taken.wall
        return taken

    @property
    def share(self) -> float:
        """1 where nothing else ran."""
        return self.own / self.wall


def whole_batch(timed: Callable[[int], Seconds], most: int) -> tuple[float, int]:
    """Seconds of a pass over all rows, and how many were timed.

    A pass costs so much for the weights and so much a row: one row and several rows tell both.
    """
    rows, began = 1, timed(1)  # which also loads code and claims memory
    taken = timed(1)
    one, spent = taken.own, began.wall + taken.wall
    while rows < most and taken.own < ENOUGH and spent < PATIENCE:
        rows = min(most, 4 * rows)
        taken = timed(rows)
        spent += taken.wall
    if rows == 1:
        return most * one, 1
    slope = max(0.0, taken.own - one) / (rows - 1)
    return taken.own + slope * (most - rows), rows


def activations_of(task: Any, batch: Any, options: TrainingOptions, rows: int) -> int:
    """Bytes kept for the backward pass of a batch, from those of its first rows and of half."""

    def kept(rows: int) -> int:
        return kept_by(task.model, lambda: _losses(task, first_rows(batch, rows), options))

    if len(batch) == 1:
        return kept(1)
    half = rows // 2
    first, second = kept(half), kept(rows)
    return second + (second - first) * (len(batch) - rows) // (rows - half)


def _losses(task: Any, batch: Any, options: TrainingOptions) -> Any:
    with casting(options.precision, torch.device("cpu")):
        losses, _ = task.losses(batch, None)
    return sum(value for value, _ in losses.values())


def free_memory() -> int:
    """Bytes that the machine has to give."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
