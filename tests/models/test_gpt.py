"""GPT: its size, its initial weights, its errors, and how texts become rows."""

from __future__ import annotations

import pytest
import torch

from regard.data.batches import Sequences
from regard.decoding import generate
from regard.decoding.steps import start
from regard.errors import ConfigError
from regard.models.gpt2 import GPT, GPT2
from regard.text import train

TINY = dict(d_model=8, heads=2, layers=2, max_length=6)


def tiny(**options):
    torch.manual_seed(0)
    return GPT(GPT.Config(vocab_size=11, **(TINY | options))).eval()


@pytest.mark.parametrize("kind", [GPT, GPT2])
@pytest.mark.parametrize("ids, first", [((1, 2), 1), ((None, 2), 2)])
def test_an_empty_prompt_starts_with_bos_or_eos(kind, ids, first):
    config = kind.Config(vocab_size=11, bos=ids[0], eos=ids[1], **TINY)
    model = kind(config).eval()
    _, tokens = start(model, None)
    assert tokens.tolist() == [[first]]
    state, tokens = start(model, Sequences.of([[], [5, 6], []], None))
    assert tokens.tolist() == [[first], [6], [first]]
    scores, _ = model.step(tokens, state)
    whole = model.head.logits(model(torch.tensor([[5, 6]])).hidden)
    torch.testing.assert_close(scores[1, 0], whole[0, 1])
    alone = model.head.logits(model(torch.tensor([[first]])).hidden)
    torch.testing.assert_close(scores[[0, 2], 0], alone[:, 0].repeat(2, 1))


def test_empty_prompts_without_bos_and_texts_beyond_the_context_raise_errors():
    with pytest.raises(ConfigError, match="An empty prompt needs a token .* of at least one word"):
        start(tiny(), None)
    with pytest.raises(ConfigError, match="An empty prompt needs a token"):
        start(tiny(bos=50256), None)
    with pytest.raises(ValueError, match="reaches position 7, .* learned only 6 positions"):
        tiny()(torch.ones(1, 7, dtype=torch.long))
    with pytest.raises(ConfigError, match="prompt of row 1 has 7 tokens, .* at most 6"):
        generate(tiny(), Sequences.of([[3], [3] * 7], None))


def test_templates_add_the_special_tokens_that_the_tokenizer_has():
    plain = train("words", ["a b"], 20)
    assert GPT.template(plain).apply([[7], [8, 9]]).ids == [7, 8, 9]
    marked = train("words", ["a b"], 20, special_tokens=["<unk>", "<s>", "<sep>", "<cls>"])
    bos, sep, cls = marked.bos_id, marked.sep_id, marked.cls_id
    assert GPT2.template(marked).apply([[7]]).ids == [bos, 7, cls]
    assert GPT2.template(marked).apply([[7], [8, 9]]).ids == [bos, 7, sep, 8, 9, cls]
