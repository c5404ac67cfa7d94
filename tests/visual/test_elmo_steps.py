"""How ELMo makes the vector of a word, and one word in several sentences."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from regard.data.encoder_inputs import InputFormat
from regard.errors import ConfigError
from regard.models.bert import Bert, BertConfig
from regard.models.elmo import Elmo, ElmoConfig
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.features import Features
from regard.text import train
from regard.visual import contextual_vectors, elmo_steps

GREEN = [
    "The shirt is green",
    "The recruits are green",
    "green policy has wrecked the economy",
]
SIZES = dict(d_model=12, d_cell=9, filters=((1, 5), (3, 6)), d_character=4)


@pytest.fixture
def elmo() -> tuple[Elmo, InputFormat]:
    torch.manual_seed(0)
    model = Elmo(ElmoConfig(9, **SIZES)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.4 * torch.randn_like(parameter))
    tokenizer = model.input_tokenizer(train("words", GREEN, 9))
    return model, InputFormat(tokenizer, model.template(tokenizer), None, 0)


def test_the_steps_end_with_what_a_task_reads(elmo):
    model, input_format = elmo
    text = "zebras like green grass"
    picture = elmo_steps(model, text, "green", input_format)
    numbers = picture.numbers
    rows = input_format.encode([(text,)])
    batch = model.complete(input_format.batch(rows), input_format.tokenizer)
    with torch.no_grad():
        torch.testing.assert_close(numbers["sum"], model.encode(batch)[0, 3])
        for layer, hidden in zip(numbers["layers"], model.states(batch), strict=True):
            torch.testing.assert_close(layer, hidden[0, 3])
    scalars = model.mix.scalars.detach()
    torch.testing.assert_close(numbers["shares"], scalars.exp() / scalars.exp().sum())
    text = picture.text(120)
    for share in numbers["shares"].tolist():
        assert f"{share:.3f}" in text
    assert "Step 1" in text and "Step 3" in text and "→0" in text and "←6" in text
    assert "<svg" in picture.html()


def test_features_show_the_mix_that_their_task_learned(elmo):
    model, input_format = elmo
    options = dict(combine="mix", d_model=8, lstm_layers=1)
    features = Features.over(model, "elmo", options)
    with torch.no_grad():
        features.choice.scalars.copy_(torch.tensor([3.0, 0.0, -1.0]))
    shown = elmo_steps(EncoderWithHeads(features, {}), GREEN[0], "green", input_format)
    assert shown.numbers["shares"].argmax() == 0
    other = Features.over(model, "elmo", {**options, "combine": "sum", "feature_layers": -1})
    with pytest.raises(ConfigError, match="no learned weights"):
        elmo_steps(other, GREEN[0], "green", input_format)


def test_other_models_and_absent_words_raise_an_error(elmo):
    model, input_format = elmo
    with pytest.raises(ConfigError, match="'blue' does not occur"):
        elmo_steps(model, GREEN[0], "blue", input_format)
    bert = Bert(BertConfig(9, d_model=8, d_ff=8, heads=2, layers=1))
    with pytest.raises(ConfigError, match="Bert is no ELMo"):
        elmo_steps(bert, GREEN[0], "green", replace(input_format))


def test_a_word_has_one_static_vector_and_three_contextual_ones(elmo):
    model, input_format = elmo
    cosines = contextual_vectors(model, GREEN, "green", input_format).numbers["cosines"]
    assert cosines.shape == (4, 3)  # static, input, two layers; three pairs
    torch.testing.assert_close(cosines[:2], torch.ones(2, 3).double(), atol=1e-6, rtol=0)
    assert (cosines[2:] < 0.999999).all()
    capital = [GREEN[0], GREEN[2].capitalize()]  # other characters: another static vector
    assert (
        contextual_vectors(model, capital, "green", input_format).numbers["cosines"][0, 0] < 0.9999
    )
