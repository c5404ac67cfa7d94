"""Searching many sentences: their order, their batches and threads do not change results.

Tests of `regard.tasks.embedder` and `regard.tasks.encoding`.
"""

from __future__ import annotations

import multiprocessing
import random
import re
import threading
from contextlib import contextmanager
from typing import Any

import every_task
import numpy as np
import pytest
import torch
from tiny_folders import folder

from regard import decoding
from regard.attention.capture import muted
from regard.cli.console import with_progress
from regard.data.batches import Sequences
from regard.data.token_arrays import TokenArray
from regard.errors import RegardError
from regard.experiments import runs
from regard.models.conversions import prepare
from regard.models.transformer import Transformer, TransformerConfig
from regard.progress import Lines
from regard.tasks import batching
from regard.tasks.batching import computed, decode_in_order, watched, watching
from regard.visual.attention_record import look

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


def alone(model, method):
    return [decoding.generate(model, Sequences.of([row], 0), method)[0] for row in ROWS]


def assert_same(found, wanted):
    for several, others in zip(found, wanted, strict=True):
        for one, other in zip(several, others, strict=True):
            assert one.tokens == other.tokens
            assert one.score == pytest.approx(other.score, abs=1e-5)


def test_a_sentence_is_decoded_in_a_batch_as_alone(model, monkeypatch):
    monkeypatch.setattr(batching, "TOKENS_AT_ONCE", {"cpu": 100})
    method = decoding.options(max_tokens=12, beams=4)
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


def test_evaluation_tells_its_progress_where_stderr_is_no_terminal(monkeypatch, capsys):
    monkeypatch.setattr(Lines, "every", 0.0)
    with watching(lambda batches: with_progress(batches, "evaluating")):
        assert list(watched([1, 2])) == [1, 2]
    first, last = capsys.readouterr().err.splitlines()
    assert first.endswith("evaluating: 50% · 0:00 left") and "100%" in last


# ---- concurrent batches

# tasks of an encoder whose answers are made of the scores of one pass
BY_SCORES = (
    *("classification", "regression", "multi-label-classification"),
    *("tagging", "crf-tagging", "classification-gpt2", "classification-xlnet"),
    *("classification-transformer-xl", "classification-elmo", "tagging-elmo"),
)


@pytest.fixture
def two_threads(monkeypatch):
    """Two threads of torch, and batches at the same time also of few tokens."""
    before = torch.get_num_threads()
    monkeypatch.setattr(batching, "FEWEST_TOKENS", 8)
    torch.set_num_threads(2)
    yield
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


@contextmanager
def one_thread():
    """For a text alone, on which two threads mostly wait for each other."""
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(2)


@pytest.fixture
def threads(monkeypatch):
    """The threads in which batches were computed."""
    seen: set[threading.Thread] = set()
    barrier = threading.Barrier(2)  # passes when two batches are computed at the same time
    run = batching.computed

    def noted(compute, batches, concurrent):
        def at(batch):
            current = threading.current_thread()
            if current is not threading.main_thread() and current not in seen:
                seen.add(current)
                barrier.wait(20)
            return compute(batch)

        return run(at, batches, concurrent)

    monkeypatch.setattr(batching, "computed", noted)
    return seen


def drawn(count: int, words: list[str], most: int = 12) -> list[str]:
    draw = random.Random(count)
    return [" ".join(draw.choices(words, k=draw.randint(1, most))) for _ in range(count)]


@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_vectors_of_many_texts_equal_those_of_each(two_threads, threads, family, tmp_path):
    task = runs.load(folder(tmp_path / family, family, "Model"))
    texts = drawn(60, "a dog runs in the old park who sleeps".split())
    for per in ("sentence", "word"):
        together = task.embed(texts, granularity=per)
        assert len(threads) == 2
        threads.clear()
        with one_thread():
            for text, found in zip(texts, together, strict=True):
                np.testing.assert_allclose(found, task.embed(text, granularity=per), atol=1e-5)


@pytest.mark.parametrize("name", BY_SCORES)
def test_answers_to_many_texts_equal_those_to_each(two_threads, threads, name):
    torch.manual_seed(1)
    task = every_task.MAKERS[name]()
    texts = drawn(60, every_task.WORDS, 3)
    together = task.predict(texts, return_proba=True)
    assert len(threads) == 2
    with one_thread():
        for text, found in zip(texts, together, strict=True):
            (alone,) = task.predict([text], return_proba=True)
            assert str(alone.result) == str(found.result) or name.endswith("regression")
            assert scores_in(alone) == pytest.approx(scores_in(found), abs=1e-5)


def scores_in(one: Any) -> list[float]:
    """The numbers of an answer."""
    return [float(word) for word in re.findall(r"-?\d+\.\d+(?:e-\d+)?", repr(one))]


def test_captured_attention_is_computed_batch_by_batch(two_threads, threads):
    task = every_task.MAKERS["classification"]()
    with look(task.module) as maps:
        task.predict(drawn(60, every_task.WORDS, 3))
    assert not threads and maps.passes


@pytest.mark.parametrize("number", [0, 41, 59])
def test_the_text_whose_scores_are_not_finite_is_named(two_threads, number):
    task = every_task.MAKERS["classification"]()
    texts = drawn(60, [word for word in every_task.WORDS if word != "sun"], 3)
    assert len(task.predict(texts)) == 60
    (sun,) = task.tokenizer.encode("sun").ids
    task.encoder.embedding.weight.data[sun] = torch.nan
    texts[number] = "the sun"
    with pytest.raises(RegardError, match=rf"[Tt]ext {number + 1}\b"):
        task.predict(texts)


def test_no_more_batches_than_needed_are_computed_ahead(two_threads):
    begun: list[int] = []

    def compute(batch: int) -> int:
        begun.append(batch)
        return batch

    results = computed(compute, range(1000), 2)
    assert next(results) == 0
    threading.Event().wait(0.2)
    assert len(begun) <= 2 + 2 * batching.AHEAD
    results.close()
    assert [*computed(compute, range(100), 2)] == [*range(100)]


def test_threads_are_kept_and_another_process_has_its_own(two_threads):
    def threads_of(batches: int) -> set[int]:
        barrier = threading.Barrier(2)

        def compute(batch: int) -> int:
            barrier.wait(20)
            return threading.get_ident()

        return {*computed(compute, range(batches), 2)}

    assert threads_of(2) == threads_of(4)
    context = multiprocessing.get_context("fork")
    found = context.Queue()
    child = context.Process(target=lambda: found.put(len(threads_of(4))))
    child.start()
    assert found.get(timeout=60) == 2
    child.join(60)
    assert child.exitcode == 0
