"""ONNX Runtime opens exported models, and its outputs equal those of this library."""

from __future__ import annotations

import json

import pytest
import small_models as small
import torch

import regard
from regard.data.batches import Sequences
from regard.exporting import ExportSource, onnx
from regard.tasks.folders import load_float32

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package)

ONE = {"encoder_layers": 1, "decoder_layers": 1}
CASES = {
    "bert with heads": (small.bert, {"heads": {"pooler": 1, "tags": 3}, "layers": 1}),
    "gpt2 with its cache": (small.gpt2, {"scaled_by_layer": True, "layers": 2}),
    "transformer with two vocabularies": (
        small.transformer,
        ONE | {"source_vocab_size": 310, "tied": False},
    ),
}


EXPORTED = pytest.mark.slow("regard/exporting", "regard/models", "regard/attention")


@EXPORTED
@pytest.mark.parametrize("name", CASES)
def test_onnx_runtime_gives_the_outputs_of_the_exported_model(name, tmp_path):
    build, options = CASES[name]
    folder = build(tmp_path / "model", **options)
    made = regard.export(folder, "onnx")
    assert all(one.relative < 1e-5 and one.magnitude > 0.5 for one in made.differences), made
    assert (made.path / "tokenizer.json").exists() and (made.path / "README.md").exists()
    # The names of labels, a threshold and how texts are pooled are there.
    written, wanted = ((one / "config.json").read_text() for one in (made.path, folder))
    assert json.loads(written) == json.loads(wanted)


@EXPORTED
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("bigbird", {"block_size": 8, "max_length": 70}),
        ("distilbert", {"sinusoidal": True}),
        ("mpnet", {}),
    ],
)
def test_texts_of_any_length_that_an_encoder_reads_have_its_states(name, options, tmp_path):
    """The export compares texts of up to 64 tokens."""
    longest = {"max_length": 150} | options
    folder = small.encoder(tmp_path / "model", name, **longest)
    made = regard.export(folder, "onnx")
    body = regard.load(folder, device="cpu").module.encoder
    session, drawn = onnx.Session(made.path / "model.onnx"), torch.Generator().manual_seed(1)
    for length in (1, longest["max_length"] // 2, longest["max_length"]):
        ids = torch.randint(5, body.config.vocab_size, (2, length), generator=drawn)
        texts = Sequences.full(ids)
        given = [ids, texts.keep.long(), torch.zeros_like(ids)][: len(session.inputs)]
        with torch.no_grad():
            wanted = body.encode(texts)
        found = torch.from_numpy(session.run(*given)[0])
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


@EXPORTED
@pytest.mark.parametrize(
    ("build", "options", "room"),
    [
        (small.gpt2, {"max_length": 12}, 12),
        (small.llama, {}, 256),  # a table has at least so many positions
    ],
)
def test_a_token_beyond_the_table_of_positions_is_an_error(build, options, room, tmp_path):
    """Of a slice beyond the end of the table one vector is left, which fits every token."""
    made = regard.export(build(tmp_path / "model", layers=1, **options), "onnx")
    session, ids = onnx.Session(made.path / "model.onnx"), torch.ones(1, room, dtype=torch.long)
    _, *past = session.run(ids[:, :-1], *session.no_past(1))
    assert len(session.run(ids[:, :1], *past)) == len(past) + 1
    with pytest.raises(Exception, match="INVALID_ARGUMENT"):
        session.run(ids[:, :2], *past)


@pytest.mark.parametrize(
    ("heads", "names"),
    [
        ({}, ["last_hidden_state"]),
        ({"pooler": 1}, ["last_hidden_state", "pooler_output"]),
        ({"pooler": 1, "tags": 3}, ["pooler_output", "logits"]),
        ({"tags": 3, "masked_lm": 1}, ["tags_logits", "masked_lm_logits"]),
    ],
)
def test_an_encoder_gives_hidden_states_unless_a_head_of_a_task_reads_them(heads, names, tmp_path):
    folder = small.bert(tmp_path / "model", heads=heads, layers=1)
    (graph,) = onnx._graphs(ExportSource(folder, load_float32(folder), "ONNX Runtime"))
    assert graph.outputs == names
    found = graph.module(*graph.inputs)
    assert len(found) == len(names) and found[0].shape[0] == 2
