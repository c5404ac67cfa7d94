"""What a training will cost, before anything long starts: parameters, FLOPs, memory, time.

Conventions:

    FLOPs        of matrix products, 2 for a multiply-add, counted in one forward pass of the real
                 code on the meta device; a backward pass has twice as many, and none for what is
                 frozen
    memory       weights, gradients, the optimizer's tables and the activations that the forward
                 pass keeps for the backward pass; the program itself is not included
    time         a few rows of the batch timed on this machine and scaled up to the whole batch: the
                 time that the main thread had a processor, as if nothing else ran

Activations are measured on the same rows, since kernels differ: those of an LSTM keep twice as much
as its formulas need. Without measuring they are those of the formulas.

Where the data exists and is not large, it is read, the tokenizer is trained, and real batches are
counted. Else the vocabulary is the recipe's, or that of the folder that the model is started from;
every sentence has `ASSUMED_TOKENS` tokens, and tasks that read long texts have rows of the maximum
length. Tasks whose losses need the targets of the data always read them.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard.checkpoints.filling import on_meta
from regard.checkpoints.hub import resolve
from regard.data.batches import HasRows
from regard.data.files import split_member
from regard.errors import ConfigError
from regard.experiments import training_plan
from regard.experiments.recipe_options import FineTuneSection, read_recipe
from regard.models import described
from regard.models.composed import Features
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.protocols import CountedModel, Generator, Model
from regard.tasks import task_class
from regard.tasks.encoder_training import headed
from regard.tasks.encoding import EncoderTask
from regard.text import Tokenizer
from regard.training import Trainable, compiling
from regard.training.compiling import activation_checkpointing, blocks_of, casting
from regard.training.flops import bytes_of, count, grids_of, positions_in, stored_by, twin
from regard.training.optimizers import optimizer
from regard.training.options import TrainingOptions, steps_of
from regard.training.steps import Steps
from regard.visual.charts import short
from regard.visual.report import duration

PASS_SECONDS = 0.5  # of processor time: a pass that takes as long is measured exactly enough


@dataclass(frozen=True)
class Estimate:
    """What a training of a recipe will cost; None for what is unknown.

    parameters: by part of the model.  memory: bytes by use.  items: what the task counts, such as
    predicted "tokens" or "examples".  count: items of one step.  flops: of one step, for the
    batch that `batch` describes; attention_flops: those of them that are products of queries with
    keys and of weights with values.  batch_tokens: tokens of the batch, padding included.
    seconds: of one step.  measured: how seconds and activations were found.  shards: bytes on that
    of several `devices` that has the most.
    """

    model: str
    vocabulary: str
    batch: str
    parameters: dict[str, int]
    memory: dict[str, int]
    items: str
    count: float
    flops: float
    batch_tokens: int
    steps: int | None
    seconds: float | None
    measured: str
    attention_flops: float = 0.0
    devices: int = 1
    shards: dict[str, int] | None = None

    def totals(self) -> dict[str, Any]:
        """Sums over parts and steps."""
        steps, seconds = self.steps, self.seconds
        return {
            "parameters": sum(self.parameters.values()),
            "memory": sum(self.memory.values()),
            "flops_per_item": self.flops / self.count,
            "attention_flops_per_item": self.attention_flops / self.count,
            "memory_per_device": None if self.shards is None else sum(self.shards.values()),
            "flops": None if steps is None else self.flops * steps,
            "count": None if steps is None else self.count * steps,
            "seconds": None if steps is None or seconds is None else seconds * steps,
        }

    def facts(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**asdict(self), "totals": self.totals()}

    def text(self) -> str:
        """One quantity a line."""
        totals, memory = self.totals(), {use: _bytes(n) for use, n in self.memory.items()}
        counted = "predicted tokens" if self.items == "tokens" else self.items
        flops = f"{_number(totals['flops'])}, 3 times the forward pass's products"
        if any(part.endswith("(frozen)") for part in self.parameters):
            flops += ", fewer of what is frozen"
        shards = [] if self.shards is None else [*self.shards.items()]
        sharded = f"{_bytes(totals['memory_per_device'] or 0)}, sharded over {self.devices:,}"
        lines = [
            ("model", self.model),
            ("vocabulary", self.vocabulary),
            ("batch", self.batch),
            ("parameters", f"{totals['parameters']:,}"),
            *((f"  {part}", f"{number:,}") for part, number in self.parameters.items()),
            ("memory", f"{_bytes(totals['memory'])} beside the program"),
            *((f"  {use}", text) for use, text in memory.items()),
            ("    a token", _bytes(self.memory["activations"] / max(1, self.batch_tokens))),
            *([("on each device", sharded)] if shards else []),
            *((f"  {use}", _bytes(number)) for use, number in shards),
            ("FLOPs", flops),
            (f"  of {counted}, each", _number(totals["flops_per_item"])),
            ("    of attention", f"{self.attention_flops / self.flops:.1%}"),
            ("  a step", f"{_number(self.flops)} for {self.count:,.0f} {counted}"),
            ("steps", "depend on the data" if self.steps is None else f"{self.steps:,}"),
            ("time", _duration(totals["seconds"])),
            ("  a step", _duration(self.seconds)),
            ("measured", self.measured),
        ]
        wide = max(len(name) for name, _ in lines)
        return "\n".join(f"{name:<{wide}}  {value}" for name, value in lines)


def estimate(
    path: str | Path,
    overrides: Sequence[str] = (),
    *,
    measure: bool = True,
    devices: int | None = None,
) -> Estimate:
    """What training this recipe will cost.

    Args:
        path: of the recipe.
        overrides: `dotted.name=value`.
        measure: also time a small pass on this machine, a few seconds.
        devices: that share a training, each with a part of weights, gradients, tables and rows.

    Raises:
        ConfigError, DataError: the recipe, or the data where it exists, cannot be used.
        CheckpointError: the model to start from is not on this machine; nothing is downloaded.
    """
    asked: Any = read_recipe(path, overrides, keep_unset=True)
    recipe = with_local_model(asked)
    sample = read_sample(recipe)
    task = sample.task
    recipe = training_plan.with_training_defaults(recipe, task.module)
    options: TrainingOptions = recipe.training
    counted = [
        count(task, batch, checkpointing=options.activation_checkpointing)
        for batch in sample.batches
    ]
    mean = [sum(column) / len(counted) for column in zip(*counted, strict=True)]
    items, flops, _, attention = (options.gradient_accumulation_steps * value for value in mean)
    cost = Measured(None, max(batch.stored for batch in counted), "nothing: all is counted")
    if measure and not isinstance(task.module, CountedModel):
        cost = measured(recipe, sample, cost)
    return Estimate(
        model=_description(asked.model, task.module),
        vocabulary=sample.vocabulary,
        batch=sample.how,
        parameters=parameters_of(task.module),
        memory=memory_of(task.module, options, cost.activations),
        items=task.items,
        count=items,
        flops=flops,
        batch_tokens=max(map(positions_in, sample.batches)),
        steps=steps_of(options, sample.batches_per_epoch, items),
        seconds=cost.seconds,
        measured=cost.how,
        attention_flops=attention,
        devices=devices or 1,
        shards=None
        if devices is None
        else sharded_memory(
            task.module, options, cost.activations, len(sample.batches[0]), devices
        ),
    )


def _description(section: Any, model: nn.Module) -> str:
    """bert, 6 layers of 384, started from minilm"""
    if isinstance(section, FineTuneSection):
        return f"{described(model)}, started from {section.name}"
    return section.name + (f", size {section.size}" if section.size else "")


def _number(value: float | None) -> str:
    """2,617,344 and 9.32e+17"""
    if value is None:
        return "unknown: they depend on the data"
    return f"{value:.3g}" if value >= 1e9 else f"{value:,.0f}"


def _duration(seconds: float | None) -> str:
    return "unknown" if seconds is None else duration(seconds)


def _bytes(value: float) -> str:
    """12.3MB"""
    return f"{short(value)}B"


# ---- counted


def parameters_of(model: nn.Module) -> dict[str, int]:
    """Parameters by part; those that parts share are counted in the first of them."""
    parts: dict[str, int] = {}
    inside = isinstance(model, EncoderWithHeads) and isinstance(model.encoder, Features)
    for name, parameter in model.named_parameters():
        # In `Features`, the frozen encoder and the LSTM are parts of their own.
        part = name.removeprefix("encoder.").split(".")[0] if inside else name.split(".")[0]
        part += "" if parameter.requires_grad else " (frozen)"
        parts[part] = parts.get(part, 0) + parameter.numel()
    tied = isinstance(model, Generator) and "head" not in parts
    return {**parts, "head (tied)": 0} if tied else parts


def memory_of(model: nn.Module, options: TrainingOptions, activations: int) -> dict[str, int]:
    """Bytes of a training at its peak, by use."""
    trained, chosen = bytes_of(model, trained=True), options.optimizer
    tables = 2 if chosen.name in ("adam", "adamw") else int(chosen.momentum > 0)
    return {
        "weights": bytes_of(model),
        "gradients": trained,
        f"{chosen.name}'s tables": tables * trained,
        "activations": activations,
    }


def sharded_memory(
    model: nn.Module, options: TrainingOptions, activations: int, rows: int, devices: int
) -> dict[str, int]:
    """Bytes on the device that has the most, by use, where `devices` share a training.

    Each reads a part of the `rows` of a batch and keeps a part of the rows of every parameter, of
    its gradient and of the optimizer's tables, as torch's FSDP2 cuts them (ZeRO's third stage:
    Rajbhandari et al. 2020). What it computes with is gathered: the parameters outside the blocks,
    a block and the next one, and a block's gradients before they are added up.

    Raises:
        ConfigError: there are fewer rows than devices.
    """
    if rows < devices:
        raise ConfigError(f"`devices` must be at most {rows:,}, the rows of a batch: {devices:,}.")
    whole = memory_of(model, options, activations * -(-rows // devices) // rows)
    shards = {weight: _shard(weight, devices) for weight in model.parameters()}
    trained = sum(size for weight, size in shards.items() if weight.requires_grad)
    weights, gradients, tables, activated = whole
    factor = whole[tables] // max(1, whole[gradients])
    return {
        weights: sum(shards.values()),
        gradients: trained,
        tables: factor * trained,
        "gathered": _gathered(model),
        activated: whole[activated],
    }


def _shard(parameter: nn.Parameter, devices: int) -> int:
    """Bytes of the largest part of a parameter that is cut between rows."""
    rows = parameter.size(0) if parameter.dim() else 1
    return -(-rows // devices) * (parameter.numel() // max(1, rows)) * parameter.element_size()


def _gathered(model: nn.Module) -> int:
    """The most bytes of parameters and gradients that a device gathers from others at a time."""
    blocks = model.sharded_parts if isinstance(model, Model | EncoderWithHeads) else []
    largest = max(map(bytes_of, blocks), default=0)
    gradients = max((bytes_of(block, trained=True) for block in blocks), default=0)
    return bytes_of(model) - sum(map(bytes_of, blocks)) + 2 * largest + gradients


# ---- measured


@dataclass(frozen=True)
class Measured:
    """What one step costs.

    seconds: None where it was not measured.  activations: bytes.  how: what was measured, in words.
    """

    seconds: float | None
    activations: int
    how: str


def measured(recipe: Any, sample: TaskSample, counted: Measured) -> Measured:
    """The cost of a step from a few rows of a batch, timed on this machine.

    counted: what is returned, with the reason, if this machine has too little memory.
    """
    options: TrainingOptions = recipe.training
    batch = sample.batches[0]
    needed = 5 * bytes_of(sample.task.module)
    if needed > free_memory():
        return replace(counted, how=f"nothing: {needed / 1e9:.1f} GB of memory would be needed")
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(recipe.seed)
    task = copy(sample.task)
    task.module = twin(task.module, "cpu")  # with new weights
    if task.aux_lm is not None:
        task.aux_lm = replace(task.aux_lm, head=task.module.encoder.head)
    task.module.train()
    step = optimizer(task.module, options.optimizer).step
    _losses(task, _first_rows(batch, 1), options).backward()  # loads code and allocates memory
    step()  # allocates the tables
    rows, seconds = 0, 0.0
    while rows < len(batch) and seconds < PASS_SECONDS:
        rows = min(len(batch), max(1, 4 * rows))
        before = time.thread_time()
        _losses(task, _first_rows(batch, rows), options).backward()
        seconds = time.thread_time() - before
    before = time.thread_time()
    step()
    of_step = time.thread_time() - before
    whole = options.gradient_accumulation_steps * seconds * len(batch) / rows + of_step
    threads = torch.get_num_threads()
    how = (
        f"{rows:,} of the {len(batch):,} examples of a batch, on this machine with "
        f"{threads} thread{'s' * (threads > 1)}, without validation"
    )
    if rows == 1 < len(batch):
        how += " (what the weights cost is counted with every row: an upper bound)"
    return Measured(whole, activations_of(task, batch, options, rows), how)


def activations_of(task: Trainable, batch: Any, options: TrainingOptions, rows: int) -> int:
    """Bytes of the activations of a batch, from those of its first `rows`."""
    blocks = blocks_of(task.module) if options.activation_checkpointing else []
    alone, part = replace(options, activation_checkpointing=False), _first_rows(batch, rows)
    return stored_by(task.module, lambda: _losses(task, part, alone), blocks) * len(batch) // rows


def _first_rows(batch: Any, rows: int) -> Any:
    return batch.select(torch.arange(rows)) if isinstance(batch, HasRows) else batch


def _losses(task: Trainable, batch: Any, options: TrainingOptions) -> Any:
    blocks = blocks_of(task.module) if options.activation_checkpointing else []
    with casting(options.precision, torch.device("cpu")), activation_checkpointing(blocks):
        losses, _ = task.losses(batch, None)
    return sum(value for value, _ in losses.values())


def free_memory() -> int:
    """Bytes of available memory."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


