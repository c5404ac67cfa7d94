"""T5, mT5 and umT5 against those of `transformers`, through the real tables, in both directions."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from random_weights import randomized
from their_encoder_decoders import (
    assert_same_logits_and_gradients,
    batch,
    our_logits,
    ours_of,
    their_logits,
    transformers,
    weights,
)
from torch import nn

import regard
from regard.attention.relative import causal_bucket, two_sided_bucket
from regard.checkpoints.formats import from_published, to_published
from regard.checkpoints.store import read_tensors, write_tensors
from regard.data.batches import Sequences
from regard.models.t5 import T5, T5Encoder
from regard.tasks.text_to_text import TextToText, source_prefix

SMALL = dict(
    vocab_size=61, d_model=12, d_kv=5, d_ff=20, num_layers=3, num_decoder_layers=2, num_heads=3,
    decoder_start_token_id=0,
)  # fmt: skip
CLASSES = {"t5": "T5", "mt5": "MT5", "umt5": "UMT5"}


def theirs(kind: str = "t5", untied: bool = False, head: str = "", **options) -> nn.Module:
    """A model of theirs with random weights; an untied one gets an output of its own."""
    name = CLASSES[kind]
    config = getattr(transformers, f"{name}Config")(**SMALL | options)
    torch.manual_seed(0)
    kind = getattr(transformers, name + (head or "ForConditionalGeneration"))
    model = randomized(kind(config).eval())
    if untied:
        model.lm_head.weight = nn.Parameter(torch.randn_like(model.shared.weight))
    return model


ROWS = batch(pad=0, start=0, eos=1)


VARIANTS = {
    "t5": ("t5", False, {}),
    "t5-1.1": ("t5", True, dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False)),
    "t5-tied-unscaled": ("t5", False, dict(tie_word_embeddings=False)),
    "t5-untied-scaled": ("t5", True, {}),
    "t5-gated-silu": ("t5", False, dict(feed_forward_proj="gated-silu")),
    "t5-gelu": ("t5", False, dict(feed_forward_proj="gelu")),
    "t5-dense-act": ("t5", False, dict(feed_forward_proj="gated-gelu", dense_act_fn="gelu")),
    "t5-distances": (
        "t5", False, dict(relative_attention_num_buckets=6, relative_attention_max_distance=7),
    ),
    "t5-epsilon": ("t5", False, dict(layer_norm_epsilon=0.3, num_heads=1, d_kv=12)),
    "mt5": ("mt5", True, {}),
    "mt5-tied": ("mt5", False, {}),
    "umt5": ("umt5", False, {}),
    "umt5-untied": ("umt5", True, dict(num_decoder_layers=1)),
}  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_gradients_equal_those_of_transformers(variant):
    kind, untied, options = VARIANTS[variant]
    model = theirs(kind, untied, **options)
    ours = ours_of(model)
    assert type(ours) is T5 and ours.config.tied == (not untied)
    assert_same_logits_and_gradients(model, ours, kind, ROWS)


def test_dropout_stands_where_transformers_has_it():
    """Hidden states have the same mean over many draws, and nearly the same deviation."""
    model = theirs(dropout_rate=0.3).train()
    ours = ours_of(model).train()
    assert ours.config.dropout == 0.3
    source = Sequences.full(torch.arange(2, 8).expand(1500, 6).contiguous())
    target = torch.tensor([[0, 5, 6]]).expand(1500, 3).contiguous()
    torch.manual_seed(1)
    with torch.no_grad():
        found, expected = our_logits(ours, source, target), their_logits(model, source, target)
    for statistic in (torch.mean, torch.std):
        one, other = statistic(found, 0), statistic(expected, 0)
        assert (one - other).abs().max() < 0.25 * expected.std(0).mean()


# ----------------------------------------------------------------------------------- the encoder


@pytest.mark.parametrize("kind", CLASSES)
def test_hidden_states_of_the_encoder_alone_equal_those_of_transformers(kind, tmp_path):
    model = theirs(kind, head="EncoderModel", feed_forward_proj="gated-gelu")
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    read = from_published(config, read_tensors(tmp_path / "model.safetensors")).eval()
    assert type(read.encoder) is T5Encoder
    source, _, _ = ROWS
    expected = model(source.ids, attention_mask=source.keep.long(), output_hidden_states=True)
    for one, other in zip(read.encoder.states(source), expected.hidden_states, strict=True):
        torch.testing.assert_close(one[source.keep], other[source.keep], atol=1e-5, rtol=1e-5)

    config, tensors = to_published(read)
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_tensors(tmp_path / "model.safetensors", tensors)
    name = "UMT5EncoderModel" if kind == "umt5" else "T5EncoderModel"
    opened, report = getattr(transformers, name).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report[f"{what}_keys"] for what in ("missing", "unexpected", "mismatched"))
    again = opened(source.ids, attention_mask=source.keep.long()).last_hidden_state
    torch.testing.assert_close(again, expected.last_hidden_state, atol=1e-5, rtol=1e-5)


def test_tags_equal_those_of_transformers_both_ways(tmp_path):
    model = theirs(head="ForTokenClassification", num_labels=5)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    read = from_published(config, read_tensors(tmp_path / "model.safetensors")).eval()
    assert list(read.heads) == ["tags"]
    source, _, _ = ROWS
    expected = model(source.ids, attention_mask=source.keep.long()).logits
    torch.testing.assert_close(
        read.scores("tags", source)[source.keep], expected[source.keep], atol=1e-5, rtol=1e-5
    )
    config, tensors = to_published(read)
    assert config["architectures"] == ["T5ForTokenClassification"]
    assert tensors.keys() == {*read_tensors(tmp_path / "model.safetensors")}


def test_the_encoder_of_a_whole_folder_is_read_where_its_architecture_is_named():
    model = theirs()
    config = model.config.to_dict() | {"architectures": ["T5EncoderModel"]}
    read = from_published(config, weights(model)).eval()
    assert type(read.encoder) is T5Encoder
    source, _, _ = ROWS
    whole = ours_of(model).encode(source)
    torch.testing.assert_close(read.encoder.encode(source), whole)


# ----------------------------------------------------------------------------------- files


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_with_float32_wo_is_read(dtype):
    model = theirs()
    tensors = {n: t if ".wo." in n else t.to(dtype) for n, t in weights(model).items()}
    read = from_published(model.config.to_dict(), tensors)
    assert all(parameter.dtype == torch.float32 for parameter in read.parameters())
    source, target, _ = ROWS
    rounded = theirs()
    rounded.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    torch.testing.assert_close(
        our_logits(read.eval(), source, target), their_logits(rounded, source, target),
        atol=1e-5, rtol=1e-5,
    )  # fmt: skip


def test_scale_and_output_follow_both_generations_of_transformers():
    """Before release 5 `tie_word_embeddings` decides both; from 5 on it is always true."""
    model = theirs()
    base = {k: v for k, v in model.config.to_dict().items() if k != "scale_decoder_outputs"}
    tied, own = weights(model), weights(model)
    own["lm_head.weight"] = torch.randn(61, 12)
    cases = [
        ({}, tied, True, True),
        ({"tie_word_embeddings": True}, tied, True, True),
        ({"tie_word_embeddings": False}, own, False, False),
        ({"tie_word_embeddings": False}, tied, False, False),  # an output of its own, still equal
        ({"tie_word_embeddings": True, "scale_decoder_outputs": False}, own, False, False),
        ({"tie_word_embeddings": True, "scale_decoder_outputs": False}, tied, True, False),
        ({"tie_word_embeddings": False, "scale_decoder_outputs": True}, own, False, True),
    ]
    base.pop("tie_word_embeddings")
    for fields, tensors, is_tied, is_scaled in cases:
        config = from_published(base | fields, tensors).config
        assert (config.tied, config.scale_output) == (is_tied, is_scaled), fields


def test_the_start_is_the_padding_where_no_field_names_it():
    model = theirs()
    config = model.config.to_dict() | {"decoder_start_token_id": None, "pad_token_id": 3}
    assert from_published(config, weights(model)).config.bos == 3


# ----------------------------------------------------------------------------------- distances


@pytest.mark.parametrize("buckets, most", [(32, 128), (32, 64), (8, 20), (6, 9), (64, 500)])
def test_buckets_are_those_of_transformers(buckets, most):
    of_theirs = transformers.models.t5.modeling_t5.T5Attention._relative_position_bucket
    distance = torch.arange(-700, 700)
    for function, both in ((causal_bucket, False), (two_sided_bucket, True)):
        expected = of_theirs(-distance, both, buckets, most)
        assert torch.equal(function(distance, buckets, most), expected)


# ----------------------------------------------------------------------------------- the folder


@pytest.fixture
def folder(shared, tmp_path):
    """A folder of theirs with T5's published tokenizer."""
    path = shared("vocab/t5/spiece.model")
    made = tmp_path / "t5"
    theirs(vocab_size=32128).save_pretrained(made)
    shutil.copy(path, made)
    options = {"tokenizer_class": "T5Tokenizer", "extra_ids": 100, "eos_token": "</s>"}
    (made / "tokenizer_config.json").write_text(json.dumps(options))
    return made


