"""GPT and GPT-2 against those of `transformers`, through the real tables, both ways.

The tables are those of `regard.checkpoints.formats.gpt`.
"""

from __future__ import annotations

import json

import pytest
import torch
from their_gpts import (
    CASES,
    ENDINGS,
    FAMILIES,
    SAME,
    T,
    ask,
    assert_same_outputs,
    batch,
    config_of,
    ours_of,
    weights,
)

from regard.checkpoints.formats import from_published, to_published
from regard.checkpoints.store import write_tensors
from regard.data.batches import Sequences
from regard.decoding import generate
from regard.errors import ConfigError
from regard.models.encoder_with_heads import EncoderWithHeads

UNUSUAL = {
    "gpt": [
        dict(tie_word_embeddings=False, afn="relu", layer_norm_epsilon=0.1),
        dict(afn="silu", summary_activation="tanh", pad_token_id=None),
        dict(embd_pdrop=0.2, attn_pdrop=0.3, resid_pdrop=0.4, summary_first_dropout=0.5),
    ],
    "gpt2": [
        dict(n_inner=7, activation_function="gelu", tie_word_embeddings=False),
        dict(scale_attn_weights=False, layer_norm_epsilon=0.1, activation_function="silu"),
        dict(scale_attn_by_inverse_layer_idx=True, summary_activation="tanh"),
        dict(scale_attn_by_inverse_layer_idx=True, scale_attn_weights=False),
        dict(reorder_and_upcast_attn=True, activation_function="quick_gelu", pad_token_id=None),
        dict(embd_pdrop=0.2, attn_pdrop=0.3, resid_pdrop=0.4, summary_first_dropout=0.5),
    ],
}
VARIANTS = [
    (family, ending, options) for family, ending in CASES for options in ({}, *UNUSUAL[family])
]


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("family, ending, options", VARIANTS, ids=str)
def test_layers_and_heads_equal_those_of_transformers(family, ending, options, left):
    theirs = FAMILIES[family].model(ending, **options)
    ours, texts, kind = ours_of(theirs), batch(), ENDINGS[ending]
    if kind == "classes" and options.get("pad_token_id", 0) is None:
        theirs.config.pad_token_id = 30  # else theirs takes no batch
    predicts = ending in ("LMHeadModel", "DoubleHeadsModel")
    assert_same_outputs(theirs, ours, texts, kind, predicts=predicts, left=left)
    rates = sorted(m.p for m in theirs.modules() if isinstance(m, torch.nn.Dropout))
    mine = [m.probability for m in ours.modules() if hasattr(m, "probability")]
    mine += [m.dropout for m in ours.modules() if isinstance(getattr(m, "dropout", 0), float)]
    assert {round(p, 6) for p in rates} - {0.0} == {round(p, 6) for p in mine} - {0.0}


@pytest.mark.parametrize("family", FAMILIES)
def test_segments_add_token_embeddings_as_in_transformers(family):
    theirs = FAMILIES[family].model("LMHeadModel")
    ours, texts = ours_of(theirs), batch(segments=True)
    with torch.no_grad():
        expected, found = ask(theirs, texts).hidden_states[-1], ours.encode(texts)
        plain = ours.encode(Sequences(texts.ids, texts.lengths))
    torch.testing.assert_close(found[texts.keep], expected[texts.keep], **SAME)
    assert not torch.allclose(found, plain, atol=0.1)


@pytest.mark.parametrize("family, ending, options", VARIANTS, ids=str)
def test_exported_weights_open_in_transformers_unchanged(family, ending, options, tmp_path):
    theirs = FAMILIES[family].model(ending, **options)
    config, tensors = to_published(ours_of(theirs))
    write_tensors(tmp_path / "model.safetensors", tensors)
    (tmp_path / "config.json").write_text(json.dumps(config))
    kind = type(theirs)
    again, info = kind.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert config["architectures"] == [kind.__name__]
    for name, tensor in weights(theirs).items():
        assert torch.equal(again.state_dict()[name], tensor), name
    before, after = theirs.config.to_dict(), again.config.to_dict()
    notes = ("_name_or_path", "architectures", "transformers_version", "dtype", "id2label",
             "label2id", "reorder_and_upcast_attn", "classifier_dropout")  # fmt: skip
    assert {k: v for k, v in after.items() if k not in notes} == {
        k: v for k, v in before.items() if k not in notes
    }
    if ENDINGS[ending] == "classes":
        assert again.config.num_labels == 3


