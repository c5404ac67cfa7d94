"""What every method of decoding does with a model, and what it gives: hypotheses.

It starts, and asks for the next log-probabilities. This is all that decoding knows of a model;
`regard.models.protocols` writes it down.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isnan
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional as F

from regard import ops
from regard.attention.cache import HEADROOM, extremes
from regard.attention.capture import NEXT
from regard.data.batches import Sequences
from regard.decoding import cuda_graphs as cuda_graphs  # which registers a generator
from regard.decoding.filters import NEG_INF, TokenIds
from regard.errors import ConfigError, RegardError
from regard.models.protocols import Generator
from regard.models.wrappers import unwrapped
from regard.state import State


def start(model: Generator, source: Sequences | None) -> tuple[State, Tensor]:
    """The state before the first step, and the tokens to feed to that step, (B, 1).

    For an encoder-decoder: the state after its encoder has read the source, and `bos`. For a
    language model: the state before the last token of each prompt, and that token. An empty prompt,
    or None for one sequence without a prompt, begins with `model.first_token`.

    Args:
        source: on the device of the model; prompts may have different lengths.

    Raises:
        ConfigError: an encoder-decoder is given no source; or a prompt is empty, and the model has
            no `first_token`.
    """
    if not model.continues:
        if source is None:
            raise ConfigError(f"{type(unwrapped(model)).__name__} needs a source: it answers one.")
        return model.read(source), source.ids.new_full((len(source), 1), model.config.bos)
    state: State = model.empty(1 if source is None else len(source))
    if source is None:
        device = next(iter(state.tensors().values())).device
        source = Sequences.of([[]], model.config.pad).to(device)
    return _after_prompts(model, source, state)


def _after_prompts(model: Generator, prompts: Sequences, state: State) -> tuple[State, Tensor]:
    """The state after all tokens of the prompts but the last, and the last ones, (B, 1)."""
    counts = (prompts.lengths - 1).clamp(min=0)  # (B,)
    shortest, longest = extremes(prompts.lengths)
    if longest > 1:
        state = state.expect_tokens(longest + HEADROOM)  # else the first new token copies the cache
        state = model.prefill(prompts.ids[:, : longest - 1], state, counts)
    # One column more, so that a batch of empty prompts has a last token too.
    ids = F.pad(prompts.ids, (0, 1), value=model.config.pad or 0)  # (B, T) -> (B, T + 1)
    last = ids.gather(1, counts[:, None])  # (B, T + 1) -> (B, 1)
    if shortest or not len(prompts):
        return state, last
    return state, last.masked_fill(prompts.lengths[:, None] == 0, model.first_token)


class NonFiniteStep(RegardError):
    """A model's scores for what comes next are infinite or NaN."""


def start_decoding(model: Generator, source: Sequences | None) -> tuple[Any, Tensor]:
    """The state before the first step, and all tokens before it, (B, T).

    The last column is fed to the first step. Shorter prompts are padded on the left with -1.
    """
    state, tokens = start(model, source)
    if source is None or not model.continues or source.ids.size(1) < 2:
        return state, tokens
    width = source.ids.size(1)
    shift = torch.arange(width, device=source.ids.device) - (width - source.lengths[:, None])
    prompts = source.ids.gather(1, shift.clamp(min=0)).masked_fill(shift < 0, -1)
    return state, torch.cat([prompts[:, :-1], tokens], 1)


def eos_tokens(eos: TokenIds | None, model: Generator) -> TokenIds:
    """The tokens that end a sequence: `eos`, or where it is None those of the model's config."""
    tokens = model.config.eos if eos is None else eos
    if tokens is None:
        return ()
    return (tokens,) if isinstance(tokens, int) else tuple(tokens)


def normalized(scores: Tensor) -> Tensor:
    """Log-probabilities (..., V), at least float32."""
    return scores.to(torch.promote_types(scores.dtype, torch.float32)).log_softmax(-1)


def most_probable(scores: Tensor) -> tuple[Tensor, Tensor]:
    """The most probable token of each row and its log-probability: (B, V) -> 2 times (B,).

    Of tokens with equal log-probabilities it is the first. NaN in a row gives NaN.
    """
    token, log_prob = ops.topk(scores, 1)  # (B, 1)
    return token[:, 0], log_prob[:, 0]


