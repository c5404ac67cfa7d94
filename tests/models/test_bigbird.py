"""BigBird with sparse attention: against `transformers`, dense attention, and each text alone."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from their_encoders import SAME, randomized, transformers, weights

from regard.checkpoints.formats import from_published, to_published
from regard.data.batches import Sequences
from regard.models.bigbird import BigBird, BigBirdConfig

V, SIZE, RANDOM = 31, 2, 1
LIMIT = (5 + 2 * RANDOM) * SIZE  # up to here everything sees everything
TINY = dict(
    vocab_size=V, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20,
    hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, max_position_embeddings=64,
    block_size=SIZE, num_random_blocks=RANDOM,
)  # fmt: skip


def theirs(**options):
    torch.manual_seed(0)
    config = transformers.BigBirdConfig(**TINY | options)
    return randomized(transformers.BigBirdModel(config)).eval()


def ours_of(model, kind=BigBird, **given):
    """Our encoder with their weights, as `kind` computes it."""
    config = json.loads(model.config.to_json_string(use_diff=False))
    read = from_published(config | {"architectures": ["BigBirdModel"]}, weights(model))
    made = kind(read.encoder.config, **given)
    made.load_state_dict(read.encoder.state_dict())
    return made.eval()


def texts(*lengths: int) -> Sequences:
    draw = torch.Generator().manual_seed(sum(lengths))
    ids = torch.randint(3, V, (len(lengths), max(lengths)), generator=draw)
    return Sequences(ids, torch.tensor(lengths))


def their_plan(model, length: int):
    """The random blocks of their program in training, which numpy's state decides."""

    def plan(layer: int, blocks: torch.Tensor) -> torch.Tensor:
        attention = model.encoder.layer[layer].attention.self
        config = model.config
        size, heads = config.block_size, config.num_attention_heads
        padded = -(-length // size) * size
        np.random.seed(attention.seed)
        ends, counts = attention._get_rand_attn_plan(padded, size, config.num_random_blocks)
        rows = attention._bigbird_block_rand_mask_with_head(
            from_seq_length=padded, to_seq_length=padded, from_block_size=size,
            to_block_size=size, num_heads=heads, plan_from_length=ends, plan_num_rand_blocks=counts,
        )  # fmt: skip
        middle = torch.tensor(np.stack(rows))[None]  # (1, H, N - 2, R)
        return torch.nn.functional.pad(middle, (0, 0, 1, 1), value=-1)

    return plan


BIASES = {"use_bias": False, "rescale_embeddings": True}
SHAPES = [  # size of blocks, random ones, heads, tokens
    *((1, 1, 2, 9), (1, 3, 3, 14), (3, 2, 4, 31), (4, 1, 1, 47), (5, 3, 6, 59), (16, 1, 2, 120)),
]
RANDOM_BLOCKS = [(length, options) for length in (15, 16, 24, 31) for options in ({}, BIASES)] + [
    (
        length,
        dict(
            block_size=size, num_random_blocks=random, num_attention_heads=heads,
            max_position_embeddings=128,
        ),
    )
    for size, random, heads, length in SHAPES
]  # fmt: skip


@pytest.mark.parametrize(("length", "options"), RANDOM_BLOCKS, ids=str)
def test_states_and_gradients_equal_transformers_with_its_random_blocks(length, options):
    """In training without dropout, the plan taken from numpy."""
    model = theirs(**options).train()
    ours = ours_of(model, plan=their_plan(model, length)).train()
    batch = texts(length)
    found, expected = ours.encode(batch), model(batch.ids).last_hidden_state
    torch.testing.assert_close(found, expected, **SAME)
    assert model.attention_type == "block_sparse"
    mix = torch.randn_like(found)
    (found * mix).sum().backward()
    (expected * mix).sum().backward()
    for ours_name, their_name in (
        ("embedding.weight", "embeddings.word_embeddings.weight"),
        ("blocks.0.feed.inner.weight", "encoder.layer.0.intermediate.dense.weight"),
        ("blocks.1.attention.output.weight", "encoder.layer.1.attention.output.dense.weight"),
    ):
        one, other = ours.get_parameter(ours_name).grad, model.get_parameter(their_name).grad
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
    query = model.get_parameter("encoder.layer.0.attention.self.query.weight").grad
    own = ours.get_parameter("blocks.0.attention.query_key_value.weight").grad[:12]
    torch.testing.assert_close(own, query, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("attention", ["original_full", "block_sparse"])
def test_short_texts_and_full_attention_equal_transformers(attention):
    model = theirs(attention_type=attention)
    ours = ours_of(model)
    for length in (1, 2, 3, LIMIT) if attention == "block_sparse" else (1, 30):
        batch = texts(length)
        with torch.no_grad():
            expected = model(batch.ids).last_hidden_state
            torch.testing.assert_close(ours.encode(batch), expected, **SAME)


def test_the_seed_of_random_blocks_is_kept_with_the_model(tmp_path):
    sizes = dict(d_model=12, d_ff=16, heads=3, layers=2, block_size=2, random_blocks=1)
    torch.manual_seed(0)
    ours = randomized(BigBird(BigBirdConfig(V, **sizes, random_seed=5))).eval()
    again = from_published(*to_published(ours)).encoder.eval()
    batch = texts(40)
    assert again.config == ours.config
    assert torch.equal(again.encode(batch), ours.encode(batch))
    other = BigBird(BigBirdConfig(V, **sizes)).eval()
    other.load_state_dict(ours.state_dict())
    assert not torch.allclose(other.encode(batch), ours.encode(batch))
    plans = [ours.drawn_plan(layer, torch.tensor([20])) for layer in (0, 1)]
    assert not torch.equal(*plans)  # others in each layer