ASSUMED_TOKENS = 30  # tokens of a sentence, both ends included, as in WMT's news
MAX_BYTES = 64 << 20  # of data that is read for an estimate
BATCHES = 4  # real batches that are counted


@dataclass(frozen=True)
class TaskSample:
    """A task whose model is on the meta device, and some of its batches.

    batches_per_epoch: None where it is unknown.  vocabulary, how: the vocabulary and the batches,
    described in words.
    """

    task: Trainable
    batches: Sequence[Any]
    batches_per_epoch: int | None
    vocabulary: str
    how: str


def with_local_model(recipe: Any) -> Any:
    """The recipe; a model of the hub is replaced by its folder in the cache.

    Raises:
        ConfigError, CheckpointError: it is not on this machine; nothing is downloaded.
    """
    if not isinstance(recipe.model, FineTuneSection):
        return recipe
    path = recipe.model.path
    if "$" in path:
        raise ConfigError(f"[model] path: there is no variable for {path[path.index('$') :]}.")
    section = recipe.model.model_copy(update={"path": str(resolve(path, download=False))})
    return recipe.model_copy(update={"model": section})


def read_sample(recipe: Any) -> TaskSample:
    """Real batches where the data exists and is not large, else assumed ones.

    Raises:
        DataError: the data are missing, and without them the targets of the task are unknown.
    """
    kind = task_class(recipe.task)
    if why := _why_not_read(recipe):
        without_teacher = "; the passes of the teacher are not counted"
        why += without_teacher if dict(recipe).get("teacher") else ""
        if (assumed := _assumed(recipe, kind, why)) is not None:
            return assumed
    tokenizer = training_plan.build_tokenizer(recipe)
    model = _model(recipe, tokenizer)
    task = _with_adapters(recipe, kind.from_recipe(recipe, model, tokenizer), model)
    sampler = task.train_batches()
    batches_per_epoch = sampler.batches_per_epoch
    batches = list(islice(sampler, min(BATCHES, batches_per_epoch)))
    how = f"{shape_of(batches[0])}; mean of {len(batches)} of {batches_per_epoch:,} an epoch"
    vocabulary = f"{tokenizer.vocab_size:,} tokens, {_origin(recipe)}"
    return TaskSample(task, batches, batches_per_epoch, vocabulary, how)


