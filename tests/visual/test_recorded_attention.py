"""What was recorded at a position, and what it was predicted from."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import regard
from regard.attention.capture import label
from regard.data import Sequences
from regard.models import MODELS, model_class
from regard.models.protocols import Encoder
from regard.models.xlnet import Xlnet, XlnetConfig
from regard.tasks.language_modeling import TextGenerator
from regard.text import train
from regard.visual import Panel

TEXTS = [[5, 6, 7, 8, 9, 10], [11, 12, 13], [14]]
SIZES = dict(d_model=16, d_ff=16, heads=2, layers=2, encoder_layers=2, decoder_layers=2, pad=0)
LIMITS = dict(bos=1, eos=2, max_length=64, memory_length=3)
WITHOUT_ATTENTION = ("lstm-lm", "awd-lstm", "elmo", "bilstm", "kim-cnn")
ENCODERS = [
    name
    for name in MODELS
    if issubclass(model_class(name), Encoder) and name not in WITHOUT_ATTENTION
]
READ_TWICE = {"bart-as-encoder": 1, "mbart-as-encoder": -1}  # whose token starts the second reading
WITH_MEMORY = ("transformer-xl", "sega-transformer-xl", "compressive-transformer", "xlnet")


def small(name: str) -> Any:
    kind: Any = model_class(name)
    known = kind.Config.__dataclass_fields__
    torch.manual_seed(1)
    given = {key: value for key, value in (SIZES | LIMITS).items() if key in known}
    model = kind(kind.Config(40, **given)).eval()
    with torch.no_grad():
        for weights in model.parameters():
            weights.add_(torch.randn_like(weights), alpha=0.2)
    return model


def word(number: int) -> str:
    return f"t{number}"


def panels_of(model: Any, rows: list[list[int]]) -> list[Panel]:
    with regard.look(model) as attention, torch.no_grad():
        model.label_texts(rows, word)
        model.encode(Sequences.of(rows, 0))
    return list(attention.plot().panels)


@pytest.mark.parametrize("name", ENCODERS)
def test_heads_of_a_batch_are_those_of_each_text_alone(name):
    model = small(name)
    together = panels_of(model, TEXTS)
    for example, ids in enumerate(TEXTS):
        start = 1 if READ_TWICE.get(name) == 1 else ids[-1]
        words = tuple(map(word, ids))
        again = (word(start), *words[:-1]) if name in READ_TWICE else words
        labels = {
            "encoder": (words, words),
            "decoder": (again, again),
            "cross": (words, words),
        }
        ours = [panel for panel in together if panel.example == example]
        for panel, alone in zip(ours, panels_of(model, [ids]), strict=True):
            assert (panel.queries, panel.keys) == labels[panel.kind]
            weights = torch.tensor(panel.heads)
            torch.testing.assert_close(weights, torch.tensor(alone.heads), atol=1e-3, rtol=0)
            torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:2]))


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("name", WITH_MEMORY)
def test_the_keys_of_a_memory_stand_before_the_tokens(name, known):
    model, state = small(name), None
    parts = TEXTS[0][:4], TEXTS[0][4:]
    with regard.look(model) as attention, torch.no_grad():
        state = model.empty(1, torch.float32)
        for part in parts:
            if known:
                label(target=[list(map(word, part))])
            state = model(torch.tensor([part]), state).state
    for panel in attention.plot(example=1).panels:
        names = tuple(map(word, parts[1])) if known else ("0", "1")
        before = len(panel.keys) - len(names)
        assert panel.keys == (*(f"[{n - before}]" for n in range(before)), *names)
        assert before >= LIMITS["memory_length"]
        if panel.kind != "query":
            assert panel.queries == names
        weights = torch.tensor(panel.heads)
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:2]))
        if panel.kind == "decoder":  # a token sees itself, and no later one
            assert (weights[:, 0, before] > 0).all() and not weights[:, 0, before + 1 :].any()


def test_both_streams_are_recorded_with_their_tokens():
    tokenizer = train("words", ["the cat sat on the mat"] * 3, 30)
    ids = {role: getattr(tokenizer, f"{role}_id") for role in ("pad", "bos", "eos")}
    torch.manual_seed(0)
    model = Xlnet(XlnetConfig(tokenizer.vocab_size, d_model=8, d_ff=8, heads=2, layers=2, **ids))
    task = TextGenerator(model.eval(), tokenizer)
    with regard.look(task) as attention:
        task.generate("the cat sat", max_tokens=1)
    content, query = (attention.plot(kind, layer=2).panels[0] for kind in ("encoder", "query"))
    text = list(content.keys)
    assert text[:3] == ["the", "cat", "sat"] and list(query.keys) == list(content.queries) == text
    assert list(query.queries) == [*text[1:], "…"]
    for panel in (content, query):  # each row stands on the tokens before it alone
        weights = torch.tensor(panel.head(None))
        assert torch.equal(weights.gt(0), torch.ones_like(weights).tril().bool())
        torch.testing.assert_close(weights.sum(1), torch.ones(len(weights)))
