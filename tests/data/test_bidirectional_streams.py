"""Batches of sentences for both directions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from regard.data.batches import IGNORE
from regard.data.bidirectional_streams import (
    BidirectionalStreams,
    BidirectionalText,
    SeparateSentences,
)
from regard.errors import ConfigError

BOS, EOS, UNK, V = 1, 2, 3, 20
SENTENCES = [[5, 6, 7], [], [8], [25, 9], [10, 11, 12, 13]]  # 25 is an unknown word


def text(sentences=SENTENCES) -> BidirectionalText:
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
    batches = BidirectionalStreams(text(), batch_size=rows, sequence_length=steps)
    assert [batch.fresh for batch in batches] == [True] + [False] * (len(batches) - 1)
    found = collected(batches, rows)
    assert [step for stream in found for step in stream] == naive(SENTENCES)
    lengths = [len(stream) for stream in found]
    assert max(lengths) - min(lengths) <= 1
    assert sum(batch.count for batch in batches) == text().count == len(naive(SENTENCES))
    assert all((b.targets != IGNORE).sum() == 2 * b.count for b in batches)


def test_separate_sentences_hold_each_sentence_once():
    whole = SeparateSentences(text(), max_tokens=8)
    found = []
    for batch in whole:
        assert batch.fresh and batch.tokens.ids[: len(batch)].numel() <= 8
        found += collected([batch], len(batch))
    expected = [naive([one]) for one in SENTENCES if one]
    assert sorted(found) == sorted(expected)
    assert len(found[0]) == max(map(len, expected))


def test_streams_of_any_size_hold_every_sentence_once_and_in_order():
    draw = np.random.default_rng(0)
    for _ in range(40):
        lengths = draw.integers(0, 7, draw.integers(1, 9))
        sentences = [draw.integers(4, 30, length).tolist() for length in lengths]
        given = naive(sentences)
        if not given:
            continue
        rows, steps = int(draw.integers(1, len(given) + 1)), int(draw.integers(1, 9))
        made = BidirectionalStreams(text(sentences), batch_size=rows, sequence_length=steps)
        assert [s for stream in collected(made, rows) for s in stream] == given


def test_streams_restart_one_after_the_other():
    batches = BidirectionalStreams(text(), batch_size=3, sequence_length=1, restart_every=2)
    assert [batch.restarts.tolist() for batch in batches][:2] == [
        [True, False, True],
        [False, True, False],
    ]
    assert torch.equal(batches[1].to("cpu").restarts, batches[1].restarts)
    plain = BidirectionalStreams(text(), batch_size=3, sequence_length=1)
    assert plain[1].restarts is None and plain.identity() != batches.identity()
    with pytest.raises(ConfigError, match="`restart_every` must be at least 0"):
        BidirectionalStreams(text(), batch_size=3, sequence_length=1, restart_every=-1)
