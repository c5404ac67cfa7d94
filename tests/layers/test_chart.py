"""Charts: the best trees, the k best and the margin, against all trees of short sentences."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from regard.layers.chart import (
    as_chart,
    best_trees,
    k_best_trees,
    max_margin_loss,
    of_chart,
    span_bounds,
    span_numbers,
)
from regard.layers.chart_head import ChartHead

Tree = frozenset  # of spans (start, stop)


def forests(start: int, stop: int):
    """All sequences of trees and words from `start` to `stop`, as sets of constituents."""
    if start == stop:
        yield Tree(), 0
        return
    for cut in range(start + 1, stop + 1):
        for first in trees(start, cut):
            for rest, count in forests(cut, stop):
                yield first | rest, count + 1


def trees(start: int, stop: int):
    """All trees over these words; a word may also stand by itself."""
    if stop - start == 1:
        yield Tree()
        yield Tree([(start, stop)])
        return
    # the first child is shorter than the whole, so that no span has two constituents
    for cut in range(start + 1, stop):
        for first in trees(start, cut):
            for rest, _ in forests(cut, stop):
                yield first | rest | {(start, stop)}


def labelled(words: int, labels: int):
    """All trees of a sentence with all labels 1, 2, ...: {(start, stop): label}."""
    roots = [Tree([(0, 1)])] if words == 1 else trees(0, words)
    for tree in roots:
        spans = sorted(tree)
        for names in itertools.product(range(1, labels + 1), repeat=len(spans)):
            yield dict(zip(spans, names, strict=True))


def number(start: int, stop: int, size: int) -> int:
    starts, stops = (bound.tolist() for bound in span_bounds(size))
    return list(zip(starts, stops, strict=True)).index((start, stop))


def score(tree: dict, scores: torch.Tensor, size: int) -> float:
    return sum(float(scores[number(*span, size), label - 1]) for span, label in tree.items())


def drawn(seed: int, lengths: list[int], labels: int) -> torch.Tensor:
    """Scores of all spans (B, P, O) in float64, NaN beyond the words of a sentence."""
    size, generator = max(lengths), torch.Generator().manual_seed(seed)
    starts, stops = span_bounds(size)
    shape = (len(lengths), len(starts), labels)
    scores = torch.randn(shape, generator=generator, dtype=torch.float64)
    beyond = stops[None, :] > torch.tensor(lengths)[:, None]
    return scores.masked_fill(beyond[..., None], math.nan)


def test_the_number_of_trees_is_that_of_schroeder():
    """Trees without unary chains over n words are the little Schröder numbers, times 2 for each
    word that may have a constituent of its own."""
    counts = [sum(1 for _ in trees(0, n)) for n in (2, 3, 4, 5)]
    assert counts == [1 * 4, 3 * 8, 11 * 16, 45 * 32]
    assert len({tree for tree in trees(0, 4)}) == counts[2]


@pytest.mark.parametrize("seed", range(4))
def test_best_trees_equal_the_best_of_all_trees(seed):
    lengths = [1, 2, 4, 5, 3]
    scores = drawn(seed, lengths, 2)
    best, label = scores.max(-1)
    values, chart = best_trees(as_chart(best, 5), torch.tensor(lengths))
    for row, length in enumerate(lengths):
        top = max(labelled(length, 2), key=lambda tree: score(tree, scores[row], 5))
        assert float(values[row]) == pytest.approx(score(top, scores[row], 5), abs=1e-12)
        found = {
            (start, start + width + 1): int(label[row, number(start, start + width + 1, 5)]) + 1
            for start, width in chart[row].nonzero().tolist()
        }
        assert found == top


@pytest.mark.parametrize("k", [1, 3, 50])
def test_k_best_trees_equal_all_trees_sorted(k):
    lengths = [3, 1, 4, 2]
    scores = drawn(5, lengths, 2)
    found = k_best_trees(as_chart(scores, 4), torch.tensor(lengths), k)
    for row, length in enumerate(lengths):
        ranked = sorted(labelled(length, 2), key=lambda tree: -score(tree, scores[row], 4))
        best = ranked[:k]
        assert len(found[row]) == len(best)
        for one, tree in zip(found[row], best, strict=True):
            assert one.score == pytest.approx(score(tree, scores[row], 4), abs=1e-12)
            assert {(start, stop): label + 1 for start, stop, label in one.spans} == tree
            assert len(one.spans) == len(tree)


def test_k_best_with_more_than_there_are_gives_all():
    scores = drawn(1, [2], 1)
    (found,) = k_best_trees(as_chart(scores, 2), torch.tensor([2]), 10)
    assert len(found) == 4 == len(list(labelled(2, 1)))


def gold_labels(trees_of: list[dict], size: int) -> torch.Tensor:
    gold = torch.zeros(len(trees_of), size * (size + 1) // 2, dtype=torch.long)
    for row, tree in enumerate(trees_of):
        for span, label in tree.items():
            gold[row, number(*span, size)] = label
    return gold


def test_the_margin_equals_the_maximum_over_all_trees():
    gold = [
        {(0, 4): 1, (0, 2): 2, (3, 4): 1},
        {(0, 1): 2},
        {(0, 3): 2, (1, 3): 1},
        {(0, 2): 1},
    ]
    lengths = [4, 1, 3, 2]
    scores = 2 * drawn(3, lengths, 2)
    loss = max_margin_loss(scores, gold_labels(gold, 4), torch.tensor(lengths))
    for row, (tree, length) in enumerate(zip(gold, lengths, strict=True)):

        def distance(other, tree=tree):
            return sum(other.get(span) != tree.get(span) for span in other.keys() | tree.keys())

        values = [score(t, scores[row], 4) + distance(t) for t in labelled(length, 2)]
        expected = max(values) - score(tree, scores[row], 4)
        assert float(loss[row]) == pytest.approx(expected, abs=1e-12) and expected >= 0


def test_the_margin_is_zero_where_the_gold_tree_is_far_ahead():
    gold = gold_labels([{(0, 3): 1, (1, 3): 2}], 3)
    scores = torch.full((1, 6, 2), -5.0)
    scores[0, number(0, 3, 3), 0] = scores[0, number(1, 3, 3), 1] = 5.0
    scores.requires_grad_()
    loss = max_margin_loss(scores, gold, torch.tensor([3]))
    loss.sum().backward()
    assert float(loss.detach()) == 0 and not scores.grad.any()


def test_gradients_of_head_and_margin_equal_finite_differences():
    torch.manual_seed(0)
    head = ChartHead(6, 3, d_inner=5).double().eval()
    torch.nn.init.normal_(head.ends)
    words = torch.randn(2, 4, 6, dtype=torch.float64, requires_grad=True)
    gold = gold_labels([{(0, 4): 1, (0, 2): 3}, {(0, 2): 2}], 4)
    lengths = torch.tensor([4, 2])

    def loss(words, *weights):
        named = dict(zip(dict(head.named_parameters()), weights, strict=True))
        called = lambda *a: torch.func.functional_call(head, named, a)  # noqa: E731
        head.forward = head.span_scores
        scores = called(words, lengths)
        return max_margin_loss(scores, gold, lengths)

    assert torch.autograd.gradcheck(loss, (words, *head.parameters()))


def test_span_scores_equal_the_formula_and_ignore_padding():
    torch.manual_seed(1)
    head = ChartHead(6, 3, d_inner=4).double().eval()
    torch.nn.init.normal_(head.ends)
    words = torch.randn(2, 4, 6, dtype=torch.float64)
    scores = head.span_scores(words, torch.tensor([4, 2]))
    changed = words.clone()
    changed[1, 2:] = 1e3
    again = head.span_scores(changed, torch.tensor([4, 2]))
    for row, length in enumerate([4, 2]):
        ends = head.ends
        hidden = [ends[0], *words[row, :length], ends[1]]
        for start, stop in itertools.combinations(range(length + 1), 2):
            forward = hidden[stop][:3] - hidden[start][:3]
            backward = hidden[stop + 1][3:] - hidden[start + 1][3:]
            inner = head.inner.weight @ torch.cat([forward, backward]) + head.bias
            inner = (inner - inner.mean()) / (inner.var(correction=0) + 1e-5).sqrt()
            inner = (inner * head.norm.weight + head.norm.bias).relu()
            expected = head.output.weight @ inner + head.output.bias
            at = number(start, stop, 4)
            assert torch.allclose(scores[row, at], expected, atol=1e-12)
            assert torch.equal(scores[row, at], again[row, at])


def test_a_sentence_alone_has_the_tree_that_it_has_in_a_batch():
    lengths = [7, 3, 1, 12]
    scores = drawn(9, lengths, 4)
    values, charts = best_trees(as_chart(scores.max(-1).values, 12), torch.tensor(lengths))
    for row, length in enumerate(lengths):
        chart = as_chart(scores.max(-1).values[row : row + 1], 12)[:, :length, :length]
        value, alone = best_trees(chart, torch.tensor([length]))
        assert torch.equal(value[0], values[row])
        assert torch.equal(alone[0], charts[row, :length, :length])
        assert int(charts[row].sum()) == int(alone.sum())


def test_charts_and_spans_convert_both_ways():
    starts, stops = span_bounds(6)
    numbers = span_numbers(starts.numpy(), stops.numpy(), 6)
    assert numbers.tolist() == list(range(21))
    values = torch.randn(2, 21, 3)
    assert torch.equal(of_chart(as_chart(values, 6)), values)
