"""Transformer-XL against files that transformers 4.35.2 made; see transformer_xl/make.py."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
from random_weights import randomized
from relative_formula import attend_by_formula, distances
from safetensors import safe_open
from torch import Tensor
from torch.nn import functional as F

from regard.attention.carried_memory import CarriedMemory
from regard.checkpoints.formats import from_published, layout_for, to_published
from regard.data.batches import Sequences
from regard.errors import ConfigError
from regard.layers.positions import sinusoid
from regard.models.transformer_xl import TransformerXL, TransformerXLConfig
from regard.models.transformer_xl_variants import (
    CompressiveTransformer,
    CompressiveTransformerConfig,
    SegaTransformerXL,
    SegaTransformerXLConfig,
    widths,
)

HERE = Path(__file__).with_name("transformer_xl")
CASES = sorted(path.stem for path in HERE.glob("*.safetensors") if path.stem != "classifier")
CLOSE = dict(atol=1e-5, rtol=1e-5)


def opened(name: str) -> tuple[dict, dict[str, Tensor], dict[str, Tensor]]:
    """config.json, weights, and what the model computes."""
    with safe_open(HERE / f"{name}.safetensors", "pt") as file:
        config = json.loads(file.metadata()["config"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    weights = {k.removeprefix("model."): t for k, t in tensors.items() if k.startswith("model.")}
    return config, weights, {k: t for k, t in tensors.items() if not k.startswith("model.")}


def of_file(name: str) -> tuple[TransformerXL, dict[str, Tensor]]:
    config, weights, found = opened(name)
    return from_published(config, weights).eval(), found


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("learning", [False, True])
def test_published_models_say_what_transformers_says(name, learning):
    model, found = of_file(name)
    state = None
    with torch.set_grad_enabled(learning):
        for n in range(3):
            out = model(found[f"ids_{n}"], state)
            said = model.head.logits(out.hidden)
            torch.testing.assert_close(said, found[f"log_probs_{n}"], **CLOSE)
            state = out.state
    if "memory" in found:
        torch.testing.assert_close(state.newest, found["memory"], **CLOSE)
    else:
        assert state.newest.size(2) == 0


@pytest.mark.parametrize("name", CASES)
def test_gradients_through_segment_and_memory_equal_those_of_transformers(name):
    model, found = of_file(name)
    if not any(key.startswith("gradient.") for key in found):
        return
    model.train()  # without dropout
    state = model(found["ids_0"]).state.detach()
    hidden = model(found["ids_1"], state).hidden
    loss, count = model.head.loss(hidden.flatten(0, 1), found["targets"].flatten())
    assert count == found["targets"].numel()
    loss.backward()
    named = dict(model.named_parameters(remove_duplicate=False))
    gradients = {key: named[key].grad for key in model.state_dict()}
    ours = layout_for(model).names_of(model).write(gradients)
    wanted = {k.removeprefix("gradient."): t for k, t in found.items() if "gradient." in k}
    assert wanted.keys() <= ours.keys()
    for key, gradient in wanted.items():
        torch.testing.assert_close(ours[key], gradient, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", [*CASES, "classifier"])
def test_published_models_are_written_as_they_were_read(name):
    config, weights, _ = opened(name)
    again, tensors = to_published(from_published(config, weights))
    left_out = weights.keys() - tensors.keys()
    assert all("crit" in n or "inv_freq" in n or "dec_attn.r_" in n for n in left_out)
    for key, tensor in tensors.items():
        assert torch.equal(tensor, weights[key]), key
    named = again.keys() & config.keys() - {"pad_token_id"}
    assert {key: again[key] for key in named} == {key: config[key] for key in named}
    model, other = from_published(config, weights), from_published(again, tensors)
    assert model.config == other.config
    for key, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[key]), key


def test_a_published_classifier_reads_the_last_token():
    model, found = of_file("classifier")
    batch = Sequences(found["ids"], torch.tensor([4, 2, 1]))
    torch.testing.assert_close(model.scores("classes", batch), found["logits"], **CLOSE)


def test_same_length_without_a_memory_is_rejected():
    config, weights, _ = opened("no_memory")
    with pytest.raises(ConfigError, match="`mem_len` must be at least 1 where `same_length`"):
        from_published(config | {"same_length": True}, weights)


def test_a_model_that_starts_with_an_empty_memory_is_not_published():
    """Theirs attends to zeros where ours has nothing."""
    model = TransformerXL(TransformerXLConfig(vocab_size=9, d_model=8, heads=2, layers=1, d_ff=8))
    assert to_published(model) is None


# ---------------------------------------------------------------------- memory and decoding

V = 30


def tiny(**options) -> TransformerXL:
    torch.manual_seed(3)
    sizes = dict(vocab_size=V, d_model=16, d_ff=20, heads=2, layers=2, cutoffs=(9,), divisor=2)
    config = TransformerXLConfig(**{**sizes, "dropout": 0.0, **options})
    return randomized(TransformerXL(config)).eval()


def drawn(rows: int, count: int) -> Tensor:
    return torch.randint(1, V, (rows, count), generator=torch.Generator().manual_seed(5))


def stepped(model: TransformerXL, ids: Tensor, pieces: list[int]) -> tuple[Tensor, CarriedMemory]:
    """Scores and the state after reading a text in pieces."""
    state, said = model.empty(len(ids)), []
    for piece in ids.split(pieces, 1):
        scores, state = model.step(piece, state)
        said.append(scores)
    return torch.cat(said, 1), state


@pytest.mark.parametrize(("count", "options"), [
    (2000, dict(memory_length=50, same_length=True, max_distance=20, layers=1)),
    (300, dict(memory_length=300)),
    (300, dict(memory_length=50, same_length=True, memory_start="zeros", norm="pre")),
], ids=["window", "everything", "window-of-zeros"])  # fmt: skip
@torch.no_grad()
def test_decoding_many_tokens_equals_one_pass(count, options):
    model, ids = tiny(**options), drawn(1, count)
    expected = model.head.logits(model(ids).hidden)
    found, state = stepped(model, ids, [1] * count)
    torch.testing.assert_close(found, expected, **CLOSE)
    assert state.hidden.size(2) <= model.config.memory_length * 5 // 4 + 17
    torch.testing.assert_close(state.newest, model(ids).state.newest, **CLOSE)


@pytest.mark.parametrize("same_length", [False, True])
def test_kept_keys_change_nothing(same_length):
    """Reading segments with keys that are kept, and computing them again."""
    model, ids = tiny(memory_length=7, same_length=same_length, norm="pre"), drawn(3, 40)
    pieces = [5, 1, 1, 12, 3, 1, 9, 8]
    again, state = stepped(model, ids, pieces)
    assert not state.has_keys
    with torch.no_grad():
        kept, other = stepped(model, ids, pieces)
        assert other.has_keys
        torch.testing.assert_close(kept, again, **CLOSE)
        torch.testing.assert_close(other.newest, state.newest, **CLOSE)
        # a memory without keys, as training leaves it, goes on with keys
        mixed, _ = model.step(ids[:, :3], state)
        torch.testing.assert_close(mixed, model.step(ids[:, :3], other)[0], **CLOSE)


@pytest.mark.parametrize("field", ["d_embed", "d_model", "d_inner"])
def test_sizes_beyond_the_weights_are_rejected_before_a_model_is_built(field):
    config, weights, _ = opened("clamped")
    with pytest.raises(ConfigError, match=f"`{field}` must be at most"):
        from_published(config | {field: 2**27, "n_head": 1, "d_head": 2**27}, weights)


# ---- sega transformer xl

SEGA_V, D, HEADS, K = 20, 12, 2, 5
SIZES = dict(vocab_size=SEGA_V, d_model=D, d_ff=16, heads=HEADS, head_dim=K, dropout=0.0, eos=None)


def made(**options) -> SegaTransformerXL:
    torch.manual_seed(1)
    config = SegaTransformerXLConfig(**{**SIZES, "layers": 1, "memory_length": 20, **options})
    return randomized(SegaTransformerXL(config), 0.3).double().eval()


def naive(model: SegaTransformerXL, ids: Tensor, segment_numbers: Tensor, count: int) -> Tensor:
    """The last `count` tokens of one text through one layer, by the formula."""
    (block,), inputs = model.blocks, model.embedding(ids)
    last, tokens = inputs[len(ids) - count :], distances(count, len(ids))
    segments = segment_numbers[len(ids) - count :, None] - segment_numbers
    numbers = [one.clamp(0, model.config.max_distance) for one in (tokens, *segments.unbind(-1))]
    relations = [sinusoid(one, width) for one, width in zip(numbers, widths(D), strict=True)]
    attended = attend_by_formula(block.attention, last, inputs, torch.cat(relations, -1).double())
    hidden = block.attention_norm(last, attended)
    return block.feed_norm(hidden, block.feed(hidden))


@pytest.mark.parametrize(("before", "count"), [(0, 7), (5, 4), (8, 1)])
@pytest.mark.parametrize("clamp", [None, 2])
def test_the_relation_equals_its_formula(before, count, clamp):
    model = made(max_distance=clamp)
    ids = torch.randint(0, SEGA_V, (2, before + count))
    steps = torch.randint(0, 2, (2, before + count, 2))
    steps[..., 0] |= steps[..., 1]  # a new paragraph is a new sentence
    segment_numbers = steps.cumsum(1) + 3
    state = model(ids[:, :before], None, segment_numbers[:, :before]).state
    found = model(ids[:, before:], state, segment_numbers[:, before:]).hidden
    expected = torch.stack(
        [naive(model, *row, count) for row in zip(ids, segment_numbers, strict=True)]
    )
    torch.testing.assert_close(found, expected, atol=1e-7, rtol=1e-7)
    parameters = list(model.blocks.parameters())
    grads = torch.autograd.grad(found.square().sum(), parameters)
    # the memory is taken as it is, and gradients reach the weights that read it
    wanted = torch.autograd.grad(expected.square().sum(), parameters)
    torch.testing.assert_close(grads, wanted, atol=1e-6, rtol=1e-6)


def test_numbers_are_counted_from_the_tokens_that_end_a_sentence_or_a_paragraph():
    model = made(sentence_ends=(3,), paragraph_ends=(4,), layers=2)
    ids = torch.tensor([[1, 3, 5, 4, 6, 3, 4, 7], [4, 4, 1, 2, 5, 6, 7, 8]])
    segment_numbers = torch.tensor([
        [[0, 0], [0, 0], [1, 0], [1, 0], [2, 1], [2, 1], [3, 1], [4, 2]],
        [[0, 0], [1, 1]] + [[2, 2]] * 6,
    ])  # fmt: skip
    expected = model(ids, None, segment_numbers).hidden
    torch.testing.assert_close(model(ids).hidden, expected)
    state = model(ids[:, :5]).state
    torch.testing.assert_close(model(ids[:, 5:], state).hidden, expected[:, 5:])
    other = model(ids, None, segment_numbers + 9).hidden  # only differences count
    torch.testing.assert_close(other, expected)
    assert not torch.allclose(model(ids, None, segment_numbers * 2).hidden, expected)


# ---- compressive transformer

WIDTH, H, L = 8, 2, 2
EXACT = dict(atol=1e-9, rtol=1e-9)
COMPRESSIONS = [
    dict(memory_length=6, compressed_length=4, compression_rate=2),
    dict(memory_length=6, compressed_length=2, compression_rate=3, norm="pre"),
    dict(memory_length=5, compressed_length=3, compression_rate=2),
    dict(memory_length=0, compressed_length=3, compression_rate=1, max_distance=2),
    dict(memory_length=3, compressed_length=2, compression_rate=4, norm="pre"),
]


def compressive(**options) -> CompressiveTransformer:
    torch.manual_seed(3)
    sizes = dict(vocab_size=V, d_model=WIDTH, d_ff=12, heads=H, layers=L, dropout=0.0)
    config = CompressiveTransformerConfig(**{**sizes, **options})
    return randomized(CompressiveTransformer(config), 0.3).eval().double()


# ------------------------------------------------------------------------------ the reference


@dataclass
class Slots:
    """What one layer remembers of one text: vectors (N, D)."""

    compressed: Tensor
    single: Tensor


def norm(part, x: Tensor) -> Tensor:
    return F.layer_norm(x, part.weight.shape, part.weight, part.bias, part.eps)


def content_attention(attention, queries: Tensor, slots: Tensor) -> Tensor:
    """A(h, m) of algorithm 2 for each query: all heads, (T, H K)."""
    parts = attention.query(queries), *attention.key_value(slots).chunk(2, -1)
    query, key, value = (part.unflatten(-1, (H, -1)).transpose(0, 1) for part in parts)
    biased = query + attention.content_bias
    return F.scaled_dot_product_attention(biased, key, value).transpose(0, 1).flatten(1)


def segment(model, ids: Tensor, memory: list[Slots]) -> tuple[Tensor, Tensor]:
    """Hidden states of one segment, and its reconstruction loss; the memory is updated."""
    c = model.config
    hidden, loss = model.embedding.weight[ids] * math.sqrt(WIDTH), torch.zeros(1).double()
    for block, slots, compression in zip(model.blocks, memory, model.compressions, strict=True):
        inputs, attention, pre = hidden, block.attention, c.norm == "pre"
        read = partial(norm, block.attention_norm) if pre else lambda x: x
        keys = read(torch.cat([slots.compressed, slots.single, inputs]))
        apart = distances(len(ids), len(keys)).clamp(0, c.max_distance)
        relations = sinusoid(apart, WIDTH).double()
        hidden = inputs + attend_by_formula(attention, keys[-len(ids) :], keys, relations)
        if pre:
            hidden = hidden + block.feed(norm(block.feed_norm, hidden))
        else:
            hidden = norm(block.attention_norm, hidden)
            hidden = norm(block.feed_norm, hidden + block.feed(hidden))
        # algorithm 1: what is remembered has no gradient
        inputs = inputs.detach()
        slots.single = torch.cat([slots.single, inputs])
        groups = max(0, (len(slots.single) - c.memory_length) // c.compression_rate)
        old, slots.single = slots.single.tensor_split([groups * c.compression_rate])
        new = F.linear(
            old.view(groups, c.compression_rate * WIDTH),
            compression.kernel.weight,
            compression.kernel.bias,
        )
        slots.compressed = torch.cat([slots.compressed, new.detach()])[-c.compressed_length :]
        if groups:  # algorithm 2
            with_gradient = [p.requires_grad_(False) for p in block.parameters()]
            wanted, found = (
                content_attention(attention, read(inputs), read(one)) for one in (old, new)
            )
            loss = loss + (wanted - found).norm(dim=1).sum()
            for p in with_gradient:
                p.requires_grad_(True)
    return hidden, loss


def by_algorithm(
    model, ids: Tensor, pieces: list[int]
) -> tuple[Tensor, list[Tensor], list[list[Slots]]]:
    """Hidden states (B, T, D), the loss of each segment, and the memories."""
    rows, memories = [], []
    losses = [torch.zeros(1).double() for _ in pieces]
    for row in ids:
        nothing = torch.zeros(0, WIDTH).double()
        memory, said = [Slots(nothing, nothing) for _ in model.blocks], []
        for n, piece in enumerate(row.split(pieces)):
            hidden, loss = segment(model, piece, memory)
            said.append(hidden)
            losses[n] = losses[n] + loss
        rows.append(torch.cat(said))
        memories.append(memory)
    return torch.stack(rows), losses, memories


# ---------------------------------------------------------------------------------- the tests

PIECES = [[1] * 12, [5, 1, 7, 3, 4, 9]]


@pytest.mark.parametrize("options", COMPRESSIONS, ids=str)
@pytest.mark.parametrize("pieces", PIECES, ids=str)
def test_segments_equal_the_algorithm(options, pieces):
    """With gradients and without."""
    model, ids = compressive(**options), drawn(2, sum(pieces))
    with torch.no_grad():
        expected, _, memories = by_algorithm(model, ids, pieces)
    for learning in (False, True):
        state, said = model.empty(2), []
        with torch.set_grad_enabled(learning):
            for piece in ids.split(pieces, 1):
                out = model(piece, state)
                said.append(out.hidden)
                state = out.state
        torch.testing.assert_close(torch.cat(said, 1), expected, **EXACT)
        for row, memory in enumerate(memories):
            for layer, slots in enumerate(memory):
                wanted = torch.cat([slots.compressed, slots.single])
                assert len(wanted) == int(state.lengths[row])
                torch.testing.assert_close(state.newest[row, layer], wanted, **EXACT)


@pytest.mark.parametrize("options", COMPRESSIONS, ids=str)
@pytest.mark.parametrize("pieces", [[5, 1, 7, 4]], ids=str)
def test_the_reconstruction_loss_and_all_gradients_equal_the_algorithm(options, pieces):
    model, ids = compressive(**options).train(), drawn(2, sum(pieces))
    mix = torch.randn(2, sum(pieces), WIDTH, dtype=torch.float64)

    def gradients(hidden: Tensor, loss: Tensor) -> dict[str, Tensor | None]:
        model.zero_grad()
        ((hidden * mix).sum() + 0.7 * loss).backward()
        return {name: p.grad for name, p in model.named_parameters()}

    hidden, losses, _ = by_algorithm(model, ids, pieces)
    expected = gradients(hidden, sum(losses))
    state, said, found = None, [], []
    for piece in ids.split(pieces, 1):
        out = model(piece, state)
        said.append(out.hidden)
        found.append(out.extras.get("reconstruction", torch.zeros(())))
        state = out.state.detach()
    assert model.extras == ("reconstruction",)
    torch.testing.assert_close(
        torch.stack(found).float(), torch.cat(losses).float().detach(), atol=1e-5, rtol=1e-5
    )
    ours = gradients(torch.cat(said, 1), sum(found))
    for name, gradient in expected.items():
        if gradient is None:
            assert ours[name] is None, name
        else:
            torch.testing.assert_close(ours[name], gradient, atol=1e-6, rtol=1e-6, msg=name)
