"""The best continuations of all hypotheses of each sentence: exact, fast, and deterministic;
searches in one compiled call, where the model has one and nothing reads the single steps; and
tokens that are drawn.

`torch.topk` promises no order among equal values, and reads every value several times. Here the
vocabulary is divided into chunks: the k best values are in the k chunks with the greatest maxima,
so that one pass finds the maxima, and the rest reads a few hundred values. Equal values are ranked
by their index.

Dimensions: A sentences, W hypotheses of each, V tokens in the vocabulary, C chunks of it, N best
continuations of a sentence.
"""

import hashlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard import ops
from regard.data.batches import Sequences
from regard.decoding.filters import BadWords, Filter, ForcedEnd, Renormalize, Suppress, TokenIds
from regard.decoding.length_penalty import LengthPenalty
from regard.decoding.steps import Hypotheses, Hypothesis, eos_tokens
from regard.models.protocols import Generator, SearchPlan


def run_compiled_search(
    model: Generator,
    started: tuple[Any, Tensor],
    limits: Tensor,
    filters: Sequence[Filter],
    eos: TokenIds | None,
    penalty: LengthPenalty,
    *,
    size: int = 1,
    n_best: int = 1,
    early_stopping: bool | str = True,
) -> Hypotheses | None:
    """The hypotheses of each source, best first; None where the search must go step by step, as
    with most filters or where the model has no compiled search.

    Args:
        started: the state after the sources, and the first tokens (B, 1).
        limits: (B,) how many tokens may be generated.
        filters, ...: see `regard.decoding.beam.Beam`.
    """
    state, tokens = started
    if tokens.size(1) > 1:
        return None
    eos = eos_tokens(eos, model)
    forbidden = _forbidden(filters, eos, model.config.vocab_size)
    if forbidden is None:
        return None
    count = ranked_count(size, eos)
    plan = SearchPlan(
        *(size, n_best, eos, early_stopping, limits, penalty),
        bits=partial(index_bits, count=count),
        count=count,
        forbidden=forbidden,
        normalized=any(isinstance(part, Renormalize) and part.on for part in filters),
        forced=any(isinstance(part, ForcedEnd) for part in filters),
    )
    results = model.search(tokens, state, plan)
    if results is None:
        return None
    return [[Hypothesis(*fields) for fields in of_source] for of_source in results]


def ranked_count(size: int, eos: Sequence[int]) -> int:
    """How many continuations of a sentence are ranked at each step: so many that `size` of them go
    on even if every running hypothesis can end with each of the tokens `eos`.
    """
    return (1 + max(1, len(eos))) * size


def _forbidden(filters: Sequence[Filter], eos: TokenIds, vocab_size: int) -> TokenIds | None:
    """The tokens that filters never allow; None where they do something else too.

    The compiled search knows: single tokens that are forbidden, one end that is forced at the
    limit, and log-probabilities that are normalized again behind the other filters.
    """
    forbidden: set[int] = set()
    forced: set[int] = set()
    for index, part in enumerate(filters):
        match part:
            case BadWords() if all(len(ids) == 1 for ids in part.sequences):
                forbidden |= {*part.singles(eos)}
            case Suppress():
                forbidden |= {*part.tokens}
            case ForcedEnd() if len(part.tokens) == 1 and part.tokens[0] in eos:
                forced |= {*part.tokens}
            case Renormalize() if index == len(filters) - 1:
                pass
            case _:
                return None
    if forced & forbidden or max(forced | forbidden, default=0) >= vocab_size:
        return None
    return tuple(sorted(forbidden))


CHUNK = 64  # tokens; the last chunk may have fewer
LOWEST = -(2**63)  # of int64


