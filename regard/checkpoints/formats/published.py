"""Models as other libraries publish them: config.json and weights under their names, both ways.

    config, tensors = to_published(model)       what `transformers` opens
    model = from_published(config, tensors)     ours, filled

What our model cannot compute as published is refused by name; nothing is dropped in silence.

Nobody else has pruned heads: they are published as zeros, which compute the same, and a field of
config.json says which they are, so that here they are cut again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from torch import Tensor, nn

from regard.attention.heads import cut_zeros, pruned_heads, with_all_heads
from regard.checkpoints.filling import SkipInit, assign
from regard.checkpoints.names import Names
from regard.errors import ConfigError, RegardError
from regard.models.check_config import check_sizes
from regard.suggest import nearest


class Layout(Protocol):
    """How some of our models are published."""

    def holds(self, model: nn.Module) -> bool:
        """Whether a model is written this way."""

    def write(self, model: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The contents of config.json and of model.safetensors."""

    def read(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> nn.Module:
        """The model that they hold, refusing by name what it cannot do."""


@dataclass(frozen=True)
class WholeModel:
    """The layout of one class of ours.

    `to_config` gives config.json for our configuration and `from_config` goes back, refusing by
    name what the model cannot do; `names` is the table of its weights, and `theirs` has their name
    of each field.
    """

    model: type[nn.Module]
    to_config: Callable[[Any], dict[str, Any]]
    from_config: Callable[[Mapping[str, Any]], Any]
    names: Names
    theirs: Mapping[str, str]

    def holds(self, model: nn.Module) -> bool:
        """Of this very class."""
        return type(model) is self.model

    def write(self, model: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The contents of config.json and of model.safetensors."""
        return self.to_config(model.config), self.names.write(model.state_dict())

    def read(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> nn.Module:
        """The model that they hold."""
        ours = self.from_config(config)
        check_sizes(ours, tensors, "config.json", ConfigError, self.theirs)
        model = self.model(ours)
        assign(model, self.names.read(tensors, model.state_dict()))
        return model


PRUNED = "regard_pruned_heads"  # in config.json: [["encoder", 3, [1, 6]], ...], from 1

# `model_type` of the published config.json -> module:Layout
LAYOUTS = {
    "marian": "regard.checkpoints.formats.transformer:MARIAN",
    "pegasus": "regard.checkpoints.formats.transformer:PEGASUS",
    "bert": "regard.checkpoints.formats.bert:BERT",
    "openai-gpt": "regard.checkpoints.formats.gpt:GPT_LAYOUT",
    "gpt2": "regard.checkpoints.formats.gpt:GPT2_LAYOUT",
    "roberta": "regard.checkpoints.formats.roberta:ROBERTA",
    "distilbert": "regard.checkpoints.formats.distilbert:DISTILBERT",
}


def to_published(model: nn.Module) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """The contents of config.json and model.safetensors; None when nobody has the architecture."""
    for model_type in LAYOUTS:
        layout = layout_of(model_type)
        if layout.holds(model):
            config, tensors = layout.write(with_all_heads(model))
            pruned = pruned_heads(model)
            return config | ({PRUNED: pruned} if pruned else {}), tensors
    return None


def from_published(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> nn.Module:
    """Our model with published weights, which become its own where they are laid out alike.

    Raises:
        ConfigError: the configuration asks for what none of our models computes.
        CheckpointError: tensors are missing, left over or of another shape.
    """
    others = {name: value for name, value in config.items() if name != PRUNED}
    layout = layout_of(config.get("model_type"))
    try:
        with SkipInit(tensors):
            model = layout.read(others, tensors)
    except RegardError:
        raise
    except ValueError as error:  # of parts that are not for this value
        raise ConfigError(f"config.json: {error}") from None
    except RuntimeError as error:
        if "allocate" not in str(error):
            raise
        raise ConfigError(
            f"config.json: a model of these sizes does not fit into memory here: {error}"
        ) from None
    try:
        cut_zeros(model, config.get(PRUNED, ()))
    except ConfigError as error:
        raise ConfigError(f"config.json: `{PRUNED}`: {error}") from None
    return model


def layout_of(model_type: Any) -> Layout:
    """The layout of a `model_type`.

    Raises:
        ConfigError: no model here is published under this type.
    """
    if not isinstance(model_type, str) or model_type not in LAYOUTS:
        raise ConfigError(
            f"config.json: `model_type` must be one of {', '.join(LAYOUTS)}, but is "
            f"{model_type!r}. {nearest(str(model_type), LAYOUTS)}"
        )
    module, attribute = LAYOUTS[model_type].split(":")
    return getattr(import_module(module), attribute)
