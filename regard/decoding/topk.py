"""The best continuations of all hypotheses of a sentence: exact, quick, and without chance.

`torch.topk` promises no order among equal values, and reads every value several times. Here the
vocabulary is cut into chunks: the k best values lie in the k chunks with the best maxima, so that
one quick pass finds the maxima and everything else looks at a few hundred values. Equal values
are ranked by their index.
"""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK = 64
LOWEST = -(2**63)


def best_continuations(log_probs: Tensor, running: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` greatest of `running[a, w] + log_probs[a, w, v]` for each sentence a.

    log_probs: (A, W, V).  running: (A, W) float64, what the W hypotheses have so far.
    Gives the sums (A, count), float64, greatest first, and their indices w * V + v (A, count).
    Of equal sums (to 12 digits) the lowest index comes first. The result is shorter where W * V
    is.
    """
    width, vocabulary = log_probs.shape[1:]
    count = min(count, width * vocabulary)
    bits = index_bits(width, vocabulary, count)
    if width * vocabulary <= count * CHUNK:
        sums = (log_probs + running[..., None]).flatten(1)  # (A, W, V) -> (A, W * V)
        index = _first(sums, count, bits)
        return sums.gather(1, index), index
    maxima = _maxima(log_probs)  # (A, W, C)
    chunks = maxima.size(2)
    sums = (maxima + running[..., None]).flatten(1)  # (A, W, C) -> (A, W * C)
    chosen = _first(sums, min(count, sums.size(1)), bits).sort(1).values  # (A, N)
    row, chunk = chosen // chunks, chosen % chunks
    word = chunk[..., None] * CHUNK + torch.arange(CHUNK, device=chunk.device)  # (A, N, 64)
    index = (row[..., None] * vocabulary + word.clamp(max=vocabulary - 1)).flatten(1)
    values = log_probs.flatten(1).gather(1, index).view_as(word)
    sums = (values + running.gather(1, row)[..., None]).flatten(1)  # (A, N, 64) -> (A, N * 64)
    place = _first(sums, count, bits, outside=(word >= vocabulary).flatten(1))
    return sums.gather(1, place), index.gather(1, place)


def best_of_topk(
    words: Tensor, log_probs: Tensor, running: Tensor, vocabulary: int
) -> tuple[Tensor, Tensor]:
    """The N best continuations, from the N best tokens of each of the A * W hypotheses.

    words, log_probs: (A * W, N), the most probable first, of equally probable ones the first.
    """
    (sentences, width), count = running.shape, words.size(1)
    sums = (log_probs.view(sentences, width, count) + running[..., None]).flatten(1)
    place = _first(sums, count, index_bits(width, vocabulary, count))  # (A, N) of (A, W * N)
    word = words.view(sentences, -1).gather(1, place)
    return sums.gather(1, place), place // count * vocabulary + word


def _maxima(log_probs: Tensor) -> Tensor:
    """(A, W, V) -> (A, W, C): the greatest value of each chunk, the last one being shorter."""
    whole = log_probs.size(2) // CHUNK * CHUNK
    maxima = log_probs[..., :whole].unflatten(2, (-1, CHUNK)).amax(-1)
    if whole == log_probs.size(2):
        return maxima
    return torch.cat([maxima, log_probs[..., whole:].amax(-1, keepdim=True)], -1)


def index_bits(width: int, vocabulary: int, count: int) -> int:
    """How many hold an index. All rankings round alike, or equal values would be ranked in two
    ways."""
    if width * vocabulary <= count * CHUNK:
        return (width * vocabulary).bit_length()
    return max(width * -(-vocabulary // CHUNK), count * CHUNK).bit_length()


def _first(values: Tensor, count: int, bits: int, outside: Tensor | None = None) -> Tensor:
    """Indices (A, count) of the greatest of float64 values (A, N); of equal ones the lowest.

    The bits of a float, read as an integer, order like the float. The lowest `bits` of them give
    way to the index: no two keys are equal, and any way of sorting gives the same order.
    """
    keys = values.view(torch.int64)
    keys = keys ^ ((keys >> 63) & (2**63 - 1))  # negative floats order backwards
    last = (1 << bits) - 1
    keys = (keys & ~last) | (last - torch.arange(values.size(1), device=values.device))
    if outside is not None:
        keys = keys.masked_fill(outside, LOWEST)
    return keys.topk(count).indices
