"""How probable a text is to a model that carries a state from its beginning to its end.

Read token by token, one row alone, all weights are read for each token. Yet most models forget:
after some hundred tokens, what they remember does not depend on where they began to read. So the
text is read in several places side by side, each begun that many tokens early, and it is checked
that each row ends with the memory with which the row behind it began. Who does not forget, or
makes much of the slightest difference, reads the text in one go.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from regard.data import ParallelStreams, StreamBatch, TokenArray, WarmedStreams
from regard.state import State
from regard.tasks.batching import device_of, watched

ALONE = 256  # tokens at a time of one row
TOGETHER = 64  # and of several
ROWS = {"cpu": 32}  # side by side: what keeps a processor busy
ELSEWHERE = 256
FEWEST = 4  # rows that pay
WORTH = 8  # a row's tokens for each one that it reads in advance
PLACES = 8  # where is tried how fast a model forgets
CHECKED = 32  # tokens between two looks there
BEFORE = 4 * CHECKED  # tokens that were read before the first
LONGEST = 2048  # tokens, for which it is tried
SAME = 1e-3  # memories that differ by less are one
COARSEST = 1e-2  # where roundings alone make them differ: of weights of 8 bits, for instance
NUDGE = 2.0**-18


@dataclass(frozen=True)
class Forgetting:
    """After how many tokens two memories are one, and how far apart any two may be even then."""

    tokens: int
    apart: float


@torch.no_grad()
def carried_loss(model: Any, text: TokenArray) -> tuple[float, int]:
    """Sum of the losses in nats of all tokens but the first, and how many there are.

    Each is predicted from all before it. The model is not in training.
    """
    found = forgetting(model, text)
    lead = 0 if found is None else found.tokens * 3 // 2
    most = ROWS.get(device_of(model).type, ELSEWHERE)
    while found and (rows := min(most, len(text.ids) // (WORTH * lead))) >= FEWEST:
        columns = WarmedStreams(text, rows=rows, steps=TOGETHER, lead=lead)
        total, count, gap = _read_together(model, columns)
        if gap <= found.apart:
            return total, count
        lead *= 2
    total, count, state = 0.0, 0, None
    for batch in watched(ParallelStreams(text, rows=1, steps=ALONE)):
        loss, tokens, state = _read(model, batch, state)
        total, count = total + loss, count + tokens
    return total, count


def _read(model: Any, batch: StreamBatch, state: State | None) -> tuple[float, int, State]:
    batch = batch.to(device_of(model))
    output = model(batch.tokens, state)
    loss, tokens = model.head.loss(output.hidden.flatten(0, 1), batch.targets.flatten())
    return float(loss), tokens, output.state


def _read_together(model: Any, columns: WarmedStreams) -> tuple[float, int, float]:
    """Loss and tokens, and how far a row's last memory is from that with which the next began."""
    total, count, state, began = 0.0, 0, None, None
    rows = torch.arange(columns.rows - 1, device=device_of(model))
    for number, batch in enumerate(watched(columns), 1):
        loss, tokens, state = _read(model, batch, state)
        total, count = total + loss, count + tokens
        if number == columns.leading:
            began = state.select(rows + 1)
    assert began is not None and state is not None
    return total, count, apart(state.select(rows), began)


@torch.no_grad()
def forgetting(model: Any, text: TokenArray) -> Forgetting | None:
    """How fast a model forgets what it has read of a text; None where it takes too long.

    At some places it begins to read with nothing in mind, with what stood before, and with that
    moved by a rounding. What becomes of the rounding is the noise below which no two readings of
    this model agree.
    """
    longest = min(LONGEST, len(text.ids) // (2 * WORTH * FEWEST))
    ids, device = torch.from_numpy(text.ids.astype("int64")), device_of(model)
    starts = torch.linspace(BEFORE, len(ids) - longest, PLACES).long()

    def read(first: int, count: int, copies: int, state: State | None) -> State:
        tokens = ids[starts[:, None] + torch.arange(first, first + count)]  # (P, T)
        found: State = model(tokens.repeat(copies, 1).to(device), state).state
        return found

    if longest < 2 * CHECKED:
        return None
    rows = torch.arange(PLACES, device=device)
    warm, cold = nudged(read(-BEFORE, BEFORE, 1, None).select(rows.repeat(2)), PLACES), None
    noise, gaps = 0.0, [math.inf]
    for first in range(0, longest - CHECKED + 1, CHECKED):
        warm, cold = read(first, CHECKED, 2, warm), read(first, CHECKED, 1, cold)
        one = warm.select(rows)
        noise = max(noise, apart(warm.select(rows + PLACES), one))
        gaps.append(apart(cold, one))
        same, looks = max(SAME, 2 * noise), len(gaps) - 1
        if gaps[-1] <= same <= COARSEST:
            return Forgetting(first + CHECKED, 2 * same)  # other places differ by more than a few
        hopeless = looks % 8 == 0 and gaps[looks] > gaps[looks // 2] / 2
        if hopeless or same > COARSEST:
            return None
    return None


def nudged(state: State, first: int) -> State:
    """With all numbers of the rows from `first` on moved by as little as roundings do."""
    tensors = state.tensors()
    for name, x in tensors.items():
        if x.is_floating_point():
            tensors[name] = x.clone()
            tensors[name][first:] *= 1 + NUDGE * torch.randn(
                x[first:].shape, generator=torch.Generator().manual_seed(1)
            ).to(x)
    return state.with_tensors(tensors)


def apart(one: State, other: State) -> float:
    """The greatest difference of two states' numbers; of those above 1, as a share of them."""
    most, others = 0.0, other.tensors()
    for name, x in one.tensors().items():
        y = others[name]
        if x.shape != y.shape or not x.is_floating_point():
            most = most if torch.equal(x, y) else math.inf
        elif x.numel():
            x, y = x.float(), y.float()
            gap = float(((x - y).abs() / y.abs().clamp(min=1)).max())
            most = max(most, math.inf if math.isnan(gap) else gap)
    return most
