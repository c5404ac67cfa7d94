"""Encoders with heads against those of `transformers`, through the real tables, both ways.

The tables are those of `regard.checkpoints.formats.encoder_layout` and
`regard.checkpoints.formats.bert`.
"""

from __future__ import annotations

import json
import re
from contextlib import nullcontext

import pytest
import torch
from their_encoders import (
    CASES,
    ENDINGS,
    FAMILIES,
    T,
    answers,
    ask,
    assert_same_outputs,
    batch,
    heads_of,
    ours_of,
    read,
    transformers,
    weights,
)

from regard.checkpoints.formats import from_published, to_published
from regard.errors import CheckpointError, ConfigError
from regard.models.encoder_with_heads import EncoderWithHeads


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize(("family", "ending"), CASES)
def test_gradients_equal_those_of_transformers(family, ending, tied):
    one = FAMILIES[family]
    model = one.model(ending, tie_word_embeddings=tied).train()
    ours = ours_of(model).train()
    texts = batch(one.segments)
    torch.manual_seed(2)
    output, total, expected = ask(model, texts, pad=ours.config.pad), 0.0, 0.0
    for kind in heads_of(family, ending) or (None,):
        if kind == "pooler" and ending != "Model":
            continue
        if kind is None:
            theirs, found = output.last_hidden_state, ours.encoder.encode(texts)
        else:
            theirs, found = answers(output, kind), ours.scores(kind, texts)
        if found.dim() == 3:
            theirs, found = theirs[texts.keep], found[texts.keep]
        mix = torch.randn_like(found)
        total, expected = total + (found * mix).sum(), expected + (theirs * mix).sum()
    total.backward()
    expected.backward()
    gradients = {
        name: torch.zeros_like(p) if p.grad is None else p.grad
        for name, p in model.named_parameters()
    }
    prefix = "" if ending != "Model" else one.layout.prefix
    gradients = {prefix + name: gradient for name, gradient in gradients.items()}
    names = one.layout.names(tuple(ours.heads), ours.config)
    converted = names.read(gradients, ours.state_dict())
    for name, parameter in ours.named_parameters():
        grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(grad, converted[name], atol=1e-4, rtol=1e-4, msg=name)


# -------------------------------------------------------------------- tensors that do not fit


WORDS = "bert.embeddings.word_embeddings.weight"
QUERY, KEY = (f"bert.encoder.layer.1.attention.self.{part}.weight" for part in ("query", "key"))


@pytest.mark.parametrize(
    ("ending", "change", "said"),
    [
        ("ForMaskedLM", dict(drop="cls.predictions.transform.dense.weight"),
         "missing: cls.predictions.transform.dense.weight (the head of BertForMaskedLM)"),
        ("ForNextSentencePrediction", dict(drop="bert.pooler.dense.bias"),
         "missing: bert.pooler.dense.bias"),
        ("ForMaskedLM", {"bert.encoder.layer.1.adapter.down.weight": torch.ones(12)},
         "extra in layers that this model computes without them, so that its results would be "
         "others (remove them if they are without effect): bert.encoder.layer.1.adapter.down"),
        ("ForMaskedLM", {QUERY: torch.ones(11, 12), KEY: torch.ones(13, 12)},
         "the parts must have one shape"),
        ("ForMaskedLM", {"cls.predictions.decoder.weight": torch.ones(31, 12)},
         f"differs: cls.predictions.decoder.weight must equal {WORDS}, for config.json ties them "
         '(to use both, write "tie_word_embeddings": false there)'),
        ("ForMultipleChoice", {"classifier.weight": torch.ones(2, 12)},
         "heads.multiple_choice.output.weight must be (1, 12), but is (2, 12) "
         "(from classifier.weight)"),
        ("ForSequenceClassification", {"classifier.weight": torch.tensor(1.0)},
         "`id2label` must be names of the 1 outputs"),
    ],
)  # fmt: skip
def test_tensors_that_do_not_fit_raise_an_error_that_names_them(ending, change, said):
    with pytest.raises((CheckpointError, ConfigError)) as caught:
        read("bert", ending, **change)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "extra",
    [
        {"bert.embeddings.colour": torch.ones(2)},
        {"bert.encoder.layer.2.output.dense.bias": torch.ones(12)},  # beyond the last layer
        {"classifier.weight": torch.ones(2, 12), "classifier.bias": torch.ones(2)},
        {"qa_outputs.weight": torch.ones(2, 12)},
        {"cls.seq_relationship.weight": torch.ones(2, 12)},  # half of a head
    ],
    ids=lambda extra: next(iter(extra)),
)
def test_tensors_that_change_no_result_are_named_in_a_warning(extra):
    with pytest.warns(UserWarning, match="does not read.*" + re.escape(", ".join(extra))):
        ours = read("bert", "ForMaskedLM", **extra)
    assert_same_outputs(FAMILIES["bert"].model("ForMaskedLM"), ours.eval(), batch(2))


