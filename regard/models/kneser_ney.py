"""n-gram language models with modified Kneser-Ney smoothing (Chen and Goodman 1999, section 4.1.6).

    p(w | c) = max(a(c w) - D, 0) / sum_x a(c x)  +  g(c) p(w | c without its first token)

a(.) is how often the longest n-grams occur, and of shorter ones how many tokens come before them.
The discount D depends on whether a(c w) is 1, 2, or more; g(c) is what discounts take from c. The
shortest context is empty, and below it all tokens are equally probable.

A sentence ends with `eos`, which is also the first token of the next one's contexts: contexts do
not cross it.
Nothing is trained by gradients: `KneserNey.fit` counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Self

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from regard.data.batches import IGNORE
from regard.errors import ConfigError, warn
from regard.models.config import Counts, Size, TokenId
from regard.models.protocols import CountedModel, Output
from regard.state import State

NONE = -1  # in a context: no token
IMPOSSIBLE = -1e30  # the logarithm of a probability of 0, as a finite number
FALLBACK = (0.5, 1.0, 1.5)  # discounts where counts of counts do not give them
PARTS = 2**24  # probabilities that are computed together


@dataclass(frozen=True)
class KneserNeyConfig:
    """order: tokens of the longest n-gram, of which the last is predicted.

    bos: never predicted, as `pad` is not.  ngrams: how many different ones of each length were
    counted; (): nothing was.
    """

    vocab_size: Size
    order: Annotated[int, Field(ge=2, le=20)] = 5
    pad: TokenId = 0
    bos: TokenId = 1
    eos: TokenId = 2
    ngrams: Counts = ()
    max_length: None = None  # any

    @property
    def d_model(self) -> int:
        """Tokens of a context."""
        return self.order - 1

    @property
    def predicted(self) -> np.ndarray:
        """Which tokens have a probability, (V,) bool."""
        mask = np.ones(self.vocab_size, dtype=bool)
        mask[[i for i in {self.pad, self.bos} - {self.eos} if i < self.vocab_size]] = False
        return mask


@dataclass
class Contexts(State):
    """tokens: the last ones of each sequence, (B, order - 1) int64, `NONE` where there is none."""

    JOINS = True

    tokens: Tensor

    def after(self, tokens: Tensor, eos: int) -> Tensor:
        """The contexts that end with each of the tokens (B, T): (B, T, order - 1)."""
        width = self.tokens.size(1)
        ids = torch.cat([self.tokens, tokens], 1)  # (B, order - 1 + T)
        windows = ids.unfold(1, width, 1)[:, 1:]  # -> (B, T, order - 1)
        later = (windows == eos).flip(-1).cumsum(-1).flip(-1)  # sentence ends at or behind a token
        return windows.masked_fill(later > (windows == eos).long(), NONE)


class NGramTable(nn.Module):
    """All N n-grams of one length, sorted by the index of the prefix, then by the last token.

    key: (N,) int64, the index of the prefix (in the table of its length) times V, plus the last
        token.
    start: (M + 1,) int64, the index of the first n-gram of each of the M prefixes.
    log_prob, log_backoff: (N,), of the last token after the others, and log g of the n-gram as a
        context.
    """

    key: Tensor
    start: Tensor

    def __init__(self, ngrams: int, prefixes: int, vocab_size: int):
        super().__init__()
        self.vocab_size = vocab_size
        self.register_buffer("key", torch.zeros(ngrams, dtype=torch.long))
        self.register_buffer("start", torch.zeros(prefixes + 1, dtype=torch.long))
        self.log_prob = nn.Parameter(torch.zeros(ngrams), requires_grad=False)
        self.log_backoff = nn.Parameter(torch.zeros(ngrams), requires_grad=False)

    def find(self, prefix: Tensor, token: Tensor) -> Tensor:
        """The indices of n-grams from the indices of their prefixes and their last tokens, all
        (...,); `NONE` where there is none.
        """
        key = prefix * self.vocab_size + token
        at = torch.searchsorted(self.key, key).clamp(max=len(self.key) - 1)
        exists = (prefix >= 0) & (token >= 0) & (self.key[at] == key)
        return torch.where(exists, at, NONE)

    def following(self, prefixes: Tensor) -> tuple[Tensor, Tensor]:
        """All n-grams with these prefixes (P,): of each the position of its prefix in `prefixes`,
        and its index.
        """
        valid = (prefixes >= 0).nonzero()[:, 0]
        first, end = self.start[prefixes[valid]], self.start[prefixes[valid] + 1]
        counts = end - first
        rows = valid.repeat_interleave(counts)
        within = torch.arange(len(rows), device=rows.device) - (
            counts.cumsum(0) - counts
        ).repeat_interleave(counts)
        return rows, first.repeat_interleave(counts) + within


class KneserNeyHead(nn.Module):
    """From contexts to the probabilities of tokens. tables: of n-grams of 1, 2, ... tokens."""

    def __init__(self, tables: Sequence[NGramTable]):
        super().__init__()
        self.tables = tables

    @property
    def _lengths(self) -> range:
        """The lengths of contexts in n-grams: those longer than every sentence do not occur."""
        return range(1, sum(len(table.key) > 0 for table in self.tables))

    def logits(self, hidden: Tensor) -> Tensor:
        """Log-probabilities: contexts (..., order - 1) -> (..., V)."""
        size = max(1, PARTS // self.tables[0].vocab_size)
        parts = [self._distributions(part) for part in hidden.flatten(0, -2).split(size)]
        return torch.cat(parts).unflatten(0, hidden.shape[:-1])

    def loss(
        self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0, count: int | None = None
    ) -> tuple[Tensor, int]:
        """Sum of -log p in nats over contexts (N, order - 1), and how many targets counted.

        Raises:
            ConfigError: `smoothing` is not 0: nothing is trained with this loss.
        """
        if smoothing:
            raise ConfigError("The loss of n-grams has no label smoothing: they are counted.")
        counted = targets != IGNORE
        contexts, targets = hidden[counted], targets[counted]
        total = self.tables[0].log_prob[targets]
        for length in self._lengths:
            context, shorter, longer = self._of_contexts(contexts, length)
            ngrams = longer.find(context, targets)
            backed_off = total + shorter.log_backoff[context].where(context >= 0, 0.0)
            total = longer.log_prob[ngrams].where(ngrams >= 0, backed_off)
        return -total.double().sum(), len(targets)

    def _distributions(self, contexts: Tensor) -> Tensor:
        """(N, order - 1) -> (N, V)"""
        log_probs = self.tables[0].log_prob.repeat(len(contexts), 1)
        for length in self._lengths:
            context, shorter, longer = self._of_contexts(contexts, length)
            log_probs += shorter.log_backoff[context].where(context >= 0, 0.0)[:, None]
            rows, numbers = longer.following(context)
            log_probs[rows, longer.key[numbers] % longer.vocab_size] = longer.log_prob[numbers]
        return log_probs

    def _of_contexts(self, contexts: Tensor, length: int) -> tuple[Tensor, NGramTable, NGramTable]:
        """The indices of the last `length` tokens of contexts, (N, order - 1) -> (N,), the table of
        this length, and that of one token more.
        """
        first, *others = contexts[:, contexts.size(1) - length :].unbind(1)
        index = first
        for table, token in zip(self.tables[1:length], others, strict=True):
            index = table.find(index, token)
        return index, self.tables[length - 1], self.tables[length]


class KneserNey(nn.Module, CountedModel[Contexts]):
    """n-grams with modified Kneser-Ney smoothing (Chen and Goodman 1999), a `LanguageModel`.

    Its hidden states are contexts, int64.

    tables: the n-grams of 1, 2, ... `order` tokens.
    """

    Config = KneserNeyConfig

    def __init__(self, config: KneserNeyConfig):
        super().__init__()
        self.config = config
        sizes = config.ngrams or (0,) * config.order
        tables = [
            NGramTable(ngrams, prefixes, config.vocab_size)
            for ngrams, prefixes in zip(sizes, (1, *sizes), strict=False)
        ]
        self.tables = nn.ModuleList(tables)
        self.head = KneserNeyHead(tables)

    @classmethod
    def fit(cls, ids: np.ndarray, config: KneserNeyConfig) -> Self:
        """Count the n-grams of a text, (N,) ids of sentences that end with `eos`.

        A warning tells where n-grams are too few for discounts of their own.
        """
        text = ids.astype(np.int64)
        text = text if text[0] == config.eos else np.concatenate([[config.eos], text])
        levels = list(_levels(text, config))
        model = cls(replace(config, ngrams=tuple(len(level.key) for level in levels)))
        tables = model.head.tables
        probability = np.full(1, 1 / config.predicted.sum())  # of every token, below all n-grams
        for length, (level, table) in enumerate(zip(levels, tables, strict=True), 1):
            longer = levels[length] if length < len(levels) else None
            prefixes = len(probability)
            backoff, extra = level.discounted(level.adjusted(longer), length, prefixes)
            probability = extra + backoff[level.prefix] * probability[level.suffix]
            if length > 1:
                tables[length - 2].log_backoff.copy_(_log(backoff))
            else:
                probability[~config.predicted] = 0
            starts = np.searchsorted(level.key, np.arange(prefixes + 1) * config.vocab_size)
            table.key.copy_(torch.from_numpy(level.key))
            table.start.copy_(torch.from_numpy(starts))
            table.log_prob.copy_(_log(probability))
        return model

    def counted(self, text: Tensor) -> Self:
        return self.fit(text.numpy(), self.config)

    def forward(self, ids: Tensor, state: Contexts | None = None) -> Output:
        """Contexts (B, T, order - 1) that predict the token after each of the ids (B, T); the last
        ones.
        """
        contexts = (state or self.empty(len(ids))).after(ids, self.config.eos)
        return Output(contexts, Contexts(contexts[:, -1]))

    def empty(self, sequences: int, dtype: torch.dtype | None = None) -> Contexts:
        """Contexts without tokens."""
        shape, device = (sequences, self.config.d_model), self.tables[0].get_buffer("key").device
        return Contexts(torch.full(shape, NONE, device=device))

    def prefill(self, tokens: Tensor, state: Contexts, lengths: Tensor | None = None) -> Contexts:
        state.consume()
        contexts = torch.cat([state.tokens[:, None], state.after(tokens, self.config.eos)], 1)
        last = torch.full((len(tokens),), tokens.size(1)) if lengths is None else lengths
        return Contexts(contexts[torch.arange(len(tokens)), last])

    def step(self, tokens: Tensor, state: Contexts) -> tuple[Tensor, Contexts]:
        """Log-probabilities (B, T, V) of the token after each token (B, T), and the next state."""
        state.consume()
        contexts = state.after(tokens, self.config.eos)
        return self.head.logits(contexts), Contexts(contexts[:, -1])


# ------------------------------------------------------------------------------- counting


@dataclass(frozen=True)
class _Level:
    """The M different n-grams of one length in a text.

    number: (N,) of that which ends at each token of the text; `NONE` where none does.
    key: (M,) see `NGramTable`.
    prefix, suffix: (M,) the numbers, among those shorter by one token, of all but its last token,
        and of all but its first.
    count: (M,) how often it occurs.  begins: (M,) bool, whether it begins a sentence.
    """

    number: np.ndarray
    key: np.ndarray
    prefix: np.ndarray
    suffix: np.ndarray
    count: np.ndarray
    begins: np.ndarray

    def adjusted(self, longer: _Level | None) -> np.ndarray:
        """a(.): different tokens before each; occurrences where no token can be before it."""
        if longer is None:
            return self.count
        before = np.bincount(longer.suffix, minlength=len(self.key))
        return np.where(self.begins, self.count, before)

    def discounted(
        self, counts: np.ndarray, length: int, prefixes: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """g of each of the `prefixes` prefixes, and the first term of the probability of each
        n-gram.
        """
        discount = np.array([0, *_discounts(counts, length)])[np.minimum(counts, 3)]
        total = np.bincount(self.prefix, counts, prefixes)
        discounts = np.bincount(self.prefix, discount, prefixes)
        backoff = np.divide(discounts, total, out=np.ones(prefixes), where=total > 0)
        return backoff, (counts - discount) / np.maximum(total, 1)[self.prefix]


def _levels(text: np.ndarray, config: KneserNeyConfig) -> Iterator[_Level]:
    """The n-grams of 1, 2, ... `order` tokens; `eos` is only the first or the last of them."""
    words, size = np.arange(config.vocab_size), config.vocab_size
    none, occurs = np.zeros_like(words), np.bincount(text[1:], minlength=size)
    level = _Level(text, words, none, none, occurs, np.zeros(size, dtype=bool))
    yield level
    begins = words == config.eos
    for length in range(2, config.order + 1):
        before = np.concatenate([[NONE], level.number[:-1]])
        if length > 2:
            before[1:][text[:-1] == config.eos] = NONE
        (at,) = (before >= 0).nonzero()
        key, first, inverse, count = np.unique(
            before[at] * size + text[at], return_index=True, return_inverse=True, return_counts=True
        )
        number = np.full(len(text), NONE)
        number[at] = inverse
        begins = begins[key // size]
        level = _Level(number, key, key // size, level.number[at[first]], count, begins)
        yield level


def _discounts(counts: np.ndarray, length: int) -> tuple[float, float, float]:
    """D of n-grams that are counted once, twice, and more often (equations 25 and 26)."""
    once, twice, thrice, four = (int((counts == k).sum()) for k in (1, 2, 3, 4))
    if min(once, twice, thrice) > 0:
        y = once / (once + 2 * twice)
        discounts = 1 - 2 * y * twice / once, 2 - 3 * y * thrice / twice, 3 - 4 * y * four / thrice
        if min(discounts) >= 0:
            return discounts
    warn(
        f"The n-grams of {length} tokens are too few, or their counts too unusual, for discounts "
        f"of their own: {', '.join(map(str, FALLBACK))} are taken.",
    )
    return FALLBACK


def _log(probability: np.ndarray) -> Tensor:
    with np.errstate(divide="ignore"):
        return torch.from_numpy(np.log(probability)).clamp(IMPOSSIBLE)
