"""The layouts in which models are published, one a file: configuration and weights, both ways.

    config, tensors = to_published(model)       what `transformers` opens
    model = from_published(config, tensors)     ours, with these weights

What our model cannot compute as published raises an error that names the field; nothing is dropped
silently. Other libraries have no pruned heads: they are published as zeros, which compute the same,
and a field of config.json lists them, so that they are pruned again when they are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from regard.attention.pruning import cut_zeros, pruned_heads, with_all_heads
from regard.checkpoints.filling import SkipInit
from regard.errors import ConfigError, RegardError
from regard.lazy import imported
from regard.suggest import nearest

if TYPE_CHECKING:
    from regard.checkpoints.formats.layout import Layout

# `model_type` of the published config.json -> module:layout
LAYOUTS = {
    "marian": "regard.checkpoints.formats.transformer:MARIAN",
    "pegasus": "regard.checkpoints.formats.transformer:PEGASUS",
    "bert": "regard.checkpoints.formats.bert:BERT",
    "openai-gpt": "regard.checkpoints.formats.gpt:GPT_LAYOUT",
    "gpt2": "regard.checkpoints.formats.gpt:GPT2_LAYOUT",
    "roberta": "regard.checkpoints.formats.roberta:ROBERTA",
    "distilbert": "regard.checkpoints.formats.distilbert:DISTILBERT",
}
PRUNED = "regard_pruned_heads"  # in config.json: [["encoder", 3, [1, 6]], ...], from 1


def layout_of(model_type: object) -> Layout:
    """The layout of a `model_type`.

    Raises:
        ConfigError: no model here is published under this type.
    """
    if not isinstance(model_type, str) or model_type not in LAYOUTS:
        raise ConfigError(
            f"config.json: `model_type` must be one of {', '.join(LAYOUTS)}, but is "
            f"{model_type!r}. {nearest(str(model_type), LAYOUTS)}"
        )
    return imported(LAYOUTS[model_type])


def to_published(model: nn.Module) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """The contents of config.json and model.safetensors; None where nobody has the architecture."""
    for layout in map(layout_of, LAYOUTS):
        if layout.holds(model):
            config, tensors = layout.write(with_all_heads(model))
            pruned = pruned_heads(model)
            return config | ({PRUNED: pruned} if pruned else {}), tensors
    return None


def from_published(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> nn.Module:
    """Our model with published weights, which become its parameters where their layout allows it.

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
    except ValueError as error:  # of layers that cannot have such a value
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
