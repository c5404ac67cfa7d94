"""[model.lora] of a recipe: low-rank adapters (Hu et al. 2021) of a folder's model are trained.

Of a finished run, model/ holds the model with its adapters merged, and adapter/ the adapters alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field

from regard.attention.pruning import HasModel
from regard.checkpoints.adapters import AdapterOptions, add_adapters, holds_adapter
from regard.errors import ConfigError
from regard.recipe import Options
from regard.tasks.folders import save_adapter
from regard.tasks.verbs import TaskVerbs

ADAPTER = "adapter"  # the folder of a run, beside model/


class LoraSection(Options):
    """[model.lora]: the folder's weights are frozen; adapters and a head are trained."""

    rank: int = Field(default=AdapterOptions.rank, ge=1)
    alpha: float = Field(default=AdapterOptions.alpha, gt=0)
    """An update is scaled by alpha / rank."""
    dropout: float = Field(default=AdapterOptions.dropout, ge=0, lt=1)
    """Of the inputs of the adapters."""
    targets: tuple[str, ...] = AdapterOptions.targets
    """Published names of linear layers, or how they end; []: the query and value projections."""

    def options(self) -> AdapterOptions:
        """The options of the adapters."""
        return AdapterOptions(**self.model_dump())


def adapt(task: HasModel, section: LoraSection | None, base: Any) -> None:
    """Give the model of a task the adapters that a recipe asks for, if it does.

    base: the model from which the task was made. Where the task has added special tokens, the
        embedding is trained, too.

    Raises:
        ConfigError: the model cannot have these adapters.
    """
    if section is None:
        return
    model: Any = task.model
    grown = model.config.vocab_size != base.config.vocab_size
    try:
        add_adapters(model, section.options(), [model.encoder.embedding.weight] if grown else ())
    except ConfigError as error:
        raise ConfigError(f"[model.lora] {error}") from None


def publish_adapter(task: TaskVerbs, section: LoraSection, base: str, folder: Path) -> None:
    """Write adapter/ of a run.

    base: the folder, or the name on the hub, that the training started from.  folder: the run.

    Raises:
        CheckpointError: the disk refuses.
    """
    save_adapter(task, folder / ADAPTER, section.options(), base)


def is_published(section: LoraSection | None, folder: Path) -> bool:
    """Whether a run has its adapter/, where its recipe asks for one."""
    return section is None or holds_adapter(folder / ADAPTER)
