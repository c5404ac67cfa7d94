"""`regard verify` passes on every architecture, and finds a difference in one number.

So the models of `regard.checkpoints.formats.gpt` and `regard.checkpoints.formats.transformer_xl`,
too, are those of `transformers`.
"""

from __future__ import annotations

import json
import math
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from regard.checkpoints.formats import LAYOUTS, layout_of
from regard.checkpoints.formats.encoder_layout import EncoderLayout
from regard.checkpoints.formats.t5 import T5Layout
from regard.checkpoints.verify import verify
from regard.cli import app
from regard.errors import CheckpointError, MissingExtra

transformers = pytest.importorskip("transformers", reason="what is compared with")

V = 40
BODY = dict(
    vocab_size=V, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20
)
PAIR = dict(
    vocab_size=V, d_model=12, encoder_layers=2, decoder_layers=2, encoder_attention_heads=3,
    decoder_attention_heads=3, encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=20,
    activation_function="relu", scale_embedding=True, pad_token_id=0, eos_token_id=2,
    decoder_start_token_id=1, bos_token_id=1, forced_eos_token_id=None,
)  # fmt: skip
GPT = dict(vocab_size=V, n_embd=12, n_layer=2, n_head=3, n_positions=20)
T5 = dict(
    vocab_size=V, d_model=12, d_kv=5, d_ff=16, num_layers=2, num_heads=3, decoder_start_token_id=0
)
SIZES = {
    "bert": BODY | dict(max_position_embeddings=20, type_vocab_size=3),
    **dict.fromkeys(
        ("roberta", "xlm-roberta", "camembert"),
        BODY | dict(max_position_embeddings=22, type_vocab_size=1),
    ),
    "mpnet": BODY | dict(max_position_embeddings=22),
    "electra": BODY | dict(max_position_embeddings=20, embedding_size=8),
    "albert": BODY | dict(max_position_embeddings=20, embedding_size=8),
    "big_bird": BODY | dict(max_position_embeddings=20),
    "deberta-v2": BODY
    | dict(relative_attention=True, position_buckets=8, share_att_key=True, pos_att_type="c2p"),
    "distilbert": dict(
        vocab_size=V, dim=12, n_layers=2, n_heads=3, hidden_dim=20, max_position_embeddings=20
    ),
    "xlnet": dict(vocab_size=V, d_model=12, n_layer=2, n_head=3, d_inner=20),
    "gpt2": GPT | dict(summary_proj_to_labels=True),
    "openai-gpt": GPT,
    "gpt_neo": dict(
        vocab_size=V,
        hidden_size=12,
        num_layers=2,
        num_heads=3,
        max_position_embeddings=20,
        attention_types=[[["global", "local"], 1]],
        window_size=2,
    ),
    "llama": BODY | dict(num_key_value_heads=1, max_position_embeddings=20),
    **dict.fromkeys(("t5", "mt5", "umt5"), T5),
    **dict.fromkeys(("marian", "pegasus", "bart", "mbart", "m2m_100"), PAIR),
}
WHOLE = {
    "marian": "MarianMTModel",
    "pegasus": "PegasusForConditionalGeneration",
    "t5": "T5ForConditionalGeneration",
    "mt5": "MT5ForConditionalGeneration",
    "umt5": "UMT5ForConditionalGeneration",
    "bart": "BartForConditionalGeneration",
    "mbart": "MBartForConditionalGeneration",
    "m2m_100": "M2M100ForConditionalGeneration",
}
# Later releases of transformers do not have the first, and none has the second.
GONE = {"transfo-xl", "segabert"}


def architectures():
    for model_type in [one for one in LAYOUTS if one not in GONE]:
        layout = layout_of(model_type)
        if model_type in WHOLE:
            names = {WHOLE[model_type]}
            names |= {*layout.heads.known_architectures} if isinstance(layout, T5Layout) else set()
        else:
            assert isinstance(layout, EncoderLayout)
            names = set(layout.architectures.values())
        yield from ((model_type, name) for name in sorted(names))


@pytest.fixture
def made(tmp_path):
    """Writes a tiny folder of an architecture, all parameters random, with BERT's tokenizer."""

    def make(model_type, architecture, **options):
        torch.manual_seed(0)
        config = transformers.AutoConfig.for_model(model_type, **(SIZES[model_type] | options))
        model = getattr(transformers, architecture)(config).eval()
        with torch.no_grad():
            for parameter in filter(lambda one: one.requires_grad, model.parameters()):
                parameter.add_(torch.randn_like(parameter) * 0.2)
        model.save_pretrained(tmp_path)
        return tmp_path

    return make


