"""GPT-Neo and Llama against those of `transformers`, through the real tables, both ways."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import pytest
import torch
from their_gpts import (
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
from regard.checkpoints.formats.gpt import GPT_NEO, LLAMA
from regard.data.batches import Sequences
from regard.decoding import generate
from regard.errors import CheckpointError, ConfigError
from regard.models.gpt3 import GPT3, GPT3Config

SIZES = dict(
    vocab_size=V, hidden_size=24, max_position_embeddings=T, bos_token_id=1, eos_token_id=2,
    pad_token_id=PAD, num_labels=3, attn_implementation="eager",
)  # fmt: skip
LLAMA3 = dict(
    rope_type="llama3", rope_theta=50.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=16,
)  # fmt: skip
VARIANTS = {
    "gpt_neo": [
        {},
        dict(window_size=1, intermediate_size=7, activation_function="relu", num_heads=6),
        dict(attention_types=[[["local"], 3]], tie_word_embeddings=False, layer_norm_epsilon=0.1),
        dict(attention_types=[[["local", "global"], 2]], num_layers=4, window_size=300),
    ],
    "llama": [
        {},
        dict(num_key_value_heads=1, head_dim=6, attention_bias=True, hidden_act="gelu"),
        dict(num_key_value_heads=6, mlp_bias=True, tie_word_embeddings=True, rms_norm_eps=0.1),
        dict(num_key_value_heads=None, rope_parameters=dict(rope_type="default", rope_theta=31.0)),
        dict(rope_parameters=dict(rope_type="linear", rope_theta=100.0, factor=2.5), head_dim=2),
        dict(rope_parameters=LLAMA3, attention_bias=True, mlp_bias=True, intermediate_size=7),
    ],
}


@dataclass(frozen=True)
class NeoFamily(Family):
    def config(self, **options):
        types = [[["global", "local"], 1], [["local"], 1]]
        own = dict(num_layers=3, num_heads=3, attention_types=types, window_size=3)
        return transformers.GPTNeoConfig(**(SIZES | own | dict(classifier_dropout=0.0) | options))


@dataclass(frozen=True)
class LlamaFamily(Family):
    def config(self, **options):
        own = dict(intermediate_size=20, num_hidden_layers=3, num_attention_heads=6)
        return transformers.LlamaConfig(**(SIZES | own | dict(num_key_value_heads=2) | options))


NEO, LLAMAS = NeoFamily("GPTNeo", GPT_NEO), LlamaFamily("Llama", LLAMA)
FAMILIES = {"gpt_neo": NEO, "llama": LLAMAS}
MODELS = [(FAMILIES[name], options) for name, several in VARIANTS.items() for options in several]


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("family, options", MODELS, ids=str)
def test_layers_and_scores_equal_those_of_transformers(family, options, left):
    theirs = family.model("ForCausalLM", **options)
    assert_same_outputs(theirs, ours_of(theirs), batch(), None, predicts=True, left=left)


def assert_same_gradients(family, theirs, ours, texts, tolerance=1e-4):
    """After the same loss on both."""
    targets = texts.ids[:, 1:].flatten()
    ours.head.loss(ours.encode(texts)[:, :-1].flatten(0, 1), targets)[0].backward()
    F.cross_entropy(
        theirs(texts.ids).logits[:, :-1].flatten(0, 1), targets, reduction="sum"
    ).backward()
    named = {f"encoder.{n}": p.grad for n, p in ours.named_parameters(remove_duplicate=False)}
    gradients = family.layout.names((), ours.config).write(named)
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("family, options", MODELS, ids=str)
def test_gradients_in_train_mode_equal_those_of_transformers(family, options):
    theirs = family.model("ForCausalLM", **options).train()
    texts = batch()
    texts = Sequences(texts.ids, torch.full_like(texts.lengths, T))
    assert_same_gradients(family, theirs, ours_of(theirs).train(), texts)


@pytest.mark.parametrize("length", [64, 97])
def test_long_rows_which_are_computed_by_blocks_equal_those_of_transformers(length):
    """More than four windows, in whole and in broken blocks."""
    theirs = NEO.model("ForCausalLM", window_size=16, max_position_embeddings=128).train()
    ours = ours_of(theirs).train()
    ids = torch.randint(3, PAD, (2, length), generator=torch.Generator().manual_seed(length))
    texts = Sequences(ids, torch.tensor([length, length]))
    with torch.no_grad():
        torch.testing.assert_close(
            ours.head.logits(ours(ids).hidden), theirs(ids).logits, atol=2e-5, rtol=1e-5
        )
    assert_same_gradients(NEO, theirs, ours, texts, 2e-4)


PROMPTS = [[3, 4, 5, 6], [7], [8, 9], [10, 11, 12]]


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("family, options", MODELS, ids=str)
def test_prompts_of_different_lengths_generate_the_tokens_of_transformers(family, options, beams):
    theirs = family.model("ForCausalLM", max_position_embeddings=64, **options)
    settings = dict(num_beams=beams, max_new_tokens=12, early_stopping=False, length_penalty=1.0)
    method = dict(beams=beams, max_tokens=12) if beams > 1 else dict(max_tokens=12)
    hypotheses = generate(ours_of(theirs), Sequences.of(PROMPTS, None), **method)
    wanted = [alone(theirs, prompt, **settings) for prompt in PROMPTS]
    assert [best[0].tokens for best in hypotheses] == wanted
    assert len({tuple(row) for row in wanted}) > 1


def alone(theirs, prompt, **options):
    """How their model continues one prompt."""
    ids = torch.tensor([prompt])
    mask = torch.ones_like(ids)
    tokens = theirs.generate(input_ids=ids, attention_mask=mask, do_sample=False, **options)
    row = tokens[0, len(prompt) :].tolist()
    return row[: row.index(2)] if 2 in row else row


# ---- fields ------------------------------------------------------------------------------------


REFUSED_OF_GPT_NEO = [
    ({"attention_types": [[["global", "wide"], 3]]}, "`attention_types` must be a list of kinds"),
    ({"attention_types": [["global", 3]]}, "`attention_types` must be a list of kinds"),
    ({"attention_types": 3}, "`attention_types` must be a list of kinds"),
    ({"attention_types": [[["global"], 2]], "attention_layers": None},
     "`attention_types` must be those of 3 layers"),
    ({"attention_types": None, "attention_layers": None},
     "`attention_types` must be those of 3 layers"),
    ({"attention_layers": ["global"] * 3}, "`attention_layers` must be what `attention_types`"),
    ({"window_size": 0}, "`window_size`"),
    ({"num_attention_heads": 4}, "`num_attention_heads` is 4, but `num_heads` says"),
    ({"activation_function": "other"}, "`activation_function` must be one of"),
]  # fmt: skip
REFUSED_OF_LLAMA = [
    ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "`rope_type` must be one of"),
    ({"rope_parameters": {"rope_type": "linear"}}, "`factor`"),
    ({"rope_parameters": {"rope_type": "linear", "factor": -1.0}}, "`factor`"),
    ({"rope_parameters": {"rope_theta": "x"}}, "`rope_theta`"),
    ({"rope_parameters": LLAMA3 | {"low_freq_factor": 5.0}}, "`rope_low_factor` must be at most"),
    ({"rope_parameters": 3}, "`rope_parameters` must be an object"),
    ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "`partial_rotary_factor` must be 1"),
    ({"partial_rotary_factor": 0.5}, "`partial_rotary_factor` must be 1"),
    ({"rope_interleaved": True}, "`rope_interleaved` must be false"),
    ({"num_key_value_heads": 4}, "`key_value_heads` must divide `heads`, 6: 4"),
    ({"num_key_value_heads": 0}, "`num_key_value_heads`"),
    ({"hidden_act": "other"}, "`hidden_act` must be one of"),
]  # fmt: skip
REFUSED = [(NEO, *row) for row in REFUSED_OF_GPT_NEO] + [(LLAMAS, *row) for row in REFUSED_OF_LLAMA]


@pytest.mark.parametrize("family, change, message", REFUSED)
def test_unsupported_fields_raise_an_error_that_names_them(family, change, message):
    theirs = family.model("ForCausalLM")
    with pytest.raises(ConfigError, match=message):
        from_published(config_of(theirs) | change, weights(theirs))


def test_folders_of_older_releases_are_read_without_a_word(recwarn):
    """They also hold the masks as buffers, and fields of a head that there is not."""
    theirs = NEO.model("ForCausalLM")
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
    theirs = LLAMAS.model("ForCausalLM", rope_parameters=new)
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
    theirs = LLAMAS.model("ForCausalLM", rope_parameters=table, original_max_position_embeddings=64)
    config = config_of(theirs) | {"rope_parameters": table}
    found = from_published(config, weights(theirs)).eval()
    texts = batch()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        wanted = ask(theirs, texts).hidden_states[-1]
        torch.testing.assert_close(found.encode(texts)[texts.keep], wanted[texts.keep], **SAME)
    assert found.config.rope_original_length == 64


def test_weights_with_biases_that_the_configuration_denies_raise_an_error():
    theirs = LLAMAS.model("ForCausalLM", attention_bias=True)
    with pytest.raises(CheckpointError, match="q_proj.bias"):
        from_published(config_of(theirs) | {"attention_bias": False}, weights(theirs))
