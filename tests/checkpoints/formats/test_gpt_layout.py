"""GPT and GPT-2 against those of `transformers`, through the real tables, both ways."""

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
    V,
    answers,
    ask,
    assert_same_outputs,
    batch,
    config_of,
    encoder_of,
    ours_of,
    weights,
)
from torch.nn import functional as F

from regard.checkpoints.formats import from_published, to_published
from regard.checkpoints.store import write_tensors
from regard.data.batches import Sequences
from regard.decoding import generate
from regard.errors import CheckpointError, ConfigError
from regard.models.encoder_with_heads import EncoderWithHeads

UNUSUAL = {
    "gpt": [
        dict(tie_word_embeddings=False, afn="relu", layer_norm_epsilon=0.1),
        dict(afn="silu", summary_activation="tanh", pad_token_id=None),
    ],
    "gpt2": [
        dict(n_inner=7, activation_function="gelu", tie_word_embeddings=False),
        dict(scale_attn_weights=False, layer_norm_epsilon=0.1, activation_function="silu"),
        dict(scale_attn_by_inverse_layer_idx=True, summary_activation="tanh"),
        dict(scale_attn_by_inverse_layer_idx=True, scale_attn_weights=False),
        dict(reorder_and_upcast_attn=True, activation_function="quick_gelu", pad_token_id=None),
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


@pytest.mark.parametrize("family, ending", CASES, ids=str)
def test_gradients_equal_those_of_transformers(family, ending):
    theirs = FAMILIES[family].model(ending)
    ours, texts, kind = ours_of(theirs), batch(segments=True), ENDINGS[ending]
    texts = Sequences(texts.ids, torch.full_like(texts.lengths, T), texts.segments)
    expected = ask(theirs, texts)
    hidden = encoder_of(ours).encode(texts)
    objectives = [hidden.square().sum() if kind is None else ours.scores(kind, texts).sum()]
    wanted = expected.hidden_states[-1].square().sum() if kind is None else None
    wanted = answers(expected, kind).sum() if wanted is None else wanted
    if "logits" in expected and expected.logits.size(-1) == V:
        targets = texts.ids[:, 1:].flatten()
        objectives.append(encoder_of(ours).head.loss(hidden[:, :-1].flatten(0, 1), targets)[0])
        wanted = wanted + F.cross_entropy(
            expected.logits[:, :-1].flatten(0, 1), targets, reduction="sum"
        )
    sum(objectives).backward()
    wanted.backward()
    headed = ours if isinstance(ours, EncoderWithHeads) else EncoderWithHeads(ours, {})
    table = FAMILIES[family].layout.names(tuple(headed.heads), headed.config)
    gradients = {name: p.grad for name, p in headed.named_parameters(remove_duplicate=False)}
    found = table.write(gradients)
    for name, parameter in theirs.named_parameters():
        name = name if name in found else f"transformer.{name}"
        torch.testing.assert_close(found[name], parameter.grad, atol=1e-4, rtol=1e-4)


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


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda t: t.pop("transformer.h.1.ln_2.bias"), "missing: transformer.h.1.ln_2.bias"),
        (
            lambda t: t.update({"transformer.h.1.x": torch.ones(1)}),
            "extra in .*: transformer.h.1.x",
        ),
        (lambda t: t.update({"lm_head.weight": torch.ones(V, 12)}), "lm_head.weight must equal"),
        (
            lambda t: t.update({"transformer.wpe.weight": torch.ones(3, 12)}),
            "positions.vectors.weight must be .10, 12., but is .3, 12.",
        ),
    ],
)
def test_weights_that_do_not_fit_raise_an_error_that_names_them(change, message):
    theirs = FAMILIES["gpt2"].model("LMHeadModel")
    tensors = weights(theirs)
    change(tensors)
    with pytest.raises(CheckpointError, match=message):
        from_published(config_of(theirs), tensors)


def test_a_missing_untied_output_layer_raises_an_error():
    theirs = FAMILIES["gpt2"].model("LMHeadModel", tie_word_embeddings=False)
    tensors = weights(theirs)
    del tensors["lm_head.weight"]
    with pytest.raises(CheckpointError, match="missing: lm_head.weight"):
        from_published(config_of(theirs), tensors)


