"""The options of a training: the sections [training] and [training.*] of a recipe."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field
from torch import nn

from regard.errors import ConfigError
from regard.models.config import TRANSFORMER, Probability, TrainingDefaults
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.protocols import Model

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
    schedule = options.schedule
    return replace(
        options,
        epochs=options.epochs if options.has_end() else defaults.epochs,
        optimizer=optimizer_with_defaults(options.optimizer, defaults),
        schedule=replace(schedule, warmup=schedule.warmup_or_default()),
    )


class DefaultEpochs(int):
    """A number of epochs that nobody has set, so that small data may be read more often.

    reason: why there are more than the default, as the end of a sentence.
    """

    reason = ""


STEPS, EPOCHS = 200, 30  # small data are read until there are as many steps, at most so often


def with_enough_epochs(options: TrainingOptions, batches_per_epoch: int) -> TrainingOptions:
    """The same options, with more epochs where the default ones would be few steps: a classifier of
    240 examples that has learned for 24 steps gives every text one label."""
    batches = STEPS * options.gradient_accumulation_steps
    needed = min(-(-batches // max(batches_per_epoch, 1)), EPOCHS)
    default = known(options.epochs)
    epochs = DefaultEpochs(max(default, needed))
    if epochs > default:
        steps = -(-default * batches_per_epoch // options.gradient_accumulation_steps)
        epochs.reason = f", since {default} would be {steps:,} steps"
    return replace(options, epochs=epochs)


def steps_of(options: TrainingOptions, batches_per_epoch: int | None, items: float) -> int | None:
    """Steps until the first limit is reached; None where that depends on data that is missing.

    Early stopping is not considered.

    batches_per_epoch: None where it is unknown.  items: those of one step.
    """
    limits = []
    if options.max_steps is not None:
        limits.append(options.max_steps)
    if options.tokens is not None:
        limits.append(math.ceil(options.tokens / items))
    if isinstance(options.epochs, DefaultEpochs) and batches_per_epoch is not None:
        options = with_enough_epochs(options, batches_per_epoch)
    if options.epochs is not None and batches_per_epoch is not None:
        batches = options.gradient_accumulation_steps
        limits.append(options.epochs * math.ceil(batches_per_epoch / batches))
    return min(limits, default=None)


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
    limits = ((options.max_steps, "step"), (options.epochs, "epoch"), (options.tokens, "token"))
    ends = " or ".join(f"{limit:,} {unit}{'s' * (limit != 1)}" for limit, unit in limits if limit)
    reason = options.epochs.reason if isinstance(options.epochs, DefaultEpochs) else ""
    return f"{', '.join(parts)}; {ends}{reason}; {precision}"


Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
AtLeast0 = Annotated[int, Field(ge=0)]
AtLeast1 = Annotated[int, Field(ge=1)]
MAX_THREADS = 1024  # a library of threads ends the process where it cannot start as many


@dataclass(frozen=True)
class OptimizerOptions:
    """[training.optimizer]: the optimizer turns gradients into changes of the weights."""

    name: Literal["adam", "adamw", "sgd"] = "adamw"
    """The optimizer."""
    learning_rate: Positive | None = None
    """The peak rate; the schedule multiplies it. Not set: that of the model's family and width from
    random weights; 5e-5 for weights that were trained before (2e-5 for a large model), ten times as
    much for LoRA. For sgd it must be set."""
    betas: tuple[Probability, Probability] = (0.9, 0.999)
    """Decay of Adam's two running means."""
    eps: NotNegative = 1e-8
    """The small number that is added to Adam's denominator."""
    weight_decay: NotNegative | None = None
    """The decay of matrices, never of biases, norms or embeddings. Decoupled in adamw, L2 in the
    others. Not set: 0.01 for adamw, but 0 for recurrent and convolutional models from random
    weights, and 0 for adam and sgd."""
    momentum: NotNegative = 0.0
    """The momentum of sgd."""
    max_grad_norm: NotNegative = 1.0
    """The gradient is scaled down to this norm where its norm is greater; 0 does not clip."""
    layerwise_lr_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Each layer learns at the rate of the layer above it times this; the rate of the highest is
    `learning_rate` (Howard & Ruder 2018 use 1 / 2.6, 0.385); 1.0: all layers learn at one rate."""

    def __post_init__(self) -> None:
        has_rate = self.learning_rate is not None or self.name != "sgd"
        _check(self, "learning_rate", has_rate, "set for sgd")


@dataclass(frozen=True)
class ScheduleOptions:
    """[training.schedule]: the learning rate changes while the model is trained."""

    name: Literal["constant", "inverse-sqrt", "linear", "cosine", "step", "slanted-triangular"] = (
        "linear"
    )
    """The schedule."""
    warmup: AtLeast1 | Annotated[float, Field(ge=0, lt=1)] | None = None
    """The rate grows linearly from zero to the peak: in so many steps, or, below 1, in this share
    of all steps (0.1: the first tenth). For slanted-triangular a share only.
    Not set: 0 for constant and step, 0.1 for the others."""
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Where linear and cosine end, as a fraction of the peak."""
    constant_epochs: AtLeast0 = 0
    """The epochs at the full rate, of the schedule step."""
    gamma: Annotated[float, Field(gt=0, le=1)] = 0.5
    """The rate is multiplied by this at every epoch after those, of the schedule step."""
    div_factor: Annotated[float, Field(ge=1)] = 32.0
    """The peak divided by the lowest rate, of the schedule slanted-triangular."""

    def __post_init__(self) -> None:
        warmup = self.warmup_or_default()
        if self.name == "inverse-sqrt":
            _check(self, "warmup", warmup > 0, f"above 0 for the schedule {self.name}")
        if self.name == "slanted-triangular":
            _check(self, "warmup", 0 < warmup < 1, "a share of all steps, such as 0.1")

    def warmup_or_default(self) -> int | float:
        """The warm-up, in steps or as a share of all steps."""
        if self.warmup is None:
            return 0 if self.name in ("constant", "step") else 0.1
        return self.warmup


