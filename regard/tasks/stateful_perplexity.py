"""The likelihood of a text under a model that carries a state from token to token.

One sequence reads every weight once for each token. The state of most trained models converges: it
does not depend on where reading began more than some hundred tokens ago. The text of such a model
is read in segments side by side, each of which begins `overlap` tokens early; at the end every
segment's state must equal the state with which the next segment began. A model whose state does
not converge is evaluated sequentially.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from regard.data import ParallelStreams, StreamBatch, TokenArray, WarmedStreams
from regard.models.protocols import Generator
from regard.state import State
from regard.tasks.batching import device_of, watched

SEQUENTIAL_STEPS = 256  # tokens of the single sequence at a time
SEGMENT_STEPS = 64  # tokens of each segment at a time
MOST_SEGMENTS = {"cpu": 32}  # as many as keep a processor busy
ELSEWHERE = 256  # on other devices
FEWEST_SEGMENTS = 4  # fewer do not pay
PER_OVERLAP = 8  # a segment has at least so many tokens for each token of its overlap
PROBES = 8  # positions at which convergence is tested
FIRST_OVERLAP = 32  # tokens; doubled until the states agree
TOLERANCE = 1e-2  # largest difference of states that count as equal


@dataclass(frozen=True)
class TextLikelihood:
    """nats: minus the log-likelihood of `count` tokens.  segments, overlap: how it was read."""

    nats: float
    count: int
    segments: int = 1
    overlap: int = 0


@torch.no_grad()
def stateful_likelihood(model: Generator, text: TokenArray) -> TextLikelihood:
    """The likelihood of all tokens of a text but the first, each given all tokens before it.

    model: in evaluation mode.  text: ids, N of them; N - 1 are predicted.
    """
    overlap = converging_overlap(model, text)
    most = MOST_SEGMENTS.get(device_of(model).type, ELSEWHERE)
    while overlap and (rows := min(most, _segments(text, overlap))) >= FEWEST_SEGMENTS:
        found, gap = _read_segments(model, text, rows, overlap)
        if gap <= TOLERANCE:
            return found
        overlap *= 2
    nats, count, state = 0.0, 0, None
    for batch in watched(ParallelStreams(text, batch_size=1, sequence_length=SEQUENTIAL_STEPS)):
        loss, tokens, state = _read(model, batch, state)
        nats, count = nats + loss, count + tokens
    return TextLikelihood(nats, count)


def _segments(text: TokenArray, overlap: int) -> int:
    return len(text.ids) // (PER_OVERLAP * overlap)


def _read(
    model: Generator, batch: StreamBatch, state: State | None
) -> tuple[float, int, State | None]:
    """Loss in nats and number of the predicted tokens of a batch, and the state after it."""
    batch = batch.to(device_of(model))
    output = model(batch.tokens, state)
    loss, tokens = model.head.loss(output.hidden.flatten(0, 1), batch.targets.flatten())
    return float(loss), tokens, output.state


def _read_segments(
    model: Generator, text: TokenArray, rows: int, overlap: int
) -> tuple[TextLikelihood, float]:
    """The likelihood read in segments, and the largest difference between the last state of a
    segment and the state with which the next one began.
    """
    streams = WarmedStreams(text, batch_size=rows, sequence_length=SEGMENT_STEPS, warmup=overlap)
    nats, count, state, began = 0.0, 0, None, None
    before = torch.arange(rows - 1, device=device_of(model))
    for number, batch in enumerate(watched(streams), 1):
        loss, tokens, state = _read(model, batch, state)
        nats, count = nats + loss, count + tokens
        if number == streams.leading:
            assert state is not None
            began = state.select(before + 1)
    assert began is not None and state is not None
    found = TextLikelihood(nats, count, rows, overlap)
    return found, difference(state.select(before), began)


def converging_overlap(model: Generator, text: TokenArray) -> int | None:
    """Tokens after which the state does not depend on where reading began; None: too many.

    At some positions of the text, the state after n tokens is compared with the state after 2n.
    """
    ids, device = torch.from_numpy(text.ids.astype("int64")), device_of(model)
    overlap = FIRST_OVERLAP
    while _segments(text, overlap) >= FEWEST_SEGMENTS:
        ends = torch.linspace(2 * overlap, len(ids), PROBES).long()
        tokens = ids[ends[:, None] - torch.arange(2 * overlap, 0, -1)].to(device)  # (PROBES, 2n)
        short = model(tokens[:, overlap:]).state
        long = model(tokens).state
        assert short is not None and long is not None
        if difference(short, long) <= TOLERANCE:
            return 2 * overlap  # positions that were not tested may converge later
        overlap *= 2
    return None


def difference(one: State, other: State) -> float:
    """The largest difference of two states; of numbers beyond 1, relative to them."""
    largest, others = 0.0, other.tensors()
    for name, x in one.tensors().items():
        y = others[name]
        if x.shape != y.shape or not x.is_floating_point():
            largest = largest if torch.equal(x, y) else math.inf
        elif x.numel():
            x, y = x.float(), y.float()
            gap = float(((x - y).abs() / y.abs().clamp(min=1)).max())
            largest = max(largest, math.inf if math.isnan(gap) else gap)
    return largest
