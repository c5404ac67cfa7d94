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

Where the data exists and is not large, real batches are counted; else their shapes are assumed
(samples.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from regard.experiments.estimate.counting import (
    PublishedFigure,
    memory_of,
    parameters_of,
    published,
    sharded_memory,
    steps_of,
)
from regard.experiments.estimate.measuring import Measured, measured
from regard.experiments.estimate.samples import read_sample, with_local_model
from regard.experiments.recipe_options import FineTuneSection, read_recipe
from regard.experiments.training_plan import with_training_defaults
from regard.models import described
from regard.training.flops import count, positions_in
from regard.training.options import TrainingOptions


@dataclass(frozen=True)
class Estimate:
    """What a training of a recipe will cost; None for what is unknown.

    parameters: by part of the model.  memory: bytes by use.  items: what the task counts, such as
    predicted "tokens" or "examples".  count: items of one step.  flops: of one step, for the
    batch that `batch` describes; attention_flops: those of them that are products of queries with
    keys and of weights with values.  batch_tokens: tokens of the batch, padding included.
    seconds: of one step.  measured: how seconds and activations were found.  shards: bytes on
    that of several `devices` that has the most.
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
    published: tuple[PublishedFigure, ...] = ()
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

    def _passes_text(self) -> str:
        """How the products of a step follow from those of a forward pass."""
        frozen = any(part.endswith("(frozen)") for part in self.parameters)
        adapted = any(f"{part} (frozen)" in self.parameters for part in self.parameters)
        times = ", twice what is frozen" if adapted else ", once what is frozen" * frozen
        return "3 times the forward pass's products" + times

    def _attention_text(self) -> list[tuple[str, str]]:
        if not self.attention_flops:
            return []
        share = self.attention_flops / self.flops
        return [("    of attention", f"{_number(self.attention_flops / self.count)} ({share:.1%})")]

    def _shards_text(self) -> list[tuple[str, str]]:
        if self.shards is None:
            return []
        total = _bytes(sum(self.shards.values()))
        uses = [(f"  {use}", _bytes(number)) for use, number in self.shards.items()]
        return [("on each device", f"{total}, sharded over {self.devices:,}"), *uses]

    def text(self) -> str:
        """One quantity a line."""
        totals = self.totals()
        counted = "predicted tokens" if self.items == "tokens" else self.items
        article = "an" if self.items[0] in "aeiou" else "a"
        lines = [
            ("model", self.model),
            ("vocabulary", self.vocabulary),
            ("batch", self.batch),
            ("parameters", f"{totals['parameters']:,}"),
            *((f"  {part}", f"{number:,}") for part, number in self.parameters.items()),
            ("memory", f"{_bytes(totals['memory'])} beside the program"),
            *((f"  {use}", _bytes(number)) for use, number in self.memory.items()),
            ("    a token", _bytes(self.memory["activations"] / max(1, self.batch_tokens))),
            *self._shards_text(),
            ("FLOPs", f"{_number(totals['flops'])}, {self._passes_text()}"),
            (f"  {article} {self.items[:-1]}", _number(totals["flops_per_item"])),
            *self._attention_text(),
            ("  a step", f"{_number(self.flops)} for {self.count:,.0f} {counted}"),
            ("steps", "depend on the data" if self.steps is None else f"{self.steps:,}"),
            ("time", _duration(totals["seconds"])),
            ("  a step", _duration(self.seconds)),
            ("measured", self.measured),
        ]
        lines += [
            (f"published {one.quantity}", f"{_number(one.value)} ({one.source})")
            for one in self.published
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
    given: Any = read_recipe(path, overrides, keep_unset=True)
    recipe = with_local_model(given)
    sample = read_sample(recipe)
    task = sample.task
    recipe = with_training_defaults(recipe, task.module)
    options: TrainingOptions = recipe.training
    counted = [
        count(task, batch, checkpointing=options.activation_checkpointing)
        for batch in sample.batches
    ]
    mean = [sum(column) / len(counted) for column in zip(*counted, strict=True)]
    items, flops, _, attention = (options.gradient_accumulation_steps * one for one in mean)
    found = Measured(None, max(one.stored for one in counted), "nothing: all is counted")
    if measure:
        found = measured(recipe, sample, found)
    return Estimate(
        model=_description(given.model, task.module),
        vocabulary=sample.vocabulary,
        batch=sample.how,
        parameters=parameters_of(task.module),
        memory=memory_of(task.module, options, found.activations),
        items=task.items,
        count=items,
        flops=flops,
        batch_tokens=max(map(positions_in, sample.batches)),
        steps=steps_of(options, sample.batches_per_epoch, items),
        seconds=found.seconds,
        measured=found.how,
        published=published(task.module),
        attention_flops=attention,
        devices=devices or 1,
        shards=None
        if devices is None
        else sharded_memory(
            task.module, options, found.activations, len(sample.batches[0]), devices
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


def _bytes(value: float | None) -> str:
    value = value or 0.0
    if value >= 1e12:
        return f"{value / 1e12:.2f} TB"
    if value >= 1e9:
        return f"{value / 1e9:.2f} GB"
    return f"{value / 1e6:,.1f} MB" if value >= 1e6 else f"{value / 1e3:.1f} KB"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:.3g} seconds"
