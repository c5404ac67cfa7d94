"""The layouts in which models are published, one a file: configuration and weights, both ways.

    config, tensors = to_published(model)       what `transformers` opens
    model = from_published(config, tensors)     ours, with these weights

What our model cannot compute as published raises an error that names the field; nothing is dropped
silently. Other libraries have no pruned heads: they are published as zeros, which compute the same,
and a field of config.json lists them, so that they are pruned again when they are read.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol

from torch import Tensor, nn

from regard.attention.pruning import prune_zero_heads, pruned_heads, with_all_heads
from regard.checkpoints.filling import SkipInit
from regard.checkpoints.names import Names
from regard.errors import ConfigError, RegardError
from regard.lazy import imported

# `model_type` of the published config.json -> module:layout
LAYOUTS = {
    "marian": "regard.checkpoints.formats.transformer:MARIAN",
    "pegasus": "regard.checkpoints.formats.transformer:PEGASUS",
    "bart": "regard.checkpoints.formats.bart:BART",
    "mbart": "regard.checkpoints.formats.bart:MBART",
    "m2m_100": "regard.checkpoints.formats.bart:M2M_100",
    "bert": "regard.checkpoints.formats.bert:BERT",
    "segabert": "regard.checkpoints.formats.bert:SEGABERT",
    "openai-gpt": "regard.checkpoints.formats.gpt:GPT_LAYOUT",
    "gpt2": "regard.checkpoints.formats.gpt:GPT2_LAYOUT",
    "gpt_neo": "regard.checkpoints.formats.gpt:GPT_NEO",
    "llama": "regard.checkpoints.formats.llama:LLAMA",
    "transfo-xl": "regard.checkpoints.formats.transfo_xl:TRANSFO_XL",
    "roberta": "regard.checkpoints.formats.roberta:ROBERTA",
    "xlm-roberta": "regard.checkpoints.formats.roberta:XLM_ROBERTA",
    "camembert": "regard.checkpoints.formats.roberta:CAMEMBERT",
    "mpnet": "regard.checkpoints.formats.roberta:MPNET",
    "xlnet": "regard.checkpoints.formats.xlnet:XLNET",
    "electra": "regard.checkpoints.formats.electra:ELECTRA",
    "albert": "regard.checkpoints.formats.albert:ALBERT",
    "big_bird": "regard.checkpoints.formats.big_bird:BIG_BIRD",
    "distilbert": "regard.checkpoints.formats.distilbert:DISTILBERT",
    "t5": "regard.checkpoints.formats.t5:T5_LAYOUT",
    "mt5": "regard.checkpoints.formats.t5:MT5_LAYOUT",
    "umt5": "regard.checkpoints.formats.t5:UMT5_LAYOUT",
}
# Types that another type's folders name -> that type, and a tensor that distinguishes them.
BY_TENSOR = {"segabert": ("bert", "embeddings.token_position_embeddings.weight")}
PRUNED = "regard_pruned_heads"  # in config.json: [["encoder", 3, [1, 6]], ...], from 1


class Layout(Protocol):
    """How models of one class are published; one file of this folder, one line in its table."""

    model: type[nn.Module]  # the class of ours, under heads that of the encoder
    model_type: str  # as config.json names it
    family: str  # how the names of their architectures begin
    prefix: str  # before their names of all tensors but those of heads; some files leave it out
    # Their names of the query and value projections, which low-rank adapters change by default.
    adapted: tuple[str, ...]

    @property
    def known_architectures(self) -> Collection[str]:
        """The names in `architectures` of config.json that this layout reads."""

    def has_heads_of(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bool:
        """Whether the tensors have the heads of the architecture that config.json names."""

    def holds(self, model: nn.Module) -> bool:
        """Whether a model is published this way."""

    def write(self, model: nn.Module) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The contents of config.json and of model.safetensors."""

    def read(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> nn.Module:
        """The model that they hold.

        Raises:
            ConfigError: the configuration asks for what our model does not compute.
            CheckpointError: tensors are missing, left over or of another shape.
        """

    def names_of(self, model: nn.Module) -> Names:
        """The table between the names of a model's tensors and theirs."""

    def architecture_of(self, model: nn.Module) -> str:
        """Their name for a model that this layout holds."""

    def with_architecture(
        self, model: nn.Module, name: str, tensors: Mapping[str, Tensor]
    ) -> nn.Module:
        """The same model under the heads of one of their architectures.

        A head that the model does not have is new, and not initialized.

        tensors: published ones, which say how many outputs a new head has.

        Raises:
            ConfigError: there is no such architecture.
            CheckpointError: neither the model nor the tensors have its head.
        """

    def in_their_order(self, hidden: Tensor) -> Tensor:
        """Our hidden states (..., D), their dimensions in the order of the published model."""


def layout_of(model_type: object) -> Layout:
    """The layout of a `model_type`.

    Raises:
        ConfigError: no model here is published under this type.
    """
    if not isinstance(model_type, str) or model_type not in LAYOUTS:
        hint = "regard.load(folder, model_type=...) says what a folder does not."
        must = f"must be one of {', '.join(LAYOUTS)}, but is {model_type!r}. {hint}"
        raise ConfigError(f"config.json: `model_type` {must}")
    return imported(LAYOUTS[model_type])


def type_of(config: Mapping[str, Any], tensors: Iterable[str]) -> Any:
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


def from_published(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> nn.Module:
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
