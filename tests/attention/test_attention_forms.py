"""Scores, windows and selections against their formulas and enumerations, in float64."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from drawn_numbers import TOP, key_of, number_of
from torch.nn import functional as F

from regard import ops
from regard.attention.attend import (
    COSINE,
    PLAIN,
    SCALED,
    Additive,
    ContentBased,
    General,
    Location,
    attend,
)
from regard.attention.masks import padding
from regard.attention.selection import (
    Hard,
    HardInEvaluation,
    MonotonicWindow,
    PredictiveWindow,
    normalized,
)
from regard.data.batches import Sequences


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(
        *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    ).requires_grad_()


# ---- scores -----------------------------------------------------------------------------------


def cosines(query, memory):
    return F.cosine_similarity(query[:, :, None], memory[:, None], dim=-1)


def additive(score, query, memory):
    inner = F.linear(query, score.query.weight)[:, :, None] + score.key(memory)[:, None]
    return inner.tanh() @ score.weigh.weight[0]


def content_based(score, query, memory):
    strength = F.softplus(F.linear(query, score.strength.weight, score.strength.bias))
    return strength * cosines(query, memory)


# name -> the score, and its formula for queries (B, T, D) and keys (B, S, D)
SCORES = {
    "plain": (lambda: PLAIN, lambda score, q, k: q @ k.mT),
    "scaled-dot": (lambda: SCALED, lambda score, q, k: q @ k.mT / 2),
    "general": (lambda: General(4, 4), lambda score, q, k: q @ score.key.weight @ k.mT),
    "additive": (lambda: Additive(4, 4, 7), additive),
    "location": (lambda: Location(4, 9), lambda score, q, k: q @ score.weigh.weight[:5].T),
    "cosine": (lambda: COSINE, lambda score, q, k: cosines(q, k)),
    "content-based": (lambda: ContentBased(4), content_based),
}


def score_of(name: str):
    torch.manual_seed(1)
    score = SCORES[name][0]()
    return score.double() if isinstance(score, torch.nn.Module) else score


@pytest.mark.parametrize("name", SCORES)
def test_scores_equal_their_formulas(name):
    score, query, memory = score_of(name), normal(2, 3, 4), normal(2, 5, 4, seed=1)
    found = score(query, score.prepare(memory))
    torch.testing.assert_close(found, SCORES[name][1](score, query, memory))


@pytest.mark.parametrize("name", SCORES)
def test_weights_of_scores_have_no_padding_and_exact_gradients(name):
    score, query, memory = score_of(name), normal(2, 1, 3, 4), normal(2, 5, 4, seed=1)
    lengths = torch.tensor([5, 2])
    mask = padding(lengths).resolve(3, 5, sequences=2)

    def context(query, memory):
        return attend(
            query, score.prepare(memory)[:, None], memory[:, None], score=score, mask=mask
        )

    found = context(query, memory)
    for row, length in enumerate(lengths.tolist()):
        alone = memory[row : row + 1, :length]
        expected = attend(
            query[row : row + 1], score.prepare(alone)[:, None], alone[:, None], score=score
        )
        torch.testing.assert_close(found[row : row + 1], expected)
    changed = memory.detach().clone()
    changed[1, 2:] = 7.0
    torch.testing.assert_close(context(query, changed), found)
    assert torch.autograd.gradcheck(context, (query, memory))


def test_the_cosine_of_a_zero_is_zero_and_has_finite_gradients():
    query, memory = torch.zeros(1, 1, 4, requires_grad=True), torch.zeros(1, 3, 4)
    scores = COSINE(query, COSINE.prepare(memory))
    assert not scores.any()
    scores.sum().backward()
    assert query.grad.isfinite().all()


# ---- windows ----------------------------------------------------------------------------------


def seen(centre: float, half_width: int, length: int) -> list[int]:
    return [s for s in range(length) if centre - half_width <= s <= centre + half_width]


@pytest.mark.parametrize("half_width", [1, 2, 10])
def test_monotonic_windows_equal_their_enumeration(half_width):
    """Short sources, steps beyond the end, an empty source; padding is in no window."""
    window = MonotonicWindow(half_width)
    lengths = torch.tensor([7, 3, 1, 0])
    for t in range(9):
        query, steps = torch.zeros(4, 5), torch.full((4,), t)
        view = window(query, steps, lengths, 8)
        assert view.factor is None
        for row, length in enumerate(lengths.tolist()):
            centre = min(t, length - 1)
            expected = seen(centre, half_width, length)
            assert view.allowed[row].nonzero()[:, 0].tolist() == expected
            assert expected or not length  # a source that has a word always has one in the window


@pytest.mark.parametrize("half_width", [1, 2, 10])
def test_predictive_windows_equal_their_formula(half_width):
    torch.manual_seed(2)
    window = PredictiveWindow(5, half_width).double()
    torch.nn.init.normal_(window.outer.weight, std=3.0)
    query, lengths = normal(6, 4, 5), torch.tensor([7, 3, 1, 0, 5, 8])[:, None]
    with torch.no_grad():
        view = window(query, torch.zeros(6, 4, dtype=torch.long), lengths, 8)
    for row, t in itertools.product(range(6), range(4)):
        length = int(lengths[row])
        inner = torch.tanh(window.inner.weight @ query[row, t])
        centre = length / (1 + math.exp(-(window.outer.weight[0] @ inner).item()))
        assert float(view.centre[row, t]) == pytest.approx(centre)
        assert view.allowed[row, t].nonzero()[:, 0].tolist() == seen(centre, half_width, length)
        for s in range(8):
            gaussian = math.exp(-((s - centre) ** 2) / (2 * (half_width / 2) ** 2))
            assert float(view.factor[row, t, s]) == pytest.approx(gaussian)


# ---- selections -------------------------------------------------------------------------------


def test_draws_follow_the_weights_exactly():
    """Numbers on a fine grid: each index is drawn as often as its share of the grid says."""
    weights = torch.tensor([0.0, 0.125, 0.5, 0.0, 0.375, 0.0], dtype=torch.float64)
    grid = (torch.arange(800, dtype=torch.float64) + 0.5) / 800
    index = ops.weighted_index(weights.expand(800, -1), grid)
    assert torch.bincount(index, minlength=6).tolist() == [0, 100, 400, 0, 300, 0]
    ends = torch.tensor([0.0, 1 - 2.0**-53], dtype=torch.float64)
    assert ops.weighted_index(weights.expand(2, -1), ends).tolist() == [1, 4]
    wider = torch.nn.functional.pad(weights, (0, 5))
    assert torch.equal(ops.weighted_index(wider.expand(800, -1), grid), index)
    assert torch.equal(ops.weighted_index(weights.expand(800, -1) * 7, grid), index)


def test_random_numbers_are_those_of_splitmix64():
    seeds, numbers = torch.tensor([0, 5, -3]), torch.tensor([1, 2, 70000])
    found = ops.uniform(seeds, numbers)
    expected = [number_of(s % TOP, n) for s, n in zip([0, 5, -3], [1, 2, 70000], strict=True)]
    assert found.tolist() == expected
    many = ops.uniform(torch.arange(4000), torch.ones(4000, dtype=torch.long))
    assert abs(float(many.mean()) - 0.5) < 0.02 and abs(float(many.var()) - 1 / 12) < 0.005
    assert 0 <= float(many.min()) and float(many.max()) < 1


@pytest.mark.parametrize("seed", [None, 0, 12])
def test_keys_depend_on_the_tokens_of_a_sequence_alone(seed):
    rows = [[5, 6, 7], [7, 6, 5], [5], []]
    batch, selection = Sequences.of(rows, pad=0), Hard(seed).eval()
    found = [int(key) % TOP for key in selection.keys(batch)]
    assert found == [key_of(row, seed) for row in rows] and len(set(found)) == 4
    noise = Sequences(torch.cat([batch.ids, torch.full((4, 2), 9)], 1), batch.lengths)
    assert torch.equal(selection.keys(noise), selection.keys(batch))


def test_hard_attention_in_use_takes_the_largest_weight_or_draws_by_the_seed():
    weights = torch.tensor([[0.1, 0.6, 0.3], [0.5, 0.0, 0.0], [0.0, 0.0, 0.0]])
    keys, steps = torch.tensor([11, 12, 13]), torch.tensor([0, 4, 2])
    found = HardInEvaluation().eval()(weights, keys, steps).weights
    assert found.tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 0]]
    drawn = []
    for step in range(400):
        chosen = HardInEvaluation(3).eval()(weights, keys, torch.full((3,), step)).weights
        number = number_of(11, step + 1)
        expected = 0 if number < 0.1 else 1 if number < 0.7 else 2
        assert chosen.tolist() == [[float(n == expected) for n in range(3)], [1, 0, 0], [0, 0, 0]]
        drawn.append(expected)
    assert abs(drawn.count(1) / 400 - 0.6) < 0.08


def test_hard_attention_in_training_gives_log_probabilities_and_entropies():
    torch.manual_seed(5)
    raw = torch.rand(300, 4, dtype=torch.float64)
    raw[:, 3] = 0.0
    raw[7] = 0.0
    raw.requires_grad_()
    keys = torch.arange(300)
    found = Hard(expected_share=0.5).train()(raw, keys, torch.zeros_like(keys))
    probs = (raw / raw.sum(1, keepdim=True)).detach()
    drawn = torch.tensor([number_of(row, 0) >= 0.5 for row in range(300)])
    drawn[7] = False
    assert 100 < int(drawn.sum()) < 200
    for row in range(300):
        if row == 7:
            assert not found.weights[row].any() and found.log_probs[row] == 0
        elif drawn[row]:
            (at,) = found.weights[row].nonzero()[:, 0].tolist()
            torch.testing.assert_close(found.log_probs[row], probs[row, at].log())
        else:
            torch.testing.assert_close(found.weights[row], probs[row])
            assert found.log_probs[row] == 0
    entropy = -torch.where(probs > 0, probs * probs.log(), 0.0).sum(1).nan_to_num(0.0)
    torch.testing.assert_close(found.entropy, entropy)
    (found.log_probs.sum() + found.entropy.sum()).backward()
    assert raw.grad.isfinite().all()


def test_hard_expected_attention_is_soft_in_training_and_hard_in_use():
    weights, keys = torch.tensor([[0.2, 0.4, 0.2]]), torch.tensor([1])
    selection = HardInEvaluation().train()
    torch.testing.assert_close(
        selection(weights, keys, keys).weights, torch.tensor([[0.25, 0.5, 0.25]])
    )
    assert selection.eval()(weights, keys, keys).weights.tolist() == [[0, 1, 0]]
    assert normalized(torch.zeros(1, 3)).tolist() == [[0, 0, 0]]
