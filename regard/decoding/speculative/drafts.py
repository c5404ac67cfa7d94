"""Drafts: tokens that may come next, guessed cheaply, for a model to agree with or not.

    NGrams(3)           what followed when the last three (or two) tokens last stood in the text
    SmallModel(model)   what a smaller model with the same vocabulary writes

A draft decides how fast speculative decoding is, and never what it writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from regard.data.batches import Sequences
from regard.decoding import cuda_graphs
from regard.decoding.option_types import check
from regard.decoding.steps import evaluating, log_probs_after, start_decoding
from regard.errors import ConfigError
from regard.state import State

SHORTEST = 2  # one token says too little: what is guessed from it is hardly ever right
BETWEEN = -1  # no token: stands between a source and what is written


@dataclass(frozen=True, eq=False)
class Rows:
    """The R rows that are still being written, each with a number of tokens of its own.

    numbers: (R,) their numbers in the batch.  begun: (R,) tokens at the beginning, the first one
    or the prompt.  new: (R,) tokens written.  room: (R,) how many may be.  total: (R,) float64
    log-probability so far.  tokens: (R, T) all of them, on the right, with -1 on their left.
    """

    numbers: Tensor
    begun: Tensor
    new: Tensor
    room: Tensor
    total: Tensor
    tokens: Tensor

    @property
    def lengths(self) -> Tensor:
        """(R,) tokens of each row."""
        return self.begun + self.new

    def written(self, columns: Tensor, counts: Tensor, total: Tensor) -> Rows:
        """With the first `counts` (R,) tokens of columns (R, T) behind the others."""
        tokens = torch.cat([self.tokens, columns], 1)
        width = tokens.size(1)
        new = self.new + counts
        empty = columns.size(1) - counts[:, None]  # places that would stay free on the right
        at = torch.arange(width, device=tokens.device) - empty
        tokens = tokens.gather(1, at.clamp(min=0)).masked_fill(at < 0, -1)
        longest = int((self.begun + new).max())
        return Rows(self.numbers, self.begun, new, self.room, total, tokens[:, width - longest :])

    def select(self, rows: Tensor) -> Rows:
        """These rows alone."""
        parts = (self.numbers, self.begun, self.new, self.room, self.total, self.tokens)
        return Rows(*(part[rows] for part in parts))


@dataclass(frozen=True, eq=False)
class Proposal:
    """What may come next: tokens (R, K), of which the first `counts` (R,) of each row are meant.

    probs: (R, K, V) the distributions they were drawn from; None: nothing was drawn.
    """

    tokens: Tensor
    counts: Tensor
    probs: Tensor | None = None


# Log-probabilities (R, V), the rows, what was guessed behind them (R, J) -> tokens (R,), and the
# distributions (R, V) that they were drawn from, or None.
Guess = Callable[[Tensor, Rows, Tensor], tuple[Tensor, Tensor | None]]


class Drafting(Protocol):
    """A draft at work on one batch."""

    def propose(self, rows: Rows, most: Tensor) -> Proposal:
        """At most `most` (R,) tokens for each row, one for the longest at least."""
        ...

    def select(self, rows: Tensor) -> None:
        """Only these rows go on."""
        ...


class Draft(Protocol):
    """The options of a draft."""

    def start_drafting(
        self, model: Any, source: Sequences | None, rows: Rows, guess: Guess
    ) -> Drafting:
        """Ready to propose; the rows of a sentence are len(rows) / len(source) neighbours."""
        ...

    def stored(self) -> Any:
        """Its name in recipes and files; itself where it has none."""
        ...


# -------------------------------------------------------------------------------- n-grams


@dataclass(frozen=True)
class NGrams:
    """The text is its own draft: what followed when its last tokens stood there before.

    Prompt, source and what was written are searched for the last `size` tokens, then for fewer,
    down to two; the latest place counts. It pays where a text repeats itself or its source:
    code, corrections, summaries, answers about a document.
    """

    size: int = 3

    def __post_init__(self) -> None:
        if self.size < SHORTEST:
            raise ConfigError(
                f"`draft` must look for n-grams of at least {SHORTEST} tokens, but for {self.size}."
            )

    def start_drafting(
        self, model: Any, source: Sequences | None, rows: Rows, guess: Guess
    ) -> Drafting:
        """See `Draft`."""
        texts = [[token for token in row if token >= 0] for row in rows.tokens.tolist()]
        if source is not None and not model.continues:
            lengths, copies = source.lengths.tolist(), len(texts) // len(source)
            sources = [ids[:n] for ids, n in zip(source.ids.tolist(), lengths, strict=True)]
            texts = [[*sources[at // copies], BETWEEN, *text] for at, text in enumerate(texts)]
        return _Lookup([_Text(text, range(self.size, SHORTEST - 1, -1)) for text in texts])

    def stored(self) -> str:
        """See `Draft`."""
        return "ngram" if self.size == NGrams.size else f"ngram:{self.size}"


class _Text:
    """A text that knows what followed each n-gram when it stood there last."""

    def __init__(self, tokens: Sequence[int], sizes: Sequence[int]):
        self.sizes = sizes  # the longest first
        self.tokens: list[int] = []
        self.after: dict[tuple[int, ...], int] = {}
        self.add(tokens)

    def add(self, tokens: Sequence[int]) -> None:
        """More tokens."""
        for token in tokens:
            for size in self.sizes:
                if len(self.tokens) >= size:
                    self.after[tuple(self.tokens[-size:])] = len(self.tokens)
            self.tokens.append(token)

    def guess(self, count: int) -> list[int]:
        """At most `count` tokens; what runs into the end of the text repeats itself."""
        for size in self.sizes:
            at = self.after.get(tuple(self.tokens[-size:]))
            if at is not None:
                break
        else:
            return []
        found: list[int] = []
        period = len(self.tokens) - at
        for step in range(count):
            token = self.tokens[at + step % period]
            if token == BETWEEN:
                break
            found.append(token)
        return found


class _Lookup:
    """A text for each row."""

    def __init__(self, texts: list[_Text]):
        self.texts = texts
        self.seen = [0] * len(texts)  # of the tokens written

    def propose(self, rows: Rows, most: Tensor) -> Proposal:
        new = rows.new.tolist()
        for text, tail, unseen in zip(self.texts, *self._unseen(rows, new), strict=True):
            text.add(tail[len(tail) - unseen :])
        self.seen = new
        found = [text.guess(n) for text, n in zip(self.texts, most.tolist(), strict=True)]
        proposed = Sequences.of(found, 0).to(rows.tokens.device)
        return Proposal(proposed.ids, proposed.lengths)

    def _unseen(self, rows: Rows, new: list[int]) -> tuple[list[list[int]], list[int]]:
        counts = [now - before for now, before in zip(new, self.seen, strict=True)]
        return rows.tokens[:, rows.tokens.size(1) - max(counts) :].tolist(), counts

    def select(self, rows: Tensor) -> None:
        kept = rows.tolist()
        self.texts = [self.texts[row] for row in kept]
        self.seen = [self.seen[row] for row in kept]


# ---------------------------------------------------------------------------- small models


@dataclass(frozen=True)
class SmallModel:
    """A smaller model writes ahead.

    model: it, or the folder that it lies in. It has the vocabulary of the model that it drafts for
    and can read texts as long. It may be of another family, as an LSTM for GPT-2.
    file: the generation_config.json that names the folder. What a file names is a folder on this
    machine, as seen from that of the file; only a user may name a model on the hub.
    """

    model: Any
    file: Path | None = field(default=None, compare=False, repr=False)

    def start_drafting(
        self, model: Any, source: Sequences | None, rows: Rows, guess: Guess
    ) -> Drafting:
        """See `Draft`.

        Raises:
            ConfigError: this draft is none for this model.
        """
        small = self.model
        if isinstance(small, str):
            folder = small if self.file is None else str(_beside(small, self.file))
            small = _opened(folder).to(rows.tokens.device)
        _check_pair(model, small)
        with evaluating(small):
            state, tokens = start_decoding(small, source)
        if not rewinds(state):
            small, state = _Recalling(small), _Recalled([state])
        copies = rows.numbers.size(0) // tokens.size(0)
        return _Ahead(small, state.select(rows.numbers // copies), rows, guess)

    def stored(self) -> Any:
        """See `Draft`."""
        if not isinstance(self.model, str):
            return self
        # Relative names are seen from elsewhere in the file that is written.
        folder = Path(self.model) if self.file is None else self.file.parent / self.model
        return str(folder.absolute()) if folder.is_dir() else self.model


class _Ahead:
    """The state of a small model, which has read all but the last one or two tokens of each row."""

    def __init__(self, model: Any, state: Any, rows: Rows, guess: Guess):
        self.model, self.guess, self.state = model, guess, state
        self.waits = isinstance(state, State)  # what keeps no positions cannot run out of them
        self.read = rows.lengths - 1  # (R,)
        self.fresh = True

    def propose(self, rows: Rows, most: Tensor) -> Proposal:
        # It has not read the last token that it wrote itself: so the last two are fed.
        feed = 1 if self.fresh else 2
        self._forget(self.read - (rows.lengths - feed))
        fed = rows.tokens[:, rows.tokens.size(1) - feed :]
        drafted, probs = fed[:, :0], []
        with evaluating(self.model):
            for place in range(int(most.max())):
                if self.waits:
                    self._forget((most < place).long())  # these rows wait at their place
                log_probs, self.state = log_probs_after(self.model, fed, self.state, rows.tokens)
                self.read, self.fresh = self.read + fed.size(1), False
                token, drawn_from = self.guess(log_probs[:, -1], rows, drafted)
                fed = token[:, None]
                drafted = torch.cat([drafted, fed], 1)
                if drawn_from is not None:
                    probs.append(drawn_from)
        return Proposal(drafted, most, torch.stack(probs, 1) if probs else None)

    def _forget(self, counts: Tensor) -> None:
        if bool(counts.any()):
            self.state, self.read = self.state.rewind(counts), self.read - counts

    def select(self, rows: Tensor) -> None:
        self.state, self.read = self.state.select(rows), self.read[rows]


class _Recalled:
    """A state that cannot forget, behind those before it: it forgets by going back to one."""

    def __init__(self, states: list[State]):
        self.states = states

    def select(self, rows: Tensor) -> _Recalled:
        return _Recalled([state.select(rows) for state in self.states])

    def rewind(self, counts: Tensor) -> _Recalled:
        """Each row's state before its last `counts` (R,) tokens; those before are let go."""
        named = [state.tensors() for state in self.states]
        at = len(named) - 1 - counts
        rows = torch.arange(len(counts), device=counts.device)
        tensors = {}
        for name, newest in named[-1].items():  # what rows share, a source, never changes
            several = newest.size(0) == len(rows)
            all_of_it = torch.stack([one[name] for one in named]) if several else None
            tensors[name] = newest if all_of_it is None else all_of_it[at, rows]
        return _Recalled([self.states[-1].with_tensors(tensors)])


