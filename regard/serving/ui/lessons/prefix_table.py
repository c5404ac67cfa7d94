"""A language model that is a table: for each prefix of words the probabilities of the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.models.protocols import LanguageModel, Output
from regard.state import State

Probabilities = Mapping[tuple[str, ...], Mapping[str, float]]
END, OTHERS = "</s>", "…"


@dataclass(frozen=True)
class PrefixTableConfig:
    """What a generator must have."""

    vocab_size: int
    max_length: int | None = None
    pad: int = 0
    bos: int = 1
    eos: int = 2


@dataclass
class ReadTokens(State):
    """The tokens that were read: ids (B, T), the start among them."""

    ids: Tensor


class PrefixTable(nn.Module, LanguageModel[ReadTokens]):
    """p(word | prefix) as it stands in a table; what is missing to 1 has the word "…".

    A prefix that is not in the table is followed by the end.

    words: by their ids, which begin with padding, the start and the end.
    """

    def __init__(self, probabilities: Probabilities):
        super().__init__()
        found = {word: None for row in probabilities.values() for word in row}
        self.words: Sequence[str] = ["", "<s>", END, OTHERS, *(w for w in found if w != END)]
        self.config = PrefixTableConfig(len(self.words))
        self.probabilities = probabilities
        self.head = None

    def forward(self, ids: Tensor, state: ReadTokens | None = None) -> Output:
        """Its hidden states are the log-probabilities (B, T, V)."""
        before = state.ids if state else ids[:, :0]
        read = torch.cat([before, ids], 1)
        start = before.size(1)
        rows = [
            torch.stack([self._after(row[: end + 1].tolist()) for row in read])
            for end in range(start, read.size(1))
        ]
        return Output(torch.stack(rows, 1), ReadTokens(read))

    def _after(self, ids: Sequence[int]) -> Tensor:
        """(V,) log-probabilities after a prefix."""
        prefix = tuple(self.words[number] for number in ids if number > self.config.bos)
        row = self.probabilities.get(prefix, {END: 1.0})
        known = [row.get(word, 0.0) for word in self.words]
        known[self.words.index(OTHERS)] = max(0.0, 1 - sum(known))
        return torch.tensor(known, dtype=torch.float64).log()

    def empty(self, sequences: int, dtype: torch.dtype | None = None) -> ReadTokens:
        """See `LanguageModel`."""
        return ReadTokens(torch.empty(sequences, 0, dtype=torch.long))

    def prefill(
        self, tokens: Tensor, state: ReadTokens, lengths: Tensor | None = None
    ) -> ReadTokens:
        """See `LanguageModel`; prompts of one length."""
        state.consume()
        return ReadTokens(torch.cat([state.ids, tokens], 1))

    def step(self, tokens: Tensor, state: ReadTokens) -> tuple[Tensor, ReadTokens]:
        """See `LanguageModel`."""
        state.consume()
        output = self(tokens, state)
        assert isinstance(output.state, ReadTokens)
        return output.hidden, output.state
