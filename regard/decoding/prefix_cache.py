"""Prompts that begin alike: what a model made of the beginning is kept and read again.

    with keep_prefixes(model, budget_bytes=2**30) as kept:
        for prompt in prompts:
            generate(model, prompt)
    print(kept)

Inside the block, every method of decoding starts each prompt behind the longest beginning that was
read before. Keys and values of beginnings are held once, however many prompts share them, as a
tree: each node holds some tokens, its children what followed them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from regard.attention.gates import gating
from regard.attention.tap import listening
from regard.data.batches import Sequences
from regard.errors import ConfigError
from regard.state import KeyValueCache

WORTH = 16  # tokens that a batch must share for a pass of their own, with one row


class Node:
    """Some tokens behind those of the parent, with their keys and values (L, H, T, K)."""

    def __init__(
        self, tokens: list[int], keys: Tensor, values: Tensor, parent: Node | None, used: int
    ):
        self.tokens, self.keys, self.values = tokens, keys, values
        self.parent, self.used = parent, used
        self.children: dict[int, Node] = {}  # by their first tokens

    def shared(self, ids: Sequence[int]) -> int:
        """How many of the node's tokens the ids begin with."""
        for at, (one, two) in enumerate(zip(self.tokens, ids, strict=False)):
            if one != two:
                return at
        return min(len(self.tokens), len(ids))

    def split(self, count: int) -> None:
        """Keeps the first tokens; the others become its only child."""
        keys, values = self.keys[:, :, count:].clone(), self.values[:, :, count:].clone()
        tail = Node(self.tokens[count:], keys, values, self, self.used)
        tail.children = self.children
        for child in tail.children.values():
            child.parent = tail
        self.tokens, self.children = self.tokens[:count], {tail.tokens[0]: tail}
        self.keys, self.values = self.keys[:, :, :count].clone(), self.values[:, :, :count].clone()


