"""What predictions read, and the two streams of XLNet in recorded attention."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.errors import ConfigError
from regard.models.xlnet import Xlnet, XlnetConfig
from regard.tasks.language_modeling import TextGenerator
from regard.text import train
from regard.visual import prediction_contexts


def test_models_read_what_their_masks_allow_and_nothing_else():
    drawn = prediction_contexts()
    may = {name: drawn.numbers[f"{name}, may"] for name in ("left to right", "BERT", "XLNet")}
    assert torch.equal(may["left to right"], torch.ones(5, 5).tril(-1))
    assert may["BERT"].tolist() == [[0, 0, 1, 1, 1]] * 2
    assert may["XLNet"].tolist() == [[0, 0, 1, 1, 1], [1, 0, 1, 1, 1]]  # "York" reads "New"
    for name, allowed in may.items():
        assert torch.equal(drawn.numbers[f"{name}, does"] > 1e-4, allowed.bool()), name
    assert "XLNet: may read" in drawn.text() and "York" in drawn.html()


def test_another_order_reads_other_words():
    drawn = prediction_contexts(("a", "b", "c"), predicted=(2, 0))
    assert drawn.numbers["XLNet, may"].tolist() == [[0, 1, 0], [0, 1, 1]]
    for wrong in ((0, 0), (5,), ()):
        with pytest.raises(ConfigError, match="`predicted` must be different indices from 0 to 4"):
            prediction_contexts(predicted=wrong)


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
