"""Span corruption as a task: training, what it stores, and errors that say what to do.

Tests of `regard.tasks.running_text`.
"""

from __future__ import annotations

import random

import pytest
from recipe_files import planned, with_documents

import regard
from regard.models.t5 import T5
from regard.tasks.span_corruption import SpanCorruption

WORDS = "the old cat sat on a warm mat and was sleeping in the sun".split()
RECIPE = dict(
    task="span-corruption",
    data=dict(train=["text.txt"], valid=0.1, source_length=24, batch_size=4),
    tokenizer=dict(kind="words", sentinels=8),
    model=dict(
        name="t5", size="small", d_model=16, d_ff=16, heads=2, head_dim=8, layers=1,
        decoder_layers=1,
    ),
    training=dict(max_steps=3),
)  # fmt: skip


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a text and a recipe."""
    draw = random.Random(1)
    documents = ["\n".join(" ".join(draw.choices(WORDS, k=9)) for _ in range(4)) for _ in range(40)]
    return with_documents(tmp_path, monkeypatch, documents, "spans.toml", RECIPE)


def test_a_run_trains_and_its_folder_finds_spans(here):
    trained = regard.train("spans.toml", progress=False)
    folder, result = trained.folder, trained.result
    assert result.scores.keys() == {"loss"} and result.scores["loss"] > 0
    task = regard.load(folder)
    assert isinstance(task, SpanCorruption) and isinstance(task.module, T5)
    first = task.tokenizer.vocab_size - 1
    assert task.sentinels == list(range(first, first - 8, -1))
    source = "the old <extra_id_0> on a warm <extra_id_1>"
    ids = task.tokenizer.encode(source).ids
    assert [i for i in ids if i in task.sentinels] == task.sentinels[:2]
    assert task._with_sentinels(ids) == source
    assert isinstance(task.predict(source, max_tokens=8), str)


@pytest.mark.parametrize("kind", ["words", "byte-bpe", "wordpiece"])
def test_texts_with_names_of_sentinels_take_none_away(here, kind):
    text = (here / "text.txt").read_text().replace(WORDS[0], "<extra_id_0>")
    (here / "text.txt").write_text(text.replace(WORDS[1], "<extra_id_2>"))
    changes = dict(tokenizer=dict(kind=kind, vocab_size=400), data=dict(source_length=40))
    task = planned("r.toml", RECIPE, changes).task
    assert len({*task.sentinels}) == 8
    for number, sentinel in enumerate(task.sentinels):
        assert task.tokenizer.encode(f"a <extra_id_{number}> b").ids.count(sentinel) == 1
