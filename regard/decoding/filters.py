"""Filters: what may come next. Each changes the scores, and they apply in the order given.

    filters = (NoRepeatNGram(3), Temperature(0.8), TopK(40), TopP(0.95))

A filter is called with scores (B, V), log-probabilities up to a constant, and the prefix decoded
so far, and returns new scores; tokens that it forbids get minus infinity. Any function of this
shape is a filter.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.decoding.option_types import check
from regard.errors import ConfigError

NEG_INF = float("-inf")
TokenIds = tuple[int, ...]
BIN_SHIFT = 16  # float32 probabilities whose bits above these agree share a bin: 128 per factor 2


@dataclass(frozen=True, eq=False)
class Prefix:
    """What a filter may read: the tokens of B sequences so far.

    tokens: (B, T), the prompt or start token included; shorter prompts are padded on the left
        with -1.
    generated: how many of them were generated.
    eos: the tokens that end a sequence.
    limits: (B,) how many tokens may be generated; None: not known.
    """

    tokens: Tensor
    generated: int
    eos: TokenIds = ()
    limits: Tensor | None = None

    @property
    def lengths(self) -> Tensor:
        """(B,) tokens of each sequence, without padding."""
        return (self.tokens >= 0).sum(1)

    def eos_below(self, vocab_size: int) -> list[int]:
        """The end-of-sequence tokens that a model with this vocabulary can give."""
        return [token for token in self.eos if token < vocab_size]


# A function of scores (B, V), which it does not change in place, and the prefix; returns new ones.
Filter = Callable[[Tensor, Prefix], Tensor]


@dataclass(frozen=True)
class OptionFilter:
    """A filter whose first field is the value of one option of generation_config.json.

    Raises:
        ConfigError: the value has a wrong type or is out of range.
    """

    option: ClassVar[str]  # the name in the file
    hint: ClassVar[str] = ""  # what to do instead, for errors

    def __post_init__(self) -> None:
        check(self.option, self.stored, hint=self.hint)

    @property
    def stored(self) -> Any:
        """The value as JSON has it."""
        return as_lists(getattr(self, fields(self)[0].name))


def as_lists(value: Any) -> Any:
    """Nested tuples as nested lists, which JSON has; other values as they are."""
    return [as_lists(part) for part in value] if isinstance(value, tuple) else value


def as_tuples(value: Any) -> Any:
    """Nested lists as nested tuples, which filters have; other values as they are."""
    return tuple(map(as_tuples, value)) if isinstance(value, list | tuple) else value


def apply(filters: Sequence[Filter], scores: Tensor, prefix: Prefix) -> Tensor:
    """The scores (B, V) after all filters, first to last."""
    for filter_ in filters:
        scores = filter_(scores, prefix)
    return scores


@dataclass(frozen=True)
class MinTokens(OptionFilter):
    """Forbids the end before `count` tokens have been generated."""

    option = "min_new_tokens"
    count: int

    def __call__(self, scores: Tensor, prefix: Prefix) -> Tensor:
        eos = prefix.eos_below(scores.size(-1))
        if not eos or prefix.generated >= self.count:
            return scores
        return scores.index_fill(-1, torch.tensor(eos, device=scores.device), NEG_INF)


@dataclass(frozen=True)
class NoRepeatNGram(OptionFilter):
    """No n-gram of `size` tokens may repeat, those of the prompt included (Paulus et al. 2017)."""

    option = "no_repeat_ngram_size"
    size: int

    def __call__(self, scores: Tensor, prefix: Prefix) -> Tensor:
        tokens = prefix.tokens
        if tokens.size(1) < self.size:
            return scores
        ngrams = tokens.unfold(1, self.size, 1)  # (B, T) -> (B, T - size + 1, size)
        last = tokens[:, tokens.size(1) + 1 - self.size :]  # (B, T) -> (B, size - 1)
        repeated = (ngrams[..., :-1] == last[:, None]).all(-1) & (ngrams[..., -1] >= 0)
        row, ngram = repeated.nonzero(as_tuple=True)
        forbidden = (row, ngrams[row, ngram, -1])
        value = torch.tensor(NEG_INF, dtype=scores.dtype).to(scores.device)
        return scores.index_put(forbidden, value)


@dataclass(frozen=True)
class Temperature(OptionFilter):
    """scores / value: below 1 sharpens the distribution, above 1 flattens it."""

    option = "temperature"
    hint = "For the most probable token at every step, decode greedily."
    value: float

    def __call__(self, scores: Tensor, prefix: Prefix) -> Tensor:
        return scores / float(self.value)


@dataclass(frozen=True)
class TopK(OptionFilter):
    """Allows the `count` most probable tokens alone, and all that are as probable as the last of
    them (Fan et al. 2018).
    """

    option = "top_k"
    count: int

    def __call__(self, scores: Tensor, prefix: Prefix) -> Tensor:
        lowest = scores.topk(min(self.count, scores.size(-1))).values[:, -1:]
        return scores.where(~(scores < lowest), NEG_INF)


@dataclass(frozen=True)
class TopP(OptionFilter):
    """Nucleus sampling: allows the fewest most probable tokens whose probabilities sum to at least
    `mass` (Holtzman et al. 2019).
    """

    option = "top_p"
    mass: float

    def __call__(self, scores: Tensor, prefix: Prefix) -> Tensor:
        probs = scores.softmax(-1)
        if probs.dtype == torch.float32 and probs.device.type == "cpu" and probs.numel():
            threshold = torch.tensor([[self._threshold(row)] for row in probs])  # (B, 1)
            allowed, has_one = probs >= threshold, threshold[:, 0] > 0
            if not bool(has_one.all()):
                allowed[~has_one] = self._by_sorting(scores[~has_one], probs[~has_one])
        else:
            allowed = self._by_sorting(scores, probs)
        return scores.where(allowed, NEG_INF)

    def _threshold(self, probs: Tensor) -> float:
        """The lowest allowed one of the probabilities (V,); 0 where sorting them all must decide:
        a forbidden token has the same one, or most tokens share its bin.

        Only the tokens of the bin with the threshold are sorted: sorting all takes ten times as
        long.
        """
        bins, highest = _bins(probs), int(_bins(probs.max()))
        sums = torch.bincount(bins, probs.double(), highest + 1)  # (bins,), the lowest first
        cumulative = sums.cumsum(0)
        lowest = min(int((cumulative <= 1 - self.mass).sum()), highest)  # the lowest allowed bin
        forbidden_mass = 1 - self.mass - float(cumulative[lowest] - sums[lowest])  # within this bin
        in_bin = probs[bins == lowest]
        if len(in_bin) > len(probs) // 2:
            return 0.0
        in_bin = in_bin.sort().values
        first = min(int((in_bin.double().cumsum(0) <= forbidden_mass).sum()), len(in_bin) - 1)
        is_tied = first and in_bin[first - 1] == in_bin[first]
        return 0.0 if is_tied else float(in_bin[first])

    def _by_sorting(self, scores: Tensor, probs: Tensor) -> Tensor:
        """(B, V) bool, the allowed tokens; ties are broken as in transformers, by `Tensor.sort`."""
        order = scores.sort(-1).indices
        forbidden = probs.gather(-1, order).double().cumsum(-1) <= 1 - self.mass  # in this order
        forbidden[:, -1] = False
        return ~forbidden.scatter(-1, order, forbidden)


def _bins(probs: Tensor) -> Tensor:
    """The upper bits of the probabilities as integers, which have the same order."""
    return probs.view(torch.int32).clamp(min=0) >> BIN_SHIFT  # NaN may have a sign


@dataclass(frozen=True)
class RepetitionPenalty(OptionFilter):
    """Makes the tokens that occurred, in the prompt too, less probable (Keskar et al. 2019).

    Positive scores are divided by `penalty`, negative ones multiplied with it. As in
    `transformers`, these are the model's scores in greedy search and sampling, and in beam search
    log-probabilities.
    """

    option = "repetition_penalty"
    penalty: float

    def __call__(self, scores: Tensor, prefix: Prefix) -> Tensor:
        penalized = torch.where(scores < 0, scores * self.penalty, scores / self.penalty)
        # The padding of shorter prompts marks an additional column, which is dropped.
        tokens = torch.where(prefix.tokens < 0, scores.size(-1), prefix.tokens)  # (B, T)
        occurred = scores.new_zeros(scores.size(0), scores.size(-1) + 1, dtype=torch.bool)  # V + 1
        return torch.where(occurred.scatter(1, tokens, True)[:, :-1], penalized, scores)


@dataclass(frozen=True)
class MinLength(OptionFilter):
    """Forbids the end before there are `count` tokens, prompt or start token included."""

    option = "min_length"
    count: int

    def __call__(self, scores: Tensor, prefix: Prefix) -> Tensor:
        return _forbid(scores, prefix.eos, prefix.lengths < self.count)


@dataclass(frozen=True)
class BadWords(OptionFilter):
    """Forbids these sequences of tokens, except those that are just an end-of-sequence token.

    Raises:
        ConfigError: a token is not in the model's vocabulary.
    """

    option = "bad_words_ids"
    sequences: tuple[TokenIds, ...]

    def singles(self, eos: TokenIds) -> list[int]:
        """The tokens of the sequences of length 1."""
        return [ids[0] for ids in self.sequences if len(ids) == 1 and ids[0] not in eos]

    def __call__(self, scores: Tensor, prefix: Prefix) -> Tensor:
        _check_tokens([token for ids in self.sequences for token in ids], scores, self.option)
        scores = _forbid(scores, self.singles(prefix.eos))
        for *before, last in self.sequences:
            if before and len(before) <= prefix.tokens.size(1):
                expected = torch.tensor(before, device=scores.device)
                matches = (prefix.tokens[:, -len(before) :] == expected).all(1)  # (B,)
                scores = _forbid(scores, [last], matches)
        return scores


@dataclass(frozen=True)
class Suppress(OptionFilter):
    """Forbids these tokens."""

    option = "suppress_tokens"
    tokens: TokenIds

    def __call__(self, scores: Tensor, prefix: Prefix) -> Tensor:
        return _forbid(scores, self.tokens)


@dataclass(frozen=True)
class ForcedFirst(OptionFilter):
    """Forces this token after the start token, such as the language of a translation.

    Raises:
        ConfigError: the token is not in the model's vocabulary.
    """

    option = "forced_bos_token_id"
    token: int

    def __call__(self, scores: Tensor, prefix: Prefix) -> Tensor:
        return _force(scores, (self.token,), prefix.lengths == 1, self.option)


@dataclass(frozen=True)
class ForcedEnd(OptionFilter):
    """Forces one of these tokens as the last token before the length limit.

    Such a sequence is still reported as truncated, like any other that reaches its limit.

    Raises:
        ConfigError: a token is not in the model's vocabulary.
    """

    option = "forced_eos_token_id"
    tokens: TokenIds

    def __call__(self, scores: Tensor, prefix: Prefix) -> Tensor:
        if prefix.limits is None:
            return scores
        return _force(scores, self.tokens, prefix.limits == prefix.generated + 1, self.option)


@dataclass(frozen=True)
class Renormalize(OptionFilter):
    """Normalizes the scores after the filters before it, so that the probabilities sum to 1."""

    option = "renormalize_logits"
    on: bool = True

    def __call__(self, scores: Tensor, prefix: Prefix) -> Tensor:
        if not self.on:
            return scores
        all_forbidden = (scores == NEG_INF).all(-1, keepdim=True)
        return torch.where(all_forbidden, scores, scores.log_softmax(-1))


def _check_tokens(tokens: Collection[int], scores: Tensor, name: str) -> None:
    vocab_size = scores.size(-1)
    if tokens and max(tokens) >= vocab_size:
        raise ConfigError(f"`{name}` must be tokens below {vocab_size:,}: {max(tokens):,}.")


def _token_mask(tokens: Collection[int], scores: Tensor) -> Tensor:
    """(V,) bool: True for those of the tokens that are in the vocabulary."""
    mask = torch.zeros(scores.size(-1), dtype=torch.bool)
    mask[[token for token in tokens if token < len(mask)]] = True
    return mask.to(scores.device)


def _forbid(scores: Tensor, tokens: Collection[int], rows: Tensor | None = None) -> Tensor:
    """Minus infinity for these tokens, in the rows (B,) that are True, or in all."""
    if rows is None:
        return scores.masked_fill(_token_mask(tokens, scores), NEG_INF)
    if not tokens or not bool(rows.any()):
        return scores
    return scores.masked_fill(rows[:, None] & _token_mask(tokens, scores), NEG_INF)


def _force(scores: Tensor, tokens: Collection[int], rows: Tensor, name: str) -> Tensor:
    """In the rows (B,) that are True: score 0 for these tokens, minus infinity for all others."""
    if not bool(rows.any()):
        return scores
    _check_tokens(tokens, scores, name)
    forced = torch.full_like(scores[0], NEG_INF).masked_fill(_token_mask(tokens, scores), 0.0)
    return torch.where(rows.to(scores.device)[:, None], forced, scores)


# ---------------------------------------------------------------------------- well-formed trees
#
#     (S (NP XX )NP (VP XX )VP )S        typed brackets, XX for each word
#
# At every step a sequence can be completed to a tree within its limit, so that every search that
# takes only allowed tokens ends with one.

OTHER, OPEN, CLOSE, WORD = range(4)


@dataclass(frozen=True)
class TreeVocabulary:
    """The ids of the tokens that trees consist of.

    opening, closing: the ids of the two brackets of each label.  word: the id that stands for any
    word.
    """

    opening: Mapping[str, int]
    closing: Mapping[str, int]
    word: int

    def tables(self, vocab_size: int) -> tuple[Tensor, Tensor]:
        """The kind of each token, and the closing bracket of each opening one (0 for the others):
        (V,) int64 each.
        """
        kinds = torch.full((vocab_size,), OTHER)
        partner = torch.zeros(vocab_size, dtype=torch.long)
        kinds[self.word] = WORD
        for label, token in self.opening.items():
            kinds[token], kinds[self.closing[label]] = OPEN, CLOSE
            partner[token] = self.closing[label]
        return kinds, partner


@dataclass(frozen=True)
class WellFormedTree:
    """Allows what continues a tree of `words` words: a `Filter`.

    - A bracket is closed by one of its own label, and only if something is in it.
    - The root holds all words, and nothing follows it but the end.
    - At most `most_open` brackets open one after another, which also limits unary chains.
    - What is still to come, all words, the closing brackets and the end, fits into the limit.
    """

    vocabulary: TreeVocabulary
    words: int
    most_open: int

    def __call__(self, scores: Tensor, prefix: Prefix) -> Tensor:
        """Where the limit is too low for any tree, nothing is allowed."""
        kinds, partner = (
            table.to(scores.device) for table in self.vocabulary.tables(scores.size(1))
        )
        state = _TreeState.of(prefix.tokens[:, 1:], kinds)
        words_left = self.words - state.words  # (B,)
        depth = state.depth
        budget = torch.full_like(depth, torch.iinfo(torch.long).max)
        if prefix.limits is not None:
            budget = prefix.limits.to(depth.device) - prefix.generated
        # After this bracket: the words, a closing bracket for each open one and for it, the end.
        fits = budget > words_left + depth + 2
        is_inside = depth > 0
        opens = (words_left > 0) & (state.opened < self.most_open) & fits
        opens &= is_inside | state.empty
        closes = is_inside & (state.opened == 0) & ((depth > 1) | (words_left == 0))
        allowed = torch.zeros_like(scores, dtype=torch.bool)
        allowed |= opens[:, None] & (kinds == OPEN)
        allowed[:, self.vocabulary.word] = is_inside & (words_left > 0)
        row = torch.arange(len(scores), device=scores.device)
        allowed[row, partner[state.innermost]] |= closes
        for end in prefix.eos_below(scores.size(1)):
            allowed[:, end] = ~is_inside & ~state.empty
        return scores.masked_fill(~allowed, NEG_INF)


@dataclass(frozen=True, eq=False)
class _TreeState:
    """What B sequences have so far, (B,) each.

    depth: the number of open brackets.  words: the number of words.  opened: the number of opening
    brackets at the end, one after another.  innermost: the id of the innermost open bracket.
    empty: whether there is no token yet.
    """

    depth: Tensor
    words: Tensor
    opened: Tensor
    innermost: Tensor
    empty: Tensor

    @classmethod
    def of(cls, tokens: Tensor, kinds: Tensor) -> _TreeState:
        """From the tokens (B, T) and the kind of each token of the vocabulary (V,)."""
        zero = tokens.new_zeros(len(tokens))
        if not tokens.size(1):
            return cls(zero, zero, zero, zero, zero == 0)
        kind = kinds[tokens]  # (B, T)
        opening = kind == OPEN
        depths = (opening.long() - (kind == CLOSE).long()).cumsum(1)  # (B, T), after each token
        # The innermost open bracket is the last opening one after which the depth was what it is.
        candidates = opening & (depths == depths[:, -1:])
        last = (candidates * torch.arange(tokens.size(1), device=tokens.device)).argmax(1)  # (B,)
        innermost = tokens.gather(1, last[:, None])[:, 0]
        opened = opening.flip(1).long().cumprod(1).sum(1)
        return cls(depths[:, -1], (kind == WORD).sum(1), opened, innermost, zero > 0)
