"""Llama against that of `transformers`, through the real table, both ways."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass

import pytest
import torch
from their_gpts import (
    ENDINGS,
    PAD,
    SAME,
    Family,
    T,
    V,
    ask,
    assert_same_outputs,
    batch,
    config_of,
    ours_of,
    transformers,
    weights,
)
from torch.nn import functional as F

from regard.checkpoints.formats import from_published, to_published
from regard.checkpoints.formats.llama import LLAMA
from regard.checkpoints.store import write_tensors
from regard.data.batches import Sequences
from regard.decoding import generate
from regard.errors import CheckpointError, ConfigError

BODY = dict(
    vocab_size=V, hidden_size=24, intermediate_size=20, num_hidden_layers=3,
    num_attention_heads=6, num_key_value_heads=2, max_position_embeddings=T, bos_token_id=1,
    eos_token_id=2, pad_token_id=PAD, num_labels=3, attn_implementation="eager",
)  # fmt: skip
LLAMA3 = dict(
    rope_type="llama3", rope_theta=50.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=16,
)  # fmt: skip
VARIANTS = [
    {},
    dict(num_key_value_heads=1, head_dim=6, attention_bias=True, hidden_act="gelu"),
    dict(num_key_value_heads=6, mlp_bias=True, tie_word_embeddings=True, rms_norm_eps=0.1),
    dict(num_key_value_heads=None, rope_parameters=dict(rope_type="default", rope_theta=31.0)),
    dict(rope_parameters=dict(rope_type="linear", rope_theta=100.0, factor=2.5), head_dim=2),
    dict(rope_parameters=LLAMA3, attention_bias=True, mlp_bias=True, intermediate_size=7),
]
KINDS = {
    **{name: ENDINGS[name] for name in ENDINGS if "For" in name},
    "Model": None,
    "ForCausalLM": None,
}
CASES = [(ending, options) for ending in KINDS for options in VARIANTS]


@dataclass(frozen=True)
class LlamaFamily(Family):
    def config(self, **options):
        return transformers.LlamaConfig(**(BODY | options))


FAMILY = LlamaFamily("Llama", LLAMA)


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("ending, options", CASES, ids=str)
def test_layers_and_heads_equal_those_of_transformers(ending, options, left):
    theirs = FAMILY.model(ending, **options)
    ours, texts, kind = ours_of(theirs), batch(), KINDS[ending]
    predicts = ending == "ForCausalLM"
    assert_same_outputs(theirs, ours, texts, kind, predicts=predicts, left=left)


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_gradients_in_train_mode_equal_those_of_transformers(options):
    theirs = FAMILY.model("ForCausalLM", **options).train()
    ours, texts = ours_of(theirs).train(), batch()
    texts = Sequences(texts.ids, torch.full_like(texts.lengths, T))
    targets = texts.ids[:, 1:].flatten()
    ours.head.loss(ours.encode(texts)[:, :-1].flatten(0, 1), targets)[0].backward()
    logits = ask(theirs, texts).logits[:, :-1].flatten(0, 1)
    F.cross_entropy(logits, targets, reduction="sum").backward()
    gradients = {f"encoder.{n}": p.grad for n, p in ours.named_parameters(remove_duplicate=False)}
    found = LLAMA.names((), ours.config).write(gradients)
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("ending, options", CASES, ids=str)
def test_exported_weights_open_in_transformers_unchanged(ending, options, tmp_path):
    theirs = FAMILY.model(ending, **options)
    config, tensors = to_published(ours_of(theirs))
    write_tensors(tmp_path / "model.safetensors", tensors)
    (tmp_path / "config.json").write_text(json.dumps(config))
    again, info = type(theirs).from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert config["architectures"] == [type(theirs).__name__]
    for name, tensor in weights(theirs).items():
        assert torch.equal(again.state_dict()[name], tensor), name
    before, after = theirs.config.to_dict(), again.config.to_dict()
    notes = ("_name_or_path", "architectures", "transformers_version", "dtype", "id2label",
             "label2id", "classifier_dropout")  # fmt: skip
    assert {k: v for k, v in after.items() if k not in notes} == {
        k: v for k, v in before.items() if k not in notes
    }


OLD = [  # as releases before 5 write them -> as release 5 does
    ({"rope_theta": 31.0}, {"rope_type": "default", "rope_theta": 31.0}),
    (
        {"rope_theta": 31.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_type": "linear", "rope_theta": 31.0, "factor": 2.0},
    ),
    (
        {
            "rope_theta": 50.0,
            "rope_scaling": {name: LLAMA3[name] for name in LLAMA3 if name != "rope_theta"},
        },
        LLAMA3,
    ),
]


@pytest.mark.parametrize("old, new", OLD, ids=str)
def test_rotary_positions_of_older_folders_are_read(old, new):
    theirs = FAMILY.model("ForCausalLM", rope_parameters=new)
    config = config_of(theirs)
    del config["rope_parameters"]
    found = from_published(config | old, weights(theirs)).eval()
    texts = batch()
    with torch.no_grad():
        wanted = ask(theirs, texts).hidden_states[-1]
        torch.testing.assert_close(found.encode(texts)[texts.keep], wanted[texts.keep], **SAME)
    assert found.config == ours_of(theirs).config


@pytest.mark.parametrize("inside", [{}, {"original_max_position_embeddings": 16}], ids=str)
def test_the_original_length_beside_the_table_takes_precedence(inside):
    table = {name: LLAMA3[name] for name in LLAMA3 if not name.startswith("original")} | inside
    theirs = FAMILY.model("ForCausalLM", rope_parameters=table, original_max_position_embeddings=64)
    config = config_of(theirs) | {"rope_parameters": table}
    found = from_published(config, weights(theirs)).eval()
    texts = batch()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        wanted = ask(theirs, texts).hidden_states[-1]
        torch.testing.assert_close(found.encode(texts)[texts.keep], wanted[texts.keep], **SAME)
    assert found.config.rope_original_length == 64


@pytest.mark.parametrize("change, message", [
    ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "`rope_type` must be one of"),
    ({"rope_parameters": {"rope_type": "linear"}}, "`factor`"),
    ({"rope_parameters": {"rope_type": "linear", "factor": -1.0}}, "`factor`"),
    ({"rope_parameters": {"rope_theta": "x"}}, "`rope_theta`"),
    ({"rope_parameters": LLAMA3 | {"low_freq_factor": 5.0}}, "`rope_low_factor` must be at most"),
    ({"rope_parameters": 3}, "`rope_parameters` must be a table"),
    ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "`partial_rotary_factor` must be 1"),
    ({"partial_rotary_factor": 0.5}, "`partial_rotary_factor` must be 1"),
    ({"rope_interleaved": True}, "`rope_interleaved` must be false"),
    ({"num_key_value_heads": 4}, "`key_value_heads` must divide `heads` .6., but is 4"),
    ({"num_key_value_heads": 0}, "`num_key_value_heads`"),
    ({"hidden_act": "other"}, "`hidden_act` must be one of"),
])  # fmt: skip
def test_unsupported_fields_raise_an_error_that_names_them(change, message):
    theirs = FAMILY.model("ForCausalLM")
    with pytest.raises(ConfigError, match=message):
        from_published(config_of(theirs) | change, weights(theirs))


def test_weights_with_biases_that_the_configuration_denies_raise_an_error():
    theirs = FAMILY.model("ForCausalLM", attention_bias=True)
    with pytest.raises(CheckpointError, match="q_proj.bias"):
        from_published(config_of(theirs) | {"attention_bias": False}, weights(theirs))


PROMPTS = [[3, 4, 5, 6], [7], [8, 9], [10, 11, 12]]


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_prompts_of_different_lengths_generate_the_tokens_of_transformers(options, beams):
    theirs = FAMILY.model("ForCausalLM", max_position_embeddings=64, **options)
    settings = dict(num_beams=beams, max_new_tokens=12, early_stopping=False, length_penalty=1.0)
    wanted = said(theirs, PROMPTS, **settings)
    method = dict(beams=beams, max_tokens=12) if beams > 1 else dict(max_tokens=12)
    found = generate(ours_of(theirs), Sequences.of(PROMPTS, None), **method)
    assert [best[0].tokens for best in found] == wanted
    assert len({tuple(row) for row in wanted}) > 1


def said(theirs, prompts, **options):
    """What their model continues prompts with that are padded on the left."""
    width = max(map(len, prompts))
    ids = torch.tensor([[PAD] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    found = theirs.generate(input_ids=ids, attention_mask=mask, do_sample=False, **options)
    rows = [row[width:] for row in found.tolist()]
    return [row[: row.index(2)] if 2 in row else row for row in rows]
