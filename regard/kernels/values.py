"""What the nodes of a graph stand for: hidden states in registers, and symbols for all else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from regard.ops import KeyMask, UnpaddedMask


@dataclass(frozen=True)
class Register:
    """Where hidden states are."""

    number: int


@dataclass(frozen=True)
class Symbol:
    """What is no hidden state: a mask, a cache, a batch, a count."""

    name: str
    parts: tuple[Any, ...] = ()


CACHE, SOURCE, TOKENS, SUBSET = (Symbol(name) for name in ("cache", "source", "tokens", "subset"))
SEGMENT_IDS, LAYOUT, LENGTHS = Symbol("segments"), Symbol("layout"), Symbol("lengths")
COUNT = Symbol("size", (TOKENS, 1))
MASK, ADVANCED = Symbol("mask", (CACHE, None)), Symbol("advanced")  # without a window
SOURCE_MASK, NOTHING = Symbol("mask", (SOURCE,)), Symbol("nothing")
INPUTS = {
    symbol.name: symbol for symbol in (CACHE, SOURCE, TOKENS, SUBSET, SEGMENT_IDS, LAYOUT, LENGTHS)
}


@dataclass(frozen=True)
class Built:
    """A dataclass that the model made of other values."""

    kind: type
    values: dict[str, Any]


OFFSETS = Symbol("offsets", (LAYOUT,))
UNPADDED = Built(
    UnpaddedMask, {"queries": OFFSETS, "keys": OFFSETS, "causal": False, "window": None}
)
WHOLE_TEXTS = Built(KeyMask, {**vars(KeyMask()), "unpadded": UNPADDED})