def _with_adapters(recipe: Any, task: Any, model: nn.Module) -> Any:
    """The task, its model with the adapters that the recipe asks for; `model` is without a head."""
    if isinstance(recipe.model, FineTuneSection):
        training_plan.adapt(task, recipe.model.lora, model)
    return task


def _why_not_read(recipe: Any) -> str:
    """Why the data is not read; "" where it is."""
    files = [split_member(file)[0] for file in recipe.data.files()]
    missing = next((str(file) for file in files if not file.exists()), "")
    if "$" in missing:
        return f"there is no variable for {missing[missing.index('$') :]}"
    if missing:
        return f"{missing} is not there"
    size = sum(split_member(file)[0].stat().st_size for file in recipe.data.files_of_examples())
    return f"{size / 1e6:,.0f} MB of data are not read for an estimate" if size > MAX_BYTES else ""


def _model(recipe: Any, tokenizer: Any) -> Any:
    """The recipe's model on the meta device."""
    if isinstance(recipe.model, FineTuneSection):
        return twin(training_plan.build_model(recipe.model, tokenizer), "meta")
    with on_meta():
        model = training_plan.build_model(recipe.model, tokenizer)
    return model.to("meta")  # tables made by numpy are still on the CPU


def _origin(recipe: Any) -> str:
    if recipe.tokenizer is None:
        return "of the model's folder"
    return "trained on the data" if recipe.tokenizer.path is None else "as its file says"