# ---- every field of the configuration -----------------------------------------------------------

OTHER = {
    "activation_function": "mish", "afn": "swish", "summary_activation": "gelu",
    "summary_type": "mean", "id2label": {0: "a", 1: "b", 2: "c"}, "label2id": {"a": 0},
    "problem_type": "regression", "dtype": "float64",
    "transformers_version": "4.0.0", "n_inner": 6, "n_layer": 2, "n_head": 2, "n_embd": 24,
    "n_positions": 20, "vocab_size": 40, "classifier_dropout": 0.7, "tie_last_hidden_states": True,
    "per_layer_config": {"0": {"n_head": 2}}, "pruned_heads": {"0": [1]}, "bos_token_id": 3,
    "eos_token_id": 4, "pad_token_id": 5, "torch_dtype": "float64", "sep_token_id": 1,
    "hidden_dropout": 0.6, "summary_last_dropout": 0.4, "is_decoder": True, "_name_or_path": "x",
    "chunk_size_feed_forward": 4, "_output_attentions": True, "output_attentions": True,
}  # fmt: skip


def other(name, value):
    """Another value of the same kind."""
    if name in OTHER:
        return OTHER[name]
    if isinstance(value, bool):
        return not value
    if isinstance(value, float | int):
        return value + 0.25
    raise AssertionError(f"give {name} = {value!r} another value")


def fields_of(family):
    config = FAMILIES[family].config().to_dict()
    further = {"classifier_dropout", "hidden_dropout", "summary_last_dropout", "per_layer_config",
               "pruned_heads", "is_decoder"}  # fmt: skip
    return sorted({*config, *further} - {"model_type", "architectures"})


FIELDS = [(family, name) for family in FAMILIES for name in fields_of(family)]


@pytest.mark.parametrize("family, name", FIELDS, ids=str)
def test_every_config_field_is_used_or_raises_an_error(family, name):
    """`transformers` reads the same field; in training mode, so that dropout has an effect."""
    one = FAMILIES[family]
    value = other(name, one.config().to_dict().get(name))
    base = config_of(one.model("DoubleHeadsModel"))
    try:
        theirs = one.model("DoubleHeadsModel", **{name: value})
    except Exception:
        theirs = one.model("DoubleHeadsModel")  # they refuse it, so must we, or it means nothing
    try:
        ours = from_published(base | {name: value}, weights(theirs)).eval()
    except ConfigError as error:
        assert f"`{name}`" in str(error)
        return
    theirs.config.return_dict, texts = True, batch()
    with torch.no_grad():
        expected = ask(theirs, texts)
        hidden = ours.encoder.encode(texts)
    wanted = expected.hidden_states[-1]
    torch.testing.assert_close(hidden[texts.keep], wanted[texts.keep], **SAME)
    torch.testing.assert_close(
        ours.scores("multiple_choice", texts), expected.mc_logits[:, None], **SAME
    )
    rates = sorted(m.p for m in theirs.modules() if isinstance(m, torch.nn.Dropout))
    mine = [m.probability for m in ours.modules() if hasattr(m, "probability")]
    mine += [m.dropout for m in ours.modules() if isinstance(getattr(m, "dropout", 0), float)]
    assert {round(p, 6) for p in rates} - {0.0} == {round(p, 6) for p in mine} - {0.0}
    written = to_published(ours)[0]
    neutral = {"output_attentions", "output_hidden_states", "return_dict", "dtype", "torch_dtype",
               "problem_type", "id2label", "label2id", "use_cache", "chunk_size_feed_forward",
               "transformers_version", "_name_or_path", "reorder_and_upcast_attn", "num_labels",
               "_output_attentions"}  # fmt: skip
    unknown = {"classifier_dropout", "hidden_dropout"} if family == "gpt" else set()
    if name not in neutral | unknown:
        name = "classifier_dropout" if name == "hidden_dropout" else name
        assert written[name] == value or OURS_BACK.get(value) == written[name]


OURS_BACK = {"swish": "silu"}


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
