"""Both ends of a decoder: rows of an embedding, and how probable words are."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.native import build
from regard.native.products import WEIGHTS, pointer, rows_of, threads_for

A_SCORES_WORK = 40  # multiplications that take as long as a score's part of the log-sum-exp


def lines(packed: Tensor, scale: Tensor | None, ids: Tensor, shape: tuple[int, int]) -> Tensor:
    """Some lines of a packed matrix of this shape (N, K), as float32: (...,) -> (..., K).

    Raises:
        IndexError: there is no such line.
    """
    library = build.kernels() if ids.dtype == torch.int64 and ids.device.type == "cpu" else None
    if library is None:
        found = rows_of(packed, ids, shape[1])
        return found if scale is None else found * scale[ids, None]
    ids = ids.contiguous()
    out = torch.empty(*ids.shape, shape[1])
    matrix = WEIGHTS[packed.dtype], *shape, pointer(packed), pointer(scale)
    if library.regard_lines(*matrix, pointer(ids), ids.numel(), pointer(out)):
        raise IndexError(f"ids must be from 0 to {shape[0] - 1}, but some are not")
    return out


def best(scores: Tensor) -> tuple[Tensor, Tensor]:
    """The most probable word of each row, and its log-probability: (R, V) -> 2 times (R,).

    Of words that are equally probable it is the first. Where scores are no numbers, neither is the
    log-probability.
    """
    plain = scores.dtype == torch.float32 and scores.device.type == "cpu" and scores.numel()
    library = build.loaded() if plain else None
    if library is None:
        wide = scores.to(torch.promote_types(scores.dtype, torch.float32)).log_softmax(-1)
        word = wide.argmax(-1, keepdim=True)
        return word[:, 0], wide.gather(1, word)[:, 0]
    scores = scores.contiguous()
    rows, words = scores.shape
    word, log_prob = torch.empty(rows, dtype=torch.int64), torch.empty(rows)
    library.regard_best(
        pointer(scores),
        *(rows, words, pointer(word), pointer(log_prob)),
        threads_for(rows * words * A_SCORES_WORK),
    )
    return word, log_prob


def surprise(scores: Tensor, words: Tensor) -> Tensor:
    """Minus the log-probability of one word of each row: (R, V) and (R,) -> (R,) float64.

    Raises:
        IndexError: there is no such word.
    """
    plain = scores.dtype == torch.float32 and scores.device.type == "cpu" and scores.numel()
    library = build.kernels() if plain else None
    if library is None:
        wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
        return F.cross_entropy(wide, words, reduction="none").double()
    scores, words = scores.contiguous(), words.contiguous()
    rows, known = scores.shape
    least, most = map(int, words.aminmax())
    if least < 0 or most >= known:
        raise IndexError(f"words must be from 0 to {known - 1}, but are {least} to {most}.")
    found = torch.empty(rows, dtype=torch.float64)
    threads = threads_for(rows * known * A_SCORES_WORK)
    library.regard_surprise(pointer(scores), rows, known, pointer(words), pointer(found), threads)
    return found


class Leaders(NamedTuple):
    """The most probable words of each row, best first, and their log-probabilities: (R, N).

    vocabulary: of how many words they are the best.
    """

    words: Tensor
    log_probs: Tensor
    vocabulary: int


def leading(scores: Tensor, count: int) -> Leaders | None:
    """The `count` most probable words of each row (R, V); None where no kernels are, or not so many
    words.

    Of words that are equally probable the first comes first. Where scores are no numbers, neither
    are the log-probabilities.
    """
    plain = scores.dtype == torch.float32 and scores.device.type == "cpu"
    library = build.loaded() if plain else None
    if library is None:
        return None
    scores = scores.contiguous()
    rows, words = scores.shape
    word = torch.empty(rows, count, dtype=torch.int64)
    log_prob = torch.empty(rows, count)
    done = library.regard_leading(
        pointer(scores),
        *(rows, words, count, pointer(word), pointer(log_prob)),
        threads_for(rows * words * A_SCORES_WORK),
    )
    return Leaders(word, log_prob, words) if done else None
