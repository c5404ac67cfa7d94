"""Forward and backward classifiers: each trained as its own, their probabilities averaged."""

from __future__ import annotations

import pytest
import torch

from regard import load, train
from regard.errors import ConfigError
from regard.tasks.classifier_ensemble import ClassifierEnsemble

ROWS = [("w1 w2 w3", "a"), ("w4 w5 w3", "b"), ("w1 w6 w2", "a"), ("w5 w6 w4", "b")]


def trained(folder, **options):
    model = dict(name="awd-lstm", d_model=8, d_hidden=12, layers=2, inner=6)
    return load(
        train(
            task="classification", train=ROWS * 4, valid=ROWS, epochs=3, progress=False,
            tokenizer=dict(kind="words", vocab_size=30), model=model | options,
            out=folder, batch_size=4, learning_rate=0.02, schedule={"name": "constant"},
        ).folder
    )  # fmt: skip


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    return trained(folder / "forward"), trained(folder / "backward", backward=True)


def test_probabilities_are_the_mean_of_both(two):
    forward, backward = two
    assert backward.module.encoder.config.backward and not forward.module.encoder.config.backward
    texts = [text for text, _ in ROWS]
    both = ClassifierEnsemble(two)
    found = both.predict(texts, return_proba=True)
    for one, first, second in zip(
        found, *(t.predict(texts, return_proba=True) for t in two), strict=True
    ):
        for label in ("a", "b"):
            mean = (first.probabilities[label] + second.probabilities[label]) / 2
            assert one.probabilities[label] == pytest.approx(mean, abs=1e-6)
        assert one.probabilities[one.label] == max(one.probabilities.values())
    accuracy = both.evaluate(ROWS).named[0]
    right = sum(
        label == expected for label, (_, expected) in zip(both.predict(texts), ROWS, strict=True)
    )
    assert accuracy.name == "accuracy" and accuracy.value == right / len(ROWS)


def test_labels_in_another_order_are_put_in_order(two):
    forward = two[0]
    turned = load_copy(forward)
    texts = [text for text, _ in ROWS]
    torch.testing.assert_close(
        ClassifierEnsemble([forward, turned]).probabilities(texts),
        ClassifierEnsemble([forward]).probabilities(texts),
    )


def load_copy(task):
    """The same classifier with its labels, and the rows of its output, in the other order."""
    import copy

    made = copy.deepcopy(task)
    made.labels = task.labels[::-1]
    with torch.no_grad():
        for parameter in made.module.heads["classes"].output.parameters():
            parameter.copy_(parameter.flip(0).clone())
    return made


def test_no_classifier_or_other_labels_are_an_error(two):
    import copy

    other = copy.deepcopy(two[0])
    other.labels = ("a", "c")
    with pytest.raises(ConfigError, match="must have the same labels"):
        ClassifierEnsemble([two[0], other])
    with pytest.raises(ConfigError, match="at least one classifier"):
        ClassifierEnsemble([])
