"""Models as other libraries publish them: config.json and weights under their names, both ways.

    config, tensors = to_published(model)       what `transformers` opens
    model = from_published(config, tensors)     ours, filled

What our model cannot compute as published is refused by name; nothing is dropped in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from torch import Tensor, nn

from regard.checkpoints import Names
from regard.errors import ConfigError
from regard.suggest import nearest


@dataclass(frozen=True)
class Layout:
    """How one of our models is published.

    `to_config` gives config.json for our configuration and `from_config` goes back, refusing by
    name what the model cannot do; `names` is the table of its weights.
    """

    model: type[nn.Module]
    to_config: Callable[[Any], dict[str, Any]]
    from_config: Callable[[Mapping[str, Any]], Any]
    names: Names


# `model_type` of the published config.json -> module:Layout
LAYOUTS = {
    "marian": "regard.models.names_transformer:MARIAN",
    "pegasus": "regard.models.names_transformer:PEGASUS",
}


def to_published(model: nn.Module) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """The contents of config.json and model.safetensors; None when nobody has the architecture."""
    for model_type in LAYOUTS:
        layout = _layout(model_type)
        if type(model) is layout.model:
            return layout.to_config(model.config), layout.names.write(model.state_dict())
    return None


def from_published(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> nn.Module:
    """Our model with published weights.

    Raises:
        ConfigError: the configuration asks for what none of our models computes.
        CheckpointError: tensors are missing, left over or of another shape.
    """
    model_type = config.get("model_type")
    if model_type not in LAYOUTS:
        raise ConfigError(
            f"config.json: `model_type` must be one of {', '.join(LAYOUTS)}, but is "
            f"{model_type!r}. {nearest(str(model_type), LAYOUTS)}"
        )
    layout = _layout(model_type)
    model = layout.model(layout.from_config(config))
    model.load_state_dict(layout.names.read(tensors, model.state_dict()))
    return model


def _layout(model_type: str) -> Layout:
    module, attribute = LAYOUTS[model_type].split(":")
    return getattr(import_module(module), attribute)