class _Recalling:
    """A model whose states are kept as it reads, token by token."""

    training = False  # its step sees to the mode of the model

    def __init__(self, model: Any):
        self.model = model

    def step(self, tokens: Tensor, state: _Recalled) -> tuple[Tensor, _Recalled]:
        *states, current = state.states
        everything = torch.arange(tokens.size(0), device=tokens.device)
        scores = []
        with evaluating(self.model):
            for column in tokens.split(1, 1):
                states.append(current.select(everything))  # a copy: the step may reuse the memory
                score, current = cuda_graphs.step(self.model, column, current)
                scores.append(score)
        return torch.cat(scores, 1), _Recalled([*states, current])


def rewinds(state: Any) -> bool:
    """Whether a state can forget the last tokens."""
    try:
        state.rewind(0)
    except (AttributeError, TypeError):
        return False
    return True


def check_rewinds(model: Any, state: Any) -> None:
    """Refuses a model whose state cannot forget the last tokens.

    Raises:
        ConfigError: it cannot.
    """
    if not rewinds(state):
        raise ConfigError(
            f"Speculative decoding must take back what a draft got wrong, but the state of "
            f"{type(model).__name__} ({type(state).__name__}) cannot forget tokens. Recurrent "
            "models read one token after another, so a draft would save nothing: leave it out."
        )


