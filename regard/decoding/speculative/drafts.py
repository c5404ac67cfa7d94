"""Drafts: tokens that may come next, guessed cheaply, for the model to accept or reject.

    NGrams(3)           what followed the last earlier occurrence of the last three (or two) tokens
    SmallModel(model)   what a smaller model with the same vocabulary generates

A draft decides how fast speculative decoding is, and never what it generates.

Dimensions: B sequences, J drafted tokens of each, V tokens in the vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.data.batches import Sequences
from regard.decoding.option_types import check
from regard.decoding.steps import evaluating, log_probs_after, start_decoding
from regard.errors import ConfigError
from regard.models.protocols import Generator
from regard.models.wrappers import generator, unwrapped
from regard.state import State

SHORTEST_NGRAM = 2  # what followed a single token is hardly ever right
SEPARATOR = -1  # stands for a token between a source and the generated text


@dataclass(frozen=True, eq=False)
class ActiveSequences:
    """The B sequences that have not ended, each with its own number of tokens.

    rows: (B,) their indices in the batch.
    prompts: (B,) tokens of the prompt or start token.
    generated: (B,) tokens generated.
    limits: (B,) how many may be.
    log_prob: (B,) float64, of the generated tokens.
    tokens: (B, T) all of them; shorter ones are padded on the left with -1.
    """

    rows: Tensor
    prompts: Tensor
    generated: Tensor
    limits: Tensor
    log_prob: Tensor
    tokens: Tensor

    @property
    def lengths(self) -> Tensor:
        """(B,) tokens of each sequence."""
        return self.prompts + self.generated

    def extended(self, columns: Tensor, counts: Tensor, log_prob: Tensor) -> ActiveSequences:
        """With the first `counts` (B,) of the tokens in `columns` (B, J) after the others."""
        tokens = torch.cat([self.tokens, columns], 1)
        width = tokens.size(1)
        generated = self.generated + counts
        unused = columns.size(1) - counts[:, None]
        source = torch.arange(width, device=tokens.device) - unused  # shifted to the right
        tokens = tokens.gather(1, source.clamp(min=0)).masked_fill(source < 0, -1)
        tokens = tokens[:, width - int((self.prompts + generated).max()) :]
        return ActiveSequences(self.rows, self.prompts, generated, self.limits, log_prob, tokens)

    def select(self, rows: Tensor) -> ActiveSequences:
        """These sequences alone."""
        return ActiveSequences(*(getattr(self, part.name)[rows] for part in fields(self)))


@dataclass(frozen=True, eq=False)
class Proposal:
    """Drafted tokens (B, J), of which the first `counts` (B,) of each sequence are proposed.

    probs: (B, J, V) the distributions that they were drawn from; None: they were not drawn.
    """

    tokens: Tensor
    counts: Tensor
    probs: Tensor | None = None


# Log-probabilities (B, V), the sequences, the tokens drafted so far (B, J) -> tokens (B,), and the
# distributions (B, V) that they were drawn from, or None.
Chooser = Callable[[Tensor, ActiveSequences, Tensor], tuple[Tensor, Tensor | None]]


# -------------------------------------------------------------------------------- n-grams


@dataclass(frozen=True)
class NGrams:
    """The text is its own draft: what followed when its last tokens occurred before.

    Prompt, source and generated text are searched for the last `size` tokens, then for fewer, down
    to two; the latest occurrence counts. It pays where a text repeats itself or its source: code,
    corrections, summaries, answers about a document.

    Raises:
        ConfigError: `size` is below 2.
    """

    size: int = 3

    def __post_init__(self) -> None:
        if self.size < SHORTEST_NGRAM:
            raise ConfigError(
                "`assistant_model` must look for n-grams of at least "
                f"{SHORTEST_NGRAM} tokens, but for {self.size}."
            )

    def start_drafting(
        self, model: Generator, source: Sequences | None, active: ActiveSequences, choose: Chooser
    ) -> _NGramDrafter:
        """A drafter for the sequences; those of one source stand side by side.

        choose: not used: n-grams are looked up.
        """
        texts = [[token for token in row if token >= 0] for row in active.tokens.tolist()]
        if source is not None and not model.continues:
            lengths, copies = source.lengths.tolist(), len(texts) // len(source)
            sources = [ids[:n] for ids, n in zip(source.ids.tolist(), lengths, strict=True)]
            texts = [[*sources[row // copies], SEPARATOR, *text] for row, text in enumerate(texts)]
        sizes = range(self.size, SHORTEST_NGRAM - 1, -1)
        return _NGramDrafter([_IndexedText(text, sizes) for text in texts])

    def stored(self) -> str:
        """The name in recipes and files."""
        return "ngram" if self.size == NGrams.size else f"ngram:{self.size}"


class _IndexedText:
    """A text with the position after the latest occurrence of each n-gram.

    sizes: of the n-grams, the longest first.
    """

    def __init__(self, tokens: Sequence[int], sizes: Sequence[int]):
        self.sizes = sizes
        self.tokens: list[int] = []
        self.after: dict[tuple[int, ...], int] = {}
        self.add(tokens)

    def add(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text."""
        for token in tokens:
            for size in self.sizes:
                if len(self.tokens) >= size:
                    self.after[tuple(self.tokens[-size:])] = len(self.tokens)
            self.tokens.append(token)

    def guess(self, count: int) -> list[int]:
        """At most `count` tokens; a guess that reaches the end of the text repeats itself."""
        positions = (self.after.get(tuple(self.tokens[-size:])) for size in self.sizes)
        start = next((position for position in positions if position is not None), None)
        if start is None:
            return []
        period = len(self.tokens) - start
        guess = [self.tokens[start + step % period] for step in range(count)]
        return guess[: guess.index(SEPARATOR)] if SEPARATOR in guess else guess


