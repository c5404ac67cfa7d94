"""The attention weights that were recorded in a forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.attention.capture import NEXT, Labels
from regard.errors import ConfigError

Tokens = Sequence[str] | None  # None: they are not known


@dataclass
class RecordedAttention:
    """One attention of a model in one forward pass."""

    name: str
    kind: str
    heads: tuple[int, ...] = ()  # their numbers, from 1, where some were pruned; else 1, 2, 3, ...
    parts: list[Tensor] = field(default_factory=list)  # a decoder's, step by step

    @property
    def weights(self) -> Tensor:
        """(B, H, T, S), float32, on the CPU; the steps of a decoder are concatenated.

        Raises:
            ConfigError: they were recorded in a search, which reorders its rows.
        """
        rows = [part.size(0) for part in self.parts]
        if min(rows) < max(rows):
            raise ConfigError(
                f"The steps of `{self.name}` have {min(rows)} to {max(rows)} rows, as in a beam "
                "search: a row is another hypothesis at each step. `parts` has the steps as they "
                "were; for the attention of what was found, record the model reading it, "
                "`model(source, target)`, as the `generate` of a task does."
            )
        keys = max(part.size(-1) for part in self.parts)
        padded = [pad(part, (0, keys - part.size(-1))) for part in self.parts]
        return torch.cat(padded, dim=2)


@dataclass
class ForwardPass:
    """One forward pass: its attentions by name, in the order in which they ran."""

    attentions: dict[str, RecordedAttention] = field(default_factory=dict)
    source: Labels | None = None
    target: Labels | None = None

    def labels(self, kind: str, row: int) -> tuple[Tokens, Tokens]:
        """The queries and the keys of a row in attention of this kind."""
        source, target = (
            None if side is None else side[row] for side in (self.source, self.target)
        )
        if kind == "query":  # in the order of the text a query stands where the next token will
            read = target if source is None else source
            return None if read is None else [*read[1:], NEXT], read
        if kind == "encoder" and source is None:  # of a language model that reads no source
            return target, target
        if kind == "encoder" or (kind == "decoder" and target is None):
            return source, source
        if source is None or target is None:
            return target, source if kind == "cross" else target
        # The decoder reads bos … and predicts … eos: cross-attention is for the token predicted
        # next.
        return (target[1:], source) if kind == "cross" else (target[:-1], target[:-1])