def _check_pair(model: Any, small: Any) -> None:
    one, two = model.config, small.config
    if one.vocab_size != two.vocab_size:
        raise ConfigError(
            f"A draft must have the vocabulary of its model, but the draft's has "
            f"{two.vocab_size:,} tokens and the model's {one.vocab_size:,}."
        )
    if model.continues != small.continues:
        raise ConfigError(
            f"{type(small).__name__} is no draft for {type(model).__name__}: one continues a text, "
            "the other answers it."
        )
    most, needed = (config.max_length for config in (two, one))
    if most is not None and (needed is None or most < needed):
        raise ConfigError(
            f"A draft must read texts as long as its model does, but it reads at most {most:,} "
            f"tokens and the model {'any number' if needed is None else f'{needed:,}'}."
        )


def _beside(name: str, file: Path) -> Path:
    """The folder that a file names as its draft's.

    Raises:
        ConfigError: there is none on this machine, or it is the model's own.
    """
    folder, own = file.parent / name, file.parent.resolve()
    remote = name.startswith(("//", "\\\\")) or "://" in name
    if remote or not folder.is_dir():
        raise ConfigError(
            f"{file}: `draft` must be a folder on this machine, seen from that of the file, but is "
            f"{name!r}, and there is no such folder. A file cannot name a model on the hub: "
            "only you can, with --draft or draft=..."
        )
    if own in (folder.resolve(), (folder / "model").resolve()):
        raise ConfigError(
            f"{file}: `draft` must be a smaller model, but {name!r} is the model's own folder."
        )
    return folder


def _opened(folder: str) -> Any:
    from regard.checkpoints.model_folder import read_inference_model

    if folder not in _open:
        _open[folder] = read_inference_model(folder)
    return _open[folder]


_open: dict[str, Any] = {}


def draft_of(value: Any, file: Path | None = None) -> Draft:
    """A draft by its name: "ngram", "ngram:4" or a folder; a draft itself or a model as it is.

    file: where the name stands, unless a user has given it.

    Raises:
        ConfigError: the n-grams have no size, or this names no draft.
    """
    if isinstance(value, Path):
        value = str(value)
    if hasattr(value, "start_drafting"):
        return value
    if hasattr(value, "step"):
        return SmallModel(value)
    check("draft", value, "draft")
    kind, _, size = value.partition(":")
    if kind != "ngram":
        return SmallModel(value, file)
    if size and not re.fullmatch("[0-9]{1,9}", size):
        raise ConfigError(f'`draft` must be like "ngram:3", but is {value!r}.')
    return cast("Draft", NGrams(int(size)) if size else NGrams())
