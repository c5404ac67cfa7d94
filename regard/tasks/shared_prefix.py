"""Computes the prefix that the choices of a question share once.

For causal models that cache keys and values: the hidden states of the prefix are the same in all
those sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.attention.capture import captured_or_gated
from regard.data.batches import Sequences
from regard.models.gpt import GPT
from regard.models.wrappers import generator

MIN_SHARED = 16  # tokens that neighbours must share
MIN_SAVING = 0.25  # of all positions of the batch


@dataclass(frozen=True)
class PrefixGroups:
    """Neighbours with the same prefix are a group.

    owner: (B,) the group of each row.  first: (G,) the first row of each group.  shared: (G,) how
    many tokens its rows share; of a row alone, all but one.  rest: the most tokens of a row that
    are not shared.
    """

    owner: Tensor
    first: Tensor
    shared: Tensor
    rest: int


def prefix_groups(texts: Sequences) -> PrefixGroups | None:
    """The groups of a batch; None where they would save little. No row is shared as a whole."""
    ids, lengths = texts.ids, texts.lengths
    if len(texts) < 2 or ids.size(1) <= MIN_SHARED or int(lengths.min()) == 0:
        return None
    same = (ids[1:] == ids[:-1]).int().cumprod(1).sum(1)  # (B - 1,)
    alike = torch.minimum(same, torch.minimum(lengths[1:], lengths[:-1]) - 1) >= MIN_SHARED
    begins = torch.cat([alike.new_ones(1), ~alike])
    owner, first = begins.long().cumsum(0) - 1, begins.nonzero()[:, 0]
    shared = torch.full_like(first, ids.size(1)).scatter_reduce(0, owner, lengths - 1, "amin")
    shared = shared.scatter_reduce(0, owner[1:][alike], same[alike], "amin")
    rest = int((lengths - shared[owner]).max())
    positions_read = len(first) * int(shared.max()) + len(texts) * rest
    return (
        PrefixGroups(owner, first, shared, rest)
        if positions_read <= (1 - MIN_SAVING) * ids.numel()
        else None
    )


def encode_with_shared_prefixes(model: GPT, texts: Sequences) -> Tensor | None:
    """What `model.encode` gives, (B, T, D), where that is worth it; else None.

    In training, and while attention capture or head gating is on, it is not.
    """
    if model.training or torch.is_grad_enabled() or captured_or_gated():
        return None
    if texts.segments is not None:
        return None
    groups = prefix_groups(texts)
    if groups is None:
        return None
    ids, width = texts.ids, texts.ids.size(1)
    prefixes = ids[groups.first, : int(groups.shared.max())]
    reader: Any = generator(model)
    first = reader(prefixes, reader.empty(len(groups.first)))
    before, state = first.hidden, first.state
    # The batch waits for the row with the longest rest: so each may read as much again.
    rest = groups.rest
    reused = (texts.lengths - rest).clamp(min=0)[:, None]  # (B, 1)
    positions = torch.arange(width, device=ids.device)  # (T,)
    state = state.select(groups.owner).truncate(reused[:, 0])
    after = reader(ids.gather(1, reused + positions[:rest]), state).hidden  # (B, R, D)
    prefix = before[groups.owner][:, positions.clamp(max=before.size(1) - 1)]
    at = (positions - reused).clamp(0, rest - 1)[..., None].expand(-1, -1, after.size(-1))
    return torch.where((positions < reused)[..., None], prefix, after.gather(1, at))
