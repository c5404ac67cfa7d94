"""Both ends of a decoder: rows of an embedding, and how probable words are."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.errors import RegardError
from regard.native import build
from regard.native.arguments import address, checked_shape, contiguous, is_cpu_strided
from regard.native.products import check_device, packed_matrix, rows_of, threads_for

A_SCORES_WORK = 40  # multiplications that take as long as a score's part of the log-sum-exp


def lines(packed: Tensor, scale: Tensor | None, ids: Tensor, shape: tuple[int, int]) -> Tensor:
    """Some lines of a packed matrix of this shape (N, K), as float32: (...,) -> (..., K).

    Raises:
        IndexError: there is no such line.
        RegardError: ids are no whole numbers.
    """
    if ids.dtype not in (torch.int64, torch.int32):
        raise RegardError(f"`ids` must be int64 or int32, but is {ids.dtype}.")
    library = build.kernels() if is_cpu_strided(ids, torch.int64) and packed.is_cpu else None
    if library is None:
        check_device("ids", ids, packed)
        _check_range("ids", ids, shape[0])
        found = rows_of(packed, ids, shape[1])
        return found if scale is None else found * scale[ids, None]
    ids = contiguous(ids)
    out = torch.empty(*ids.shape, shape[1])
    missing = library.regard_lines(
        *packed_matrix(packed, scale, shape),
        *(address("ids", ids, torch.int64, ids.shape), ids.numel()),
        address("out", out, torch.float32, out.shape),
    )
    if missing:
        _check_range("ids", ids, shape[0])
    return out


def _check_range(name: str, numbers: Tensor, end: int) -> None:
    """Raises IndexError: some numbers on the CPU are not from 0 to before `end`."""
    if not numbers.is_cpu or not numbers.numel():
        return
    least, most = map(int, numbers.aminmax())
    if least < 0 or most >= end:
        raise IndexError(f"`{name}` must be from 0 to {end - 1}, but are from {least} to {most}.")


def best(scores: Tensor) -> tuple[Tensor, Tensor]:
    """The most probable word of each row, and its log-probability: (R, V) -> 2 times (R,).

    Of words that are equally probable it is the first. Where scores are no numbers, neither is the
    log-probability.
    """
    rows, words = checked_shape("scores", scores)
    library = build.loaded() if rows and is_cpu_strided(scores) else None
    if library is None:
        wide = scores.to(torch.promote_types(scores.dtype, torch.float32)).log_softmax(-1)
        word = wide.argmax(-1, keepdim=True)
        return word[:, 0], wide.gather(1, word)[:, 0]
    scores = contiguous(scores)
    word, log_prob = torch.empty(rows, dtype=torch.int64), torch.empty(rows)
    library.regard_best(
        *(address("scores", scores, torch.float32, (rows, words)), rows, words),
        address("word", word, torch.int64, (rows,)),
        address("log_prob", log_prob, torch.float32, (rows,)),
        threads_for(rows * words * A_SCORES_WORK),
    )
    return word, log_prob


def surprise(scores: Tensor, words: Tensor) -> Tensor:
    """Minus the log-probability of one word of each row: (R, V) and (R,) -> (R,) float64.

    Raises:
        IndexError: there is no such word.
        RegardError: there is not one word for each row.
    """
    rows, known = checked_shape("scores", scores)
    if words.shape != (rows,) or words.dtype != torch.int64:
        raise RegardError(
            f"`words` must be int64 of shape ({rows},), but is {words.dtype} of shape "
            f"{tuple(words.shape)}."
        )
    library = build.kernels() if rows and is_cpu_strided(scores) else None
    if library is None:
        _check_range("words", words, known)
        wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
        return F.cross_entropy(wide, words, reduction="none").double()
    scores, words = contiguous(scores), contiguous(words)
    found = torch.empty(rows, dtype=torch.float64)
    missing = library.regard_surprise(
        *(address("scores", scores, torch.float32, (rows, known)), rows, known),
        address("words", words, torch.int64, (rows,)),
        address("found", found, torch.float64, (rows,)),
        threads_for(rows * known * A_SCORES_WORK),
    )
    if missing:
        _check_range("words", words, known)
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

    Raises:
        RegardError: `count` is below 1.
    """
    rows, words = checked_shape("scores", scores)
    check_count(count)
    library = build.loaded() if is_cpu_strided(scores) else None
    if library is None or count > words:
        return None
    scores = contiguous(scores)
    word = torch.empty(rows, count, dtype=torch.int64)
    log_prob = torch.empty(rows, count)
    library.regard_leading(
        *(address("scores", scores, torch.float32, (rows, words)), rows, words, count),
        address("word", word, torch.int64, (rows, count)),
        address("log_prob", log_prob, torch.float32, (rows, count)),
        threads_for(rows * words * A_SCORES_WORK),
    )
    return Leaders(word, log_prob, words)


def check_count(count: int) -> None:
    """Raises RegardError: no words are asked for."""
    if count < 1:
        raise RegardError(f"`count` must be at least 1, but is {count}.")
