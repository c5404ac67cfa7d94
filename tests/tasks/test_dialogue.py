"""Dialogues: their readers, replies, and perplexities with and without what was said before.

Tests of `regard.tasks.text_to_text`.
"""

from __future__ import annotations

import json

import pytest
import torch
from row_tuples import tuples

import regard
from regard.data.datasets.records import Turns, read_dialogues, replies
from regard.models.composed import DecoderOnly
from regard.models.gpt2 import GPT2, GPT2Config
from regard.models.transformer import Transformer, TransformerConfig
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


@pytest.mark.parametrize("history, wanted", [
    (None, ["", "M: hello there", "M: hello there W: hi"]),
    (1, ["", "M: hello there", "W: hi"]), (0, ["", "", ""]), (9, ["", "M: hello there",
                                                               "M: hello there W: hi"]),
])  # fmt: skip
def test_replies_have_the_turns_before_them(history, wanted):
    rows = tuples(replies(read_dialogues(TURNS[:1]), history))
    assert rows == list(zip(wanted, TURNS[0], strict=True))


WORDS = [" ".join(turns) for turns in TURNS]


def task_of(kind: str, **options):
    torch.manual_seed(0)
    tokenizer = train("words", WORDS, 40)
    sizes = dict(d_model=16, heads=2, pad=0, bos=tokenizer.bos_id, eos=tokenizer.eos_id)
    if kind == "decoder-only":
        config = GPT2Config(tokenizer.vocab_size, layers=2, max_length=64, **sizes)
        model = DecoderOnly.of(GPT2(config), "gpt2")
    else:
        layers = dict(encoder_layers=1, decoder_layers=1)
        model = Transformer(TransformerConfig(tokenizer.vocab_size, d_ff=16, **layers, **sizes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return DialogueModel(model.eval(), tokenizer, **options)


def test_a_long_history_loses_its_beginning():
    task = task_of("decoder-only")
    limit = task.module.config.max_length
    words = " ".join(["a b c"] * limit)
    kept = " ".join((["a", "b", "c"] * limit)[-(limit - 1) :])
    assert task.reply([words]) == task.reply([kept])


def test_a_reply_reads_as_many_turns_as_the_model_was_trained_with(tmp_path):
    regard.save(task_of("transformer", history=2), tmp_path)
    task = regard.load(tmp_path)
    assert task.reply(["W: c", *TURNS[0]]) == task.generate(" ".join(TURNS[0][1:]))
    assert task_of("transformer").reply([]) == task_of("transformer").reply("")
