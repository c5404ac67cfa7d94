"""Prompts that join and leave a batch have the tokens that they have alone."""

from __future__ import annotations

import random

import pytest
import torch

from regard.data.batches import Sequences
from regard.decoding import (
    GNMT,
    ForcedEnd,
    Greedy,
    PrefixCache,
    Sampling,
    TopK,
    TotalLimit,
    generate,
    options,
)
from regard.decoding.continuous import CHUNK, ContinuousBatch
from regard.decoding.steps import NonFiniteStep
from regard.models import model_class

VOCAB = 60
SIZES = {
    "gpt2": dict(bos=1, eos=2, d_model=32, heads=2, layers=2, max_length=400),
    "llama": dict(bos=1, eos=2, d_model=32, heads=4, layers=2, max_length=400),
    "lstm-lm": dict(d_model=24, layers=2),
    "awd-lstm": dict(d_model=16, d_hidden=24, layers=2),
}
METHODS = (
    options(max_tokens=12),
    options(max_tokens=30, temperature=0.8, seed=3),
    options(max_tokens=9, samples=3, top_k=5, seed=1),
    options(max_tokens=20, top_p=0.9, temperature=1.3),
    options(max_tokens=15, no_repeat_ngram=2, min_tokens=4),
    options(max_length_a=1.0, max_length_b=2),
    Greedy(max_tokens=30, ends=(lambda prompt: lambda token: token % 7 == len(prompt) % 7,)),
    Sampling((TopK(9), ForcedEnd((2,))), 2, 4, GNMT(0.6), TotalLimit(CHUNK + 44), eos=(2, 9)),
)


def model_of(name):
    torch.manual_seed(4)
    kind = model_class(name)
    model = kind(kind.Config(vocab_size=VOCAB, **SIZES[name])).eval()
    for parameter in model.parameters():
        parameter.data *= 3  # so that few tokens are equally probable
    return model


def requests_of(seed, count=14, latest=24):
    """Prompts, their methods, and at which step they join, the latest at `latest`."""
    draw = random.Random(seed)
    prompts = [
        [draw.randrange(3, VOCAB) for _ in range(draw.choice((0, 1, 2, 7, 20, CHUNK + 40)))]
        for _ in range(count)
    ]
    return [(ids, draw.choice(METHODS), draw.randrange(latest + 1)) for ids in prompts]


def alone(model, ids, method):
    return generate(model, Sequences.of([ids], model.config.pad), method)[0]


def continued(batch, requests, leaves=()):
    """The hypotheses of each request, which joins after so many steps."""
    found, joined, step = {}, {}, 0
    while len(found) + len(leaves) < len(requests) or batch:
        for number, (ids, method, at) in enumerate(requests):
            if at <= step and number not in joined.values():
                joined[batch.join(ids, method)] = number
        for one, number in list(joined.items()):
            if number in leaves and one.count >= 3:
                batch.leave(one)
        for one, _ in batch.advance():
            if not one.rows:
                found[joined[one]] = one.hypotheses
        step += 1
        assert step < 2000
    return found


def equal(found, expected):
    assert [one.tokens for one in found] == [one.tokens for one in expected]
    assert [one.finished for one in found] == [one.finished for one in expected]
    for name in ("log_prob", "score"):
        numbers = [getattr(one, name) for one in expected]
        assert [getattr(one, name) for one in found] == pytest.approx(numbers, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("name, latest", [("gpt2", 0), *((name, 24) for name in SIZES)])
def test_continuations_equal_those_of_each_prompt_alone(name, latest):
    model, requests = model_of(name), requests_of(1 + latest, latest=latest)
    found = continued(ContinuousBatch(model), requests)
    for number, (ids, method, _) in enumerate(requests):
        equal(found[number], alone(model, ids, method))


@pytest.mark.parametrize("budget", [2**24, 2**14, 1])
def test_a_prefix_cache_counts_and_computes_each_token_of_a_long_prompt_once(budget):
    model, computed, draw = model_of("gpt2"), [], random.Random(3)
    read = lambda module, inputs, output: computed.append(inputs[0].numel())  # noqa: E731
    cache, tokens = PrefixCache(model, budget), 0
    begin = [draw.randrange(3, VOCAB) for _ in range(2 * CHUNK)]
    for number in range(1, 9):
        start = begin[: draw.choice([0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK])]
        prompt = [*start, *(draw.randrange(3, VOCAB) for _ in range(draw.randint(2, CHUNK)))]
        expected = alone(model, prompt, METHODS[0])
        hook, batch = model.embedding.register_forward_hook(read), ContinuousBatch(cache)
        continuation = batch.join(prompt, METHODS[0])
        while batch.reading:
            batch.advance()
        tokens += len(prompt) - 1
        assert (cache.prompts, cache.tokens) == (number, tokens)
        # The last step has read the last token of each prompt.
        assert sum(computed) == cache.tokens - cache.reused + number
        hook.remove()
        while batch:
            batch.advance()
        equal(continuation.hypotheses, expected)
    assert cache.bytes <= budget
    assert (cache.reused > 0) == (budget > 1)


def test_scores_that_are_no_numbers_end_the_continuation_that_they_are_of():
    kind = model_class("lstm-lm")
    model = kind(kind.Config(vocab_size=VOCAB, d_model=16, tied=False)).eval()
    model.embedding.weight.data[9] = float("nan")
    batch = ContinuousBatch(model)
    bad, good = batch.join([5, 9], METHODS[0]), batch.join([5, 6], METHODS[0])
    errors = {}
    while batch:
        errors |= {one: got for one, got in batch.advance() if isinstance(got, NonFiniteStep)}
    assert errors.keys() == {bad} and "NaN" in str(errors[bad])
    equal(good.hypotheses, alone(model, [5, 6], METHODS[0]))
