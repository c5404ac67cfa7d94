"""Beam search against enumeration, against a naive search, and its invariances."""

import pytest
import torch
from decoding_mocks import (
    Markov,
    Recurrent,
    batch,
    enumerate_all,
    naive_beam,
    sources,
)

from regard.decoding import (
    GNMT,
    Beam,
    Greedy,
    MinTokens,
    NoRepeatNGram,
    Power,
)
from regard.decoding.beam import _Search
from regard.decoding.filters import NEG_INF
from regard.errors import ConfigError


def markov(count=3, vocabulary=4, seed=1):
    random = torch.Generator().manual_seed(seed)
    return Markov((torch.randn(count, vocabulary, vocabulary, generator=random) * 1.5).softmax(-1))


def assert_same(found, expected):
    assert found.tokens == expected[1]
    assert found.finished == expected[2]
    assert found.score == pytest.approx(expected[0], abs=1e-9)


@pytest.mark.parametrize("penalty", [Power(0.0), Power(1.0), GNMT(0.6), Power(-0.5)])
def test_a_beam_as_wide_as_all_sequences_finds_the_best_sequence(penalty):
    model, longest = markov(), 4
    beam = Beam(size=4**longest, n_best=9, length_penalty=penalty, max_tokens=longest)
    found = beam.run(model, batch([[0], [1], [2]]))
    for which, hypotheses in enumerate(found):
        for hypothesis, expected in zip(
            hypotheses, enumerate_all(model, [which], longest, penalty), strict=False
        ):
            assert_same(hypothesis, expected)
        assert len(hypotheses) == 9


def rules(size, n_best, penalty, longest):
    def full(scores, running, length):
        return len(scores) == size

    def current(scores, running, length):
        return full(scores, running, length) and running / penalty(length) <= scores[-1]

    def exact(scores, running, length):
        reach = max(running / penalty(n) for n in range(length + 1, longest + 2))
        return len(scores) >= n_best and reach <= scores[n_best - 1]

    return {"full": (True, full), "current": (False, current), "exact": ("never", exact)}


@pytest.mark.parametrize("rule", ["full", "current", "exact"])
@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("penalty", [Power(1.0), Power(0.0), GNMT(0.6)])
def test_a_batch_equals_a_naive_search_of_each_sentence(rule, size, penalty):
    model, longest, n_best = Recurrent(eos_bias=2.0), 9, 2
    stopping, enough = rules(size, n_best, penalty, longest)[rule]
    rows = sources(7)
    found = Beam(size, n_best, penalty, stopping, max_tokens=longest).run(model, batch(rows))
    for row, hypotheses in zip(rows, found, strict=True):
        expected = naive_beam(model, row, size, longest, penalty, enough)[:n_best]
        assert len(hypotheses) == len(expected)
        for hypothesis, other in zip(hypotheses, expected, strict=True):
            assert_same(hypothesis, other)
            assert hypothesis.log_prob == pytest.approx(other[3], abs=1e-9)


@pytest.mark.parametrize("penalty", [Power(1.0), Power(0.0), Power(2.0), Power(-1.0), GNMT(1.0)])
def test_exact_stopping_finds_the_results_of_a_search_to_the_limit(penalty, monkeypatch):
    model, rows = Recurrent(eos_bias=2.5, seed=3), batch(sources(12, seed=3))
    beam = Beam(4, 3, penalty, "never", max_tokens=12)
    exact = beam.run(model, rows)
    monkeypatch.setattr(_Search, "_is_done", lambda self, running: running == NEG_INF)
    assert exact == beam.run(model, rows)


def test_sentences_that_are_done_leave_the_batch():
    class Counting(Recurrent):
        rows = 0

        def step(self, tokens, state):
            self.rows += len(tokens)
            return super().step(tokens, state)

    rows = sources(16)
    together, alone = Counting(eos_bias=3.0), 0
    Beam(4, max_tokens=30).run(together, batch(rows))
    for row in rows:
        model = Counting(eos_bias=3.0)
        Beam(4, max_tokens=30).run(model, batch([row]))
        alone += model.rows
    assert together.rows == alone  # no step was done for a sentence that had its result


@pytest.mark.parametrize("stopping", [True, False, "never"])
@pytest.mark.parametrize("penalty", [Power(1.0), GNMT(0.6), Power(3.0)])
@pytest.mark.parametrize("filters", [(), (MinTokens(3), NoRepeatNGram(2))])
def test_greedy_equals_a_beam_of_one(stopping, penalty, filters):
    model, rows = Recurrent(eos_bias=-1.0), batch(sources(40))
    beam = Beam(1, 1, penalty, stopping, filters, max_tokens=5)
    greedy = Greedy(penalty, filters, max_tokens=5).run(model, rows)
    assert beam.run(model, rows) == greedy
    assert any(h.finished for (h,) in greedy) and not all(h.finished for (h,) in greedy)


def test_equal_scores_are_ranked_by_the_lowest_token():
    uniform = Markov(torch.full((1, 5, 5), 0.2))
    found = Beam(3, 3, max_tokens=2).run(uniform, batch([[0], [0]]))
    assert [h.tokens for h in found[0]] == [[], [0, 0], [0, 1]]  # eos = 2 ends at once
    assert found[0] == found[1]
    assert Greedy(max_tokens=2).run(uniform, batch([[0]]))[0][0].tokens == [0, 0]


@pytest.mark.parametrize("method", [Greedy(max_tokens=20), Beam(4, 2), Beam(5, 5, GNMT(0.6))])
def test_batch_order_and_padding_do_not_change_results(method):
    model, rows = Recurrent(eos_bias=2.0, seed=5), sources(9, seed=5)
    together = method.run(model, batch(rows))
    assert method.run(model, batch(rows, extra=7)) == together
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).tolist()
    shuffled = method.run(model, batch([rows[at] for at in order]))
    for number, at in enumerate(order):
        (alone,) = method.run(model, batch([rows[at]]))
        for hypotheses in (alone, shuffled[number]):
            for one, other in zip(hypotheses, together[at], strict=True):
                assert one.tokens == other.tokens and one.finished == other.finished
                assert one.score == pytest.approx(other.score, abs=1e-12)


def test_the_prompt_counts_for_no_repeat_ngram_and_the_limit():
    class Prompted(Recurrent):
        continues = True

    model = Prompted(eos=None)
    model.config.max_length = 6
    prompts = batch([[3, 4, 5, 6], [7, 8]])
    for method in (Greedy(), Beam(3)):
        found = method.run(model, prompts)
        assert [len(h[0].tokens) for h in found] == [3, 5]
        assert not any(h[0].finished for h in found)
    once = (NoRepeatNGram(1),)
    model.config.max_length = None
    for method in (Greedy(filters=once), Beam(2, filters=once)):
        for prompt, ((found, *_)) in zip(
            ([3, 4, 5, 6], [7, 8]), method.run(model, prompts), strict=True
        ):
            assert sorted([*prompt, *found.tokens]) == list(range(12))  # then nothing is allowed
            assert not found.finished
    model.config.max_length = 3
    with pytest.raises(ConfigError, match="prompt of row 0 has 4 tokens, but this model"):
        Greedy().run(model, prompts)
