"""The chart of model sizes: counts against `transformers`, and what is drawn."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from regard.errors import ConfigError
from regard.visual.drawing import Circle, Label
from regard.visual.parameter_counts import LECTURES, NamedSize, model_sizes

transformers = pytest.importorskip("transformers")
ROOT = Path(__file__).parents[2]

BASE = dict(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072)
LARGE = dict(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
GPT2 = dict(n_embd=1600, n_layer=48, n_head=25)
T5 = dict(d_model=1024, d_ff=65536, d_kv=128, num_heads=128, num_layers=24)
LLAMA = dict(
    hidden_size=8192, intermediate_size=22016, num_attention_heads=64, num_hidden_layers=80
)
NEO = dict(
    hidden_size=2560, num_layers=32, num_heads=20, attention_types=[[["global", "local"], 16]]
)
XXL = dict(
    hidden_size=4096, intermediate_size=16384, num_attention_heads=64, num_hidden_layers=12,
    embedding_size=128, vocab_size=30000,
)  # fmt: skip
THEIRS = {
    "GPT": ("OpenAIGPTLMHeadModel", {}),
    "BERT base": ("BertModel", BASE),
    "BERT large": ("BertModel", LARGE),
    "GPT-2": ("GPT2LMHeadModel", GPT2),
    "XLNet large": ("XLNetLMHeadModel", {}),
    "RoBERTa large": (
        "RobertaModel",
        LARGE | dict(vocab_size=50265, max_position_embeddings=514, type_vocab_size=1),
    ),
    "DistilBERT": ("DistilBertModel", {}),
    "ALBERT xxlarge": ("AlbertModel", XXL),
    "T5 11B": ("T5ForConditionalGeneration", T5),
    "GPT-Neo": ("GPTNeoForCausalLM", NEO),
    "Llama 65B": ("LlamaForCausalLM", LLAMA),
}


@pytest.mark.parametrize("name", THEIRS)
def test_counts_are_those_of_transformers(name):
    ending, options = THEIRS[name]
    kind = getattr(transformers, ending)
    with torch.device("meta"):
        theirs = kind(kind.config_class(**options))
    (one,) = (size for size in LECTURES if size.name == name)
    assert one.parameters == sum(parameter.numel() for parameter in theirs.parameters())


def test_the_chart_has_a_dot_for_each_count_and_a_ring_for_what_is_reported():
    picture = model_sizes()
    assert [row.name for row in picture.rows] == [one.name for one in LECTURES]
    assert sorted(row.year for row in picture.rows) == [row.year for row in picture.rows]
    shapes = picture.drawing().shapes
    tips = [shape.title for shape in shapes if isinstance(shape, Circle) and shape.title]
    assert "GPT-3: 174,604,259,328" in tips and "GPT-3: reported 175,000,000,000" in tips
    assert "ELMo: 93,600,868" in tips and not any("ELMo: reported" in tip for tip in tips)
    ticks = {shape.text: shape.x for shape in shapes if isinstance(shape, Label)}
    assert ticks["100M"] - ticks["10M"] == pytest.approx(ticks["1T"] - ticks["100B"])
    dots = {
        shape.title.split(":")[0]: shape.x
        for shape in shapes
        if isinstance(shape, Circle) and shape.title and "reported" not in shape.title
    }
    decade = ticks["100M"] - ticks["10M"]
    distance = dots["GPT-3"] - dots["BERT base"]
    assert distance / decade == pytest.approx(math.log10(174_604_259_328 / 109_482_240))


def test_the_page_shows_this_chart():
    assert (ROOT / "docs/images/model-sizes.svg").read_text() == model_sizes().svg()


def test_text_has_a_line_for_each_model():
    small = NamedSize("one", 2019, "gpt2", "124M", {"vocab_size": 50_257})
    large = NamedSize("other", 2020, "gpt3", "175B", {"vocab_size": 50_257})
    title, first, second = model_sizes([small, large], "Sizes").text(80).splitlines()
    assert title == "Sizes" and "124,439,808" in first and "174,604,259,328" in second
    assert 0 < first.count("#") < second.count("#")
    assert max(map(len, (first, second))) <= 80


def test_unknown_models_and_sizes_are_errors():
    with pytest.raises(ConfigError, match="gpt9"):
        model_sizes([NamedSize("x", 2020, "gpt9", "125M")])
    with pytest.raises(ConfigError, match="`size` must be one of 125M"):
        model_sizes([NamedSize("x", 2020, "gpt3", "126M")])
