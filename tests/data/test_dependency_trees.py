"""An encoder reads the dependency trees of its texts."""

from __future__ import annotations

import random

import pytest
import torch

from regard.data.batches import Sequences
from regard.data.dependency_trees import with_trees
from regard.errors import RegardError
from regard.models.bert import Bert, BertConfig


def drawn(seed: int) -> tuple[Sequences, list[list[int | None]], list[list[int]]]:
    """Three sequences with words of one to three tokens between two special tokens."""
    chance, words, heads = random.Random(seed), [], []
    for count in (7, 1, 4):
        order = chance.sample(range(count), count)  # the root first
        tree = [0] * count
        for place, word in enumerate(order):
            tree[word] = order[chance.randrange(place)] if place else word
        heads.append(tree)
        parts = [[word] * chance.randint(1, 3) for word in range(count)]
        words.append([None, *(number for part in parts for number in part), None])
    batch = Sequences.of([[chance.randint(3, 19) for _ in one] for one in words], 0)
    return with_trees(batch, words, heads), words, heads


@pytest.mark.parametrize("positions", ["dependency-absolute", "dependency-relative"])
def test_an_encoder_reads_the_tree_and_no_padding(positions):
    torch.manual_seed(0)
    config = BertConfig(20, d_model=16, d_ff=16, heads=2, layers=2, positions=positions)
    model = Bert(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    batch, words, heads = drawn(1)
    found = model.encode(batch)
    alone = Sequences(batch.ids[2:, :1], batch.lengths[2:])
    length = int(batch.lengths[2])
    alone = with_trees(Sequences(batch.ids[2:, :length], batch.lengths[2:]), words[2:], heads[2:])
    torch.testing.assert_close(model.encode(alone)[0], found[2, :length], atol=1e-5, rtol=1e-5)
    (root,) = [word for word, head in enumerate(heads[0]) if word == head]
    flat = [[root] * 7, *heads[1:]]  # another tree: every word depends on the root
    other = model.encode(with_trees(batch, words, flat))
    assert not torch.allclose(other[0], found[0], atol=1e-4)
    torch.testing.assert_close(other[1:], found[1:])
    with pytest.raises(RegardError, match="the batch has no extra 'words' and 'heads'"):
        model.encode(Sequences.full(batch.ids))
