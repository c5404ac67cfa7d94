"""Small models with the verbs of decoding, and slow searches that judge the fast ones."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import Tensor

from regard.data.batches import Sequences
from regard.decoding.steps import start
from regard.models.protocols import Generator
from regard.state import State

BOS, EOS = 1, 2


@dataclass
class Last(State):
    table: Tensor  # (B, V, V)


class Markov(Generator):
    """P(next | last) is a table; the first token of the source says which one."""

    def __init__(self, tables: Tensor, eos: int | None = EOS, max_length: int | None = None):
        self.tables = tables.double()
        vocabulary = tables.size(-1)
        self.config = SimpleNamespace(
            vocab_size=vocabulary, pad=0, bos=BOS, eos=eos, max_length=max_length
        )

    def read(self, source):
        return Last(self.tables[source.ids[:, 0]])

    def step(self, tokens, state):
        rows = torch.arange(tokens.size(0))
        return state.table[rows, tokens[:, -1]].log()[:, None], state


class MarkovLM(Markov):
    """The first table; it continues a prompt, of which only the last token matters."""

    continues, first_token = True, BOS

    def empty(self, sequences, dtype=None):
        return Last(self.tables[torch.zeros(sequences, dtype=torch.long)])

    def prefill(self, tokens, state, lengths=None):
        return state


@dataclass
class Hidden(State):
    hidden: Tensor  # (B, D)


class Recurrent(Generator):
    """A random recurrent network: its scores depend on everything that was fed to it, so that a
    state that is reordered wrongly gives other scores than the prefix."""

    def __init__(self, vocabulary=12, width=8, seed=0, sharpness=3.0, eos_bias=0.0, eos=EOS):
        random = torch.Generator().manual_seed(seed)
        make = lambda *shape: torch.randn(shape, generator=random, dtype=torch.float64)  # noqa: E731
        self.inputs, self.outputs = make(vocabulary, width), make(width, vocabulary) * sharpness
        self.again = make(width, width) / math.sqrt(width)
        self.bias = torch.zeros(vocabulary, dtype=torch.float64)
        if eos is not None:
            self.bias[eos] = eos_bias
        self.config = SimpleNamespace(
            vocab_size=vocabulary, pad=0, bos=BOS, eos=eos, max_length=None
        )

    def empty(self, sequences, dtype=None):
        return Hidden(torch.zeros(sequences, self.again.size(0), dtype=torch.float64))

    def prefill(self, tokens, state, lengths=None):
        hidden = state.hidden
        for at, ids in enumerate(tokens.T):
            keep = torch.ones(len(ids), dtype=torch.bool) if lengths is None else at < lengths
            hidden = torch.where(keep[:, None], self._advance(hidden, ids), hidden)
        return Hidden(hidden)

    def read(self, source):
        return self.prefill(source.ids, self.empty(len(source)), source.lengths)

    def step(self, tokens, state):
        hidden = self._advance(state.hidden, tokens[:, -1])
        return (hidden @ self.outputs + self.bias)[:, None], Hidden(hidden)

    def _advance(self, hidden, ids):
        return (hidden @ self.again + self.inputs[ids]).tanh()


def sources(count, vocabulary=12, seed=0, longest=6) -> list[list[int]]:
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (count,), generator=random).tolist()
    return [torch.randint(3, vocabulary, (n,), generator=random).tolist() for n in lengths]


def batch(rows, pad=0, extra=0) -> Sequences:
    """Rows as a batch, with `extra` columns of padding."""
    made = Sequences.of(rows, pad)
    return Sequences(torch.nn.functional.pad(made.ids, (0, extra), value=pad), made.lengths)


def next_log_probs(model, source: list[int], prefix: list[int]) -> list[float]:
    """log P(next | source, prefix) for one sentence, computed from the beginning."""
    state, _ = start(model, Sequences.of([source], 0))
    for token in [BOS, *prefix]:
        scores, state = model.step(torch.tensor([[token]]), state)
    return scores[0, -1].double().log_softmax(-1).tolist()


def enumerate_all(model, source, longest, penalty):
    """Every sequence that ends with eos within `longest` tokens or has `longest` others:
    (score, tokens, finished), best first."""
    found = []
    words = [v for v in range(model.config.vocab_size) if v != EOS]
    for length in range(longest + 1):
        for tokens in itertools.product(words, repeat=length):
            total = sum(
                next_log_probs(model, source, list(tokens[:at]))[tokens[at]] for at in range(length)
            )
            if length == longest:
                found.append((total / penalty(length), list(tokens), False))
            else:
                total += next_log_probs(model, source, list(tokens))[EOS]
                found.append((total / penalty(length + 1), list(tokens), True))
    return sorted(found, key=lambda each: -each[0])


def naive_beam(model, source, size, longest, penalty, enough):
    """One sentence, lists and loops; `enough(finished, best running log P, length)` stops it."""
    running, finished = [(0.0, [])], []
    for length in range(1, longest + 1):
        candidates = []
        for log_prob, tokens in running:
            following = next_log_probs(model, source, tokens)
            candidates += [(log_prob + p, [*tokens, v]) for v, p in enumerate(following)]
        candidates.sort(key=lambda each: -each[0])
        for log_prob, tokens in candidates[:size]:
            if tokens[-1] == EOS or length == longest:
                ended = tokens[-1] == EOS
                finished.append(
                    (log_prob / penalty(length), tokens[: -1 if ended else None], ended, log_prob)
                )
        finished = sorted(finished, key=lambda each: -each[0])[:size]
        running = [each for each in candidates[: 2 * size] if each[1][-1] != EOS][:size]
        if enough([each[0] for each in finished], running[0][0], length):
            break
    return finished