def test_a_folder_generates_as_transformers_does(folder):
    task = regard.load(folder)
    texts = ["translate English to German: The house is wonderful.", "a <extra_id_0> b", "x"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.T5ForConditionalGeneration.from_pretrained(folder).eval()
    given = tokenizer(texts, return_tensors="pt", padding=True)
    assert task.tokenizer.id("<extra_id_0>") == 32099
    assert given.input_ids[0].tolist() == [*task.tokenizer.encode(texts[0]).ids, 1]
    for beams in (1, 4):
        out = model.generate(**given, num_beams=beams, max_new_tokens=8, do_sample=False)
        wanted = tokenizer.batch_decode(out, skip_special_tokens=True)
        assert task.generate(texts, beams=beams, max_tokens=8) == wanted


def test_the_prefix_is_that_of_the_only_task_in_config_json():
    one = {"summarization": {"prefix": "summarize: ", "num_beams": 4}}
    several = one | {"translation": {"prefix": "translate: "}}
    assert source_prefix({}) == source_prefix({"task_specific_params": None}) == ""
    assert source_prefix({"task_specific_params": one}) == "summarize: "
    assert source_prefix({"task_specific_params": several}) == ""
    assert source_prefix({"task_specific_params": several, "prefix": "p: "}) == "p: "
    assert source_prefix({"task_specific_params": {"summarization": {"num_beams": 4}}}) == ""


def test_a_prefix_stands_before_each_source_and_is_saved(folder):
    path, one = folder / "config.json", {"summarization": {"prefix": "summarize: "}}
    config = json.loads(path.read_text()) | {"task_specific_params": one}
    path.write_text(json.dumps(config))
    task = regard.load(folder)
    wanted = TextToText(task.module, task.tokenizer).hypotheses(["summarize: a"], max_tokens=4)
    assert task.hypotheses(["a"], max_tokens=4) == wanted
    assert task.settings()["source_prefix"] == "summarize: "


def test_all_three_kinds_of_attention_are_captured(folder):
    task = regard.load(folder)
    plain = task.hypotheses(["the house"], max_tokens=5)
    with regard.look(task) as attention:
        assert task.hypotheses(["the house"], max_tokens=5) == plain
    model = transformers.T5ForConditionalGeneration.from_pretrained(
        folder, attn_implementation="eager"
    ).eval()
    source = torch.tensor([[*task.tokenizer.encode("the house").ids, 1]])
    out = model(source, decoder_input_ids=torch.tensor([[0, *plain[0][0].tokens]]),
                output_attentions=True)  # fmt: skip
    wanted = {
        "encoder": out.encoder_attentions,
        "decoder": out.decoder_attentions,
        "cross": out.cross_attentions,
    }
    for kind, layers in wanted.items():
        found = [one for one in attention.passes[-1].attentions.values() if one.kind == kind]
        for one, other in zip(found, layers, strict=True):
            torch.testing.assert_close(torch.cat(one.parts), other, atol=1e-5, rtol=1e-5)