def _assumed(recipe: Any, kind: Any, why: str) -> TaskSample | None:
    """An assumed batch; None where the losses need the targets of the data."""
    tokenizer, vocabulary = _assumed_tokenizer(recipe)
    model = _model(recipe, tokenizer)
    kind.check_length(recipe, limit := model.config.max_length)
    words = min(ASSUMED_TOKENS, limit or ASSUMED_TOKENS)
    if not issubclass(kind, EncoderTask):
        task, assumed = kind(model, tokenizer), f"sentences of {words} tokens"
    else:
        model = headed(model)
        task, assumed = kind.without_data(recipe, model, tokenizer), "full rows"
        if task is None:
            return None
        longest = min(recipe.data.max_length, limit or recipe.data.max_length)
        data = recipe.data.model_copy(update={"max_length": longest})
        recipe = recipe.model_copy(update={"data": data})
    batch = kind.example(recipe, words)
    how = f"{shape_of(batch)}; {assumed} are assumed: {why}"
    return TaskSample(_with_adapters(recipe, task, model), [batch], None, vocabulary, how)


def _assumed_tokenizer(recipe: Any) -> tuple[Tokenizer, str]:
    """A tokenizer with as many tokens as the recipe's, and a description."""
    section = recipe.tokenizer
    if section is None or (section.path is not None and section.path.exists()):
        tokenizer = training_plan.build_tokenizer(recipe)
        return tokenizer, f"{tokenizer.vocab_size:,} tokens, {_origin(recipe)}"
    words = section.model_copy(update={"kind": "words", "path": None})
    tokenizer = words.build(lambda: (f"w{number}" for number in range(section.vocab_size)))
    why = "as the recipe says" if section.path is None else f"assumed: {section.path} is not there"
    return tokenizer, f"{tokenizer.vocab_size:,} tokens, {why}"


