"""The options of recipes as keyword arguments, for type checkers and editors.

Here are the sections, and the options of [training] and of the data that many tasks have. Other
options of a section are given in it: `data={"history": 3}`. What an option means, and its default,
is in the class of its section, and `regard init TASK` writes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal, TypedDict

Section = Mapping[str, Any]
Column = int | str


class RecipeOptions(TypedDict, total=False):
    """Keyword arguments of `regard.train` and of what else trains by a recipe."""

    task: str
    name: str
    seed: int
    # the data: files, or rows in memory
    train: Any
    valid: Any
    test: Any
    columns: Sequence[Column]
    target_columns: Sequence[Column]
    group: Column
    stratified: bool
    split_seed: int
    format: str
    header: bool
    delimiter: str
    max_length: int
    sequence_length: int
    too_long: Literal["error", "truncate", "skip"]
    truncation: Literal["longest_first", "bert"]
    batch_size: int
    max_tokens_per_batch: int
    source_prefix: str
    source_language: str
    target_language: str
    word_vectors: str | PathLike[str]
    freeze_word_vectors: bool
    # sections; a text is the folder or the name of a model, the kind of a tokenizer, and so on
    model: str | PathLike[str] | Section
    tokenizer: str | PathLike[str] | Section
    optimizer: str | Section
    schedule: str | Section
    data: Section
    objective: Section
    labels: Section
    answers: Section
    teacher: Section
    decoding: Section
    evaluation: Section
    training: Section
    validation: Section
    checkpoints: Section
    averaging: Section
    # the objective
    label_smoothing: float
    both_orders: bool
    aux_lm_weight: float
    reinforce_weight: float
    choice_entropy_weight: float
    baseline_decay: float
    # the training
    epochs: int
    max_steps: int
    tokens: int
    gradient_accumulation_steps: int
    precision: Literal["float32", "bfloat16", "auto"]
    activation_checkpointing: bool
    compile: bool
    gradual_unfreezing_interval: int
    threads: int
    logging_steps: int
    tensorboard: bool
    learning_rate: float
    lr: float
    num_train_epochs: int
    per_device_train_batch_size: int
    warmup_ratio: float
    warmup_steps: int
    lr_scheduler_type: str
    bf16: bool
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    momentum: float
    max_grad_norm: float
    layerwise_lr_decay: float
    warmup: int | float
    min_lr_ratio: float
    constant_epochs: int
    gamma: float
    div_factor: float
    eval_steps: int
    patience: int
    save_steps: int
    save_seconds: float
    save_total_limit: int
    average: int
    nonmono: int
    start: int
