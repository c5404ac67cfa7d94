"""The filters of generation_config.json that forbid tokens or force them.

They compute what `transformers` computes under the same names. In beam search they also change the
scores of hypotheses: a forbidden token has minus infinity, a forced one adds 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.decoding.filters import NEG_INF, Prefix
from regard.decoding.option_types import check
from regard.errors import ConfigError


@dataclass(frozen=True)
class MinLength:
    """No end-of-sequence token before there are `count` tokens, prompt or start token included."""

    count: int

    def __post_init__(self) -> None:
        check("min_length", self.count, "min_length")

    def __call__(self, scores: Tensor, prefix: Prefix) -> Tensor:
        short = (prefix.tokens >= 0).sum(1) < self.count  # (R,)
        ends = prefix.ends_below(scores.size(-1))
        if not ends or not bool(short.any()):
            return scores
        forbidden = _token_mask(ends, scores, "eos_token_id")
        return scores.masked_fill(short[:, None] & forbidden, NEG_INF)


@dataclass(frozen=True)
class BadWords:
    """Forbids these sequences of tokens, except those that are just an end-of-sequence token."""

    sequences: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        check("bad_words_ids", [list(ids) for ids in self.sequences], "bad_words_ids")

    def singles(self, ends: tuple[int, ...]) -> list[int]:
        """The tokens of the sequences of length 1."""
        return [ids[0] for ids in self.sequences if len(ids) == 1 and ids[0] not in ends]

    def __call__(self, scores: Tensor, prefix: Prefix) -> Tensor:
        _token_mask([token for ids in self.sequences for token in ids], scores, "bad_words_ids")
        single = _token_mask(self.singles(prefix.eos), scores, "bad_words_ids")
        scores = scores.masked_fill(single, NEG_INF)
        for *begun, last in self.sequences:
            if begun and len(begun) <= prefix.tokens.size(1):
                wanted = torch.tensor(begun, device=scores.device)
                rows = (prefix.tokens[:, -len(begun) :] == wanted).all(1)  # (R,)
                forbidden = _token_mask([last], scores, "bad_words_ids")
                scores = scores.masked_fill(rows[:, None] & forbidden, NEG_INF)
        return scores


@dataclass(frozen=True)
class Suppress:
    """Forbids these tokens."""

    tokens: tuple[int, ...]

    def __post_init__(self) -> None:
        check("suppress_tokens", list(self.tokens), "suppress_tokens")

    def __call__(self, scores: Tensor, prefix: Prefix) -> Tensor:
        known = _in_vocabulary(self.tokens, scores)
        return scores.masked_fill(_token_mask(known, scores, "suppress_tokens"), NEG_INF)


@dataclass(frozen=True)
class SuppressFirst:
    """Forbids these tokens as the first generated token that is not forced."""

    tokens: tuple[int, ...]
    forced: bool = False  # whether `ForcedFirst` determines the token after the start token

    def __post_init__(self) -> None:
        check("begin_suppress_tokens", list(self.tokens), "begin_suppress_tokens")

    def __call__(self, scores: Tensor, prefix: Prefix) -> Tensor:
        lengths = (prefix.tokens >= 0).sum(1)
        alone = lengths - prefix.new == 1  # (R,) rows with only a start token, no prompt
        here = (alone.long() * self.forced).eq(prefix.new)
        if not bool(here.any()):
            return scores
        forbidden = _token_mask(
            _in_vocabulary(self.tokens, scores), scores, "begin_suppress_tokens"
        )
        return scores.masked_fill(here[:, None] & forbidden, NEG_INF)


@dataclass(frozen=True)
class ForcedFirst:
    """Forces this token after the start token, such as the language of a translation."""

    token: int

    def __post_init__(self) -> None:
        check("forced_bos_token_id", self.token, "forced_bos_token_id")

    def __call__(self, scores: Tensor, prefix: Prefix) -> Tensor:
        rows = (prefix.tokens >= 0).sum(1) == 1
        return _force(scores, rows, (self.token,), "forced_bos_token_id")


@dataclass(frozen=True)
class ForcedEnd:
    """Forces one of these tokens as the last token before the length limit.

    Such a sequence is still reported as truncated, like any other that reaches its limit.
    """

    tokens: tuple[int, ...]

    def __post_init__(self) -> None:
        check("forced_eos_token_id", list(self.tokens), "forced_eos_token_id")

    def __call__(self, scores: Tensor, prefix: Prefix) -> Tensor:
        if prefix.limits is None:
            return scores
        return _force(scores, prefix.limits == prefix.new + 1, self.tokens, "forced_eos_token_id")


@dataclass(frozen=True)
class Renormalize:
    """Normalizes the scores after the filters before it, so that the probabilities sum to 1."""

    on: bool = True

    def __post_init__(self) -> None:
        check("renormalize_logits", self.on, "renormalize_logits")

    def __call__(self, scores: Tensor, prefix: Prefix) -> Tensor:
        if not self.on:
            return scores
        all_forbidden = (scores == NEG_INF).all(-1, keepdim=True)
        return torch.where(all_forbidden, scores, scores.log_softmax(-1))


def _token_mask(tokens: Iterable[int], scores: Tensor, name: str) -> Tensor:
    """(V,) bool: True for these tokens.

    Raises:
        ConfigError: a token is not in the vocabulary.
    """
    chosen, vocabulary = list(tokens), scores.size(-1)
    if chosen and max(chosen) >= vocabulary:
        raise ConfigError(
            f"`{name}` must be token ids of the model, 0 to {vocabulary - 1:,}, but one is "
            f"{max(chosen):,}."
        )
    marked = torch.zeros(vocabulary, dtype=torch.bool)
    marked[chosen] = True
    return marked.to(scores.device)


def _in_vocabulary(tokens: Iterable[int], scores: Tensor) -> list[int]:
    """The tokens that are in the model's vocabulary."""
    return [token for token in tokens if token < scores.size(-1)]


def _force(scores: Tensor, rows: Tensor, tokens: Iterable[int], name: str) -> Tensor:
    """In the rows (R,) that are True: score 0 for these tokens, minus infinity for all others."""
    if not bool(rows.any()):
        return scores
    only = torch.full_like(scores[0], NEG_INF).masked_fill(_token_mask(tokens, scores, name), 0.0)
    return torch.where(rows.to(scores.device)[:, None], only, scores)