class Prefixes:
    """Beginnings of prompts that one model has read, at most `budget_bytes` of them.

    What was used longest ago goes first. When the model's weights change, or the device or type it
    computes in, everything goes. While somebody looks at its attention or weighs its heads, prompts
    pass by.

    prompts, passed: how many came, and how many of them passed by.  tokens, reused: that those
    which did not pass had, and of them the ones that were not computed again.  bytes: held now.
    dropped: tokens that had to go.
    """

    def __init__(self, model: Any, budget_bytes: int):
        if budget_bytes < 1:
            raise ConfigError(f"`budget_bytes` must be at least 1, but is {budget_bytes}.")
        self.model, self.budget_bytes = model, budget_bytes
        self.prompts = self.passed = self.tokens = self.reused = self.bytes = self.dropped = 0
        self._clock, self._weights = 0, None
        self._empty = self._without_a_prompt()  # what every cache of this model begins as
        self._clear()

    @property
    def _token_bytes(self) -> int:
        _, layers, heads, _, head_dim = self._empty.keys.shape
        return 2 * layers * heads * head_dim * self._empty.keys.element_size()

    def __str__(self) -> str:
        share = self.reused / self.tokens if self.tokens else 0.0
        passed = f", {self.passed:,} prompts passed by" if self.passed else ""
        return (
            f"{self.reused:,} of {self.tokens:,} tokens of {self.prompts:,} prompts were reused "
            f"({share:.0%}); {self.bytes / 2**20:,.1f} of {self.budget_bytes / 2**20:,.1f} MiB "
            f"held, {self.dropped:,} tokens dropped{passed}"
        )

    @torch.no_grad()
    def start(self, source: Sequences | None) -> tuple[Any, Tensor]:
        """What `model.start` gives, in less time where prompts begin alike."""
        count = 1 if source is None else len(source)
        self.prompts += count
        if source is None or not count or not self._fit(source):
            self.passed += count
            return self.model.start(source)
        self._renew()
        self._clock += 1
        lengths = (source.lengths - 1).tolist()  # the last token is not read yet
        texts = [ids[:n] for ids, n in zip(source.ids.tolist(), lengths, strict=True)]
        self.tokens += sum(lengths)
        self._together(texts, source)
        held = [self._held(ids) for ids in texts]
        # Rows wait for the one with most to read: so they may as well read more than they must.
        longest = max(n - have for n, have in zip(lengths, held, strict=True))
        reused = [max(0, n - longest) for n in lengths]
        self.reused += sum(reused)
        if not any(reused):
            state, first = self.model.start(source)
        else:
            state, first = self._continued(source, texts, reused, longest)
        for row, ids in enumerate(texts):
            self._keep(ids, state.keys[row], state.values[row])
        return state, first

    # ---- reading

    def _fit(self, source: Sequences) -> bool:
        """An empty prompt begins as the model likes; what is looked at must be computed."""
        seen = listening.get() is not None or gating.get() is not None
        return not seen and bool((source.lengths > 0).all())

    def _together(self, texts: list[list[int]], source: Sequences) -> None:
        """A new beginning that all rows of a batch share is read once, by a row of its own."""
        if len(texts) < 2:
            return
        same = (source.ids == source.ids[:1]).all(0).int().cumprod(0)
        shared = min(int(same.sum()), *map(len, texts))
        ids = texts[0][:shared]
        have = self._held(ids)
        if shared - have >= WORTH and shared * self._token_bytes <= self.budget_bytes:
            self.reused -= shared - have  # for one of the rows it was not there
            one = source.ids[:1, :shared]
            state, _ = self._continued(Sequences(one, source.lengths[:1]), [ids], [have], shared)
            self._keep(ids, state.keys[0], state.values[0])

    def _continued(
        self, source: Sequences, texts: list[list[int]], have: list[int], count: int
    ) -> tuple[KeyValueCache, Tensor]:
        """The state behind texts of which the first `have` tokens are here, `count` are not."""
        device = source.ids.device
        _, layers, heads, _, head_dim = self._empty.keys.shape
        room = 5 * (max(have) + count) // 4 + 16  # what comes behind the prompts has its place too
        cache = KeyValueCache.empty(
            len(texts), layers, heads, head_dim, room=room, like=self._empty.keys
        )
        for row, (ids, there) in enumerate(zip(texts, have, strict=True)):
            self._copy(ids[:there], cache.keys[row], cache.values[row])
        cache = cache.cut(torch.tensor(have, device=device))
        rest = Sequences.of([ids[n:] for ids, n in zip(texts, have, strict=True)], 0).ids
        if rest.size(1):
            cache = self.model(rest.to(device), cache).state
        lengths = torch.tensor([len(ids) for ids in texts], device=device)
        last = (source.lengths - 1).clamp(max=source.ids.size(1) - 1)
        return cache.cut(lengths), source.ids.gather(1, last[:, None])

    def _copy(self, ids: Sequence[int], keys: Tensor, values: Tensor) -> None:
        """What is held of the ids, into (L, H, C, K)."""
        at = 0
        for node, count in self._path(ids):
            keys[:, :, at : at + count] = node.keys[:, :, :count]
            values[:, :, at : at + count] = node.values[:, :, :count]
            at += count

    # ---- the tree

    def _path(self, ids: Sequence[int]) -> list[tuple[Node, int]]:
        """The nodes that the ids lead to, and how many tokens of each."""
        path, node, at = [], self._root, 0
        while at < len(ids) and ids[at] in node.children:
            node = node.children[ids[at]]
            node.used = self._clock
            path.append((node, node.shared(ids[at:])))
            at += path[-1][1]
            if path[-1][1] < len(node.tokens):
                break
        return path

    def _held(self, ids: Sequence[int]) -> int:
        return sum(count for _, count in self._path(ids))

    def _keep(self, ids: list[int], keys: Tensor, values: Tensor) -> None:
        """Adds what is not there of the ids, with (L, H, C, K) for all of them, as far as it fits.

        What this start has used stays.
        """
        path = self._path(ids)
        at, parent = sum(count for _, count in path), self._root
        if at == len(ids):
            return
        self._free((len(ids) - at) * self._token_bytes)
        end = min(len(ids), at + (self.budget_bytes - self.bytes) // self._token_bytes)
        if end == at:
            return
        if path:
            parent, count = path[-1]
            if count < len(parent.tokens):
                parent.split(count)
        part = slice(at, end)
        new = keys[:, :, part].clone(), values[:, :, part].clone()
        parent.children[ids[at]] = Node(ids[part], *new, parent, self._clock)
        self.bytes += (end - at) * self._token_bytes

    def _free(self, wanted: int) -> None:
        """Drops ends of the tree that were used longest ago, until `wanted` bytes are free."""
        while self.bytes + wanted > self.budget_bytes:
            old = [n for n in self._nodes() if not n.children and n.used < self._clock]
            if not old:
                return
            node = min(old, key=lambda n: n.used)
            assert node.parent is not None
            del node.parent.children[node.tokens[0]]
            self.bytes -= len(node.tokens) * self._token_bytes
            self.dropped += len(node.tokens)

    def _nodes(self) -> Iterator[Node]:
        waiting = list(self._root.children.values())
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.children.values()

    def _clear(self) -> None:
        none = self._empty.keys[0, :, :, :0]
        self._root = Node([], none, none, None, 0)
        self.bytes = 0

    # ---- the model

    def _tensors(self) -> list[Tensor]:
        return [*self.model.parameters(), *self.model.buffers()]

    def _without_a_prompt(self) -> KeyValueCache:
        """The state before any token."""
        model, state = self.model, None
        if model.continues:
            device = self._tensors()[0].device
            with torch.no_grad():
                state, _ = model.start(Sequences.of([[0]], 0).to(device))
        if type(state) is not KeyValueCache:
            kind = "" if state is None else f" ({type(state).__name__})"
            raise ConfigError(
                "Prefixes can be kept of models that continue a text and remember a key and a "
                f"value for each token, as GPT does, but not of {type(model).__name__}{kind}."
            )
        return state

    def _renew(self) -> None:
        """Forgets everything if the model is no longer what it was."""
        tensors = self._tensors()
        device = tensors[0].device.type
        autocast = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device)
        versions = [0 if t.is_inference() else t._version for t in tensors]
        marks = [(t.data_ptr(), t.dtype, t.device) for t in tensors]
        weights: Any = (autocast, versions, marks)
        if weights != self._weights:
            self.dropped += self.bytes // self._token_bytes
            self._weights, self._empty = weights, self._without_a_prompt()
            self._clear()


_kept: ContextVar[tuple[Prefixes, ...]] = ContextVar("kept", default=())


@contextmanager
def keep_prefixes(model: Any, budget_bytes: int = 2**30) -> Iterator[Prefixes]:
    """Inside the block, beginnings of prompts that `model` has read are not read again.

    Raises:
        ConfigError: the model remembers in another way, as an LSTM does.
    """
    kept = Prefixes(model, budget_bytes)
    token = _kept.set((kept, *_kept.get()))
    try:
        yield kept
    finally:
        _kept.reset(token)


def started(model: Any, source: Sequences | None) -> tuple[Any, Tensor]:
    """`model.start`, behind what is kept for this model."""
    for kept in _kept.get():
        if kept.model is model:
            return kept.start(source)
    return model.start(source)
