"""NT-ASGD against a loop written out (Merity et al. 2018, algorithm 1); stopping and going on."""

from __future__ import annotations

import copy

import pytest
import torch
from toy import Toy, averaged, options

from regard.checkpoints.store import read_tensors
from regard.training.callbacks import Callback
from regard.training.options import (
    AveragingOptions,
    CheckpointOptions,
    OptimizerOptions,
    ValidationOptions,
)
from regard.training.run import train


class Naive:
    """Plain SGD with clipping, on the toy's batches; the mean in float64."""

    def __init__(self, rate: float, clip: float, every: int, interval: int):
        self.task, self.rate, self.clip = Toy(dropout=0.0), rate, clip
        self.every, self.interval = every, interval
        self.batches, self.carry = self.task.train_batches(), None
        self.weights = list(self.task.module.parameters())
        self.logs: list[float] = []
        self.sums: list[torch.Tensor] | None = None
        self.count, self.begun_at, self.best = 0, None, (float("inf"), None)

    def step(self):
        batch = next(self.batches)
        losses, self.carry = self.task.losses(batch, self.carry)
        loss, count = losses["loss"]
        grads = torch.autograd.grad(loss / count, self.weights)
        norm = torch.stack([g.double().norm() for g in grads]).norm().float()
        scale = min(1.0, self.clip / (norm.item() + 1e-6))
        with torch.no_grad():
            for weight, grad in zip(self.weights, grads, strict=True):
                weight -= self.rate * scale * grad
        if self.sums is not None:
            self.sums = [s + w.double() for s, w in zip(self.sums, self.weights, strict=True)]
            self.count += 1

    def mean(self):
        return [(s / self.count).float() for s in self.sums]

    def validate(self, step: int):
        raw = [w.detach().clone() for w in self.weights]
        measured = raw if self.sums is None else self.mean()
        self.fill(measured)
        with torch.no_grad():
            value = self.task.validate()["loss"]
        if value < self.best[0]:
            self.best = value, [w.clone() for w in measured]
        self.fill(raw)
        t = len(self.logs)
        if self.sums is None and t > self.interval and value > min(self.logs[: t - self.interval]):
            self.sums, self.count, self.begun_at = [w.double() for w in raw], 1, step
        self.logs.append(value)
        return value

    @torch.no_grad()
    def fill(self, values):
        for weight, value in zip(self.weights, values, strict=True):
            weight.copy_(value)


class Scores(Callback):
    def __init__(self):
        self.seen = []

    def on_validation(self, step, scores):
        self.seen.append(scores["loss"])


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A run and the naive loop, 60 steps with a validation after every four."""
    torch.set_num_threads(1)
    naive = Naive(rate=5.0, clip=0.25, every=4, interval=2)
    values = []
    for step in range(1, 61):
        naive.step()
        if step % 4 == 0:
            values.append(naive.validate(step))
    folder, scores, task = tmp_path_factory.mktemp("nt") / "run", Scores(), Toy(dropout=0.0)
    result = train(
        task, averaged(gradient_accumulation_steps=1), folder, progress=False, callbacks=[scores]
    )
    return naive, values, folder, scores.seen, task, result


def test_scores_are_those_of_the_naive_loop_before_and_after_the_trigger(compared):
    naive, values, folder, seen, task, _ = compared
    assert 12 <= naive.begun_at <= 48  # the trigger comes, and validations follow it
    assert seen == pytest.approx(values, abs=1e-5)


def test_the_training_goes_on_with_the_raw_weights_and_the_mean_is_published(compared):
    naive, values, folder, seen, task, result = compared
    checkpoint = sorted((folder / "checkpoints").iterdir())[-1]
    raw = read_tensors(checkpoint / "weights.safetensors")
    mean = read_tensors(checkpoint / "averaged.safetensors")
    names = [name for name, _ in naive.task.module.named_parameters()]
    for name, weight, expected in zip(names, naive.weights, naive.mean(), strict=True):
        torch.testing.assert_close(raw[name], weight.detach(), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(mean[name], expected, atol=1e-5, rtol=1e-4)
        assert not torch.allclose(raw[name], mean[name], atol=1e-3)
    best = min(seen)
    assert result.best == best and naive.best[0] == pytest.approx(best, abs=1e-5)
    published = read_tensors(folder / "model" / "model.safetensors")
    for name, expected in zip(names, naive.best[1], strict=True):
        torch.testing.assert_close(published[name], expected, atol=1e-5, rtol=1e-4)
    again = Toy(dropout=0.0)
    again.module.load_state_dict(published, strict=False)  # the tied output is stored once
    with torch.no_grad():
        assert again.validate()["loss"] == pytest.approx(best, abs=1e-6)


def test_a_mean_from_the_start_is_that_of_all_weights_and_of_the_first(tmp_path):
    task, seen = Toy(dropout=0.0), []
    first = copy.deepcopy(list(task.module.parameters()))

    class Keep(Callback):
        def on_step(self, step):
            seen.append([w.detach().double().clone() for w in task.module.parameters()])

    chosen = options(
        max_steps=9, gradient_accumulation_steps=1,
        checkpoints=CheckpointOptions(save_steps=9, save_seconds=0),
        validation=ValidationOptions(eval_steps=9), averaging=AveragingOptions(start=4),
        optimizer=OptimizerOptions("sgd", 1.0),
    )  # fmt: skip
    train(task, chosen, tmp_path / "run", progress=False, callbacks=[Keep()])
    published = read_tensors(tmp_path / "run" / "model" / "model.safetensors")
    assert len(first) == len(seen[0])
    for n, (name, _) in enumerate(task.module.named_parameters()):
        expected = torch.stack([one[n] for one in seen[3:]]).mean(0)
        torch.testing.assert_close(published[name].double(), expected, atol=1e-6, rtol=1e-5)
