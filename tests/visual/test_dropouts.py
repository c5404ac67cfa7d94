"""The picture of AWD-LSTM's dropouts shows tensors of one pass, each with its own kind of mask."""

from __future__ import annotations

import pytest
import torch

from regard.errors import ConfigError
from regard.models.awd_lstm import AwdLstm, AwdLstmConfig
from regard.text import train
from regard.visual import dropouts

TEXTS = ["I love cats", "I love dogs too"]


@pytest.fixture
def drawn():
    tokenizer = train("words", TEXTS, 20)
    torch.manual_seed(0)
    sizes = dict(d_model=10, d_hidden=12, layers=3, embedding_dropout=0.3)
    model = AwdLstm(AwdLstmConfig(vocab_size=tokenizer.vocab_size, **sizes)).eval()
    state = torch.get_rng_state()
    picture = dropouts(model, tokenizer, TEXTS, seed=4)
    assert torch.equal(torch.get_rng_state(), state) and not model.training
    assert not any(part._forward_hooks for part in model.modules())
    return model, picture


def kept(picture, name):
    """Which numbers remain; what remains is scaled by 1 / (1 - p)."""
    before, after = picture.numbers[f"{name} before"], picture.numbers[f"{name} after"]
    scales = (after / before)[after != 0]
    torch.testing.assert_close(scales, scales[:1].expand_as(scales), rtol=1e-4, atol=1e-4)
    return after != 0


def test_each_dropout_has_its_kind_of_mask(drawn):
    model, picture = drawn
    words = kept(picture, "embedding")
    assert torch.equal(words, words[..., :1].expand_as(words))  # whole words
    assert torch.equal(words[0, :2], words[1, :2])  # "I love" in both rows
    assert not words.all() and words.any()
    for name in ("hidden", "output"):
        steps = kept(picture, name)
        assert torch.equal(steps, steps[:, :1].expand_as(steps))
        assert not torch.equal(steps[0], steps[1])
    assert torch.equal(picture.numbers["weight before"], model.layers[0].recurrent.weight)
    weights = kept(picture, "weight")
    assert 0.3 < weights.float().mean() < 0.7 and weights.dim() == 2
    entered, left = picture.numbers["embedding after"], picture.numbers["input before"]
    assert torch.equal(entered, left)


def test_the_picture_names_words_and_gates(drawn):
    text = drawn[1].text(120)
    for said in ("1  Embedding dropout", "3  Weight dropout", "5  Output dropout", "cats", "dogs"):
        assert said in text


def test_texts_without_words_are_an_error(drawn):
    tokenizer = train("words", TEXTS, 20)
    for texts in ([], ["I love", ""]):
        with pytest.raises(ConfigError, match="at least one word"):
            dropouts(drawn[0], tokenizer, texts)
