"""Generation beyond the context of a model: it reads the last tokens that its context holds."""

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.errors import ConfigError
from regard.models.protocols import LanguageModel
from regard.models.wrappers import GeneratorWrapper
from regard.state import State


@dataclass
class LastTokens(State):
    """`ids` (B, context) begin with the last tokens of each sequence, `counts` (B,) of them."""

    ids: Tensor
    counts: Tensor


class SlidingContext(GeneratorWrapper[LastTokens]):
    """A language model that forgets the first tokens of texts longer than its context.

    Every step reads the window from its first token, as the sampler of nanoGPT does, since all
    positions in it move: no keys are kept, so that a step costs as much as reading the context.
    """

    slides = True

    def __init__(self, model: LanguageModel):
        if model.config.max_length is None:
            raise ConfigError(
                "`window` would be without effect: this model has no limit. Leave `--window` "
                "(`window=True`) out."
            )
        super().__init__(model)

    def empty(self, sequences: int, dtype: torch.dtype | None = None) -> LastTokens:
        device = next(iter(self.model.empty(1).tensors().values())).device
        ids = torch.zeros(sequences, self.config.max_length, dtype=torch.long, device=device)
        return LastTokens(ids, torch.zeros(sequences, dtype=torch.long, device=device))

    def prefill(
        self, tokens: Tensor, state: LastTokens, lengths: Tensor | None = None
    ) -> LastTokens:
        state.consume()
        ids = state.ids.clone()
        ids[:, : tokens.size(1)] = tokens
        counts = state.counts + tokens.size(1) if lengths is None else lengths
        return LastTokens(ids, counts)

    def step(self, tokens: Tensor, state: LastTokens) -> tuple[Tensor, LastTokens]:
        state.consume()
        full = state.counts == state.ids.size(1)
        ids = torch.where(full[:, None], state.ids.roll(-1, 1), state.ids)
        counts = state.counts - full.long()
        ids.scatter_(1, counts[:, None], tokens)
        hidden = self.model(ids[:, : int(counts.max()) + 1]).hidden
        last = hidden[torch.arange(len(ids), device=ids.device), counts]
        return self.head.logits(last[:, None]), LastTokens(ids, counts + 1)

    def search(self, tokens: Tensor, state: LastTokens, plan: object) -> None:
        return None
