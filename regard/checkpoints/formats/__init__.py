"""The layouts in which models are published, a file a family: configuration and weights, both ways.

    config, tensors = to_published(model)       what `transformers` opens
    model = from_published(config, tensors)     ours, with these weights

What our model cannot compute as published raises an error that names the field; nothing is dropped
silently. Other libraries have no pruned heads: they are published as zeros, which compute the same,
and a field of config.json lists them, so that they are pruned again when they are read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import Tensor, nn

from regard.attention.pruning import prune_zero_heads, pruned_heads, with_all_heads
from regard.checkpoints.filling import SkipInit, Weights
from regard.checkpoints.formats.config_table import ConfigJson
from regard.errors import ConfigError, RegardError
from regard.lazy import imported

if TYPE_CHECKING:
    from regard.checkpoints.formats.encoder_layout import EncoderLayout
    from regard.checkpoints.formats.transformer import EncoderDecoderLayout

    Layout: TypeAlias = EncoderLayout | EncoderDecoderLayout

# `model_type` of the published config.json -> module of this folder:layout
LAYOUTS = {
    "marian": "transformer:MARIAN",
    "pegasus": "transformer:PEGASUS",
    "bart": "transformer:BART",
    "mbart": "transformer:MBART",
    "m2m_100": "transformer:M2M_100",
    "bert": "bert:BERT",
    "segabert": "bert:SEGABERT",
    "openai-gpt": "gpt:GPT_LAYOUT",
    "gpt2": "gpt:GPT2_LAYOUT",
    "gpt_neo": "gpt:GPT_NEO",
    "llama": "gpt:LLAMA",
    "transfo-xl": "transformer_xl:TRANSFO_XL",
    "roberta": "bert:ROBERTA",
    "xlm-roberta": "bert:XLM_ROBERTA",
    "camembert": "bert:CAMEMBERT",
    "mpnet": "bert:MPNET",
    "xlnet": "transformer_xl:XLNET",
    "electra": "bert:ELECTRA",
    "albert": "bert:ALBERT",
    "deberta-v2": "deberta:DEBERTA",
    "big_bird": "bert:BIG_BIRD",
    "distilbert": "bert:DISTILBERT",
    "t5": "t5:T5_LAYOUT",
    "mt5": "t5:MT5_LAYOUT",
    "umt5": "t5:UMT5_LAYOUT",
}
# Types that another type's folders name -> that type, and a tensor that distinguishes them.
BY_TENSOR = {"segabert": ("bert", "embeddings.token_position_embeddings.weight")}
PRUNED = "regard_pruned_heads"  # in config.json: [["encoder", 3, [1, 6]], ...], from 1


def layout_of(model_type: object) -> Layout:
    """The layout of a `model_type`.

    Raises:
        ConfigError: no model here is published under this type.
    """
    if not isinstance(model_type, str) or model_type not in LAYOUTS:
        hint = "regard.load(folder, model_type=...) says what a folder does not."
        must = f"must be one of {', '.join(LAYOUTS)}, but is {model_type!r}. {hint}"
        raise ConfigError(f"config.json: `model_type` {must}")
    return imported(LAYOUTS[model_type], __name__)


def type_of(config: ConfigJson, tensors: Iterable[str]) -> Any:
    """The key of `LAYOUTS` for a folder: its `model_type`, unless its tensors say otherwise."""
    model_type = config.get("model_type")
    for name, (other, tensor) in BY_TENSOR.items():
        if model_type == other and any(one.endswith(tensor) for one in tensors):
            return name
    return model_type


def to_published(model: nn.Module) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """The contents of config.json and model.safetensors; None where nobody has the architecture."""
    layout = layout_for(model)
    if layout is None:
        return None
    config, tensors = layout.write(with_all_heads(model))
    pruned = pruned_heads(model)
    return config | ({PRUNED: pruned} if pruned else {}), tensors


def layout_for(model: nn.Module) -> Layout | None:
    """The layout in which a model is published; None where nobody has the architecture."""
    return next((layout for layout in map(layout_of, LAYOUTS) if layout.holds(model)), None)


def from_published(config: ConfigJson, tensors: Weights) -> nn.Module:
    """Our model with published weights, which become its parameters where their layout allows it.

    Raises:
        ConfigError: the configuration asks for what none of our models computes.
        CheckpointError: tensors are missing, left over or of another shape.
    """
    others = {name: value for name, value in config.items() if name != PRUNED}
    layout = layout_of(type_of(config, tensors))
    try:
        with SkipInit(tensors):
            model = layout.read(others, tensors)
    except RegardError:
        raise
    except ValueError as error:  # of layers that cannot have such a value
        raise ConfigError(f"config.json: {error}") from None
    try:
        prune_zero_heads(model, config.get(PRUNED, ()))
    except ConfigError as error:
        raise ConfigError(f"config.json: `{PRUNED}`: {error}") from None
    return model