# ------------------------------------------------------------------------ files as they are met


@pytest.mark.parametrize("architectures", [None, ["MyOwn"]])
@pytest.mark.parametrize(("family", "ending"), CASES)
def test_the_tensors_tell_the_head_where_no_known_architecture_is_named(
    family, ending, architectures
):
    labels = {} if ending != "ForSequenceClassification" else {"id2label": {0: "no", 1: "yes"}}
    unknown = "names 'MyOwn', which is not known here, so the tensors"
    with pytest.warns(UserWarning, match=unknown) if architectures else nullcontext():
        ours = read(family, ending, {"architectures": architectures, **labels})
    assert tuple(sorted(ours.heads)) == heads_of(family, ending)


def test_labels_and_their_number_tell_classifiers_from_others():
    """As `transformers` opens it: a classifier of one output has one label in config.json."""
    one = dict(architectures=None, id2label={"0": "LABEL_0"})
    assert "classes" in read("bert", "ForMultipleChoice", one).heads
    tags = dict(architectures=None, id2label={"0": "O", "1": "B-PER"})
    with pytest.warns(UserWarning, match="this is a BertForTokenClassification; name the task"):
        ours = read("bert", "ForSequenceClassification", tags)
    assert {*ours.heads} == {"tags", "pooler"}


def test_heads_of_no_architecture_must_be_told_apart():
    extra = {"qa_outputs.weight": torch.ones(2, 12), "qa_outputs.bias": torch.ones(2)}
    with pytest.raises(ConfigError, match="`architectures` must be .*qa_outputs"):
        read("bert", "ForMaskedLM", {"architectures": None}, **extra)


