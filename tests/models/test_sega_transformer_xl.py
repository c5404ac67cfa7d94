"""Segatron-XL against its relation, the paper's and the released program's, in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from regard.layers.positions import sinusoid
from regard.models.transformer_xl import TransformerXL, TransformerXLConfig
from regard.models.transformer_xl_variants import (
    SegaTransformerXL,
    SegaTransformerXLConfig,
    widths,
)

V, D, HEADS, K = 20, 12, 2, 5
SIZES = dict(vocab_size=V, d_model=D, d_ff=16, heads=HEADS, head_dim=K, dropout=0.0, eos=None)


def made(**options) -> SegaTransformerXL:
    torch.manual_seed(1)
    config = SegaTransformerXLConfig(**{**SIZES, "layers": 1, "memory_length": 20, **options})
    model = SegaTransformerXL(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model.double().eval()


def vector(token: int, sentence: int, paragraph: int, clamp: int | None) -> Tensor:
    numbers = [n if clamp is None else min(n, clamp) for n in (token, sentence, paragraph)]
    parts = [sinusoid(torch.tensor(n), w) for n, w in zip(numbers, widths(D), strict=True)]
    return torch.cat(parts).double()


def naive(model: SegaTransformerXL, ids: Tensor, segment_numbers: Tensor, count: int) -> Tensor:
    """The last `count` tokens of one text through one layer, query by query and key by key."""
    (block,), config = model.blocks, model.config
    attention, total = block.attention, len(ids)
    inputs = model.embedding(ids)
    key, value = (
        part.unflatten(-1, (HEADS, K)) for part in attention.key_value(inputs).chunk(2, -1)
    )
    contexts = []
    for i in range(total - count, total):
        query, heads = attention.query(inputs[i]).unflatten(-1, (HEADS, K)), []
        for h in range(HEADS):
            scores = []
            for j in range(i + 1):
                if config.relation == "paper":
                    sentence, paragraph = (segment_numbers[i] - segment_numbers[j]).tolist()
                else:  # the row of the last query, moved to the left
                    column = j + total - 1 - i
                    sentence, paragraph = (
                        segment_numbers.amax(0) - segment_numbers[column]
                    ).tolist()
                r = attention.distance(vector(i - j, sentence, paragraph, config.max_distance))
                content = (query[h] + attention.content_bias[h, 0]) @ key[j, h]
                position = (query[h] + attention.position_bias[h, 0]) @ r.unflatten(-1, (HEADS, K))[
                    h
                ]
                scores.append((content + position) / math.sqrt(K))
            heads.append(torch.stack(scores).softmax(0) @ value[: i + 1, h])
        contexts.append(attention.output(torch.cat(heads)))
    hidden = block.attention_norm(inputs[total - count :], torch.stack(contexts))
    return block.feed_norm(hidden, block.feed(hidden))


@pytest.mark.parametrize("relation", ["paper", "released"])
@pytest.mark.parametrize(("before", "count"), [(0, 7), (5, 4), (8, 1)])
@pytest.mark.parametrize("clamp", [None, 2])
def test_the_relation_equals_its_formula(relation, before, count, clamp):
    model = made(relation=relation, max_distance=clamp)
    ids = torch.randint(0, V, (2, before + count))
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


@pytest.mark.parametrize("relation", ["paper", "released"])
def test_a_text_without_sentences_and_paragraphs_has_the_distances_of_tokens_alone(relation):
    """The other two thirds of every vector are those of distance 0."""
    model = made(relation=relation, layers=2)
    ids = torch.randint(0, V, (2, 9))
    found = model(ids).hidden
    torch.testing.assert_close(model(ids, None, torch.full((2, 9, 2), 4)).hidden, found)
    assert found.isfinite().all()
    plain = TransformerXL(TransformerXLConfig(**SIZES, layers=2, memory_length=20)).double()
    plain.load_state_dict(model.state_dict())  # the same parameters


def test_both_relations_agree_in_steps_of_one_token():
    paper, released = made(layers=2), made(layers=2, relation="released")
    segment_numbers = torch.tensor([[[0, 0], [0, 0], [1, 0], [2, 1], [2, 1], [3, 1]]])
    ids, states = torch.randint(0, V, (1, 6)), [None, None]
    with torch.no_grad():
        for n in range(6):
            part = slice(n, n + 1)
            outs = [
                model(ids[:, part], state, segment_numbers[:, part])
                for model, state in zip((paper, released), states, strict=True)
            ]
            torch.testing.assert_close(outs[0].hidden, outs[1].hidden)
            states = [out.state for out in outs]


def test_numbers_are_part_of_a_restored_memory():
    model = made(sentence_ends=(3,), layers=2, memory_length=4)
    ids = torch.randint(0, 6, (3, 15))
    state = model(ids[:, :9]).state
    tensors = {name: one.clone() for name, one in state.tensors().items()}
    assert {*tensors} == {"hidden", "segment_numbers", "following", "lengths"}
    expected = model(ids[:, 9:], state).hidden
    again = model(ids[:, :1]).state.with_tensors(tensors)
    assert torch.equal(model(ids[:, 9:], again).hidden, expected)
