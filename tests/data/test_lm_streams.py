"""Windows and blocks of a text, in one direction and in both, against grids written by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data import (
    IGNORE,
    ParallelStreams,
    ShuffledBlocks,
    SlidingWindows,
    TokenArray,
    VariableStreams,
    WarmedStreams,
)
from regard.data.lm_streams import (
    BidirectionalStreams,
    BidirectionalText,
    SeparateSentences,
    _drawn_lengths,
)
from regard.errors import ConfigError


def text(length):
    return TokenArray.of([range(length)], length)


@given(st.integers(2, 80), st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))
def test_warmed_streams_predict_every_token_once_after_its_context(length, rows, steps, lead):
    part = -(-(length - 1 - lead) // rows)
    if (rows - 1) * part >= length - 1 - lead:
        with pytest.raises(ConfigError, match="leave each row a part"):
            WarmedStreams(text(length), batch_size=rows, sequence_length=steps, warmup=lead)
        return
    columns = WarmedStreams(text(length), batch_size=rows, sequence_length=steps, warmup=lead)
    predicted, windows = [], list(columns)
    for window in windows:
        real = window.targets != IGNORE
        assert (window.targets - window.tokens)[real].eq(1).all()
        predicted += window.targets[real].tolist()
        assert window.tokens.size(1) <= steps
    assert sorted(predicted) == list(range(1, length))
    assert [window.fresh for window in windows] == [True] + [False] * (len(windows) - 1)
    read = torch.cat([window.tokens for window in windows], 1)
    for row in range(rows):
        first = row * columns.length
        there = min(columns.warmup + columns.length, length - 1 - first)
        assert read[row, :there].tolist() == list(range(first, first + there))


@given(st.integers(2, 60), st.integers(1, 9), st.integers(1, 9), st.integers(0, 2))
def test_streams_and_blocks_predict_every_token_but_the_first_once(length, rows, steps, epoch):
    sizes = dict(batch_size=rows, sequence_length=steps)
    kinds = [ShuffledBlocks(text(length), **sizes, seed=1).epoch(epoch)]
    if rows < length:
        kinds.append(ParallelStreams(text(length), **sizes))
        assert kinds[1].predicted == length - 1
    for batches in kinds:
        predicted = []
        for batch in batches:
            real = batch.targets != IGNORE
            assert (batch.targets - batch.tokens)[real].eq(1).all()
            assert len(batch.tokens) <= rows and batch.tokens.size(1) <= steps
            assert batch.count == int(real.sum()) > 0
            assert batch.fresh or batches is not kinds[0]
            predicted += batch.targets[real].tolist()
        assert sorted(predicted) == list(range(1, length))


def by_the_obvious_loop(length, window, stride):
    """(first token read, first token predicted, end) of each window."""
    found, before, predicted = [], 0, length - 1
    for begin in range(0, predicted, stride):
        end = min(begin + window, predicted)
        found.append((begin, before + 1, end))
        before = end
        if end == predicted:
            return found
    raise AssertionError


@given(st.integers(2, 60), st.integers(1, 9), st.integers(1, 9), st.integers(1, 4))
def test_sliding_windows_equal_a_plain_loop(length, window, stride, rows):
    stride = min(window, stride)
    found = []
    for batch in SlidingWindows(text(length), window=window, stride=stride, batch_size=rows):
        assert batch.fresh and len(batch) <= rows
        for tokens, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
            predicted = [target for target in targets if target != IGNORE]
            assert predicted == list(range(predicted[0], predicted[-1] + 1))
            real = tokens[: targets.index(predicted[-1]) + 1]
            assert real == list(range(real[0], predicted[-1]))
            found.append((tokens[0], predicted[0], predicted[-1]))
    assert found == by_the_obvious_loop(length, window, stride)


@given(st.integers(5, 400), st.integers(1, 4), st.integers(6, 40), st.integers(0, 3))
def test_batches_of_variable_length_hold_every_token_once(length, rows, base, epoch):
    whole = text(length)
    data = VariableStreams(whole, batch_size=rows, sequence_length=base, seed=3)
    batches = list(data.epoch(epoch))
    (one,) = ParallelStreams(whole, batch_size=rows, sequence_length=length)
    assert [batch.fresh for batch in batches] == [True] + [False] * (len(batches) - 1)
    for name in ("tokens", "targets"):
        joined = torch.cat([getattr(batch, name) for batch in batches], 1)
        assert torch.equal(joined, getattr(one, name))
    assert all(batch.tokens.size(1) >= 5 for batch in batches[:-1]) and batches[-1].count > 0


def test_lengths_have_the_published_distribution():
    """N(70, 5) in 95 of 100 batches, N(35, 5) in the others (Merity et al. 2018, section 4.1)."""
    lengths = _drawn_lengths(70, 800_000, 1, 0)
    half = lengths < 52
    assert half.mean() == pytest.approx(0.05, abs=0.0015)
    for part, mean in ((lengths[~half], 69.5), (lengths[half], 34.5)):  # cut to whole numbers
        assert part.mean() == pytest.approx(mean, abs=0.15)
        assert part.std() == pytest.approx(5.0, abs=0.1)
    assert lengths[:5].tolist() == [66, 40, 72, 67, 76]  # on every machine
    assert _drawn_lengths(2, 999, 1, 0).min() == 5


BOS, EOS, UNK, V = 1, 2, 3, 20
SENTENCES = [[5, 6, 7], [], [8], [25, 9], [10, 11, 12, 13]]  # 25 is an unknown word


def both_ways(sentences=SENTENCES) -> BidirectionalText:
    return BidirectionalText.of(sentences, BOS, EOS, V, UNK)


def naive(sentences) -> list[tuple[int, int, int, int]]:
    """Of each prediction: forward input and target, backward input and target."""
    steps = []
    for ids in sentences:
        if ids:
            ahead, back = [BOS, *ids, EOS], [EOS, *ids[::-1], BOS]
            known = [[w if w < V else UNK for w in one] for one in (ahead, back)]
            steps += zip(ahead[:-1], known[0][1:], back[:-1], known[1][1:], strict=True)
    return steps


def collected(batches, rows: int) -> list[list[tuple[int, int, int, int]]]:
    """The steps of each stream, from the batches."""
    streams: list[list[tuple[int, int, int, int]]] = [[] for _ in range(rows)]
    for batch in batches:
        ahead, back = batch.tokens.ids.chunk(2)
        targets, back_targets = batch.targets.chunk(2)
        for row in range(len(batch)):
            columns = (ahead[row], targets[row], back[row], back_targets[row])
            steps = zip(*(c.tolist() for c in columns), strict=True)
            kept = int(batch.tokens.lengths[row])
            assert (targets[row, kept:] == IGNORE).all() and (targets[row, :kept] >= 0).all()
            streams[row] += list(steps)[:kept]
    return streams


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
@pytest.mark.parametrize("steps", [1, 2, 3, 100])
def test_streams_equal_the_sentences_written_one_by_one(rows, steps):
    batches = BidirectionalStreams(both_ways(), batch_size=rows, sequence_length=steps)
    assert [batch.fresh for batch in batches] == [True] + [False] * (len(batches) - 1)
    found = collected(batches, rows)
    assert [step for stream in found for step in stream] == naive(SENTENCES)
    lengths = [len(stream) for stream in found]
    assert max(lengths) - min(lengths) <= 1
    assert sum(batch.count for batch in batches) == both_ways().count == len(naive(SENTENCES))
    assert all((b.targets != IGNORE).sum() == 2 * b.count for b in batches)


def test_separate_sentences_hold_each_sentence_once():
    whole = SeparateSentences(both_ways(), max_tokens=8)
    found = []
    for batch in whole:
        assert batch.fresh and batch.tokens.ids[: len(batch)].numel() <= 8
        found += collected([batch], len(batch))
    expected = [naive([one]) for one in SENTENCES if one]
    assert sorted(found) == sorted(expected)
    assert len(found[0]) == max(map(len, expected))
