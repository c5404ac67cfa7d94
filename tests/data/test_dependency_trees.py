"""Positions in dependency trees, against walks through drawn trees."""

from __future__ import annotations

import random

import pytest
import torch

from regard.attention.relative import DependencyRelations
from regard.data.batches import Sequences
from regard.data.dependency_trees import (
    ancestors,
    depths,
    tree_distances,
    trees_of,
    with_trees,
)
from regard.errors import RegardError
from regard.layers.positions import DependencyPositions, sinusoid
from regard.models.bert import Bert, BertConfig

K, CLIP = 4, 3


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


def way_up(word: int, tree: list[int]) -> list[int]:
    """A word and all that govern it, up to the root."""
    way = [word]
    while tree[way[-1]] != way[-1]:
        way.append(tree[way[-1]])
    return way


@pytest.mark.parametrize("seed", range(3))
def test_depths_and_distances_equal_those_of_walks(seed):
    batch, words, heads = drawn(seed)
    governed = ancestors(*trees_of(batch))
    depth, distance = depths(governed), tree_distances(trees_of(batch)[0], governed)
    for row, (numbers, tree) in enumerate(zip(words, heads, strict=True)):
        # special tokens are further words that depend on the root
        (root,) = [word for word, head in enumerate(tree) if word == head]
        whole = [*tree, root, root]
        named = [len(tree), *numbers[1:-1], len(tree) + 1]
        for i, one in enumerate(named):
            assert depth[row, i] == len(way_up(one, whole)) - 1
            for j, other in enumerate(named):
                ways = way_up(one, whole), way_up(other, whole)
                if one in ways[1] or other in ways[0]:
                    expected = len(ways[0]) - len(ways[1])
                else:
                    sign = 1 if i > j else -1
                    expected = sign * (len(ways[0]) + len(ways[1]) - 2)
                assert distance[row, i, j] == expected


def test_absolute_positions_equal_their_formula():
    batch, *_ = drawn(1)
    table = DependencyPositions(8)
    depth = depths(ancestors(*trees_of(batch)))
    for row in range(3):
        for t in range(int(batch.lengths[row])):
            both = torch.cat([sinusoid(torch.tensor(t), 8), sinusoid(depth[row, t], 8)])
            expected = torch.tanh(table.combined.weight @ both + table.combined.bias)
            torch.testing.assert_close(table.of(batch)[row, t], expected)
    found = batch.unpadded().pad(table.of(batch.unpadded()))
    torch.testing.assert_close(found[batch.keep], table.of(batch)[batch.keep])


def test_relations_are_those_of_shaw_at_distances_in_the_tree():
    batch, *_ = drawn(2)
    (relation,) = DependencyRelations(1, K, CLIP).of(batch)
    distance = tree_distances(trees_of(batch)[0], ancestors(*trees_of(batch)))
    assert torch.equal(relation.rows, distance.clamp(-CLIP, CLIP) + CLIP)


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
