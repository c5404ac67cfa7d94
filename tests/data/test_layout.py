"""Unpadded batches against the same rows with padding: attention, forward and backward."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from regard.attention.masks import causal, padding
from regard.attention.multihead import CrossAttention, SelfAttention
from regard.data.batches import ALL, IGNORE, FirstTokens, Sequences, UnpaddedLayout
from regard.ops import KeyMask, UnpaddedMask

LENGTHS = [[3, 9, 1, 5], [9, 1, 1, 1], [0, 9, 0, 2], [1], [70, 130, 64, 16]]
KINDS = {torch.float32: 1e-6, torch.bfloat16: 0.0}  # a context's difference, at most


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def packed(lengths, width=None) -> UnpaddedLayout:
    return UnpaddedLayout(torch.tensor(lengths), width or max(max(lengths), 1))


def padded(queries: UnpaddedLayout, keys: UnpaddedLayout, is_causal: bool = False) -> KeyMask:
    """The attention of unpadded rows, computed for padded rows."""
    mask = causal() if is_causal else padding(keys.lengths)
    return mask.resolve(queries.width, keys.width, sequences=len(keys.lengths))


def unpadded_mask(
    queries: UnpaddedLayout, keys: UnpaddedLayout | None = None, *, causal: bool = False
) -> KeyMask:
    keys = queries if keys is None else keys
    return KeyMask(unpadded=UnpaddedMask(queries.offsets, keys.offsets, causal))


def real(packing: UnpaddedLayout) -> Tensor:
    """(B, T, 1), 1 where a token is."""
    return (torch.arange(packing.width) < packing.lengths[:, None])[..., None].float()


@pytest.mark.parametrize("lengths", LENGTHS)
def test_pad_inverts_unpad(lengths):
    packing = packed(lengths)
    x = torch.randn(len(lengths), packing.width, 2, 3, requires_grad=True)
    flat = packing.unpad(x)
    tokens = sum(lengths)
    assert flat.shape == (1, len(packing.slots), 2, 3) and flat.size(1) >= tokens
    rows = torch.cat([row[:length] for row, length in zip(x, lengths, strict=True)])
    assert torch.equal(flat[0, :tokens], rows)
    back, kept = packing.pad(flat), real(packing)[..., None].bool()
    assert torch.equal(back[kept.expand_as(back)], x[kept.expand_as(x)])
    (grad,) = torch.autograd.grad((back * kept * 3).sum(), x)
    assert torch.equal(grad, 3.0 * kept.expand_as(x))
    starts, longest = packing.offsets.starts.tolist(), packing.offsets.longest
    assert starts == [sum(lengths[:i]) for i in range(len(lengths) + 1)] + [flat.size(1)]
    assert longest == packing.width


@pytest.mark.parametrize("lengths", [[3, 9, 1, 5], [1], [2, 2, 40]])
def test_what_is_read_of_a_batch_equals_a_loop_with_and_without_padding(lengths):
    texts = [torch.randint(3, 9, (count,)).tolist() for count in lengths]
    padded = Sequences.of(texts, pad=None)
    flat, hidden = padded.unpadded(), torch.randn(len(lengths), max(lengths), 2)
    rows = [row[:count] for row, count in zip(hidden, lengths, strict=True)]
    for batch, states in ((padded, hidden), (flat, flat.layout.unpad(hidden))):
        assert (len(batch), batch.width) == hidden.shape[:2]
        assert torch.equal(batch.first(states), torch.stack([row[0] for row in rows]))
        assert torch.equal(batch.last(states), torch.stack([row[-1] for row in rows]))
        torch.testing.assert_close(batch.mean(states), torch.stack([row.mean(0) for row in rows]))
        columns = batch.ids, batch.next_ids(), batch.positions.expand(batch.ids.shape)
        for row, text in enumerate(texts):
            found = [batch.pad(column)[row, : len(text)].tolist() for column in columns]
            assert found == [text, [*text[1:], IGNORE], [*range(len(text))]]
    assert padded.ids.eq(0).sum() == padded.ids.numel() - sum(lengths)
    for wrong in (flat.unpadded, lambda: flat.select([0]), lambda: flat.padding_mask(padded)):
        with pytest.raises(ValueError, match="unpadded"):
            wrong()


def test_the_number_of_slots_is_rounded_up_where_there_is_enough_padding():
    assert len(packed([5, 20, 20]).slots) == 48
    assert len(packed([20, 20, 19]).slots) == 60


def passed(module, hidden: Tensor, grad: Tensor, low_precision: bool, run) -> list[Tensor]:
    hidden = hidden.clone().requires_grad_()
    torch.manual_seed(3)
    with torch.autocast("cpu", torch.bfloat16, enabled=low_precision):
        out = run(hidden)
    found = torch.autograd.grad((out.float() * grad).sum(), [hidden, *module.parameters()])
    return [out.detach(), *found]


def assert_close(found: list[Tensor], wanted: list[Tensor], kind: torch.dtype) -> None:
    torch.testing.assert_close(found[0], wanted[0], atol=KINDS[kind], rtol=0)
    for one, other in zip(found[1:], wanted[1:], strict=True):
        torch.testing.assert_close(one, other, atol=2e-6 * float(other.abs().max()) + 1e-9, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("queries", ["all", "causal", "first"])
@pytest.mark.parametrize("probability", [0.0, 0.3])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_unpadded_self_attention_equals_the_padded_one(kind, queries, probability, lengths):
    """With dropout too: what is dropped is the same."""
    lengths = [max(1, length) for length in lengths] if queries == "first" else lengths
    packing, low_precision = packed(lengths), kind == torch.bfloat16
    attention = SelfAttention(24, 3, kind="encoder", dropout=probability)
    hidden, keep = torch.randn(len(lengths), packing.width, 24), real(packing)
    is_causal, tokens = queries == "causal", ALL
    flat_tokens = tokens
    if queries == "first":
        tokens, flat_tokens, keep = FirstTokens(), packing.first_tokens(), keep[:, :1]
        assert torch.equal(flat_tokens.of(packing.unpad(hidden))[0], tokens.of(hidden)[:, 0])
    grad = torch.randn(*keep.shape[:2], 24) * keep
    mask = padded(packing, packing, is_causal)

    def run_padded(x):
        return attention(x, mask, tokens=tokens) * keep

    def run(x):
        mask = unpadded_mask(packing, causal=is_causal)
        out = attention(packing.unpad(x), mask, tokens=flat_tokens)
        return (out.transpose(0, 1) if queries == "first" else packing.pad(out)) * keep

    wanted = passed(attention, hidden, grad, low_precision, run_padded)
    assert_close(passed(attention, hidden, grad, low_precision, run), wanted, kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("probability", [0.0, 0.3])
@pytest.mark.parametrize("sources", [[7, 2, 20, 4], [0, 20, 1, 0], [20, 20, 20, 20]])
def test_unpadded_cross_attention_equals_the_padded_one(kind, probability, sources):
    targets, low_precision = [1, 12, 9, 0], kind == torch.bfloat16
    rows, memories = packed(targets), packed(sources)
    cross = CrossAttention(24, 3, dropout=probability)
    hidden, memory = torch.randn(4, 12, 24), torch.randn(4, 20, 24, requires_grad=True)
    keep = real(rows)
    grad = torch.randn_like(hidden) * keep
    pairs = padded(rows, memories)

    def run_padded(x):
        return cross(x, cross.read(memory, pairs)) * keep

    def run(x):
        out = cross(
            rows.unpad(x), cross.read(memories.unpad(memory), unpadded_mask(rows, memories))
        )
        return rows.pad(out) * keep

    assert_close(
        passed(cross, hidden, grad, low_precision, run),
        passed(cross, hidden, grad, low_precision, run_padded),
        kind,
    )


def test_unpadded_attention_of_a_sequence_does_not_depend_on_the_batch():
    attention = SelfAttention(24, 3, kind="encoder")
    rows = [torch.randn(length, 24) for length in (5, 17, 1, 33)]

    def context(of):
        packing = packed([len(row) for row in of], 40)
        flat = packing.unpad(torch.nn.utils.rnn.pad_sequence([*of, torch.zeros(40, 24)], True)[:-1])
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            return packing.pad(attention(flat, unpadded_mask(packing)))

    together = context(rows)
    for number, row in enumerate(rows):
        assert torch.equal(context([row])[0, : len(row)], together[number, : len(row)])
