"""Dialogues: their readers, replies, and perplexities with and without what was said before.

Tests of `regard.tasks.text_to_text`.
"""

from __future__ import annotations

import json

import pytest
import torch

from regard.data.datasets.records import Turns, read_dialogues
from regard.models.composed import DecoderOnly
from regard.models.gpt2 import GPT2, GPT2Config
from regard.tasks.pair_tasks import DialogueModel
from regard.text import train

TURNS = [
    ["M: hello there", "W: hi", "M: how are you"],
    ["W: a b c", "M: c b a", "W: a", "M: b", "W: c c"],
    ["M: only one turn"],
]
FORMS = {
    "dream.json": json.dumps([[turns, [{"question": "?"}], "id"] for turns in TURNS]),
    "lists.json": json.dumps(TURNS),
    "lists.jsonl": "".join(json.dumps({"turns": turns}) + "\n" for turns in TURNS),
    "speakers.jsonl": "".join(
        json.dumps({"turns": [
            dict(zip(("speaker", "text"), turn.split(": ", 1), strict=True)) for turn in turns
        ]}) + "\n" for turns in TURNS
    ),
    "roles.json": json.dumps([
        {"turns": [dict(zip(("role", "content"), t.split(": ", 1), strict=True)) for t in turns]}
        for turns in TURNS
    ]),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_every_form_gives_the_same_turns(name, tmp_path):
    (tmp_path / name).write_text(FORMS[name])
    found = [list(dialogue.turns) for dialogue in read_dialogues(tmp_path / name)]
    assert found == TURNS == [[*one.turns] for one in read_dialogues(TURNS)]
    assert [one.turns for one in read_dialogues([Turns(("a", "b"))])] == [("a", "b")]


WORDS = [" ".join(turns) for turns in TURNS]


def task_of():
    torch.manual_seed(0)
    tokenizer = train("words", WORDS, 40)
    sizes = dict(d_model=16, heads=2, pad=0, bos=tokenizer.bos_id, eos=tokenizer.eos_id)
    config = GPT2Config(tokenizer.vocab_size, layers=2, max_length=64, **sizes)
    model = DecoderOnly.of(GPT2(config), "gpt2")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return DialogueModel(model.eval(), tokenizer)


def test_a_long_history_loses_its_beginning():
    task = task_of()
    limit = task.module.config.max_length
    words = " ".join(["a b c"] * limit)
    kept = " ".join((["a", "b", "c"] * limit)[-(limit - 1) :])
    assert task.reply([words]) == task.reply([kept])
