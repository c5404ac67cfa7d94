"""The prefix cache: keys and values of prompts, computed once for all prompts that share them.

    with keep_prefixes(model, budget_bytes=2**30) as cache:
        for prompt in prompts:
            generate(model, prompt)
    print(cache)

Inside the block, every decoding method starts each prompt after its longest cached prefix. Keys and
values are stored once, however many prompts share them, in a tree: each node has some tokens, and
its children have those that followed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from regard.attention.cache import KeyValueCache
from regard.attention.capture import listening
from regard.attention.head_gates import gating
from regard.data.batches import Sequences
from regard.decoding.start import start
from regard.errors import ConfigError
from regard.models.protocols import Generator
from regard.models.wrappers import generator, unwrapped

MIN_SHARED = 16  # tokens that a batch must share to compute them first, with one sequence


@dataclass(eq=False)
class _Node:
    """Some tokens after those of the parent, with their keys and values (L, H, T, K).

    used: when the node was last read.
    children: by their first tokens.
    """

    tokens: list[int]
    keys: Tensor
    values: Tensor
    parent: _Node | None
    used: int
    children: dict[int, _Node] = field(default_factory=dict)

    def common(self, ids: Sequence[int]) -> int:
        """How many of the node's tokens the ids start with."""
        pairs = enumerate(zip(self.tokens, ids, strict=False))
        different = (index for index, (own, other) in pairs if own != other)
        return next(different, min(len(self.tokens), len(ids)))

    def split(self, count: int) -> None:
        """Keep the first tokens; the others become the only child."""
        keys, values = self.keys[:, :, count:].clone(), self.values[:, :, count:].clone()
        tail = _Node(self.tokens[count:], keys, values, self, self.used, self.children)
        for child in tail.children.values():
            child.parent = tail
        self.tokens, self.children = self.tokens[:count], {tail.tokens[0]: tail}
        self.keys, self.values = self.keys[:, :, :count].clone(), self.values[:, :, :count].clone()


