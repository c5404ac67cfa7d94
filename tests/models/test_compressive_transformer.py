"""The Compressive Transformer against algorithms 1 and 2 of Rae et al. 2019, written position by
position in float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from regard.models.transformer_xl import TransformerXL, TransformerXLConfig
from regard.models.transformer_xl_variants import (
    CompressiveTransformer,
    CompressiveTransformerConfig,
)

V, D, H, L = 30, 8, 2, 2
CLOSE = dict(atol=1e-9, rtol=1e-9)
CASES = [
    dict(memory_length=6, compressed_length=4, compression_rate=2),
    dict(memory_length=6, compressed_length=2, compression_rate=3, norm="pre", compression="max"),
    dict(memory_length=5, compressed_length=3, compression_rate=2, compression="mean"),
    dict(memory_length=0, compressed_length=3, compression_rate=1, max_distance=2),
    dict(memory_length=3, compressed_length=2, compression_rate=4, norm="pre"),
]


def tiny(**options) -> CompressiveTransformer:
    torch.manual_seed(3)
    sizes = dict(vocab_size=V, d_model=D, d_ff=12, heads=H, layers=L, dropout=0.0)
    made = CompressiveTransformer(CompressiveTransformerConfig(**{**sizes, **options}))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return made.eval().double()


def drawn(rows: int, count: int, seed: int = 5) -> Tensor:
    return torch.randint(1, V, (rows, count), generator=torch.Generator().manual_seed(seed))


# ------------------------------------------------------------------------------ the reference


@dataclass
class Slots:
    """What one layer remembers of one text: vectors (D,)."""

    compressed: list[Tensor] = field(default_factory=list)
    single: list[Tensor] = field(default_factory=list)


def norm(part, x: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + part.eps) * part.weight + part.bias


def sinusoid(distance: int) -> Tensor:
    angles = [distance / 10000 ** (2 * i / D) for i in range(D // 2)]
    made = [f(a) for a in angles for f in (math.sin, math.cos)]
    return torch.tensor(made, dtype=torch.float32).double()  # the library keeps them in float32


def of_head(vector: Tensor, head: int) -> Tensor:
    return vector.view(H, -1)[head]


def key_and_value(attention, x: Tensor) -> tuple[Tensor, Tensor]:
    both = attention.key_value.weight @ x
    return both[: len(both) // 2], both[len(both) // 2 :]


def attend(attention, queries: list[Tensor], keys: list[Tensor], clamp: int | None) -> list[Tensor]:
    """Each query, the inputs of the layer, sees all keys up to itself; it is the i-th but last."""
    known = [key_and_value(attention, one) for one in keys]
    vectors = [attention.distance.weight @ sinusoid(distance) for distance in range(len(keys))]
    out = []
    for i, x in enumerate(queries):
        own = len(keys) - len(queries) + i
        seen = known[: own + 1]
        heads = []
        for h in range(H):
            q = of_head(attention.query.weight @ x, h)
            u, v = attention.content_bias[h, 0], attention.position_bias[h, 0]
            scores = []
            for j, (k, _) in enumerate(seen):
                distance = own - j if clamp is None else min(own - j, clamp)
                r = of_head(vectors[distance], h)
                scores.append(((q + u) @ of_head(k, h) + (q + v) @ r) / math.sqrt(len(q)))
            weights = torch.stack(scores).softmax(0)
            heads.append(sum(w * of_head(k[1], h) for w, k in zip(weights, seen, strict=True)))
        out.append(attention.output.weight @ torch.cat(heads))
    return out


def content_attention(attention, queries: list[Tensor], slots: list[Tensor]) -> list[Tensor]:
    """A(h, m) of algorithm 2 for each query: all heads."""
    read, out = [key_and_value(attention, one) for one in slots], []
    for x in queries:
        heads = []
        for h in range(H):
            q = of_head(attention.query.weight @ x, h) + attention.content_bias[h, 0]
            scores = torch.stack([q @ of_head(k, h) / math.sqrt(len(q)) for k, _ in read])
            weights = scores.softmax(0)
            heads.append(sum(w * of_head(v, h) for w, (_, v) in zip(weights, read, strict=True)))
        out.append(torch.cat(heads))
    return out


def compress(model, layer: int, group: list[Tensor]) -> Tensor:
    match model.config.compression:
        case "mean":
            return sum(group) / len(group)
        case "max":
            return torch.stack([max(each) for each in zip(*group, strict=True)])
    kernel = model.compressions[layer].kernel
    parts = kernel.weight.split(D, 1)  # one matrix for each position of the group
    return kernel.bias + sum(part @ x for part, x in zip(parts, group, strict=True))


def segment(model, ids: list[int], memory: list[Slots]) -> tuple[list[Tensor], Tensor]:
    """Hidden states of one segment, and its reconstruction loss; the memory is updated."""
    c = model.config
    hidden, loss = [model.embedding.weight[i] * math.sqrt(D) for i in ids], torch.zeros(1).double()
    for n, (block, slots) in enumerate(zip(model.blocks, memory, strict=True)):
        inputs, attention = hidden, block.attention
        pre = c.norm == "pre"
        read = (lambda x, b=block: norm(b.attention_norm, x)) if pre else (lambda x: x)
        keys = [read(x) for x in [*slots.compressed, *slots.single, *inputs]]
        attended = attend(attention, keys[len(keys) - len(ids) :], keys, c.max_distance)
        hidden = []
        for x, a in zip(inputs, attended, strict=True):
            x = x + a if pre else norm(block.attention_norm, x + a)
            fed = feed(block.feed, norm(block.feed_norm, x) if pre else x)
            hidden.append(x + fed if pre else norm(block.feed_norm, x + fed))
        # algorithm 1: what is remembered has no gradient
        inputs = [x.detach() for x in inputs]
        slots.single += inputs
        old, new = [], []
        while len(slots.single) - c.memory_length >= c.compression_rate:
            group = slots.single[: c.compression_rate]
            slots.single = slots.single[c.compression_rate :]
            old, new = [*old, *group], [*new, compress(model, n, group)]
        slots.compressed = [*slots.compressed, *(x.detach() for x in new)][-c.compressed_length :]
        if new:  # algorithm 2
            with_gradient = [p.requires_grad_(False) for p in block.parameters()]
            asked = [read(x) for x in inputs]
            wanted = content_attention(attention, asked, [read(one) for one in old])
            found = content_attention(attention, asked, [read(one) for one in new])
            for one, other in zip(wanted, found, strict=True):
                loss = loss + ((one - other) ** 2).sum().sqrt()
            for p in with_gradient:
                p.requires_grad_(True)
    return hidden, loss


def feed(part, x: Tensor) -> Tensor:
    inner = torch.relu(part.inner.weight @ x + part.inner.bias)
    return part.outer.weight @ inner + part.outer.bias


def naive(model, ids: Tensor, pieces: list[int]) -> tuple[Tensor, list[Tensor], list[list[Slots]]]:
    """Hidden states (B, T, D), the loss of each segment, and the memories."""
    rows, memories = [], []
    losses = [torch.zeros(1).double() for _ in pieces]
    for row in ids:
        memory, said = [Slots() for _ in model.blocks], []
        for n, piece in enumerate(row.split(pieces)):
            hidden, loss = segment(model, piece.tolist(), memory)
            said += hidden
            losses[n] = losses[n] + loss
        rows.append(torch.stack(said))
        memories.append(memory)
    return torch.stack(rows), losses, memories


# ---------------------------------------------------------------------------------- the tests

PIECES = [[1] * 12, [5, 1, 7, 3, 4, 9]]


@pytest.mark.parametrize("options", CASES, ids=str)
@pytest.mark.parametrize("pieces", PIECES, ids=str)
def test_segments_equal_the_algorithm(options, pieces):
    """With gradients and without."""
    model, ids = tiny(**options), drawn(2, sum(pieces))
    with torch.no_grad():
        expected, _, memories = naive(model, ids, pieces)
    for learning in (False, True):
        state, said = model.empty(2), []
        with torch.set_grad_enabled(learning):
            for piece in ids.split(pieces, 1):
                out = model(piece, state)
                said.append(out.hidden)
                state = out.state
        torch.testing.assert_close(torch.cat(said, 1), expected, **CLOSE)
        for row, memory in enumerate(memories):
            for layer, slots in enumerate(memory):
                wanted = [*slots.compressed, *slots.single]
                assert state.newest.size(2) == len(wanted) == int(state.lengths[row])
                if wanted:
                    found = state.newest[row, layer]
                    torch.testing.assert_close(found, torch.stack(wanted), **CLOSE)


@pytest.mark.parametrize("options", CASES, ids=str)
@pytest.mark.parametrize("pieces", [[5, 1, 7, 4]], ids=str)
def test_the_reconstruction_loss_and_all_gradients_equal_the_algorithm(options, pieces):
    model, ids = tiny(**options).train(), drawn(2, sum(pieces))
    mix = torch.randn(2, sum(pieces), D, dtype=torch.float64)

    def gradients(hidden: Tensor, loss: Tensor) -> dict[str, Tensor | None]:
        model.zero_grad()
        ((hidden * mix).sum() + 0.7 * loss).backward()
        return {name: p.grad for name, p in model.named_parameters()}

    hidden, losses, _ = naive(model, ids, pieces)
    expected = gradients(hidden, sum(losses))
    state, said, found = None, [], []
    for piece in ids.split(pieces, 1):
        out = model(piece, state)
        said.append(out.hidden)
        found.append(out.extras.get("reconstruction", torch.zeros(())))
        state = out.state.detach()
    learns = options.get("compression", "convolution") == "convolution"
    assert model.extras == (("reconstruction",) if learns else ())
    if learns:
        torch.testing.assert_close(
            torch.stack(found).float(), torch.cat(losses).float().detach(), atol=1e-5, rtol=1e-5
        )
    ours = gradients(torch.cat(said, 1), sum(found))
    for name, gradient in expected.items():
        if gradient is None:
            assert ours[name] is None, name
        else:
            torch.testing.assert_close(ours[name], gradient, atol=1e-6, rtol=1e-6, msg=name)


def test_the_auxiliary_loss_reaches_the_compression_alone_and_prediction_does_not():
    model, ids = (
        tiny(memory_length=4, compressed_length=4, compression_rate=2).train(),
        drawn(2, 12),
    )
    state = model(ids[:, :6]).state
    for loss, alone in (("reconstruction", True), ("hidden", False)):
        model.zero_grad()
        out = model(ids[:, 6:], state.copy())
        (out.extras[loss] if alone else out.hidden.square().sum()).backward()
        for name, parameter in model.named_parameters():
            moved = parameter.grad is not None and bool(parameter.grad.abs().sum() > 0)
            assert moved == (name.startswith("compressions") == alone) or "head" in name, name
        assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_memory_that_is_never_full_is_transformer_xl():
    model, ids = tiny(memory_length=20), drawn(2, 18)
    plain = TransformerXL(TransformerXLConfig(V, d_model=D, d_ff=12, heads=H, layers=L)).double()
    plain.load_state_dict({k: t for k, t in model.state_dict().items() if "compress" not in k})
    plain.eval()
    state = other = None
    for piece in ids.split(5, 1):
        one, two = model(piece, state), plain(piece, other)
        torch.testing.assert_close(one.hidden, two.hidden, **CLOSE)
        state, other = one.state, two.state


def test_a_token_that_only_a_compressed_slot_holds_still_matters():
    model = tiny(memory_length=4, compressed_length=4, compression_rate=2, layers=1)
    ids = drawn(1, 15)
    with torch.no_grad():
        said = []
        for first in (ids[0, 0], (ids[0, 0] + 1) % V):
            text, state = torch.cat([first[None], ids[0, 1:]])[None], None
            for piece in text.split([6, 6, 3], 1):
                out = model(piece, state)
                state = out.state
            said.append(out.hidden)
    # 12 positions were read: 4 single ones, and 4 slots of 2. The first is in the oldest slot.
    assert not torch.allclose(*said)
    short = model.with_memory(memory_length=2)
    assert short(ids).state.slots == 4 + 3
