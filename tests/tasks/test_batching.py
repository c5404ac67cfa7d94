"""Searching many sentences: their order, their batches and threads do not change results."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from regard import decoding
from regard.attention.capture import muted
from regard.data import Sequences, TokenArray
from regard.models.conversions import prepare
from regard.models.transformer import Transformer, TransformerConfig
from regard.tasks import batching
from regard.tasks.batching import decode_in_order, watched, watching

ROWS = [[3 + (7 * i + j) % 90 for j in range(1 + i % 9)] + [2] for i in range(40)]


@pytest.fixture
def model():
    torch.manual_seed(1)
    config = TransformerConfig(
        101, d_model=32, d_ff=64, heads=2, encoder_layers=1, decoder_layers=2, max_length=64
    )
    model = Transformer(config).eval()
    model.embedding.weight.data.normal_(std=0.5)
    return model


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def alone(model, method):
    return [decoding.generate(model, Sequences.of([row], 0), method)[0] for row in ROWS]


def assert_same(found, wanted):
    for several, others in zip(found, wanted, strict=True):
        for one, other in zip(several, others, strict=True):
            assert one.tokens == other.tokens
            assert one.score == pytest.approx(other.score, abs=1e-5)


@pytest.mark.parametrize("name", [{"beams": 4}, {"beams": 1}])
def test_a_sentence_is_decoded_in_a_batch_as_alone(model, monkeypatch, name):
    monkeypatch.setattr(batching, "TOKENS_AT_ONCE", {"cpu": 100})
    method = decoding.options(max_tokens=12, **name)
    assert_same(decode_in_order(model, TokenArray.of(ROWS), method), alone(model, method))


@pytest.mark.usefixtures("some_kernels")  # whose results are bit-identical in any batch
def test_batches_are_decoded_in_parallel_threads(model, monkeypatch, two_threads):
    monkeypatch.setattr(batching, "TOKENS_AT_ONCE", {"cpu": 160})
    seen, generate = [], decoding.generate

    def listened(model, source, method):
        seen.append((torch.get_num_threads(), len(source)))
        return generate(model, source, method)

    method = decoding.options(max_tokens=12, beams=4)
    prepare(model, "bfloat16")
    wanted = alone(model, method)
    monkeypatch.setattr(decoding, "generate", listened)
    with muted():
        assert_same(decode_in_order(model.train(), TokenArray.of(ROWS), method), wanted)
    assert seen[0][0] == 2 and {threads for threads, _ in seen[1:]} == {1}
    assert len(seen) > 5 and sum(rows for _, rows in seen) == len(ROWS)
    assert torch.get_num_threads() == 2 and model.training


def test_an_error_in_one_batch_is_raised(model, monkeypatch, two_threads):
    monkeypatch.setattr(batching, "TOKENS_AT_ONCE", {"cpu": 160})
    prepare(model)
    calls = []

    def failing(model, source, method):
        calls.append(source)
        if len(calls) > 1:
            raise ValueError("this one")
        return [[] for _ in range(len(source))]

    monkeypatch.setattr(decoding, "generate", failing)
    with pytest.raises(ValueError, match="this one"):
        decode_in_order(model, TokenArray.of(ROWS), decoding.options(beams=4))
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("count", [1, 3, 17, 200, 1000])
def test_the_last_batches_are_split_into_smaller_ones(count):
    rows = np.random.default_rng(0).permutation(count)
    batches = [rows[start : start + 30] for start in range(0, count, 30)]
    found = batching.smaller_at_the_end(batches, 2)
    assert np.array_equal(np.concatenate(found), rows)
    sizes = [len(batch) for batch in found]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] <= 30 and min(sizes) > 0
    # Whoever is late by a batch is late by little.
    assert sizes[-1] <= batching.SMALLEST


def test_watching_passes_each_iteration_to_the_watcher_once():
    seen = []

    def watcher(batches):
        seen.append(len(batches))
        yield from batches

    assert list(watched([1, 2])) == [1, 2] and seen == []
    with watching(watcher):
        assert list(watched([1, 2])) == [1, 2]
    assert list(watched([3])) == [3] and seen == [2]