def test_the_published_bert_file_keeps_all_its_pre_training_heads():
    """Its class is for masked words, with every head of pre-training and TensorFlow's names."""
    model = FAMILIES["bert"].model("ForPreTraining")
    held = {}
    for name, tensor in weights(model).items():
        if "LayerNorm" in name:
            name = name.replace("weight", "gamma").replace("bias", "beta")
        held[name] = tensor
    held["bert.embeddings.position_ids"] = torch.arange(T)[None]
    assert "cls.predictions.decoder.bias" in held  # left by older writers
    config = json.loads(model.config.to_json_string()) | {"architectures": ["BertForMaskedLM"]}
    ours = from_published(config, held).eval()
    assert sorted(ours.heads) == ["masked_lm", "next_sentence"]
    assert_same_outputs(model, ours, batch(2))
    again, tensors = to_published(ours)  # as what it was, with all that it held
    assert again["architectures"] == ["BertForMaskedLM"]
    assert {"cls.seq_relationship.weight", "bert.pooler.dense.weight"} <= tensors.keys()


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_an_unused_pooler_in_a_file_is_kept(family):
    one = FAMILIES[family]
    pooler = {
        f"{family}.{name}": t for name, t in weights(one.model("Model")).items() if "pool" in name
    }
    assert len(pooler) == 2
    for ending in ("ForTokenClassification", "ForQuestionAnswering", "ForMaskedLM"):
        ours = read(family, ending, **pooler)
        assert tuple(sorted(ours.heads)) == tuple(sorted((*ENDINGS[ending], "pooler")))
        config, tensors = to_published(ours)
        assert config["architectures"] == [one.name + ending] and pooler.keys() <= tensors.keys()
        assert_same_outputs(
            one.model(ending),
            EncoderWithHeads(ours.encoder, {k: ours.heads[k] for k in ENDINGS[ending]}).eval(),
            batch(one.segments),
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_tensor_names_with_or_without_the_model_prefix_are_read(family):
    model = FAMILIES[family].model("ForMaskedLM")
    prefix = FAMILIES[family].layout.prefix
    bare = {name.removeprefix(prefix): t for name, t in weights(model).items()}
    ours = from_published(model.config.to_dict() | {"architectures": None}, bare).eval()
    assert tuple(sorted(ours.heads)) == heads_of(family, "ForMaskedLM")
    assert_same_outputs(model, ours, batch(FAMILIES[family].segments))
    prefixed = {
        f"{prefix}{name}": t for name, t in weights(FAMILIES[family].model("Model")).items()
    }
    assert sorted(read(family, "Model").heads) == list(heads_of(family, "Model"))
    again = from_published(model.config.to_dict() | {"architectures": None}, prefixed)
    assert sorted(again.heads) == list(heads_of(family, "Model"))


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_an_untied_output_is_read_with_either_bias(family):
    """The bias beside an untied decoder is unused, but older files have only that one."""
    model = FAMILIES[family].model("ForMaskedLM", tie_word_embeddings=False)
    held = weights(model)
    own = next(name for name in held if name.endswith("decoder.bias"))
    dead = own.replace("decoder.", "")
    assert not torch.equal(held[own], held[dead])
    assert_same_outputs(model, ours_of(model), batch(2))
    config = model.config.to_dict() | {"architectures": None}
    old = from_published(config, {name: t for name, t in held.items() if name != own})
    assert torch.equal(old.heads["masked_lm"].softmax.bias, held[dead])
    assert old.heads["masked_lm"].softmax.weight is not old.encoder.embedding.weight
    with pytest.raises(CheckpointError, match="missing: .*decoder.weight"):
        from_published(config, {k: t for k, t in held.items() if not k.endswith("coder.weight")})


def test_the_rows_of_its_weight_decide_the_outputs_of_a_head():
    for family in FAMILIES:
        for ending, kind in (
            ("ForSequenceClassification", "classes"),
            ("ForTokenClassification", "tags"),
        ):
            for count in (1, 5):
                model = FAMILIES[family].model(ending, num_labels=count)
                ours = ours_of(model)
                assert ours.heads[kind].outputs == count
                assert_same_outputs(model, ours, batch(FAMILIES[family].segments))
                assert len(to_published(ours)[0]["id2label"]) == count


def test_reading_draws_no_random_numbers():
    model = FAMILIES["bert"].model("ForMaskedLM")
    before = torch.get_rng_state()
    ours_of(model)
    assert torch.equal(torch.get_rng_state(), before)


def test_more_layers_than_tensors_raise_an_error_before_they_are_built():
    for model_type in ("bert", "gpt2"):
        config = transformers.AutoConfig.for_model(model_type).to_dict()
        config |= {"n_layer": 10**9} if model_type == "gpt2" else {"num_hidden_layers": 10**9}
        with pytest.raises(ConfigError, match="must be at most 268,435,456"):
            from_published(config, {})
        config |= {"n_layer": 10**6} if model_type == "gpt2" else {"num_hidden_layers": 10**6}
        with pytest.raises(ConfigError, match="is 1,000,000, but the weights have only"):
            from_published(config, {})