# ---- files as they are found --------------------------------------------------------------------


def test_gpt2_weights_without_prefix_and_with_old_buffers_are_read():
    theirs = FAMILIES["gpt2"].model("LMHeadModel")
    tensors = {
        name.removeprefix("transformer."): tensor
        for name, tensor in weights(theirs).items()
        if name != "lm_head.weight"
    }
    tensors |= {f"h.{n}.attn.bias": torch.ones(1, 1, T, T).tril() for n in range(3)}
    tensors |= {f"h.{n}.attn.masked_bias": torch.tensor(-1e4) for n in range(3)}
    found = from_published(config_of(theirs), tensors)
    expected = ours_of(theirs)
    assert type(found) is type(expected)
    for name, tensor in found.state_dict().items():
        assert torch.equal(tensor, expected.state_dict()[name])


def test_without_architectures_the_tensors_decide_the_kind_of_model():
    theirs = FAMILIES["gpt2"].model("Model")
    config = config_of(theirs)
    assert isinstance(ours_of(theirs), EncoderWithHeads)
    assert not isinstance(
        from_published(config | {"architectures": None}, weights(theirs)), EncoderWithHeads
    )
    theirs = FAMILIES["gpt2"].model("ForTokenClassification")
    config = config_of(theirs) | {"architectures": None}
    assert list(from_published(config, weights(theirs)).heads) == ["tags"]


def test_an_encoder_without_output_layer_cannot_generate():
    theirs = FAMILIES["gpt2"].model("ForSequenceClassification", tie_word_embeddings=False)
    ours = ours_of(theirs)
    with pytest.raises(ConfigError, match="no output over words"):
        generate(ours.encoder, None, max_tokens=3)
    assert to_published(ours)[0]["tie_word_embeddings"] is False


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", ["summary_type", "summary_use_proj", "summary_proj_to_labels"])
def test_summary_fields_matter_only_with_a_multiple_choice_head(family, name):
    theirs = FAMILIES[family].model("LMHeadModel")
    value = {"summary_type": "last"}.get(name, False)
    from_published(config_of(theirs) | {name: value}, weights(theirs))
    double = FAMILIES[family].model("DoubleHeadsModel")
    with pytest.raises(ConfigError, match=f"`{name}` must be"):
        from_published(config_of(double) | {name: value}, weights(double))


def test_gelu_of_openai_gpt_is_the_tanh_approximation():
    theirs = FAMILIES["gpt"].model("LMHeadModel", afn="gelu")
    assert ours_of(theirs).config.activation == "gelu-tanh"
    config = config_of(theirs) | {"afn": "gelu_new"}
    with pytest.raises(ConfigError, match="`afn` must be one of gelu, relu, silu, swish"):
        from_published(config, weights(theirs))


# ---- generation ---------------------------------------------------------------------------------

PROMPTS = [[3, 4, 5, 6], [7], [8, 9], [10, 11, 12]]


def said(theirs, prompts, **options):
    width = max(map(len, prompts))
    pad = theirs.config.pad_token_id
    ids = torch.tensor([[pad] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    found = theirs.generate(input_ids=ids, attention_mask=mask, do_sample=False, **options)
    rows = [row[width:] for row in found.tolist()]
    return [row[: row.index(2)] if 2 in row else [t for t in row if t != pad] for row in rows]


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_of_different_lengths_generate_the_tokens_of_transformers(family, beams):
    theirs = FAMILIES[family].model("LMHeadModel")
    ours = ours_of(theirs)
    options = dict(num_beams=beams, max_new_tokens=6, early_stopping=False, length_penalty=1.0)
    alone = [said(theirs, [prompt], **options)[0] for prompt in PROMPTS]
    together = said(theirs, PROMPTS, **options) if family == "gpt2" else alone
    method = dict(beams=beams, max_tokens=6) if beams > 1 else dict(max_tokens=6)
    found = generate(ours, Sequences.of(PROMPTS, None), **method)
    assert [best[0].tokens for best in found] == alone == together
    assert len({tuple(row) for row in alone}) > 1
