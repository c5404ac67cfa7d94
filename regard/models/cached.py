"""Language models whose state is the keys and values of their layers."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import Tensor

from regard.attention.cache import KeyValueCache
from regard.models.protocols import LanguageModel, first_token_of


class CachedLanguageModel(LanguageModel[KeyValueCache]):
    """A `LanguageModel` that computes new tokens with cached keys and values of those before."""

    config: Any
    head: Any

    @abstractmethod
    def continued(self, ids: Tensor, state: KeyValueCache) -> tuple[Tensor, KeyValueCache]:
        """Hidden states (B, T, D) of the ids (B, T) that follow the cached tokens, and the next
        cache.
        """

    def prefill(
        self, tokens: Tensor, state: KeyValueCache, lengths: Tensor | None = None
    ) -> KeyValueCache:
        """The state after the tokens (B, T), or after the first `lengths` (B,) of them."""
        state = self.continued(tokens, state)[1]
        return state if lengths is None else state.truncate(lengths)

    def step(self, tokens: Tensor, state: KeyValueCache) -> tuple[Tensor, KeyValueCache]:
        """Logits (B, T, V) of the token after each of the tokens (B, T), and the next cache."""
        hidden, state = self.continued(tokens, state)
        return self.head.logits(hidden), state

    @property
    def first_token(self) -> int:
        """The token that stands for an empty prompt: `bos`, else `eos`, which ends a text.

        Raises:
            ConfigError: the vocabulary has neither.
        """
        return first_token_of((self.config.bos, self.config.eos), self.config.vocab_size)
