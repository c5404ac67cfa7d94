"""Charts: the best trees, the k best and the margin, against all trees of short sentences."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from regard.layers.chart import ChartHead, Spans, best_trees, k_best_trees, max_margin_loss

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


def score(tree: dict, chart: list) -> float:
    """The sum over the constituents, from the chart (N, N, O) of a sentence as nested lists."""
    return sum(chart[i][j - i - 1][label - 1] for (i, j), label in tree.items())


def drawn(seed: int, lengths: list[int], labels: int) -> torch.Tensor:
    """A chart of scores (B, N, N, O) in float64, NaN beyond the words of a sentence."""
    size, generator = max(lengths), torch.Generator().manual_seed(seed)
    shape = (len(lengths), size, size, labels)
    scores = torch.randn(shape, generator=generator, dtype=torch.float64)
    stops = torch.arange(size)[:, None] + torch.arange(size) + 1  # (N, N)
    beyond = stops > torch.tensor(lengths)[:, None, None]
    return scores.masked_fill(beyond[..., None], math.nan)


@pytest.mark.parametrize("seed", range(4))
def test_best_trees_equal_the_best_of_all_trees(seed):
    lengths = [1, 2, 4, 5, 3]
    scores = drawn(seed, lengths, 2)
    best, label = scores.max(-1)
    values, chart = best_trees(best, torch.tensor(lengths))
    for row, length in enumerate(lengths):
        own = scores[row].tolist()
        top = max(labelled(length, 2), key=lambda tree: score(tree, own))
        assert float(values[row]) == pytest.approx(score(top, own), abs=1e-12)
        found = {
            (start, start + width + 1): int(label[row, start, width]) + 1
            for start, width in chart[row].nonzero().tolist()
        }
        assert found == top


@pytest.mark.parametrize("k", [1, 3, 50])
def test_k_best_trees_equal_all_trees_sorted(k):
    lengths = [3, 1, 4, 2]
    scores = drawn(5, lengths, 2)
    found = k_best_trees(scores, torch.tensor(lengths), k)
    for row, length in enumerate(lengths):
        own = scores[row].tolist()
        ranked = sorted(labelled(length, 2), key=lambda tree: -score(tree, own))
        best = ranked[:k]
        assert len(found[row]) == len(best)
        for one, tree in zip(found[row], best, strict=True):
            assert one.score == pytest.approx(score(tree, own), abs=1e-12)
            assert {(start, stop): label + 1 for start, stop, label in one.spans} == tree
            assert len(one.spans) == len(tree)


def test_the_best_trees_of_a_long_sentence_may_be_as_deep_as_it_is_long():
    size = 350
    scores = torch.full((1, size, size, 1), -1.0)
    scores[0, 0, 1:] = 1.0  # every beginning of the sentence is a constituent
    ((best,),) = k_best_trees(scores, torch.tensor([size]), 1)
    assert sorted(best.spans) == [(0, stop, 0) for stop in range(2, size + 1)]


def gold_chart(trees_of: list[dict], size: int) -> torch.Tensor:
    gold = torch.zeros(len(trees_of), size, size, dtype=torch.long)
    for chart, tree in zip(gold, trees_of, strict=True):
        for (start, stop), label in tree.items():
            chart[start, stop - start - 1] = label
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
    spans = Spans.of(torch.tensor(lengths), 4)
    loss = max_margin_loss(spans.values(scores), gold_chart(gold, 4), spans)
    for row, (tree, length) in enumerate(zip(gold, lengths, strict=True)):

        def distance(other, tree=tree):
            return sum(other.get(span) != tree.get(span) for span in other.keys() | tree.keys())

        own = scores[row].tolist()
        values = [score(t, own) + distance(t) for t in labelled(length, 2)]
        expected = max(values) - score(tree, own)
        assert float(loss[row]) == pytest.approx(expected, abs=1e-12) and expected >= 0


def test_gradients_of_head_and_margin_equal_finite_differences():
    torch.manual_seed(0)
    head = ChartHead(6, 3, d_inner=5).double().eval()
    torch.nn.init.normal_(head.ends)
    words = torch.randn(2, 4, 6, dtype=torch.float64, requires_grad=True)
    gold = gold_chart([{(0, 4): 1, (0, 2): 3}, {(0, 2): 2}], 4)
    spans = Spans.of(torch.tensor([4, 2]), 4)

    def loss(words, *weights):
        named = dict(zip(dict(head.named_parameters()), weights, strict=True))
        called = lambda *a: torch.func.functional_call(head, named, a)  # noqa: E731
        head.forward = head.span_scores
        return max_margin_loss(called(words, spans), gold, spans)

    assert torch.autograd.gradcheck(loss, (words, *head.parameters()))


def test_span_scores_equal_the_formula_and_ignore_padding():
    torch.manual_seed(1)
    head = ChartHead(6, 3, d_inner=4).double().eval()
    torch.nn.init.normal_(head.ends)
    words = torch.randn(2, 4, 6, dtype=torch.float64)
    spans = Spans.of(torch.tensor([4, 2]), 4)
    scores = spans.chart(head.span_scores(words, spans), 4)
    changed = words.clone()
    changed[1, 2:] = 1e3
    again = spans.chart(head.span_scores(changed, spans), 4)
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
            here = row, start, stop - start - 1
            assert torch.allclose(scores[here], expected, atol=1e-12)
            assert torch.equal(scores[here], again[here])
