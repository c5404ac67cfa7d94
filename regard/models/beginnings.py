"""Rows of a batch that begin alike, as the choices of one question: the beginning is read once.

For decoders that read to the right and remember a key and a value of each token; their hidden
states of the beginning are then the same in all those rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.attention.gates import gating
from regard.attention.tap import listening
from regard.data.batches import Sequences

LEAST = 16  # tokens that neighbours must share
WORTH = 0.25  # of all places, which must be spared


@dataclass(frozen=True)
class Beginnings:
    """Neighbours that begin alike are a group.

    owner: (B,) the group of each row.  first: (G,) the first row of each group.  shared: (G,) how
    many tokens its rows share; of a row alone, all but one.  rest: what is left of a row at most.
    """

    owner: Tensor
    first: Tensor
    shared: Tensor
    rest: int


def beginnings(texts: Sequences) -> Beginnings | None:
    """The groups of a batch; None where they would spare little. A row is never shared whole."""
    ids, lengths = texts.ids, texts.lengths
    if len(texts) < 2 or ids.size(1) <= LEAST or int(lengths.min()) == 0:
        return None
    same = (ids[1:] == ids[:-1]).int().cumprod(1).sum(1)  # (B - 1,)
    alike = torch.minimum(same, torch.minimum(lengths[1:], lengths[:-1]) - 1) >= LEAST
    begins = torch.cat([alike.new_ones(1), ~alike])
    owner, first = begins.long().cumsum(0) - 1, begins.nonzero()[:, 0]
    shared = torch.full_like(first, ids.size(1)).scatter_reduce(0, owner, lengths - 1, "amin")
    shared = shared.scatter_reduce(0, owner[1:][alike], same[alike], "amin")
    rest = int((lengths - shared[owner]).max())
    read = len(first) * int(shared.max()) + len(texts) * rest
    return Beginnings(owner, first, shared, rest) if read <= (1 - WORTH) * ids.numel() else None


def read_once(model: Any, texts: Sequences) -> Tensor | None:
    """What `model.encode` gives, (B, T, D), where beginnings are to be read once; else None.

    In training, and while somebody looks at the attention or weighs its heads, they are not.
    """
    seen = listening.get() is not None or gating.get() is not None
    if model.training or torch.is_grad_enabled() or seen or texts.segments is not None:
        return None
    groups = beginnings(texts)
    if groups is None:
        return None
    ids, count = texts.ids, texts.ids.size(1)
    before = model(ids[groups.first, : int(groups.shared.max())], model.empty(len(groups.first)))
    # Rows wait for the one with most to read: so they may as well read more than they must.
    rest = groups.rest
    there = (texts.lengths - rest).clamp(min=0)[:, None]  # (B, 1)
    places = torch.arange(count, device=ids.device)  # (T,)
    state = before.state.select(groups.owner).cut(there[:, 0])
    behind = model(ids.gather(1, there + places[:rest]), state).hidden  # (B, R, D)
    begun = before.hidden[groups.owner][:, places.clamp(max=before.hidden.size(1) - 1)]
    at = (places - there).clamp(0, rest - 1)[..., None].expand(-1, -1, behind.size(-1))
    return torch.where((places < there)[..., None], begun, behind.gather(1, at))
