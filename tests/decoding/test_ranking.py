"""The chunked search for the best continuations against a sort of everything."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.decoding.ranking import best_continuations, best_of_topk
from regard.decoding.steps import most_probable


def by_sorting(log_probs, running, count):
    sums = (log_probs.double() + running[..., None]).flatten(1)
    rows = [sorted(range(len(row)), key=lambda at: (-row[at], at))[:count] for row in sums.tolist()]
    return sums.gather(1, torch.tensor(rows)), torch.tensor(rows)


@given(
    width=st.integers(1, 5),
    vocabulary=st.sampled_from([2, 5, 63, 64, 65, 300, 1000]),
    count=st.integers(1, 12),
    seed=st.integers(0, 1000),
    grain=st.sampled_from([None, 4, 1]),
)
@settings(max_examples=150, deadline=None)
def test_best_continuations_equal_a_full_sort(width, vocabulary, count, seed, grain):
    random = torch.Generator().manual_seed(seed)
    log_probs = -torch.rand(3, width, vocabulary, generator=random) * 20
    if grain is not None:  # few values, so that many are equal
        log_probs = (log_probs * grain / 20).round()
    running = -torch.rand(3, width, generator=random, dtype=torch.float64).mul(3).round()
    log_probs[torch.rand(log_probs.shape, generator=random) < 0.3] = float("-inf")
    values, index = best_continuations(log_probs, running, count)
    count = min(count, width * vocabulary)
    expected_values, expected_index = by_sorting(log_probs, running, count)
    assert torch.equal(values, expected_values)
    assert torch.equal(index, expected_index)
    ranked = by_ranking(log_probs.flatten(0, 1), min(count, vocabulary))
    values, index = best_of_topk(*ranked, running, vocabulary)
    assert torch.equal(values, expected_values[:, : values.size(1)])
    assert torch.equal(index, expected_index[:, : values.size(1)])


def by_ranking(log_probs, count):
    """The best words of each row; of equal scores the first word."""
    rows = [
        sorted(range(len(row)), key=lambda at: (-row[at], at))[:count] for row in log_probs.tolist()
    ]
    words = torch.tensor(rows)
    return words, log_probs.gather(1, words)


def test_the_most_probable_of_equal_tokens_is_the_first_and_nan_gives_nan():
    scores = torch.tensor([[0.0, 2.0, 2.0], [1.0, 1.0, 1.0], [0.0, float("nan"), 1.0]])
    tokens, log_probs = most_probable(scores)
    assert tokens[:2].tolist() == [1, 0]
    assert log_probs.isnan().tolist() == [False, False, True]