@dataclass(frozen=True)
class ValidationOptions:
    """[training.validation]: the model is validated now and then, and training may stop early."""

    eval_steps: AtLeast0 | Annotated[float, Field(ge=0, lt=1)] = 0
    """Steps between two validations; 0 validates after each epoch. Below 1: a share of the
    training, such as 0.1 for ten validations at equal parts of it."""
    patience: AtLeast0 = 0
    """Stop after this many validations without a better score; 0 never stops early."""


@dataclass(frozen=True)
class CheckpointOptions:
    """[training.checkpoints]: these options say which checkpoints are kept; the best always is."""

    save_steps: AtLeast0 = 0
    """Steps between two checkpoints; 0: only `save_seconds` counts."""
    save_seconds: NotNegative = 600.0
    """Seconds between two checkpoints; 0: only `save_steps` counts."""
    save_total_limit: AtLeast1 = 2
    """How many of the newest are retained."""
    average: AtLeast0 = 0
    """Publish the mean of this many last checkpoints written by `save_steps`; 0 publishes the
    best."""
    words_per_epoch: AtLeast0 = 0
    """How many words the training text has (`wc -w`): the model is then also kept after a million
    words, in `by_words/chck_1M/model` of the run, and so on in millions to ten, tens to a hundred
    and hundreds to a thousand, as BabyLM asks. Words read are these times the epochs done."""

    def __post_init__(self) -> None:
        saves = self.save_steps > 0 or not self.average
        _check(self, "save_steps", saves, "at least 1 when `average` is asked for")


