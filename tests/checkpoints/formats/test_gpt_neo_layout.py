"""GPT-Neo against that of `transformers`, through the real table, both ways."""

from __future__ import annotations

import json
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
    assert_same_outputs,
    batch,
    config_of,
    ours_of,
    transformers,
    weights,
)
from torch.nn import functional as F

from regard.checkpoints.formats import from_published, to_published
from regard.checkpoints.formats.gpt import GPT_NEO
from regard.checkpoints.store import write_tensors
from regard.data.batches import Sequences
from regard.decoding import generate
from regard.errors import ConfigError
from regard.models.gpt3 import GPT3, GPT3Config

TYPES = [[["global", "local"], 1], [["local"], 1]]
BODY = dict(
    vocab_size=V, hidden_size=24, num_layers=3, num_heads=3, max_position_embeddings=T,
    attention_types=TYPES, window_size=3, bos_token_id=1, eos_token_id=2, pad_token_id=PAD,
    num_labels=3, classifier_dropout=0.0, attn_implementation="eager",
)  # fmt: skip
VARIANTS = [
    {},
    dict(window_size=1, intermediate_size=7, activation_function="relu", num_heads=6),
    dict(attention_types=[[["local"], 3]], tie_word_embeddings=False, layer_norm_epsilon=0.1),
    dict(attention_types=[[["local", "global"], 2]], num_layers=4, window_size=300),
]
KINDS = {
    **{name: ENDINGS[name] for name in ENDINGS if "For" in name},
    "Model": None,
    "ForCausalLM": None,
}
CASES = [(ending, options) for ending in KINDS for options in VARIANTS]


@dataclass(frozen=True)
class NeoFamily(Family):
    def config(self, **options):
        return transformers.GPTNeoConfig(**(BODY | options))


FAMILY = NeoFamily("GPTNeo", GPT_NEO)


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("ending, options", CASES, ids=str)
def test_layers_and_heads_equal_those_of_transformers(ending, options, left):
    theirs = FAMILY.model(ending, **options)
    ours, texts, kind = ours_of(theirs), batch(), KINDS[ending]
    predicts = ending == "ForCausalLM"
    assert_same_outputs(theirs, ours, texts, kind, predicts=predicts, left=left)


def gradients(theirs, ours, texts):
    """Ours by their names, after the same loss on both."""
    targets = texts.ids[:, 1:].flatten()
    ours.head.loss(ours.encode(texts)[:, :-1].flatten(0, 1), targets)[0].backward()
    F.cross_entropy(
        theirs(texts.ids).logits[:, :-1].flatten(0, 1), targets, reduction="sum"
    ).backward()
    named = {f"encoder.{n}": p.grad for n, p in ours.named_parameters(remove_duplicate=False)}
    return GPT_NEO.names((), ours.config).write(named)


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_gradients_in_train_mode_equal_those_of_transformers(options):
    theirs = FAMILY.model("ForCausalLM", **options).train()
    texts = batch()
    texts = Sequences(texts.ids, torch.full_like(texts.lengths, T))
    found = gradients(theirs, ours_of(theirs).train(), texts)
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("length", [64, 97, 100])
def test_long_rows_which_are_computed_by_blocks_equal_those_of_transformers(length):
    """More than four windows, in whole and in broken blocks."""
    theirs = FAMILY.model("ForCausalLM", window_size=16, max_position_embeddings=128).train()
    ours = ours_of(theirs).train()
    ids = torch.randint(3, PAD, (2, length), generator=torch.Generator().manual_seed(length))
    texts = Sequences(ids, torch.tensor([length, length]))
    with torch.no_grad():
        torch.testing.assert_close(
            ours.head.logits(ours(ids).hidden), theirs(ids).logits, atol=2e-5, rtol=1e-5
        )
    found = gradients(theirs, ours, texts)
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, atol=2e-4, rtol=1e-4)


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
             "label2id", "attention_types")  # fmt: skip
    assert {k: v for k, v in after.items() if k not in notes} == {
        k: v for k, v in before.items() if k not in notes
    }
    assert again.config.attention_layers == theirs.config.attention_layers


@pytest.mark.parametrize("change, message", [
    ({"attention_types": [[["global", "wide"], 3]]}, "`attention_types` must be a list of kinds"),
    ({"attention_types": [["global", 3]]}, "`attention_types` must be a list of kinds"),
    ({"attention_types": 3}, "`attention_types` must be a list of kinds"),
    ({"attention_types": [[["global"], 2]], "attention_layers": None},
     "`attention_types` must be those of 3 layers"),
    ({"attention_types": None, "attention_layers": None},
     "`attention_types` must be those of 3 layers"),
    ({"attention_layers": ["global"] * 3}, "`attention_layers` must be what `attention_types`"),
    ({"window_size": 0}, "`window_size`"),
    ({"num_attention_heads": 4}, "`num_attention_heads` must be equal to `num_heads`"),
    ({"activation_function": "other"}, "`activation_function` must be one of"),
])  # fmt: skip
def test_unsupported_fields_raise_an_error_that_names_them(change, message):
    theirs = FAMILY.model("ForCausalLM")
    with pytest.raises(ConfigError, match=message):
        from_published(config_of(theirs) | change, weights(theirs))


def test_folders_of_older_releases_are_read_without_a_word(recwarn):
    """They also hold the masks as buffers, and fields of a head that there is not."""
    theirs = FAMILY.model("ForCausalLM")
    notes = dict(
        summary_activation=None, summary_first_dropout=0.1, summary_proj_to_labels=True,
        summary_type="cls_index", summary_use_proj=True, gradient_checkpointing=False,
        tokenizer_class="GPT2Tokenizer", num_attention_heads=3, resid_dropout=0,
    )  # fmt: skip
    tensors = weights(theirs)
    for layer in range(3):
        attention = f"transformer.h.{layer}.attn.attention"
        tensors[f"{attention}.bias"] = torch.ones(1, 1, T, T, dtype=torch.bool)
        tensors[f"{attention}.masked_bias"] = torch.tensor(-1e9)
    found = from_published(config_of(theirs) | notes, tensors).eval()
    assert not recwarn.list
    ids = batch().ids
    with torch.no_grad():
        torch.testing.assert_close(found.head.logits(found(ids).hidden), theirs(ids).logits, **SAME)


def test_gpt3_is_not_published_under_this_name():
    """Theirs neither scales the scores nor adds vectors in the projections."""
    assert to_published(GPT3(GPT3Config(V, d_model=8, heads=2, layers=2))) is None


PROMPTS = [[3, 4, 5, 6], [7], [8, 9], [10, 11, 12]]


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_prompts_generate_the_tokens_of_transformers(options, beams):
    theirs = FAMILY.model("ForCausalLM", max_position_embeddings=64, **options)
    settings = dict(num_beams=beams, max_new_tokens=12, early_stopping=False, length_penalty=1.0)
    method = dict(beams=beams, max_tokens=12) if beams > 1 else dict(max_tokens=12)
    found = generate(ours_of(theirs), Sequences.of(PROMPTS, None), **method)
    wanted = [alone(theirs, prompt, **settings) for prompt in PROMPTS]
    assert [best[0].tokens for best in found] == wanted
    assert len({tuple(row) for row in wanted}) > 1


def alone(theirs, prompt, **options):
    """How their model continues one prompt."""
    ids = torch.tensor([prompt])
    mask = torch.ones_like(ids)
    found = theirs.generate(input_ids=ids, attention_mask=mask, do_sample=False, **options)
    row = found[0, len(prompt) :].tolist()
    return row[: row.index(2)] if 2 in row else row