class Prefixes:
    """Prefixes of the prompts that one model has read, at most `budget_bytes` of them.

    The least recently used are evicted first, and all of them when the model's weights, device or
    type change. While attention capture is on or heads are gated, prompts bypass the cache.

    prompts: that came.
    bypassed: those of them that did not use the cache.
    tokens: of the prompts that used it.
    reused: those of the tokens that were not computed.
    bytes: stored now.
    evicted: tokens that were evicted.

    Raises:
        ConfigError: the model's state is not a key/value cache, or the budget is below one byte.
    """

    def __init__(self, model: Generator, budget_bytes: int):
        if budget_bytes < 1:
            raise ConfigError(f"`budget_bytes` must be at least 1, but is {budget_bytes}.")
        self.model, self.budget_bytes = model, budget_bytes
        self.prompts = self.bypassed = self.tokens = self.reused = self.bytes = self.evicted = 0
        self._clock, self._weights = 0, None
        self._empty = self._without_a_prompt()  # before any token
        self._clear()

    @property
    def _token_bytes(self) -> int:
        _, layers, heads, _, head_dim = self._empty.keys.shape
        return 2 * layers * heads * head_dim * self._empty.keys.element_size()

    def __str__(self) -> str:
        share = self.reused / self.tokens if self.tokens else 0.0
        bypassed = f", {self.bypassed:,} prompts bypassed the cache" if self.bypassed else ""
        return (
            f"{self.reused:,} of {self.tokens:,} tokens of {self.prompts:,} prompts were reused "
            f"({share:.0%}); {self.bytes / 2**20:,.1f} of {self.budget_bytes / 2**20:,.1f} MiB "
            f"used, {self.evicted:,} tokens evicted{bypassed}"
        )

    @torch.no_grad()
    def start(self, source: Sequences | None) -> tuple[Any, Tensor]:
        """What `start` gives, in less time where prompts begin alike."""
        count = 1 if source is None else len(source)
        self.prompts += count
        if source is None or not count or not self._usable(source):
            self.bypassed += count
            return start(self.model, source)
        self._check_weights()
        self._clock += 1
        lengths = (source.lengths - 1).tolist()  # the first step reads the last token
        texts = [ids[:n] for ids, n in zip(source.ids.tolist(), lengths, strict=True)]
        self.tokens += sum(lengths)
        self._compute_shared(texts, source)
        cached = [self._cached(ids) for ids in texts]
        # All prompts compute as many tokens as the one with the most, so they reuse no more.
        longest = max(n - have for n, have in zip(lengths, cached, strict=True))
        reused = [max(0, n - longest) for n in lengths]
        self.reused += sum(reused)
        if not any(reused):
            begun, first = start(self.model, source)
            state = cast(KeyValueCache, begun)
        else:
            state, first = self._continued(source, texts, reused, longest)
        for row, ids in enumerate(texts):
            self._store(ids, state.keys[row], state.values[row])
        return state, first

    # ---- computing

    def _usable(self, source: Sequences) -> bool:
        """Empty prompts have a start token of the model's; capture and gates need computing."""
        observed = listening.get() is not None or gating.get() is not None
        return not observed and bool((source.lengths > 0).all())

    def _compute_shared(self, texts: list[list[int]], source: Sequences) -> None:
        """Compute a new prefix that all prompts of a batch share with one sequence, once."""
        if len(texts) < 2:
            return
        same = (source.ids == source.ids[:1]).all(0).int().cumprod(0)
        shared = min(int(same.sum()), *map(len, texts))
        ids = texts[0][:shared]
        have = self._cached(ids)
        if shared - have >= MIN_SHARED and shared * self._token_bytes <= self.budget_bytes:
            self.reused -= shared - have  # one of the prompts did compute it
            one = source.ids[:1, :shared]
            state, _ = self._continued(Sequences(one, source.lengths[:1]), [ids], [have], shared)
            self._store(ids, state.keys[0], state.values[0])

    def _continued(
        self, source: Sequences, texts: list[list[int]], have: list[int], count: int
    ) -> tuple[KeyValueCache, Tensor]:
        """The state after texts of which `have` tokens are cached and at most `count` are not."""
        device = source.ids.device
        _, layers, heads, _, head_dim = self._empty.keys.shape
        room = 5 * (max(have) + count) // 4 + 16  # what comes behind the prompts has its place too
        cache = KeyValueCache.empty(
            len(texts), layers, heads, head_dim, room=room, like=self._empty.keys
        )
        for row, (ids, there) in enumerate(zip(texts, have, strict=True)):
            self._copy(ids[:there], cache.keys[row], cache.values[row])
        cache = cache.truncate(torch.tensor(have, device=device))
        rest = Sequences.of([ids[n:] for ids, n in zip(texts, have, strict=True)], 0).ids
        if rest.size(1):
            cache = self.model.prefill(rest.to(device), cache)
        lengths = torch.tensor([len(ids) for ids in texts], device=device)
        last = (source.lengths - 1).clamp(max=source.ids.size(1) - 1)
        return cache.truncate(lengths), source.ids.gather(1, last[:, None])

    def _copy(self, ids: Sequence[int], keys: Tensor, values: Tensor) -> None:
        """Copy those of the cached prefix of the ids into (L, H, C, K)."""
        end = 0
        for node, count in self._path(ids):
            begin, end = end, end + count
            keys[:, :, begin:end] = node.keys[:, :, :count]
            values[:, :, begin:end] = node.values[:, :, :count]

    # ---- the tree

    def _path(self, ids: Sequence[int]) -> list[tuple[_Node, int]]:
        """The nodes of the longest cached prefix, and how many tokens of each belong to it."""
        path, node, position = [], self._root, 0
        while position < len(ids) and ids[position] in node.children:
            node = node.children[ids[position]]
            node.used = self._clock
            count = node.common(ids[position:])
            path.append((node, count))
            position += count
            if count < len(node.tokens):
                break
        return path

    def _cached(self, ids: Sequence[int]) -> int:
        return sum(count for _, count in self._path(ids))

    def _store(self, ids: list[int], keys: Tensor, values: Tensor) -> None:
        """Store the tokens that are not cached, with keys and values (L, H, C, K) of all of them,
        as far as the budget allows; what this start has used is not evicted.
        """
        path = self._path(ids)
        begin = sum(count for _, count in path)
        self._evict((len(ids) - begin) * self._token_bytes)
        end = min(len(ids), begin + (self.budget_bytes - self.bytes) // self._token_bytes)
        if end == begin:
            return
        parent, count = path[-1] if path else (self._root, 0)
        if count < len(parent.tokens):
            parent.split(count)
        part = slice(begin, end)
        new = keys[:, :, part].clone(), values[:, :, part].clone()
        parent.children[ids[begin]] = _Node(ids[part], *new, parent, self._clock)
        self.bytes += (end - begin) * self._token_bytes

    def _evict(self, needed: int) -> None:
        """Drop the least recently used leaves of the tree until `needed` bytes are free."""
        while self.bytes + needed > self.budget_bytes:
            old = [n for n in self._nodes() if not n.children and n.used < self._clock]
            if not old:
                return
            node = min(old, key=lambda n: n.used)
            assert node.parent is not None
            del node.parent.children[node.tokens[0]]
            self.bytes -= len(node.tokens) * self._token_bytes
            self.evicted += len(node.tokens)

    def _nodes(self) -> Iterator[_Node]:
        waiting = list(self._root.children.values())
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.children.values()

    def _clear(self) -> None:
        none = self._empty.keys[0, :, :, :0]
        self._root = _Node([], none, none, None, 0)
        self.bytes = 0

    # ---- the model

    def _tensors(self) -> list[Tensor]:
        return [*unwrapped(self.model).parameters(), *unwrapped(self.model).buffers()]

    def _without_a_prompt(self) -> KeyValueCache:
        """The state before any token."""
        model = self.model
        state = model.empty(1) if model.continues else None
        if type(state) is not KeyValueCache:
            name = type(unwrapped(model)).__name__
            kind = "" if state is None else f" ({type(state).__name__})"
            raise ConfigError(
                "Prefixes can be kept of models that continue a text and remember a key and a "
                f"value for each token, as GPT does, but not of {name}{kind}."
            )
        return state

    def _check_weights(self) -> None:
        """Empty the cache if the model has changed."""
        tensors = self._tensors()
        device = tensors[0].device.type
        autocast = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device)
        versions = [0 if t.is_inference() else t._version for t in tensors]
        addresses = [(t.data_ptr(), t.dtype, t.device) for t in tensors]
        weights: Any = (autocast, versions, addresses)
        if weights != self._weights:
            self.evicted += self.bytes // self._token_bytes
            self._weights, self._empty = weights, self._without_a_prompt()
            self._clear()


_kept: ContextVar[tuple[Prefixes, ...]] = ContextVar("kept", default=())


@contextmanager
def keep_prefixes(model: Generator, budget_bytes: int = 2**30) -> Iterator[Prefixes]:
    """Inside the block, prefixes that `model` has read are not computed again.

    Args:
        model: a language model with a key/value cache, such as GPT.
        budget_bytes: of keys and values that are stored at most.

    Raises:
        ConfigError: the model's state is not a key/value cache, or the budget is below one byte.
    """
    kept = Prefixes(generator(model), budget_bytes)
    token = _kept.set((kept, *_kept.get()))
    try:
        yield kept
    finally:
        _kept.reset(token)


def started(model: Generator, source: Sequences | None) -> tuple[Any, Tensor]:
    """See `start`; behind what is cached for this model."""
    for kept in _kept.get():
        if unwrapped(kept.model) is unwrapped(model):
            return kept.start(source)
    return start(model, source)
