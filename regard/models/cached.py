"""Language models whose state is the keys and values of their layers."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import Tensor

from regard.attention.cache import KeyValueCache
from regard.errors import ConfigError
from regard.models.protocols import LanguageModel


class CachedLanguageModel(LanguageModel[KeyValueCache]):
    """A `LanguageModel` that computes new tokens with cached keys and values of those before."""

    config: Any
    head: Any

    @abstractmethod
    def continued(self, ids: Tensor, state: KeyValueCache) -> tuple[Tensor, KeyValueCache]:
        """Hidden states (B, T, D) of ids (B, T) behind the cached tokens, and the next cache."""

    def prefill(
        self, tokens: Tensor, state: KeyValueCache, lengths: Tensor | None = None
    ) -> KeyValueCache:
        """The state after the tokens (R, T), or the first `lengths` (R,) of them."""
        state = self.continued(tokens, state)[1]
        return state if lengths is None else state.truncate(lengths)

    def step(self, tokens: Tensor, state: KeyValueCache) -> tuple[Tensor, KeyValueCache]:
        """Logits (R, T, V) of the token after each of the tokens (R, T), and the new cache."""
        hidden, state = self.continued(tokens, state)
        return self.head.logits(hidden), state

    @property
    def first_token(self) -> int:
        """The token before an empty prompt: `bos`, else `eos`, which ends the text before.

        Raises:
            ConfigError: the vocabulary has neither.
        """
        found = self.config.eos if self.config.bos is None else self.config.bos
        if found is None or found >= self.config.vocab_size:
            raise ConfigError(
                "An empty prompt needs a token that begins or ends a text (bos or eos), but this "
                "model's vocabulary has none. Give a prompt of at least one word."
            )
        return int(found)
