"""Samples have the right distribution and depend only on their own text and seed."""

import pytest
import torch
from decoding_mocks import Markov, Recurrent, batch, next_log_probs, sources

from regard.decoding import Greedy, Sampling, Streaming, Temperature, TopK


def test_a_sample_does_not_depend_on_the_batch():
    model, rows = Recurrent(seed=2), sources(9)
    method = Sampling((Temperature(1.2),), samples=3, seed=7, max_tokens=12)
    together = method.run(model, batch(rows))
    padded = method.run(model, batch(rows, extra=4))
    reverse = method.run(model, batch(rows[::-1]))[::-1]
    for at, row in enumerate(rows):
        (alone,) = method.run(model, batch([row]))
        (fewer,) = Sampling(method.filters, 1, 7, max_tokens=12).run(model, batch([row]))
        for other in (padded[at], reverse[at], alone, fewer):
            for one, two in zip(other, together[at], strict=other is not fewer):
                assert one.tokens == two.tokens
                assert one.score == pytest.approx(two.score, abs=1e-12)
    texts = [tuple(h.tokens) for hypotheses in together for h in hypotheses]
    assert len(set(texts)) > len(texts) // 2  # rows and samples differ from each other
    other = Sampling(method.filters, 3, 8, max_tokens=12).run(model, batch(rows))
    assert [h.tokens for each in other for h in each] != list(map(list, texts))


def test_frequencies_of_samples_are_close_to_the_probabilities():
    table = torch.tensor([[0.5, 0.0, 0.2, 0.3]]).expand(1, 4, 4)
    (found,) = Sampling(samples=4000, max_tokens=1).run(Markov(table), batch([[0]]))
    drawn = [h.tokens[0] if h.tokens else 2 for h in found]
    share = torch.bincount(torch.tensor(drawn), minlength=4) / 4000
    assert share[1] == 0
    assert torch.allclose(share, table[0, 0], atol=0.03)  # four standard deviations


def test_the_log_probability_is_that_before_filters():
    model, row = Recurrent(), [3, 4]
    method = Sampling((Temperature(3.0), TopK(4)), samples=5, max_tokens=6)
    for found in method.run(model, batch([row]))[0]:
        tokens = [*found.tokens, 2] if found.finished else found.tokens
        total = sum(next_log_probs(model, row, tokens[:at])[t] for at, t in enumerate(tokens))
        assert found.log_prob == pytest.approx(total, abs=1e-9)
        assert found.score == pytest.approx(total / len(tokens), abs=1e-9)


def test_streaming_yields_before_the_next_step_is_computed():
    class Counting(Recurrent):
        steps = 0

        def step(self, tokens, state):
            self.steps += 1
            return super().step(tokens, state)

    model = Counting(eos_bias=-50.0)
    stream = iter(Streaming(model, batch([[3]]), Greedy(max_tokens=5)))
    for expected in (1, 2, 3):
        next(stream)
        assert model.steps == expected
    assert torch.is_grad_enabled()  # a suspended stream leaves the reader's gradients alone
