"""The two streams of XLNet in recorded attention."""

from __future__ import annotations

import torch

import regard
from regard.models.xlnet import Xlnet, XlnetConfig
from regard.tasks.language_modeling import TextGenerator
from regard.text import train


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
