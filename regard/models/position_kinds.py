"""Position encodings by name: the table from which `config.positions` chooses.

    self.positions = absolute_positions(config)                     added to the embeddings
    self.relations = relative_positions(config, config.layers)      known to attention

A configuration has `positions` and `clip_distance`, and the usual names of sizes. The type of
`positions` says which kinds a model has: `Literal["learned"]` where it has that one alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

from regard.attention.relative_protocol import NoRelations, RelativePositions
from regard.errors import ConfigError
from regard.layers.positions import (
    LearnedPositions,
    NoPositions,
    PositionTable,
    SinusoidalPositions,
)
from regard.models.config import EncoderPositions

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
