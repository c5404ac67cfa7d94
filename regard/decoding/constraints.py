"""The filters of generation_config.json that forbid tokens, force them or make them less probable.

They compute what `transformers` computes under the same names. In beam search they also change the
scores of hypotheses: a forbidden token has minus infinity, a forced one adds 0.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.decoding.filters import NEG_INF, OptionFilter, Prefix
from regard.errors import ConfigError


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
    sequences: tuple[tuple[int, ...], ...]

    def singles(self, eos: tuple[int, ...]) -> list[int]:
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
    tokens: tuple[int, ...]

    def __call__(self, scores: Tensor, prefix: Prefix) -> Tensor:
        return _forbid(scores, self.tokens)


@dataclass(frozen=True)
class SuppressFirst(OptionFilter):
    """Forbids these tokens as the first generated token that is not forced."""

    option = "begin_suppress_tokens"
    tokens: tuple[int, ...]
    forced: bool = False  # whether `ForcedFirst` determines the token after the start token

    def __call__(self, scores: Tensor, prefix: Prefix) -> Tensor:
        no_prompt = prefix.lengths - prefix.generated == 1  # (B,) only a start token came before
        first = (no_prompt.long() * self.forced).eq(prefix.generated)
        return _forbid(scores, self.tokens, first)


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
    tokens: tuple[int, ...]

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
        raise ConfigError(
            f"`{name}` must be token ids of the model, 0 to {vocab_size - 1:,}, but one is "
            f"{max(tokens):,}."
        )


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
