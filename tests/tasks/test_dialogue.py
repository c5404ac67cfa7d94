"""Dialogues: their readers, replies, and perplexities with and without what was said before.

Tests of `regard.tasks.text_to_text`.
"""

from __future__ import annotations

import json
import math

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


def naive(task: DialogueModel, rows) -> tuple[float, int]:
    """Minus the log-probability of the replies, one by one, in float64."""
    config, encode = task.module.config, task.tokenizer.encode
    model, total, count = task.module.double(), 0.0, 0
    from regard.data.batches import Sequences

    with torch.no_grad():
        for history, reply in rows:
            source = Sequences.of([[*encode(history).ids, config.eos]], 0)
            target = [config.bos, *encode(reply).ids, config.eos]
            hidden = model(source, Sequences.of([target[:-1]], 0)).hidden
            scores = model.head.logits(hidden)[0].log_softmax(-1)
            total -= sum(float(scores[at, token]) for at, token in enumerate(target[1:]))
            count += len(target) - 1
    model.float()
    return total, count


@pytest.mark.parametrize("history", [None, 1])
@pytest.mark.parametrize("kind", ["decoder-only", "transformer"])
def test_perplexities_are_those_of_each_reply_alone(kind, history):
    task = task_of(kind, history=history)
    rows = tuples(replies(read_dialogues(TURNS), history))
    with_history, without = task.reference_scores(*zip(*rows, strict=True))
    for score, chosen in ((with_history, rows), (without, [("", reply) for _, reply in rows])):
        nats, count = naive(task, chosen)
        assert score.count == count
        assert score.value == pytest.approx(math.exp(nats / count), rel=1e-5)
    assert with_history.signature.split("|")[2] == f"history:{history or 'all'}"
    assert without.signature.split("|")[2] == "history:0"


def test_a_long_history_loses_its_beginning():
    task = task_of("decoder-only")
    limit = task.module.config.max_length
    words = " ".join(["a b c"] * limit)
    kept = " ".join((["a", "b", "c"] * limit)[-(limit - 1) :])
    one, other = (task.reference_scores([text], ["W: hi"])[0] for text in (words, kept))
    assert one == other
    assert task.reply([words]) == task.reply([kept])


def test_a_reply_reads_as_many_turns_as_the_model_was_trained_with(tmp_path):
    regard.save(task_of("transformer", history=2), tmp_path)
    task = regard.load(tmp_path)
    assert task.reply(["W: c", *TURNS[0]]) == task.generate(" ".join(TURNS[0][1:]))
    assert task_of("transformer").reply([]) == task_of("transformer").reply("")
