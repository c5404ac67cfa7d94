"""Generators around a language model: a cache of prefixes, and a sliding context.

The prefix cache computes keys and values of prompts once for all prompts that share them.

    cache = PrefixCache(model, budget_bytes=2**30)
    for prompt in prompts:
        generate(cache, prompt)
    print(cache)

The cache is a generator around a model: decoding that is given the cache instead of the model
starts each prompt after its longest cached prefix. Keys and values are stored once, however many
prompts share them, in a radix tree (Zheng et al. 2024, "SGLang: Efficient execution of structured
language model programs", section 3). With a sliding context a text may be longer than the model
reads at once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from regard.attention.cache import KeyValueCache
from regard.attention.capture import captured_or_gated
from regard.data.batches import Sequences
from regard.errors import ConfigError
from regard.models.protocols import Generator, LanguageModel
from regard.models.wrappers import GeneratorWrapper, generator, unwrapped
from regard.state import State


class PrefixCache(GeneratorWrapper[KeyValueCache]):
    """A generator around a language model, which computes prefixes that prompts share once.

    The least recently used prefixes are evicted first, and all of them when the model's weights,
    device or type change. In training, where gradients are wanted, and while attention capture is
    on or heads are gated, prompts bypass the cache. Threads may share one.

    prompts: how many prompts were read with the cache.
    tokens: of these, without the last token of each, which the first step reads.
    reused: how many of these tokens were not computed.

    Args:
        model: a language model with a key/value cache, such as GPT.
        budget_bytes: of keys and values that are stored at most.

    Raises:
        ConfigError: the model's state is not a key/value cache, or the budget is below one byte.
    """

    def __init__(self, model: Generator, budget_bytes: int = 2**30):
        if not isinstance(budget_bytes, int) or budget_bytes < 1:
            raise ConfigError(f"`budget_bytes` must be at least 1, but is {budget_bytes!r:.80}.")
        super().__init__(generator(model))
        _check_state(self.model)
        self.prompts = self.tokens = self.reused = 0
        self._tree = _PrefixTree(budget_bytes)
        self._weights: object = None
        self._lock = threading.Lock()

    @property
    def bytes(self) -> int:
        """Bytes of the keys and values that are stored now."""
        return self._tree.bytes

    @property
    def evicted(self) -> int:
        """How many tokens were evicted so far."""
        return self._tree.evicted

    def __str__(self) -> str:
        share = self.reused / self.tokens if self.tokens else 0.0
        return (
            f"{self.reused:,} of {self.tokens:,} tokens of {self.prompts:,} prompts were reused "
            f"({share:.0%}), {self.evicted:,} tokens were evicted"
        )

    def prefill(
        self, tokens: Tensor, state: KeyValueCache, lengths: Tensor | None = None
    ) -> KeyValueCache:
        """As `Generator.prefill`; what is cached is copied into an empty state, and not computed.

        Args:
            tokens: (B, T).
            lengths: (B,) tokens of each prompt; None: T.
        """
        if self._is_bypassed() or state.longest > 0 or not tokens.numel():
            return self.model.prefill(tokens, state, lengths)
        counts = [tokens.size(1)] * tokens.size(0) if lengths is None else lengths.tolist()
        texts = [ids[:count] for ids, count in zip(tokens.tolist(), counts, strict=True)]
        with self._lock:
            self._check_weights(state)
            self.prompts += len(texts)
            self.tokens += sum(counts)
            self._tree.clock += 1
            reused = self._reusable(texts)
            self.reused += sum(reused)
            if any(reused):
                after = self._continued(texts, reused, state)
            else:
                after = self.model.prefill(tokens, state, lengths)
            for row, ids in enumerate(texts):
                self._tree.store(ids, after.keys[row], after.values[row])
        return after

    def cached_length(self, ids: Sequence[int], state: KeyValueCache) -> int:
        """How many of the first ids are cached; 0 where prompts bypass the cache.

        state: a state into which they would be copied.
        """
        if self._is_bypassed():
            return 0
        with self._lock:
            self._check_weights(state)
            return self._tree.cached(ids)

    def extend(self, ids: list[int], state: KeyValueCache) -> KeyValueCache:
        """Compute the next tokens of a prompt that is read in chunks, and store them.

        Args:
            ids: one prompt up to the end of this chunk.
            state: of one sequence, after its chunks so far, which `prefill` began.
        """
        count = state.longest  # tokens that were read
        tokens = torch.tensor([ids[count:]], device=state.lengths.device)  # (1, T)
        if self._is_bypassed():
            return self.model.prefill(tokens, state)
        with self._lock:
            self._check_weights(state)
            self.tokens += tokens.size(1)
            self._tree.clock += 1
            after = self.model.prefill(tokens, state)
            self._tree.store(ids, after.keys[0], after.values[0])
        return after

    def _is_bypassed(self) -> bool:
        """Whether more than keys and values is needed: gradients, attention weights, gates."""
        return captured_or_gated() or self.training or torch.is_grad_enabled()

    def _reusable(self, texts: list[list[int]]) -> list[int]:
        """How many cached tokens of each prompt are used.

        The prompts of a batch are computed side by side, so all compute as many tokens as the one
        with the fewest cached ones; the others do not use all that they have cached.
        """
        computed = max(len(ids) - self._tree.cached(ids) for ids in texts)
        return [max(0, len(ids) - computed) for ids in texts]

    def _continued(
        self, texts: list[list[int]], cached: list[int], state: KeyValueCache
    ) -> KeyValueCache:
        """The state after texts, from the empty one.

        cached: of each text the number of its first tokens that are copied from the cache.
        """
        state.consume()
        uncached = [ids[count:] for ids, count in zip(texts, cached, strict=True)]
        state = replace(state).reserve(max(cached) + max(map(len, uncached)))
        state.materialize()
        for row, (ids, count) in enumerate(zip(texts, cached, strict=True)):
            self._tree.copy(ids[:count], state.keys[row], state.values[row])
        device = state.lengths.device
        state = state.truncate(torch.tensor(cached, device=device))
        tokens = Sequences.of(uncached, 0).ids.to(device)
        if tokens.size(1):
            state = self.model.prefill(tokens, state)
        return state.truncate(torch.tensor([len(ids) for ids in texts], device=device))

    def _check_weights(self, state: KeyValueCache) -> None:
        """Clear the cache if the model, or the type of its state, has changed."""
        model: nn.Module = unwrapped(self.model)
        tables = [
            table for module in model.modules() for table in (module._parameters, module._buffers)
        ]
        tensors = [tensor for table in tables for tensor in table.values() if tensor is not None]
        device = tensors[0].device.type
        autocast = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device)
        versions = [0 if t.is_inference() else t._version for t in tensors]
        addresses = [(t.data_ptr(), t.dtype, t.device) for t in tensors]
        weights = (autocast, versions, addresses, state.keys.dtype)
        if weights != self._weights:
            self._weights = weights
            self._tree.clear()


def _check_state(model: Generator) -> None:
    """Check that a model continues a text and caches keys and values.

    Raises:
        ConfigError: it does not.
    """
    state = model.empty(1) if model.continues else None
    if type(state) is not KeyValueCache:
        name = type(unwrapped(model)).__name__
        kind = "" if state is None else f" ({type(state).__name__})"
        raise ConfigError(f"A prefix cache needs keys and values of tokens, unlike {name}{kind}.")


def _common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """The length of the longest common prefix of two sequences."""
    pairs = enumerate(zip(first, second, strict=False))
    different = (index for index, (a, b) in pairs if a != b)
    return next(different, min(len(first), len(second)))


def _token_bytes(keys: Tensor) -> int:
    """Bytes of the keys and values of one token.

    keys: of a sequence, (L, H, C, K), of L layers and with a capacity of C tokens.
    """
    return 2 * keys[:, :, :1].nbytes


# ------------------------------------------------------------------------------------ the tree


@dataclass(eq=False)
class _Node:
    """T tokens that follow those of the parent, with their keys and values (L, H, T, K).

    used: the clock of the tree when the node was last read.
    children: by their first tokens.
    """

    tokens: list[int]
    keys: Tensor
    values: Tensor
    parent: _Node | None
    used: int
    children: dict[int, _Node] = field(default_factory=dict)

    def split(self, count: int) -> None:
        """Keep the first `count` tokens; the others become the only child."""
        keys, values = self.keys[:, :, count:].clone(), self.values[:, :, count:].clone()
        tail = _Node(self.tokens[count:], keys, values, self, self.used, self.children)
        for child in tail.children.values():
            child.parent = tail
        self.tokens, self.children = self.tokens[:count], {tail.tokens[0]: tail}
        self.keys, self.values = self.keys[:, :, :count].clone(), self.values[:, :, :count].clone()


class _PrefixTree:
    """Keys and values of prefixes, at most `budget_bytes` of them: each node has some tokens, and
    its children have those that followed.

    bytes: stored now.
    evicted: tokens that were evicted.
    clock: counts the batches of prompts; what the current batch has read is not evicted.
    """

    def __init__(self, budget_bytes: int):
        self.budget_bytes = budget_bytes
        self.bytes = self.evicted = self.clock = 0
        self.root = _Node([], torch.empty(0), torch.empty(0), None, 0)

    def cached(self, ids: Sequence[int]) -> int:
        """How many of the ids are stored."""
        return sum(count for _, count in self._path(ids))

    def copy(self, ids: Sequence[int], keys: Tensor, values: Tensor) -> None:
        """Copy what is stored of the ids into keys and values (L, H, C, K)."""
        end = 0
        for node, count in self._path(ids):
            begin, end = end, end + count
            keys[:, :, begin:end] = node.keys[:, :, :count]
            values[:, :, begin:end] = node.values[:, :, :count]

    def store(self, ids: list[int], keys: Tensor, values: Tensor) -> None:
        """Store what is new of the ids, with keys and values (L, H, C, K) of all of them, as far as
        the budget allows.
        """
        path = self._path(ids)
        begin = sum(count for _, count in path)
        size = _token_bytes(keys)
        self._evict((len(ids) - begin) * size)
        end = min(len(ids), begin + (self.budget_bytes - self.bytes) // size)
        if end == begin:
            return
        parent, count = path[-1] if path else (self.root, 0)
        if count < len(parent.tokens):
            parent.split(count)
        part = slice(begin, end)
        new = keys[:, :, part].clone(), values[:, :, part].clone()
        parent.children[ids[begin]] = _Node(ids[part], *new, parent, self.clock)
        self.bytes += (end - begin) * size

    def clear(self) -> None:
        """Evict all."""
        self.evicted += sum(len(node.tokens) for node in self.nodes())
        self.root.children.clear()
        self.bytes = 0

    def nodes(self) -> Iterator[_Node]:
        """All but the root."""
        unvisited = list(self.root.children.values())
        while unvisited:
            node = unvisited.pop()
            yield node
            unvisited += node.children.values()

    def _path(self, ids: Sequence[int]) -> list[tuple[_Node, int]]:
        """The nodes of the longest stored prefix, and how many tokens of each belong to it."""
        path, node, position = [], self.root, 0
        while position < len(ids) and ids[position] in node.children:
            node = node.children[ids[position]]
            node.used = self.clock
            count = _common_length(node.tokens, ids[position:])
            path.append((node, count))
            position += count
            if count < len(node.tokens):
                break
        return path

    def _evict(self, needed: int) -> None:
        """Drop the least recently used leaves of the tree until `needed` bytes are free."""
        while self.bytes + needed > self.budget_bytes:
            leaves = [n for n in self.nodes() if not n.children and n.used < self.clock]
            if not leaves:
                return
            node = min(leaves, key=lambda n: n.used)
            assert node.parent is not None
            del node.parent.children[node.tokens[0]]
            self.bytes -= len(node.tokens) * _token_bytes(node.keys)
            self.evicted += len(node.tokens)


# ----------------------------------------------------------------------------- a sliding context


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
            raise ConfigError("`window` (--window) is without effect: this model has no limit.")
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
