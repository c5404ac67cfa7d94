"""The options of a training that nobody set: resolved once, from the model and its weights."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from torch import nn

from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.protocols import Model
from regard.models.training_defaults import TRANSFORMER, TrainingDefaults
from regard.training.options import OptimizerOptions, TrainingOptions

Value = TypeVar("Value")


def defaults_of(
    module: nn.Module, *, trained_before: bool = False, adapters: bool = False
) -> TrainingDefaults:
    """The defaults of a model.

    trained_before: whether its weights are those of an earlier training.
    adapters: whether low-rank adapters alone are trained.
    """
    body = module.encoder if isinstance(module, EncoderWithHeads) else module
    family = body.family if isinstance(body, Model) else TRANSFORMER
    width = body.config.d_model if isinstance(body, Model) else 0
    if trained_before:
        return family.of_trained_weights(width, adapters=adapters)
    return family.of_random_weights(width)


def with_defaults(options: TrainingOptions, defaults: TrainingDefaults) -> TrainingOptions:
    """The same options, with values for those that are None."""
    has_end = any((options.max_steps, options.epochs, options.tokens))
    chosen, schedule = options.optimizer, options.schedule
    if schedule.name == "noam" and chosen.learning_rate is None:
        chosen = replace(chosen, learning_rate=1.0)  # the equation has the rate in it
    return replace(
        options,
        epochs=options.epochs if has_end else defaults.epochs,
        optimizer=optimizer_with_defaults(chosen, defaults),
        schedule=replace(schedule, warmup=schedule.warmup_or_default()),
    )


def optimizer_with_defaults(
    options: OptimizerOptions, defaults: TrainingDefaults
) -> OptimizerOptions:
    """The same options, with values for those that are None."""
    rate, decay = options.learning_rate, options.weight_decay
    if decay is None:
        decay = defaults.weight_decay if options.name == "adamw" else 0.0
    rate = defaults.learning_rate if rate is None else rate
    return replace(options, learning_rate=rate, weight_decay=decay)


def known(value: Value | None) -> Value:
    """The value of an option that `with_defaults` has set."""
    assert value is not None
    return value


NAMES = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD"}


def description(options: TrainingOptions, precision: str) -> str:
    """The resolved options in a line, for the start of a run."""
    chosen, schedule = options.optimizer, options.schedule
    warmup = schedule.warmup_or_default()
    parts = [f"{NAMES[chosen.name]}, learning rate {chosen.learning_rate:g}, {schedule.name}"]
    if warmup:
        parts[0] += f" after a warm-up of {f'{warmup:.0%}' if warmup < 1 else f'{warmup:,} steps'}"
    if chosen.name != "sgd":
        parts.append(f"betas {chosen.betas[0]:g} and {chosen.betas[1]:g}")
    if chosen.weight_decay:
        parts.append(f"weight decay {chosen.weight_decay:g}")
    if chosen.max_grad_norm:
        parts.append(f"gradient norm at most {chosen.max_grad_norm:g}")
    limits = ((options.max_steps, "steps"), (options.epochs, "epochs"), (options.tokens, "tokens"))
    ends = " or ".join(f"{limit:,} {what}" for limit, what in limits if limit)
    return f"{', '.join(parts)}; {ends}; {precision}"