@dataclass(frozen=True)
class AveragingOptions:
    """[training.averaging]: the mean of the weights after each step may be validated and published
    instead of the weights themselves.
    """

    nonmono: AtLeast0 = 0
    """NT-ASGD: the mean begins when a validation is worse than the best of those before the last
    so many (Merity et al. 2018 use 5); 0: this never happens."""
    start: AtLeast0 | None = None
    """It begins after so many steps in any case; None: never."""


@dataclass(frozen=True)
class TrainingOptions:
    """[training]. A training ends at `max_steps`, `epochs` or `tokens`, whichever comes first."""

    max_steps: AtLeast1 | None = None
    """The number of steps after which training ends."""
    epochs: AtLeast1 | None = None
    """The number of times that the training data are read. If none of the three is set: 3 for
    weights that were trained before, 10 for random ones; up to 30 where these are less than 200
    steps."""
    tokens: AtLeast1 | None = None
    """Predicted tokens (those of the task's first loss) over the whole training."""
    gradient_accumulation_steps: AtLeast1 = 1
    """Batches in one step; the step equals that of one large batch."""
    precision: Literal["float32", "bfloat16", "auto"] = "auto"
    """Precision of matrix products; weights are always float32. "auto" is bfloat16
    where the processor computes it and the model has at least 500,000 parameters."""
    activation_checkpointing: bool = False
    """Keep only the input of each block for the backward pass, and compute the rest again: much
    less memory, up to a third more time, the same result in every bit."""
    compile: bool = False
    """Compile each block by torch, on a GPU: some seconds once, then faster steps."""
    gradual_unfreezing_interval: AtLeast0 = 0
    """Train the highest layer alone at first, and one layer more after so many epochs (Howard &
    Ruder 2018, section 3.3); 0: all from the start."""
    threads: Annotated[int, Field(ge=0, le=MAX_THREADS)] = 0
    """Threads for computing on the CPU; 0: as many as torch chooses."""
    logging_steps: AtLeast1 = 50
    """Steps between two lines of metrics.jsonl."""
    tensorboard: bool = False
    """Also write curves for TensorBoard (needs the extra `track`)."""
    validation: ValidationOptions = field(default_factory=ValidationOptions)
    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)
    schedule: ScheduleOptions = field(default_factory=ScheduleOptions)
    checkpoints: CheckpointOptions = field(default_factory=CheckpointOptions)
    averaging: AveragingOptions = field(default_factory=AveragingOptions)

    def has_end(self) -> bool:
        """Whether one of the three limits is set."""
        return any((self.max_steps, self.epochs, self.tokens))

    def __post_init__(self) -> None:
        if self.checkpoints.average and self.averaging != AveragingOptions():
            raise ConfigError("[training] `checkpoints.average` and `averaging`: leave one out.")


def without_effect(options: TrainingOptions) -> Iterator[tuple[str, str]]:
    """Options that differ from their default, but are for another optimizer or schedule: dotted
    name, problem.
    """
    for section, chosen, users in (
        ("optimizer", options.optimizer, _OPTIMIZERS),
        ("schedule", options.schedule, _SCHEDULES),
    ):
        for name, names in users.items():
            if chosen.name not in names and getattr(chosen, name) != getattr(type(chosen), name):
                problem = f"is for {' and '.join(names)}, and without effect with {chosen.name}."
                yield f"training.{section}.{name}", f"{problem} Leave it out."


# option -> the optimizers, or schedules, that it is for
_OPTIMIZERS = {
    "betas": ("adam", "adamw"),
    "eps": ("adam", "adamw"),
    "momentum": ("sgd",),
}
_SCHEDULES = {
    "min_lr_ratio": ("linear", "cosine"),
    "constant_epochs": ("step",),
    "gamma": ("step",),
    "div_factor": ("slanted-triangular",),
}


def _check(options: Any, name: str, right: bool, must: str) -> None:
    if not right:
        section = type(options).__name__.removesuffix("Options").lower()
        value = getattr(options, name)
        raise ConfigError(f"`{name}` of the {section} options must be {must}, but is {value!r}")