def shape_of(batch: Any) -> str:
    """(833, 30) and (833, 30) tokens"""
    grids = [str(tuple(grid.shape)) for grid in grids_of(batch)]
    return " and ".join(dict.fromkeys(grids)) + " tokens"


# ---- within a time

UNITS = {"s": 1, "m": 60, "h": 3600}
TIMED = 2.0  # seconds of steps
STARTED = 10.0  # seconds in which the process of a run starts, and at its end writes pages
SAFETY = 0.9  # of the time that is left for steps


def seconds_of(budget: str) -> float:
    """The seconds of a time such as "90s", "20m" or "1.5h".

    Raises:
        ConfigError: it has another form.
    """
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", budget):
        return float(match[1]) * UNITS[match[2]]
    raise ConfigError(f"`budget` must be a time such as 90s, 20m or 2h, but is {budget!r}.")


def tokens_within(seconds: float, recipes: Iterable[Any]) -> int:
    """The number of tokens, rounded to two digits, with which a run of each recipe, one after the
    other, ends in time.

    Raises:
        ConfigError: the time is too short.
    """
    start, fixed, of_token = time.monotonic(), 0.0, 0.0  # seconds
    for recipe in recipes:
        began = time.monotonic()
        planned = training_plan.plan(recipe)
        task: Any = planned.task
        options = planned.recipe.training
        fixed += STARTED + time.monotonic() - began
        if isinstance(task.module, CountedModel):
            continue
        of_token += _TimedSteps(task, options).seconds_of_token()
        began, every = time.monotonic(), options.validation.eval_steps
        task.validate()
        validations = 1 / every if 0 < every < 1 else 1
        fixed += (validations + 1) * (time.monotonic() - began)  # and the test
    fixed += time.monotonic() - start
    if seconds <= fixed:
        why = "reading the data, validations and tests take as long"
        raise ConfigError(f"`budget` must be more than {fixed:.0f}s here: {why}.")
    return int(float(f"{SAFETY * (seconds - fixed) / of_token:.2g}"))


class _TimedSteps(Steps):
    """Steps that are made to be timed, and change no weight."""

    def scheduled_rate(self) -> float:
        return 0.0

    def seconds_of_token(self) -> float:
        """The time of the steps, without the first one, divided by their tokens."""
        self.precision = compiling.resolve(self.options.precision, self.model)
        self.model.train()
        self.apply_step()
        first = self.counters.tokens
        self.counters.seconds = 0.0
        while self.counters.seconds < TIMED:
            self.apply_step()
        return self.counters.seconds / (self.counters.tokens - first)
