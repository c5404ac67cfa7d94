"""Losses beside the cross-entropy, and learning rates in proportion to the length of a batch."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from regard import load
from regard.data.batches import StreamBatch
from regard.errors import ConfigError
from regard.experiments import runs
from regard.models.recurrent import AwdLstm, AwdLstmConfig
from regard.tasks.language_modeling import TextGenerator
from regard.tasks.running_text import LMObjective

LINES = "the cat sat on the mat and the dog ran\nto the old house by the sea\n" * 12
OPTIONS = dict(
    task="language-modeling", batch_size=3, sequence_length=12, epochs=2, logging_steps=1,
    tokenizer=dict(kind="words", vocab_size=40), schedule=dict(name="constant"), progress=False,
    optimizer=dict(name="sgd", learning_rate=2.0, max_grad_norm=0.25),
)  # fmt: skip
SIZES = dict(name="awd-lstm", d_model=8, d_hidden=12, layers=2)


def train(folder: Path, text: str, **options) -> runs.Run:
    (folder / "text.txt").write_text(text)
    files = dict.fromkeys(("train", "valid"), folder / "text.txt")
    return runs.train(**OPTIONS | files | options)


def test_the_objective_is_the_published_one_and_its_gradient_too():
    """Cross-entropy + alpha mean(dropped^2) + beta mean((h_t - h_t+1)^2), in float64."""
    torch.manual_seed(1)
    model = AwdLstm(AwdLstmConfig(vocab_size=9, d_model=4, d_hidden=6, layers=2)).double().train()
    task = TextGenerator(model, SimpleNamespace(template=None))  # nothing else of it is read
    options = {"activation_regularization": 2.0, "temporal_activation_regularization": 1.0}
    task.auxiliary_losses = LMObjective(**options).losses(model)
    ids = torch.randint(9, (3, 8))
    batch = StreamBatch(ids[:, :-1], ids[:, 1:], fresh=True)
    counts = task.counts(batch)
    assert counts == {"loss": 21, "activation": 21, "temporal_activation": 18}
    torch.manual_seed(2)
    losses, _ = task.losses(batch, None)
    assert {name: count for name, (_, count) in losses.items()} == counts
    total = sum(one / count for one, count in losses.values())
    total.backward()
    found = [one.grad.clone() for one in model.parameters()]
    model.zero_grad()
    torch.manual_seed(2)
    output = model(batch.tokens)
    logits = output.hidden @ model.embedding.weight.T + model.head.bias
    raw = output.extras["undropped"]
    expected = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
    expected = expected + 2.0 * output.hidden.pow(2).mean()
    expected = expected + 1.0 * (raw[:, 1:] - raw[:, :-1]).pow(2).mean()
    expected.backward()
    torch.testing.assert_close(total, expected, atol=1e-6, rtol=1e-6)
    for one, parameter in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(one, parameter.grad, atol=1e-6, rtol=1e-5)
    model.eval()
    assert set(task.losses(batch, None)[0]) == {"loss"}  # validation has the likelihood alone
    single = StreamBatch(ids[:, :1], ids[:, 1:2], fresh=True)
    model.train()
    losses, _ = task.losses(single, None)
    assert losses["temporal_activation"][0] == 0 and task.counts(single)["temporal_activation"] == 0


def test_the_rate_of_each_batch_is_in_proportion_to_its_length(tmp_path):
    seen = []
    penalties = dict(activation_regularization=2, temporal_activation_regularization=1)
    objective = dict(variable_length=True, **penalties)
    options = dict(model=SIZES, objective=objective, out=tmp_path / "run")
    run = train(tmp_path, LINES, callbacks=[Rates(seen)], **options)
    task = runs.plan(runs.read_recipe(tmp_path / "run" / "recipe.toml")).task
    sampler, expected = task.train_batches(), []
    for _ in seen:
        expected.append(2.0 * next(sampler).tokens.size(1) / 12)
    assert seen == pytest.approx(expected) and len(set(seen)) > 3
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    logged = [line for line in lines if "train/loss" in line]
    assert all(line["train/temporal_activation"] > 0 for line in logged)
    assert all(line["train/activation"] > 0 for line in logged)


class Rates(runs.Callback):
    def __init__(self, seen):
        self.seen = seen

    def on_step(self, step):
        self.seen.append(step.learning_rate)


def test_a_backward_model_learns_and_reads_texts_from_their_end(tmp_path):
    run = train(tmp_path, LINES, model=SIZES | dict(backward=True), out=tmp_path / "run")
    task, line = load(run.folder), "the old cat sat"
    end, ids = task.tokenizer.eos_id, task.tokenizer.encode(line).ids
    stream = [i for text in LINES.splitlines() for i in (*task.tokenizer.encode(text).ids, end)]
    batch = next(runs.plan(runs.read_recipe(run.folder / "recipe.toml")).task.train_batches())
    for row in batch.tokens.flip(1).tolist():
        assert ",".join(map(str, row)) in ",".join(map(str, [end, *stream]))
    order = torch.tensor([[end, *ids, end]]).flip(1)
    shares = task.module.head.logits(task.module(order[:, :-1]).hidden)[0].log_softmax(-1)
    wanted = -shares.gather(1, order[0, 1:, None]).sum()
    assert task.evaluate([line]).named[0].nats == pytest.approx(float(wanted), rel=1e-6)
    best = task.module.head.logits(task.module(order[:, 1:-1]).hidden)[0, -1].argmax()
    assert task.generate(line, max_tokens=1) == f"{task.tokenizer.decode([int(best)])} {line}"
    for call in (lambda: list(task.stream("the")), lambda: task.lambada(["the cat"])):
        with pytest.raises(ConfigError, match="reads texts from their end"):
            call()
    assert math.isfinite(task.evaluate([line], neural_cache=5).named[0].value)