def check_log_probs(log_probs: Sequence[float], read: int) -> None:
    """Check one log-probability of each sequence: the softmax of scores with NaN or plus infinity
    is NaN.

    read: how many tokens came before, for the error.

    Raises:
        NonFiniteStep: one is NaN.
    """
    for row, log_prob in enumerate(log_probs):
        if isnan(log_prob):
            scores = f"those of row {row} are NaN or infinite after {read} tokens"
            raise NonFiniteStep(f"The model's scores must be numbers, but {scores}.")


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Inside, the model is in evaluation mode (no dropout); its own mode is restored afterwards."""
    training = model.training
    if training:
        model.eval()
    try:
        yield
    finally:
        if training:
            model.train()


# ----------------------------------------------------------------------------------- hypotheses


@dataclass(frozen=True)
class Hypothesis:
    """A decoded sequence.

    tokens: without the prompt or start token, and without the end-of-sequence token.
    score: `log_prob` divided by the length penalty; hypotheses of a source are ranked by it.
    log_prob: natural logarithm of the model's own probability of the tokens (and of the end, where
        `finished`), before temperature, top-k and top-p.
    finished: it ended with an end-of-sequence token or a stop sequence, which is the end of
        `tokens`; False where it was truncated: by the limit on its length, or because the filters
        allowed no token.
    stops: stop sequences; its text ends before the first of them.
    """

    tokens: list[int]
    score: float
    log_prob: float
    finished: bool
    stops: tuple[str, ...] = ()


Hypotheses = list[list[Hypothesis]]  # of each source or prompt, the best first


@runtime_checkable
class Method(Protocol):
    """A frozen dataclass of the options of a decoding method.

    Its class method `from_settings` takes the options back, as `regard.decoding.settings.Settings`.
    """

    def run(self, model: Generator, source: Sequences | None) -> Hypotheses:
        """The hypotheses of each source or prompt, best first; without any, of one empty prompt."""

    def settings(self) -> dict[str, Any]:
        """The options under the names of generation_config.json."""


def unfinished(results: Iterable[list[Hypothesis]]) -> int:
    """The number of sources whose best hypothesis was truncated."""
    return sum(1 for hypotheses in results if hypotheses and not hypotheses[0].finished)


def labels_of(
    hypothesis: Hypothesis, ids: Sequence[int], label_of: Callable[[int], str]
) -> list[str]:
    """What pictures write for `ids`: a start token, the tokens of a hypothesis and its end, or the
    first of these. Where the hypothesis was truncated, what follows is not known.
    """
    labels = list(map(label_of, ids))
    if not hypothesis.finished and len(ids) == len(hypothesis.tokens) + 2:
        labels[-1] = NEXT
    return labels


def values_of(hypotheses: Sequence[Hypothesis], texts: Sequence[str]) -> list[dict[str, Any]]:
    """Hypotheses of one source, with their texts, as plain values for JSON."""
    return [
        {"text": text, "score": h.score, "log_prob": h.log_prob, "finished": h.finished}
        for h, text in zip(hypotheses, texts, strict=True)
    ]


class FinishedHypotheses:
    """For each of A sentences the `size` best finished hypotheses, best first.

    scores: (A, size) float64, minus infinity where there are fewer.
    """

    def __init__(self, sentences: int, size: int, device: torch.device):
        shape = (sentences, size)
        self.scores = torch.full(shape, NEG_INF, dtype=torch.float64, device=device)
        self._indices = torch.full(shape, -1, device=device)  # in `_all`
        self._all: list[Hypothesis] = []

    def add(self, ended: Tensor, scores: Tensor, hypotheses: list[Hypothesis]) -> None:
        """Add hypotheses; of equal scores the one that was added first stays first.

        Args:
            ended: (A, N) bool, which of the best N continuations are finished hypotheses.
            scores: (A, N) theirs; those of the others are not read.
            hypotheses: those for which `ended` is True, row by row.
        """
        indices = torch.full_like(self._indices[:, :1], -1).expand(ended.shape).clone()
        first = len(self._all)
        indices[ended] = torch.arange(first, first + len(hypotheses), device=ended.device)
        self._all += hypotheses
        joined = torch.cat([self.scores, scores.masked_fill(~ended, NEG_INF)], 1)
        self.scores, order = joined.sort(dim=1, descending=True, stable=True)
        size = self._indices.size(1)
        self.scores, order = self.scores[:, :size], order[:, :size]
        self._indices = torch.cat([self._indices, indices], 1).gather(1, order)

    def of(self, sentence: int, count: int) -> list[Hypothesis]:
        """The best `count` of a sentence, or as many as there are."""
        indices = self._indices[sentence, :count].tolist()
        return [self._all[index] for index in indices if index >= 0]

    def select(self, sentences: Tensor) -> None:
        """Keep these sentences (A',) alone."""
        self.scores = self.scores.index_select(0, sentences)
        self._indices = self._indices.index_select(0, sentences)