class _NGramDrafter:
    """The text of each sequence, and how many of its generated tokens were added to it."""

    def __init__(self, texts: list[_IndexedText]):
        self.texts = texts
        self.generated = [0] * len(texts)

    def propose(self, active: ActiveSequences, limits: Tensor) -> Proposal:
        """At most `limits` (B,) tokens for each sequence."""
        generated = active.generated.tolist()
        new = [now - before for now, before in zip(generated, self.generated, strict=True)]
        tails = active.tokens[:, active.tokens.size(1) - max(new) :].tolist()
        for text, tail, count in zip(self.texts, tails, new, strict=True):
            text.add(tail[len(tail) - count :])
        self.generated = generated
        guesses = [text.guess(n) for text, n in zip(self.texts, limits.tolist(), strict=True)]
        proposed = Sequences.of(guesses, 0).to(active.tokens.device)
        return Proposal(proposed.ids, proposed.lengths)

    def select(self, rows: Tensor) -> None:
        """Keep these sequences alone."""
        indices = rows.tolist()
        self.texts = [self.texts[row] for row in indices]
        self.generated = [self.generated[row] for row in indices]


# ---------------------------------------------------------------------------- small models


@dataclass(frozen=True)
class SmallModel:
    """A smaller model drafts.

    Args:
        model: it, or its folder. It has the vocabulary of the model that it drafts for and can read
            texts as long. It may be of another family, as an LSTM for GPT-2.
        file: the generation_config.json that names the folder, which is relative to the file and on
            this machine; only a user may name a model on the hub.
    """

    model: Any  # a `Generator`, or a string
    file: Path | None = field(default=None, compare=False, repr=False)

    def start_drafting(
        self, model: Generator, source: Sequences | None, active: ActiveSequences, choose: Chooser
    ) -> _ModelDrafter:
        """A drafter for the sequences; those of one source stand side by side.

        Args:
            choose: chooses the tokens by the log-probabilities.

        Raises:
            ConfigError: the draft does not fit the model.
        """
        draft: Any = self.model
        if isinstance(draft, str):
            folder = draft if self.file is None else str(_folder_beside(draft, self.file))
            draft = _opened(folder).to(active.tokens.device)
        _check_pair(unwrapped(model), unwrapped(draft))
        draft = generator(draft)
        with evaluating(draft):
            state, tokens = start_decoding(draft, source)
        if not rewinds(state):
            draft, state = _TokenByToken(draft), _StateHistory([state])
        copies = active.rows.size(0) // tokens.size(0)
        return _ModelDrafter(draft, state.select(active.rows // copies), active, choose)

    def stored(self) -> Any:
        """The folder of the model, for files; this draft where the model was not read from one."""
        if not isinstance(self.model, str):
            return self
        # A relative name would mean another folder in the file that is written.
        folder = Path(self.model) if self.file is None else self.file.parent / self.model
        return str(folder.absolute()) if folder.is_dir() else self.model


Draft = NGrams | SmallModel


class _StateHistory:
    """The states before each of the last tokens, and after them, of a state that cannot rewind.

    states: from old to new.
    """

    def __init__(self, states: list[State]):
        self.states = states

    def select(self, rows: Tensor) -> _StateHistory:
        """The history of the sequences `rows` (B',)."""
        return _StateHistory([state.select(rows) for state in self.states])

    def rewind(self, counts: Tensor) -> _StateHistory:
        """Each sequence's state before its last `counts` (B,) tokens; earlier ones are dropped."""
        past = [state.tensors() for state in self.states]
        chosen, rows = len(past) - 1 - counts, torch.arange(len(counts), device=counts.device)
        tensors = {
            # A tensor that sequences share, as that of a source, is the same in all states.
            name: torch.stack([tensors[name] for tensors in past])[chosen, rows]  # -> (B, ...)
            if tensor.size(0) == len(rows)
            else tensor
            for name, tensor in past[-1].items()
        }
        return _StateHistory([self.states[-1].with_tensors(tensors)])


class _TokenByToken(Generator):
    """A model that reads token by token and keeps the history of its states."""

    training = False  # `step` switches the mode of the model

    def __init__(self, model: Generator):
        self.model = model

    def step(self, tokens: Tensor, state: _StateHistory) -> tuple[Tensor, _StateHistory]:
        """Scores (B, T, V) for tokens (B, T), and the history with the states between them."""
        *states, current = state.states
        all_rows = torch.arange(tokens.size(0), device=tokens.device)
        scores = []
        with evaluating(self.model):
            for column in tokens.split(1, 1):
                states.append(current.select(all_rows))  # a copy: the step may reuse the memory
                score, current = self.model.step(column, current)
                scores.append(score)
        return torch.cat(scores, 1), _StateHistory([*states, current])


class _ModelDrafter:
    """The state of a small model, which has read all but the last one or two tokens.

    read: (B,) tokens of each sequence that it has read.
    unread: how many tokens it has not read: 1, or 2 where the last drafted one was not fed to it.
    """

    def __init__(
        self,
        model: Generator | _TokenByToken,
        state: State | _StateHistory,
        active: ActiveSequences,
        choose: Chooser,
    ):
        self.model, self.choose, self.state = model, choose, state
        self.has_positions = isinstance(state, State)  # whether `max_length` limits them
        self.read = active.lengths - 1  # (B,)
        self.unread = 1

    def propose(self, active: ActiveSequences, limits: Tensor) -> Proposal:
        """`limits` (B,) tokens for each sequence."""
        self._rewind(self.read - (active.lengths - self.unread))
        fed = active.tokens[:, active.tokens.size(1) - self.unread :]
        drafted, probs = fed[:, :0], []
        with evaluating(self.model):
            for step in range(int(limits.max())):
                if self.has_positions:
                    self._rewind((limits < step).long())  # at their limits sequences do not advance
                log_probs, self.state = log_probs_after(self.model, fed, self.state, active.tokens)
                self.read = self.read + fed.size(1)
                self.unread = 2  # the next time: the last drafted token was not read
                token, drawn_from = self.choose(log_probs[:, -1], active, drafted)
                fed = token[:, None]
                drafted = torch.cat([drafted, fed], 1)
                if drawn_from is not None:
                    probs.append(drawn_from)
        return Proposal(drafted, limits, torch.stack(probs, 1) if probs else None)

    def _rewind(self, counts: Tensor) -> None:
        """Take back the last `counts` (B,) tokens; a history drops its older states even for 0."""
        if not self.has_positions or bool(counts.any()):
            self.state, self.read = self.state.rewind(counts), self.read - counts

    def select(self, rows: Tensor) -> None:
        """Keep these sequences alone."""
        self.state, self.read = self.state.select(rows), self.read[rows]


def rewinds(state: State) -> bool:
    """Whether a state can forget the last tokens."""
    try:
        state.rewind(0)
    except TypeError:
        return False
    return True


def check_rewinds(model: Generator, state: State) -> None:
    """Check that speculative decoding can take back tokens that the model has read.

    Raises:
        ConfigError: the state cannot forget the last tokens.
    """
    if not rewinds(state):
        raise ConfigError(
            f"Speculative decoding must take back what a draft got wrong, but the state of "
            f"{type(unwrapped(model)).__name__} ({type(state).__name__}) cannot forget tokens. "
            "Recurrent models read one token after another, so a draft would save nothing: leave "
            "it out."
        )


def _check_pair(model: Generator, draft: Generator) -> None:
    """Check that a model can draft for another one.

    Raises:
        ConfigError: its vocabulary or its kind is another one, or its context is shorter.
    """
    if model.config.vocab_size != draft.config.vocab_size:
        raise ConfigError(
            f"A draft must have the vocabulary of its model, but the draft's has "
            f"{draft.config.vocab_size:,} tokens and the model's {model.config.vocab_size:,}."
        )
    if model.continues != draft.continues:
        raise ConfigError(
            f"{type(draft).__name__} is no draft for {type(model).__name__}: one continues a text, "
            "the other answers it."
        )
    longest, needed = draft.config.max_length, model.config.max_length
    if longest is not None and (needed is None or longest < needed):
        raise ConfigError(
            f"A draft must read texts as long as its model does, but it reads at most {longest:,} "
            f"tokens and the model {'any number' if needed is None else f'{needed:,}'}."
        )


def _folder_beside(name: str, file: Path) -> Path:
    """The folder that a file names as its draft's.

    Raises:
        ConfigError: there is none on this machine, or it is the model's own.
    """
    folder, model_folder = file.parent / name, file.parent.resolve()
    remote = name.startswith(("//", "\\\\")) or "://" in name
    if remote or not folder.is_dir():
        raise ConfigError(
            f"{file}: `draft` must be a folder on this machine, seen from that of the file, but is "
            f"{name!r}, and there is no such folder. A file cannot name a model on the hub: "
            "only you can, with --assistant-model or assistant_model=..."
        )
    if model_folder in (folder.resolve(), (folder / "model").resolve()):
        raise ConfigError(
            f"{file}: `draft` must be a smaller model, but {name!r} is the model's own folder."
        )
    return folder


_open: dict[str, Any] = {}


def _opened(folder: str) -> Any:
    """The model of a folder, which is read once in a process."""
    from regard.checkpoints.model_folder import read_inference_model

    if folder not in _open:
        _open[folder] = read_inference_model(folder)
    return _open[folder]


def draft_of(value: Any, file: Path | None = None) -> Draft:
    """A draft by its name.

    Args:
        value: "ngram", "ngram:4" or a folder; a draft is returned as it is, a model as a draft.
        file: the generation_config.json that has the name; None: the user gave it.

    Raises:
        ConfigError: the n-grams have no valid size, or the value names no draft.
    """
    if isinstance(value, Draft):
        return value
    if isinstance(value, Generator):
        return SmallModel(value)
    value = str(value) if isinstance(value, Path) else value
    check("draft", value)
    kind, _, size = value.partition(":")
    if kind != "ngram":
        return SmallModel(value, file)
    if size and not re.fullmatch("[0-9]{1,9}", size):
        raise ConfigError(f'`assistant_model` must be like "ngram:3", but is {value!r}.')
    return NGrams(int(size)) if size else NGrams()
