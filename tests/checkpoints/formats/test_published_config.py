"""Every field of the encoders' config.json: used as by `transformers`, or named in an error."""

from __future__ import annotations

import json

import pytest
from their_encoders import (
    FAMILIES,
    V,
    assert_same_outputs,
    batch,
    ours_of,
    read,
    transformers,
    weights,
)

from regard.checkpoints.formats import from_published, to_published
from regard.errors import ConfigError


@pytest.mark.parametrize("name", sorted(transformers.activations.ACT2FN))
def test_every_activation_equals_that_of_transformers_or_raises_an_error(name):
    try:
        model = FAMILIES["bert"].model("ForMaskedLM", hidden_act=name)
    except Exception:
        pytest.skip(f"transformers makes no BERT with {name}")
    try:
        ours = ours_of(model)
    except ConfigError as error:
        assert "`hidden_act` must be one of gelu, " in str(error) and name in str(error)
        assert name in ("prelu", "xielu", "sqrtsoftplus")  # the first two learn something
    else:
        assert_same_outputs(model, ours, batch(2))


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("hidden_size", 12 * 10**6, "`hidden_size` must be at most 31, the largest dimension"),
        ("num_attention_heads", 5, "`num_attention_heads` must divide `hidden_size` (12)"),
        ("layer_norm_eps", float("nan"), "`layer_norm_eps` must be less than 1, but is NaN"),
        ("hidden_act", ["gelu"], "`hidden_act` must be one of gelu, "),
        ("pad_token_id", V, f"`pad_token_id` must be an id below `vocab_size` ({V})"),
        ("quantization_config", {"bits": 4}, "`quantization_config` must be absent, but is"),
        ("architectures", ["BertLMHeadModel"], "predicts the next word"),
        ("architectures", "BertModel", "`architectures` must be a list of names"),
        ("model_type", "opt", "`model_type` must be one of marian, pegasus, "),
        ("model_type", ["bert"], "umt5, but is ['bert']. "),
        ("id2label", {"a": 0, "b": 1}, "`id2label` must be names by their numbers"),
    ],
)  # fmt: skip
def test_unsupported_config_values_raise_an_error_that_names_the_field(field, value, said):
    with pytest.raises(ConfigError) as caught:
        read("bert", "ForSequenceClassification", {field: value})
    assert said in str(caught.value)


def test_fields_that_the_class_does_not_know_are_ignored_and_named_once():
    """`transformers` computes the same with them, whatever they are called."""
    fields = {"cell": {}, "sentence_transformers": {"version": "4.1.0"}, "hiden_size": 7, "x": None}
    with pytest.warns(UserWarning) as caught:
        ours = read("bert", "ForSequenceClassification", fields)
    (said,) = (str(one.message) for one in caught)
    assert "models of type bert do not read them: cell, hiden_size." in said
    assert ours.config.d_model == 12
    model = FAMILIES["bert"].model("ForSequenceClassification", **fields)
    assert_same_outputs(model, ours.eval(), batch(2))


def test_a_field_under_its_other_name_is_read_and_must_not_contradict():
    """`attribute_map` of their classes."""
    model = FAMILIES["distilbert"].model("Model")
    saved = json.loads(model.config.to_json_string(use_diff=False))
    saved["architectures"] = ["DistilBertModel"]
    other = {k: v for k, v in saved.items() if k not in ("dim", "n_heads", "n_layers")}
    other |= {"hidden_size": 12, "num_attention_heads": 3, "num_hidden_layers": 2}
    assert_same_outputs(model, from_published(other, weights(model)).eval(), batch(0))
    with pytest.raises(ConfigError, match="`num_attention_heads` is .*, but `n_heads` says 3"):
        from_published(saved | {"num_attention_heads": 4}, weights(model))


def test_roberta_decoders_and_wrong_padding_ids_raise_an_error():
    with pytest.raises(ConfigError, match="'RobertaForCausalLM': .*predicts the next word"):
        read("roberta", "ForMaskedLM", {"architectures": ["RobertaForCausalLM"]})
    with pytest.raises(ConfigError, match="`pad_token_id` must be a whole number, but is null"):
        read("roberta", "Model", {"pad_token_id": None})
    with pytest.raises(ConfigError, match="`max_position_embeddings` must be more than `pad_to"):
        read("roberta", "Model", {"pad_token_id": 14})


def test_config_fields_without_effect_are_accepted():
    harmless = {
        "hidden_dropout_prob": 0, "layer_norm_eps": 1e-12, "is_decoder": False, "gradient_c": None,
        "gradient_checkpointing": False, "finetuning_task": "mrpc", "position_embedding_type":
        "absolute", "torch_dtype": "float16", "pooler_type": "first_token_transform",
        "directionality": "bidi", "output_past": True, "pad_token_id": None, "pruned_heads": {},
        "language": "english", "name": "Bert", "_attn_implementation_autoset": True,
        "xla_device": True, "transformers.js_config": {"dtype": "q8"},
    }  # fmt: skip
    ours = read("bert", "ForSequenceClassification", harmless)
    assert ours.config.dropout == 0.0 and type(ours.config.dropout) is float
    assert ours.config.pad is None and to_published(ours)[0]["pad_token_id"] is None
    assert to_published(ours)[0]["id2label"] == {"0": "LABEL_0", "1": "LABEL_1"}
