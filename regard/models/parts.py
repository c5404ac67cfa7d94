"""What several models share: initialization, linear heads, and the kinds of positions that any of
them can have.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

from torch import nn

from regard.attention.relative_protocol import NoRelations, RelativePositions
from regard.errors import ConfigError
from regard.layers.positions import (
    LearnedPositions,
    NoPositions,
    PositionTable,
    SinusoidalPositions,
)
from regard.layers.task_heads import ClassificationHead, PoolingFunction, every_token
from regard.models.config import EncoderPositions
from regard.models.protocols import Encoder
from regard.suggest import nearest

TASK_HEADS = ("classes", "tags", "span", "multiple_choice")  # the heads that every encoder has
# Standard deviation of the initial matrices of task heads, of models without one in their config.
HEAD_INIT = 0.02


def init_weights(module: nn.Module, std: float) -> nn.Module:
    """Matrices and embeddings normal around 0, biases 0 (Radford et al. 2018, section 4.1)."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=std)
            if isinstance(part, nn.Linear) and part.bias is not None:
                nn.init.zeros_(part.bias)
    return module


def linear_head(
    encoder: Encoder,
    kind: str,
    outputs: int,
    *,
    pooling: PoolingFunction,
    d_pooled: int | None = None,
) -> nn.Module:
    """A new head, a linear layer after dropout, for an encoder without a pooler.

    Args:
        outputs: of the heads "classes", "multiple_choice" and "tags"; "span" has 2.
        pooling: what "classes" and "multiple_choice" read of a text, (B, T, D) -> (B, `d_pooled`).
        d_pooled: None: D, the width of the encoder.

    Raises:
        ConfigError: there is no head of that kind.
    """
    width, dropout = encoder.config.d_model, encoder.config.dropout
    match kind:
        case "classes" | "multiple_choice":
            return ClassificationHead(d_pooled or width, outputs, pooling=pooling, dropout=dropout)
        case "tags":
            return ClassificationHead(width, outputs, pooling=every_token, dropout=dropout)
        case "span":
            return ClassificationHead(width, 2, pooling=every_token, dropout=dropout)
        case _:
            raise no_head(encoder, kind, TASK_HEADS)


def no_head(encoder: object, kind: str, known: Sequence[str]) -> ConfigError:
    """The error for a head that a family does not have; `known` are those that it has."""
    return ConfigError(f"{type(encoder).__name__} has no head {kind!r}. {nearest(kind, known)}")


CLIP_DISTANCE = 16  # where a configuration names none
CLIPPED = ("shaw", "dependency-relative")  # the kinds that have a `clip_distance`


def _sinusoidal(config: Any, width: int) -> PositionTable:
    return SinusoidalPositions(width)


def _learned(config: Any, width: int) -> PositionTable:
    return LearnedPositions(config.max_length, width)


def _none(config: Any, width: int) -> PositionTable:
    return NoPositions(width)


def _no_relations(config: Any, layers: int, causal: bool) -> RelativePositions:
    return NoRelations(layers)


def _clip_distance(config: Any) -> int:
    return CLIP_DISTANCE if config.clip_distance is None else config.clip_distance


# The relative kinds are imported by the models that have them.


def _shaw(config: Any, layers: int, causal: bool) -> RelativePositions:
    from regard.attention.relative_kinds import ShawPositions

    return ShawPositions(layers, config.d_model // config.heads, _clip_distance(config))


def _dependency_absolute(config: Any, width: int) -> PositionTable:
    from regard.layers.positions import DependencyPositions

    return DependencyPositions(width)


def _dependency_relative(config: Any, layers: int, causal: bool) -> RelativePositions:
    from regard.attention.relative_kinds import DependencyRelations

    return DependencyRelations(layers, config.d_model // config.heads, _clip_distance(config))


def _t5(config: Any, layers: int, causal: bool) -> RelativePositions:
    from regard.attention.relative_kinds import T5Positions
    from regard.attention.relative_protocol import RelativeBias, causal_bucket, two_sided_bucket

    bucket = causal_bucket if causal else two_sided_bucket
    return T5Positions(layers, [RelativeBias(config.heads, bucket)])


def _transformer_xl(config: Any, layers: int, causal: bool) -> RelativePositions:
    from regard.attention.relative_kinds import TransformerXLPositions

    return TransformerXLPositions(layers, config.d_model, config.heads, causal=causal)


@dataclass(frozen=True)
class PositionKind:
    """absolute: makes what is added to the embeddings, from a configuration and their width.

    relative: makes what attention knows, from a configuration, the number of layers, and whether
        each token attends to none after it.
    """

    absolute: Callable[[Any, int], PositionTable] = _none
    relative: Callable[[Any, int, bool], RelativePositions] = _no_relations


# `positions` of a configuration -> its parts
KINDS = {
    "sinusoidal": PositionKind(absolute=_sinusoidal),
    "learned": PositionKind(absolute=_learned),
    "none": PositionKind(),
    "shaw": PositionKind(relative=_shaw),
    "t5": PositionKind(relative=_t5),
    "transformer-xl": PositionKind(relative=_transformer_xl),
    "dependency-absolute": PositionKind(absolute=_dependency_absolute),
    "dependency-relative": PositionKind(absolute=_sinusoidal, relative=_dependency_relative),
}


def absolute_positions(config: Any, width: int | None = None) -> PositionTable:
    """The vectors that are added to the embeddings; `width` is theirs, None: that of the model."""
    return KINDS[config.positions].absolute(config, width or config.d_model)


def relative_positions(config: Any, layers: int, *, causal: bool = False) -> RelativePositions:
    """The relative positions of `layers` layers of self-attention.

    Raises:
        ConfigError: the model does not have this kind, or `clip_distance` has no effect with it.
    """
    check_positions(config)
    return KINDS[config.positions].relative(config, layers, causal)


def reads_unpadded(config: Any) -> bool:
    """Whether a model with these positions reads unpadded batches: all positions are absolute."""
    return KINDS[config.positions].relative is _no_relations


def while_decoding(positions: EncoderPositions) -> EncoderPositions:
    """The kind of a decoder beside an encoder of this kind: no tree is known of a text to come."""
    return "sinusoidal" if positions.startswith("dependency") else positions


def check_positions(config: Any) -> None:
    """Check `positions` against the type of this field, and `clip_distance` against `positions`.

    Raises:
        ConfigError: the model does not have this kind, or `clip_distance` has no effect with it.
    """
    kinds = get_args(get_type_hints(type(config))["positions"])
    if config.positions not in kinds:
        must = " or ".join(map(repr, kinds))
        raise ConfigError(
            f"`positions` must be {must} in a {type(config).__name__}, but is {config.positions!r}."
        )
    if config.clip_distance is not None and config.positions not in CLIPPED:
        must = " or ".join(f'"{kind}"' for kind in CLIPPED)
        raise ConfigError(
            f'`clip_distance` has no effect with positions = "{config.positions}": leave it out, '
            f"or choose positions = {must}."
        )
