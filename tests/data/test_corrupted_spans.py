"""Span corruption: the published numbers, the paper's figure, and the distribution of the spans."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from regard.data.lm_streams import DocumentWindows
from regard.data.pretraining import (
    CorruptedWindows,
    Noise,
    corrupted,
    random_spans,
)
from regard.data.token_arrays import TokenArray

PUBLISHED = Noise(0.15, 3.0)
SENTINELS = list(range(1099, 999, -1))


def test_512_inputs_are_568_tokens_of_text_and_have_114_targets():
    assert PUBLISHED.window(512) == 568
    assert PUBLISHED.lengths(568) == (512, 114)
    assert PUBLISHED.counts(568) == (85, 28)


@pytest.mark.parametrize("density, mean", [(0.15, 3.0), (0.5, 3.0), (0.15, 8.0), (0.3, 1.0)])
@pytest.mark.parametrize("source", [5, 64, 114, 256, 511, 1024])
def test_lengths_follow_the_closed_formula(density, mean, source):
    """s(L) = L - n + round(n / m) + 1 with n = round(d L): the window is the last L whose sources
    are short enough, before the first that is not.
    """
    noise = Noise(density, mean)

    def source_of(length):
        dropped = min(max(round(length * density), 1), length - 1)
        spans = min(max(round(dropped / mean), 1), length - dropped)
        return length - dropped + spans + 1, dropped + spans + 1

    window = noise.window(source)
    assert source_of(window)[0] <= source < source_of(window + 1)[0]
    assert noise.lengths(window) == source_of(window)
    dropped = random_spans(window, noise, np.random.default_rng(1))
    found = corrupted(np.arange(window), dropped, list(range(2000, 1000, -1)))
    assert tuple(len(one) + 1 for one in found) == noise.lengths(window)


def test_corrupted_spans_equal_the_figure_of_the_paper():
    """Raffel et al. 2020, figure 2."""
    words = "Thank you for inviting me to your party last week .".split()
    dropped = np.array([word in ("for", "inviting", "last") for word in words])
    names = dict(enumerate(words)) | {99: "<X>", 98: "<Y>", 97: "<Z>"}
    found = corrupted(np.arange(len(words)), dropped, [99, 98, 97])
    source, target = (" ".join(names[int(i)] for i in one) for one in found)
    assert source == "Thank you <X> me to your party <Y> week ."
    assert target == "<X> for inviting <Y> last <Z>"


def test_all_ways_to_cut_are_equally_probable():
    noise, draws = Noise(0.35, 2.0), 6000  # of 14 tokens 5 are dropped in 2 spans
    every = {
        tuple([False] * a + [True] * b + [False] * (9 - a) + [True] * (5 - b))
        for a in range(1, 9)
        for b in range(1, 5)
    }
    random = np.random.default_rng(7)
    counts = Counter(tuple(random_spans(14, noise, random).tolist()) for _ in range(draws))
    assert counts.keys() == every
    expected = draws / len(every)
    # Chi square of 31 degrees of freedom; a value above 61.1 has probability 0.001.
    assert sum((found - expected) ** 2 / expected for found in counts.values()) < 61.1


# ----------------------------------------------------------------------------------- batches


def data(seed=1, batch_size=3, smallest=2):
    tokens = TokenArray.of([list(range(10, 75)), list(range(100, 131)), [7, 8]]).joined()
    windows = DocumentWindows(
        tokens, length=20, batch_size=batch_size, seed=seed, smallest=smallest
    )
    return CorruptedWindows(windows, SENTINELS, end=1, start=0, pad=0, seed=seed)


def rows_of(batch):
    for side in (batch.source, batch.target):
        yield [ids[:n] for ids, n in zip(side.ids.tolist(), side.lengths.tolist(), strict=True)]


def test_a_window_is_put_together_again_from_its_source_and_its_target():
    seen = []
    for batch in data().epoch(0):
        for source, target in zip(*rows_of(batch), strict=True):
            assert source[-1] == target[-1] == 1 and target[0] == 0
            spans, whole = {}, []
            for token in target[1:-1]:
                if token >= 1000:
                    span = spans.setdefault(token, [])
                else:
                    span.append(token)
            assert list(spans) == SENTINELS[: len(spans)]
            for token in source[:-1]:
                whole += spans[token] if token >= 1000 else [token]
            seen += whole
    assert sorted(seen) == sorted([*range(10, 75), *range(100, 131), 7, 8])