def best_continuations(log_probs: Tensor, running: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` greatest of `running[a, w] + log_probs[a, w, v]` for each sentence a.

    Args:
        log_probs: (A, W, V).
        running: (A, W) float64, log-probabilities of the W hypotheses so far.
        count: N, how many continuations of each sentence; all W * V of them where that is less.

    Returns:
        The sums (A, N), float64, greatest first, and their indices w * V + v, (A, N). Of sums that
        are equal to 12 digits the lowest index comes first.
    """
    width, vocab_size = log_probs.shape[1:]
    count = min(count, width * vocab_size)
    bits = index_bits(width, vocab_size, count)
    if width * vocab_size <= count * CHUNK:
        sums = (log_probs + running[..., None]).flatten(1)  # (A, W, V) -> (A, W * V)
        index = _greatest(sums, count, bits)
        return sums.gather(1, index), index
    maxima = _maxima(log_probs)  # (A, W, C)
    chunks = maxima.size(2)
    sums = (maxima + running[..., None]).flatten(1)  # (A, W, C) -> (A, W * C)
    chosen = _greatest(sums, min(count, sums.size(1)), bits).sort(1).values  # (A, N) best chunks
    hypothesis, chunk = chosen // chunks, chosen % chunks
    token = chunk[..., None] * CHUNK + torch.arange(CHUNK, device=chunk.device)  # (A, N, 64)
    index = hypothesis[..., None] * vocab_size + token.clamp(max=vocab_size - 1)
    index = index.flatten(1)  # (A, N, 64) -> (A, N * 64)
    values = log_probs.flatten(1).gather(1, index).view_as(token)  # -> (A, N, 64)
    sums = values + running.gather(1, hypothesis)[..., None]
    sums = sums.flatten(1)  # (A, N, 64) -> (A, N * 64)
    best = _greatest(sums, count, bits, outside=(token >= vocab_size).flatten(1))
    return sums.gather(1, best), index.gather(1, best)


def best_of_topk(
    tokens: Tensor, log_probs: Tensor, running: Tensor, vocab_size: int
) -> tuple[Tensor, Tensor]:
    """The N best continuations of each sentence, from the N best tokens of each hypothesis.

    Args:
        tokens: (A * W, N), the most probable first, of equally probable ones the lowest first.
        log_probs: (A * W, N), theirs.
        running: (A, W) float64, log-probabilities of the hypotheses so far.

    Returns:
        See `best_continuations`, with a count of N.
    """
    (sentences, width), count = running.shape, tokens.size(1)
    sums = log_probs.view(sentences, width, count) + running[..., None]  # (A * W, N) -> (A, W, N)
    sums = sums.flatten(1)  # (A, W, N) -> (A, W * N)
    best = _greatest(sums, count, index_bits(width, vocab_size, count))  # (A, N)
    token = tokens.view(sentences, -1).gather(1, best)  # (A * W, N) -> (A, W * N) -> (A, N)
    return sums.gather(1, best), best // count * vocab_size + token


def index_bits(width: int, vocab_size: int, count: int) -> int:
    """How many of the lowest bits of a value are replaced by its index; see `_greatest`.

    They depend on W, V and N alone, so that both ways to rank above, and the compiled one, round
    values alike and give equal values the same order.
    """
    if width * vocab_size <= count * CHUNK:
        return (width * vocab_size).bit_length()
    return max(width * -(-vocab_size // CHUNK), count * CHUNK).bit_length()


def _maxima(log_probs: Tensor) -> Tensor:
    """(A, W, V) -> (A, W, C): the greatest value of each chunk, the last one being shorter."""
    whole = log_probs.size(2) // CHUNK * CHUNK
    maxima = log_probs[..., :whole].unflatten(2, (-1, CHUNK)).amax(-1)  # (A, W, C, 64) -> (A, W, C)
    if whole == log_probs.size(2):
        return maxima
    return torch.cat([maxima, log_probs[..., whole:].amax(-1, keepdim=True)], -1)


def _greatest(values: Tensor, count: int, bits: int, outside: Tensor | None = None) -> Tensor:
    """Indices (A, N) of the greatest of float64 values (A, M); of equal ones the lowest.

    The bits of a float, read as an integer, order like the float. The index replaces the lowest
    `bits` of them: no two keys are equal, and any way of sorting gives the same order.

    outside: (A, M) bool, values that must not be chosen.
    """
    keys = values.view(torch.int64)
    keys = keys ^ ((keys >> 63) & (2**63 - 1))  # negative floats order backwards
    mask = (1 << bits) - 1
    keys = (keys & ~mask) | (mask - torch.arange(values.size(1), device=values.device))
    if outside is not None:
        keys = keys.masked_fill(outside, LOWEST)
    return keys.topk(count).indices


# ----------------------------------------------------------------------------------- sampling


def row_seeds(source: Sequences | None, samples: int, seed: int) -> list[int]:
    """A seed for each sample: the first 8 bytes of BLAKE2b over "seed sample-number token …".

    Args:
        source: sources or prompts; None: one empty prompt.
        samples: how many for each source.

    Returns:
        Seeds from 0 to 2^64 - 1; that of sample i of source b has the index b * samples + i.
    """
    texts: list[list[int]] = [[]]
    if source is not None:
        lengths = source.lengths.tolist()
        texts = [ids[:n] for ids, n in zip(source.ids.tolist(), lengths, strict=True)]
    return [
        int.from_bytes(hashlib.blake2b(" ".join(map(str, key)).encode(), digest_size=8).digest())
        for ids in texts
        for key in ([seed, number, *ids] for number in range(samples))
    ]


class Draw:
    """Draws tokens by the inverse of the cumulative distribution.

    Each sequence has its own generator with its own seed; its i-th token takes the i-th uniform
    number, whatever the other sequences do. The numbers are drawn on demand: limits may be huge.

    Args:
        seeds: one for each sequence of the batch.
        limits: how many tokens may be generated for each.
    """

    FIRST = 256  # how many numbers a sequence draws at first; their number doubles from then on

    def __init__(self, seeds: list[int], limits: Tensor):
        self.generators = [torch.Generator().manual_seed(seed % 2**63) for seed in seeds]
        self.limit = int(limits.max()) if seeds else 0
        self.uniform = torch.zeros(len(seeds), 0, dtype=torch.float64)

    def numbers(self, rows: Tensor, count: int) -> Tensor:
        """The uniform numbers (B,) float64, in [0, 1), for the next tokens.

        Args:
            rows: (B,) the sequences' indices in the batch.
            count: how many tokens were generated before.
        """
        self._draw(1 + count)
        self.uniform = self.uniform.to(rows.device)
        return self.uniform[rows, count]

    def _draw(self, needed: int) -> None:
        """Draw numbers of each sequence until there are at least `needed`."""
        drawn = self.uniform.size(1)
        if needed <= drawn or not self.generators:
            return
        more = min(max(needed, 2 * drawn, self.FIRST), max(self.limit, needed)) - drawn
        new = [torch.rand(more, generator=g, dtype=torch.float64) for g in self.generators]
        self.uniform = torch.cat([self.uniform, torch.stack(new).to(self.uniform.device)], 1)

    def __call__(self, scores: Tensor, rows: Tensor, count: int) -> Tensor:
        """Tokens (B,) for scores (B, V); rows, count: see `numbers`.

        A sequence for which no token is allowed gets any token.
        """
        probs = scores.softmax(-1).nan_to_num(0.0)  # (B, V); zeros where no token is allowed
        return ops.weighted_index(probs, self.numbers(rows, count))
