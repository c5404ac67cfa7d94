"""Filters of generation_config.json: tokens that may not come, and tokens that must.

They do what transformers does under the same names, in a beam to the scores too: what they forbid
becomes minus infinity, and what they force counts 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.decoding.filters import NEVER, Prefix
from regard.decoding.values import check
from regard.errors import ConfigError


@dataclass(frozen=True)
class MinLength:
    """No end before there are `count` tokens, those of the prompt or the first one included."""

    count: int

    def __post_init__(self) -> None:
        check("min_length", self.count, "min_length")

    def __call__(self, scores: Tensor, prefix: Prefix) -> Tensor:
        short = (prefix.tokens >= 0).sum(1) < self.count  # (R,)
        ends = prefix.ends_below(scores.size(-1))
        if not ends or not bool(short.any()):
            return scores
        forbidden = _marked(ends, scores, "eos_token_id")
        return scores.masked_fill(short[:, None] & forbidden, NEVER)


@dataclass(frozen=True)
class BadWords:
    """None of these sequences of tokens is completed; one that is just an end is no bad word."""

    sequences: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        check("bad_words_ids", [list(ids) for ids in self.sequences], "bad_words_ids")

    def singles(self, ends: tuple[int, ...]) -> list[int]:
        """Those of one token."""
        return [ids[0] for ids in self.sequences if len(ids) == 1 and ids[0] not in ends]

    def __call__(self, scores: Tensor, prefix: Prefix) -> Tensor:
        _marked([token for ids in self.sequences for token in ids], scores, "bad_words_ids")
        single = _marked(self.singles(prefix.eos), scores, "bad_words_ids")
        scores = scores.masked_fill(single, NEVER)
        for *begun, last in self.sequences:
            if begun and len(begun) <= prefix.tokens.size(1):
                wanted = torch.tensor(begun, device=scores.device)
                rows = (prefix.tokens[:, -len(begun) :] == wanted).all(1)  # (R,)
                forbidden = _marked([last], scores, "bad_words_ids")
                scores = scores.masked_fill(rows[:, None] & forbidden, NEVER)
        return scores


@dataclass(frozen=True)
class Suppress:
    """None of these tokens."""

    tokens: tuple[int, ...]

    def __post_init__(self) -> None:
        check("suppress_tokens", list(self.tokens), "suppress_tokens")

    def __call__(self, scores: Tensor, prefix: Prefix) -> Tensor:
        known = _known(self.tokens, scores)
        return scores.masked_fill(_marked(known, scores, "suppress_tokens"), NEVER)


@dataclass(frozen=True)
class SuppressFirst:
    """None of these tokens as the first one that is free."""

    tokens: tuple[int, ...]
    forced: bool = False  # the one after the first token of all is not free

    def __post_init__(self) -> None:
        check("begin_suppress_tokens", list(self.tokens), "begin_suppress_tokens")

    def __call__(self, scores: Tensor, prefix: Prefix) -> Tensor:
        lengths = (prefix.tokens >= 0).sum(1)
        alone = lengths - prefix.new == 1  # (R,) rows without a prompt
        here = (alone.long() * self.forced).eq(prefix.new)
        if not bool(here.any()):
            return scores
        forbidden = _marked(_known(self.tokens, scores), scores, "begin_suppress_tokens")
        return scores.masked_fill(here[:, None] & forbidden, NEVER)


@dataclass(frozen=True)
class ForcedFirst:
    """This token after the first one of all: the language of a translation."""

    token: int

    def __post_init__(self) -> None:
        check("forced_bos_token_id", self.token, "forced_bos_token_id")

    def __call__(self, scores: Tensor, prefix: Prefix) -> Tensor:
        rows = (prefix.tokens >= 0).sum(1) == 1
        return _forced(scores, rows, (self.token,), "forced_bos_token_id")


@dataclass(frozen=True)
class ForcedEnd:
    """One of these tokens as the last one that the limit allows.

    What ends so is cut off like any other that reaches its limit, and is told as such.
    """

    tokens: tuple[int, ...]

    def __post_init__(self) -> None:
        check("forced_eos_token_id", list(self.tokens), "forced_eos_token_id")

    def __call__(self, scores: Tensor, prefix: Prefix) -> Tensor:
        if prefix.limits is None:
            return scores
        return _forced(scores, prefix.limits == prefix.new + 1, self.tokens, "forced_eos_token_id")


@dataclass(frozen=True)
class Renormalize:
    """What the filters before it leave has the probability 1 together."""

    on: bool = True

    def __post_init__(self) -> None:
        check("renormalize_logits", self.on, "renormalize_logits")

    def __call__(self, scores: Tensor, prefix: Prefix) -> Tensor:
        if not self.on:
            return scores
        nothing = (scores == NEVER).all(-1, keepdim=True)
        return torch.where(nothing, scores, scores.log_softmax(-1))


def _marked(tokens: Iterable[int], scores: Tensor, name: str) -> Tensor:
    """(V,) bool: these tokens.

    Raises:
        ConfigError: the vocabulary has no such token.
    """
    chosen, vocabulary = list(tokens), scores.size(-1)
    if chosen and max(chosen) >= vocabulary:
        raise ConfigError(
            f"`{name}` must be tokens of the model, 0 to {vocabulary - 1:,}, but one is "
            f"{max(chosen):,}."
        )
    marked = torch.zeros(vocabulary, dtype=torch.bool)
    marked[chosen] = True
    return marked.to(scores.device)


def _known(tokens: Iterable[int], scores: Tensor) -> list[int]:
    """Those that the model can give at all."""
    return [token for token in tokens if token < scores.size(-1)]


def _forced(scores: Tensor, rows: Tensor, tokens: Iterable[int], name: str) -> Tensor:
    """0 for these tokens in the rows (R,) that are True, and nothing else there."""
    if not bool(rows.any()):
        return scores
    only = torch.full_like(scores[0], NEVER).masked_fill(_marked(tokens, scores, name), 0.0)
    return torch.where(rows.to(scores.device)[:, None], only, scores)
