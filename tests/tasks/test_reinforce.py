"""REINFORCE of hard attention against the exact expectation over all samples, in float64."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from tiny_runs import options_of

import regard
from regard.attention import selection
from regard.data.batches import IGNORE, PairBatch, Sequences
from regard.errors import ConfigError
from regard.models.protocols import Output
from regard.models.seq2seq import Seq2Seq, Seq2SeqConfig
from regard.tasks.reinforce import Reinforce, RewardMean, token_log_probs
from regard.tasks.text_to_text import TextToTextObjective, text_to_text_output

WORDS, SOURCE, TARGET = 7, [3, 4, 5], [1, 5, 3, 2]
STEPS = len(TARGET) - 1


def tiny(**options):
    torch.manual_seed(3)
    form = {"attention": "general", "selection": "hard", "expected_share": 0.0} | options
    model = Seq2Seq(Seq2SeqConfig(WORDS, d_model=4, layers=1, dropout=0.0, **form)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    return model.train()


def pairs(sources=(SOURCE,), targets=(TARGET,)):
    return PairBatch(Sequences.of(list(sources), 0), Sequences.of(list(targets), 0))


@pytest.fixture
def choose(monkeypatch):
    """Makes the model take these source positions, one a step."""

    def chosen(choices):
        left = iter(choices)
        take = lambda weights, number: torch.full(weights.shape[:-1], next(left))  # noqa: E731
        monkeypatch.setattr(selection, "weighted_index", take)

    return chosen


def log_likelihoods(model, choose, choices):
    """log p(choices), and log p(target | choices), both of the whole sequence."""
    choose(choices)
    output, targets = text_to_text_output(model, pairs())
    log_probs = model.head.logits(output.hidden).log_softmax(-1)
    target = log_probs.gather(-1, targets[..., None]).sum()
    return output.extras[selection.CHOICE_LOG_PROBS].sum(), target


def expectation(model, choose):
    """-E[log p(target | choices)], over all choices."""
    total, mass = torch.zeros(()).double(), 0.0
    for choices in itertools.product(range(len(SOURCE)), repeat=STEPS):
        prior, target = log_likelihoods(model, choose, choices)
        total, mass = total - prior.exp() * target, mass + float(prior.detach().exp())
    assert mass == pytest.approx(1.0)
    return total


@pytest.mark.parametrize("window", ["global", "local-p"])
def test_the_expected_gradient_is_that_of_the_exact_expectation(choose, window):
    model = tiny(window=window)
    gradients = {name: torch.zeros_like(one) for name, one in model.named_parameters()}
    reinforce, before = Reinforce(1.0, 0.0), RewardMean(torch.tensor([-0.7]).double())
    for choices in itertools.product(range(len(SOURCE)), repeat=STEPS):
        choose(choices)
        output, targets = text_to_text_output(model, pairs())
        probability = output.extras[selection.CHOICE_LOG_PROBS].sum().exp().detach()
        loss, _ = model.head.loss(output.hidden.flatten(0, 1), targets.flatten())
        term, _ = reinforce.loss(model, output, targets, before)
        found = torch.autograd.grad(loss + term, list(model.parameters()))
        for (name, total), one in zip(gradients.items(), found, strict=True):
            gradients[name] = total + probability * one
    exact = expectation(model, choose)
    wanted = torch.autograd.grad(exact, list(model.parameters()), materialize_grads=True)
    torch.testing.assert_close([*gradients.values()], list(wanted))
    ways, ends = [torch.randn_like(one) for one in model.parameters()], []
    with torch.no_grad():  # what autograd says is what the expectation does
        for step in (1e-6, -2e-6):
            for parameter, way in zip(model.parameters(), ways, strict=True):
                parameter += step * way
            ends.append(expectation(model, choose))
    slope = sum((one * way).sum() for one, way in zip(wanted, ways, strict=True))
    torch.testing.assert_close(slope, (ends[0] - ends[1]) / 2e-6, atol=1e-7, rtol=1e-5)
    score = gradients["decoder.score.key.weight"]
    assert score.abs().max() > 1e-3  # the part that only REINFORCE gives


def test_the_loss_equals_its_formula_with_padding():
    model = tiny()
    batch = pairs([SOURCE, [4, 6]], [TARGET, [1, 6, 2]])
    torch.manual_seed(1)
    output, targets = text_to_text_output(model, batch)
    assert targets[1].tolist()[-1] == IGNORE
    choices = output.extras[selection.CHOICE_LOG_PROBS]
    entropies = output.extras[selection.CHOICE_ENTROPY]
    reinforce, before = Reinforce(0.5, 0.3, 0.8), RewardMean(torch.tensor([-1.5]).double())
    found, after = reinforce.loss(model, output, targets, before)
    expected, rewards = 0.0, []
    log_probs = model.head.logits(output.hidden).log_softmax(-1)
    for row, count in ((0, 3), (1, 2)):
        own = [log_probs[row, t, targets[row, t]].item() for t in range(count)]
        rewards += own
        for t in range(count):
            advantage = sum(own[t:]) + 1.5 * (count - t)
            expected -= 0.5 * advantage * choices[row, t] + 0.3 * entropies[row, t]
    torch.testing.assert_close(found, expected)
    assert float(after.mean) == pytest.approx(0.8 * -1.5 + 0.2 * sum(rewards) / len(rewards))
    _, first = reinforce.loss(model, output, targets, None)
    mean = sum(rewards) / len(rewards)
    assert float(first.mean) == pytest.approx(-0.8 * math.log(WORDS) + 0.2 * mean)


def test_rewards_are_the_log_probabilities_of_the_targets_and_have_no_gradient():
    model = tiny()
    hidden = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([[1, 2, 3], [4, IGNORE, IGNORE]])
    found = token_log_probs(model, hidden, targets)
    expected = model.head.logits(hidden).log_softmax(-1).gather(-1, targets.clamp(min=0)[..., None])
    torch.testing.assert_close(found, expected[..., 0].detach())
    assert not found.requires_grad
    assert token_log_probs(model, hidden[:0], targets[:0]).shape == (0, 3)


def test_options_of_reinforce_belong_to_models_that_draw():
    hard, soft = tiny(), tiny(selection="soft", expected_share=None)
    assert Reinforce.of(soft) is None and Reinforce.of(hard) == Reinforce(0.2, 0.1, 0.9)
    given = TextToTextObjective(reinforce_weight=0.5, baseline_decay=0.5)
    assert Reinforce.of(hard, given) == Reinforce(0.5, 0.1, 0.5)
    with pytest.raises(ConfigError, match=r"\[objective\] `reinforce_weight`.*draws choices"):
        Reinforce.of(soft, given)
    assert isinstance(text_to_text_output(soft, pairs())[0], Output)


def test_options_of_reinforce_reach_the_training(tmp_path):
    hard = dict(name="lstm-seq2seq", d_model=8, layers=1, attention="general", selection="hard")
    for weights in ({}, dict(reinforce_weight=0.0, choice_entropy_weight=0.0)):
        options = options_of("translation") | dict(model=hard, logging_steps=1, **weights)
        run = regard.train(out=tmp_path / str(len(weights)), **options)
        logged = [event["train/reinforce"] for event in run.history if "train/reinforce" in event]
        assert logged and any(logged) == (not weights)