@pytest.mark.parametrize(("model_type", "architecture"), list(architectures()))
def test_verify_compares_every_layer_and_head_with_transformers(made, model_type, architecture):
    report = verify(made(model_type, architecture), tolerance=1e-5)
    assert report.architecture == architecture
    assert report.equal, report.differences
    names = [*report.differences]
    if architecture in WHOLE.values():
        assert names == ["encoder", "decoder", "head lm"]
        return
    assert names[:3] == ["embeddings", "layer 1", "layer 2"]
    bare = architecture.endswith("Model") or "has no form" in report.notes
    left_out = any("not compared" in note for note in report.notes)
    assert len(names) > 3 or bare or left_out
    if "PreTraining" in architecture:
        assert len(names) == (4 if model_type == "electra" else 5)


def test_verify_notes_tensors_beyond_the_architecture(made):
    folder = made("bert", "BertForMaskedLM")
    weights = load_file(folder / "model.safetensors")
    extra = {
        "bert.pooler.dense.weight": torch.randn(12, 12),
        "bert.pooler.dense.bias": torch.randn(12),
    }
    save_file(weights | extra, folder / "model.safetensors", metadata={"format": "pt"})
    report = verify(folder)
    assert report.equal
    assert any("leaves out" in note and "pooler" in note for note in report.notes)
    assert "BertForMaskedLM has no head pooler: not compared" in report.notes


# ---- differences


@pytest.fixture
def disagreeing(made, monkeypatch):
    """A folder in which our reader changes one number of the second layer."""
    from regard.checkpoints import verify as module

    folder, read = made("bert", "BertForTokenClassification"), module.read_model

    def wrong(path):
        model = read(path)
        with torch.no_grad():
            model.encoder.blocks[1].feed_norm.bias[3] += 0.01
        return model

    monkeypatch.setattr(module, "read_model", wrong)
    return folder


def test_verify_finds_the_layer_that_differs(disagreeing):
    report = verify(disagreeing)
    assert not report.equal
    by_name = report.differences
    assert max(by_name["embeddings"], by_name["layer 1"]) < 1e-5
    assert 1e-3 < by_name["layer 2"] < 0.01
    assert by_name["head tags"] > 1e-4
    assert verify(disagreeing, tolerance=0.1).equal


def test_differences_are_relative_to_the_magnitude_of_the_states(made):
    """States of about 1e6, as those of large Llamas can be: float32 has an error of 0.1 there."""
    folder = made("llama", "LlamaModel")
    weights = load_file(folder / "model.safetensors")
    weights["embed_tokens.weight"] *= 1e6
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert verify(folder, tolerance=1e-5).equal


def test_verify_reports_nan_as_a_difference(made):
    folder = made("bert", "BertModel")
    weights = load_file(folder / "model.safetensors")
    # Finite weights, but sums beyond float32 in both libraries, and inf - inf between them.
    weights["encoder.layer.1.output.LayerNorm.weight"].fill_(3e38)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    report = verify(folder)
    assert not report.equal and math.isnan(report.largest)


# ---- errors and the command line


def test_without_transformers_verify_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match=r"needs `transformers`.*regard\[verify\]"):
        verify(tmp_path)


def test_verify_of_an_unpublished_architecture_raises_an_error(tmp_path):
    from regard.checkpoints.store import write_tensors
    from regard.models import model_class

    kind = model_class("lstm-lm")
    model = kind(kind.Config(vocab_size=9, d_model=8))
    write_tensors(tmp_path / "model.safetensors", model.state_dict())
    config = {
        "model_type": "regard",
        "vocab_size": 9,
        "d_model": 8,
        "regard": {"model": "lstm-lm"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="no other library opens this folder"):
        verify(tmp_path)


def ran(*words):
    from typer.testing import CliRunner

    return CliRunner().invoke(app, ["verify", *map(str, words)])


def test_the_verify_command_prints_a_table_or_json(made):
    folder = made("gpt2", "GPT2LMHeadModel")
    told = ran(folder)
    assert told.exit_code == 0, told.output
    lines = told.stdout.splitlines()
    assert lines[0].startswith("GPT2LMHeadModel")
    assert [line.split()[0] for line in lines[1:]] == ["embeddings", "layer", "layer", "head"]
    facts = json.loads(ran(folder, "--json").stdout)
    assert facts["equal"] and facts["largest"] < 1e-5 and facts["tolerance"] == 1e-4
    assert [*facts["differences"]][-1] == "head lm"


def test_the_verify_command_exits_with_2_if_layers_differ(disagreeing):
    told = ran(disagreeing)
    assert told.exit_code == 2
    assert "layer 2 differs by" in told.stderr
    assert ran(disagreeing, "--tolerance", "0.1").exit_code == 0
    as_json = ran(disagreeing, "--json")
    assert as_json.exit_code == 2 and json.loads(as_json.stdout)["equal"] is False
