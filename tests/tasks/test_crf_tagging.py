"""Tagging with a conditional random field: predictions over batches, windows and folders."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import regard
from regard.data.windows import WordWindows
from regard.layers.chart import CRF
from regard.metrics.entities import spans

sys.path.insert(0, str(Path(__file__).parents[1]))
import every_task  # noqa: E402

SENTENCES = [line.split() for line in every_task.lines(12)]


@pytest.fixture
def task():
    torch.manual_seed(1)
    made = every_task.encoder("crf-tagging")
    with torch.no_grad():
        made.module.head("crf").output.weight.mul_(20)  # many of the best tags would be ill-formed
        for parameter in made.crf.parameters():
            parameter.normal_()
    return made


def test_predicted_entities_are_well_formed_and_tags_have_their_probability(task):
    for one in task.predict(SENTENCES, return_proba=True):
        assert len(spans(one.tags)) == len(one.entities)
        before = "O"
        for tag in one.tags:
            assert not tag.startswith("I-") or before[2:] == tag[2:]
            before = tag
        assert all(0 < share <= 1 + 1e-4 for share in one.probabilities)


def test_the_tags_of_a_sentence_are_the_best_sequence_of_its_scores(task):
    """With the scores of the encoder, by enumeration of four words."""
    crf: CRF = task.crf
    words = "the old cat sat".split()
    (found,) = task.predict([words], return_proba=True)
    windows = WordWindows.of([words], task.input_format)
    ((_, read),) = task.passes(windows.inputs, [0])
    scores = read[0, windows.positions.ids].double()  # (4, O)
    best, labels = None, task.labels
    for path in torch.cartesian_prod(*[torch.arange(3)] * 4).tolist():
        tags = [labels[n] for n in path]
        steps = zip(["O", *tags], tags, strict=False)
        if any(tag.startswith("I-") and before[2:] != tag[2:] for before, tag in steps):
            continue
        value = (crf.start[path[0]] + crf.end[path[-1]]).item()
        value += sum(float(scores[n, tag]) for n, tag in enumerate(path))
        value += sum(crf.transitions[a, b].item() for a, b in zip(path, path[1:], strict=False))
        best = max(best or (value, tags), (value, tags))
    assert best is not None and list(found.tags) == best[1]


def test_a_sentence_is_tagged_the_same_alone_in_a_batch_and_from_a_folder(task, tmp_path):
    together = task.predict(SENTENCES, return_proba=True)
    regard.save(task, tmp_path / "tagger")
    loaded = regard.load(tmp_path / "tagger")
    assert loaded.name == "crf-tagging" and loaded.labels == task.labels
    for words, one in zip(SENTENCES, together, strict=True):
        (alone,), (again,) = (
            task.predict([words], return_proba=True),
            loaded.predict([words], return_proba=True),
        )
        assert alone.tags == one.tags == again.tags
        torch.testing.assert_close(
            torch.tensor(alone.probabilities), torch.tensor(one.probabilities), atol=1e-5, rtol=1e-5
        )


def test_a_sentence_longer_than_the_model_reads_is_tagged_in_windows(task):
    words = (every_task.WORDS * 4)[:60]
    (found,) = task.predict([words], return_proba=True)
    assert len(found.tags) == len(found.probabilities) == 60
