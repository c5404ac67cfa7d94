"""[model.lora] of a recipe: low-rank adapters (Hu et al. 2021) of a pre-trained model are trained.

A finished run has the model with merged adapters in model/, and the adapters alone in adapter/.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field

from regard.attention.pruning import HasModule
from regard.checkpoints.adapters import AdapterOptions, add_adapters, holds_adapter
from regard.errors import ConfigError
from regard.recipe import Options
from regard.tasks.folders import save_adapter
from regard.tasks.task import Task

ADAPTER = "adapter"  # a folder in a run's folder, beside model/


class LoraSection(Options):
    """[model.lora]: low-rank adapters and the head are trained, other weights are frozen."""

    rank: int = Field(default=AdapterOptions.rank, ge=1)
    """The rank r is the number of rows of A and of columns of B."""
    alpha: float = Field(default=AdapterOptions.alpha, gt=0)
    """The product B A is multiplied by alpha / rank."""
    dropout: float = Field(default=AdapterOptions.dropout, ge=0, lt=1)
    """The dropout probability of the inputs of A, in training."""
    targets: tuple[str, ...] = AdapterOptions.targets
    """The layers that get adapters: published names of linear layers, the ends of such names
    ("query"), or "all-linear"; []: the query and value projections."""

    def options(self) -> AdapterOptions:
        """The options of the adapters."""
        return AdapterOptions(**self.model_dump())


def adapt(task: HasModule, section: LoraSection | None, base: Any) -> None:
    """Add the adapters of a recipe to the model of a task; without the section, do nothing.

    base: the model from which the task was made. If the task has added special tokens to its
        vocabulary, the embedding is trained too.

    Raises:
        ConfigError: the model cannot have these adapters.
    """
    if section is None:
        return
    model: Any = task.module
    has_new_tokens = model.config.vocab_size != base.config.vocab_size
    try:
        add_adapters(
            model,
            section.options(),
            [*model.encoder.embedding.parameters()] if has_new_tokens else (),
        )
    except ConfigError as error:
        raise ConfigError(f"[model.lora] {error}") from None


def write_run_adapter(task: Task, section: LoraSection, base: str, folder: Path) -> None:
    """Write adapter/ into the folder of a run.

    base: the folder, or the name on the hub, of the model that the training started from.

    Raises:
        CheckpointError: the files cannot be written.
    """
    save_adapter(task, folder / ADAPTER, section.options(), base)


def has_run_adapter(section: LoraSection | None, folder: Path) -> bool:
    """Whether the folder of a run has adapter/, or its recipe has no adapters."""
    return section is None or holds_adapter(folder / ADAPTER)
