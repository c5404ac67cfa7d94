"""Vectors of texts from the encoders of encoder-decoders are those of `transformers`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from opus_folders import ENGLISH, write_folder
from test_multilingual_folders import write as write_multilingual
from tiny_folders import folder as tiny

import regard
from regard.checkpoints.formats import layout_for
from regard.data.batches import Sequences

transformers = pytest.importorskip("transformers")
TEXTS = [*ENGLISH, "a", ""]
KINDS = ("t5", "bart", "marian", "mbart", "mbart-50", "nllb", "nllb-pieces-legacy")


def write(path: Path, kind: str):
    """A folder; returns their model and tokenizer."""
    if kind in ("t5", "bart"):
        tiny(path, kind, "ForConditionalGeneration")
    elif kind == "marian":
        pytest.importorskip("sentencepiece")
        return write_folder(path, codes=()), transformers.MarianTokenizer.from_pretrained(path)
    else:
        pytest.importorskip("sentencepiece")
        return write_multilingual(path, kind)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(path).eval()
    return model, transformers.AutoTokenizer.from_pretrained(path)


@torch.no_grad()
def their_states(model, tokenizer, text: str) -> list[torch.Tensor]:
    """Of one text: the embeddings' states (T, D), then those of each layer."""
    given = tokenizer(text, return_tensors="pt")
    found = model.get_encoder()(given.input_ids, output_hidden_states=True)
    return [hidden[0] for hidden in found.hidden_states]


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_those_of_the_encoder_in_transformers(kind, tmp_path):
    model, tokenizer = write(tmp_path, kind)
    task = regard.load(tmp_path, device="cpu")
    # Marian's dimensions have another order in ours: sines and cosines side by side.
    layout = layout_for(task.module)
    given = [text for text in TEXTS if text]
    states = [their_states(model, tokenizer, text) for text in given]
    for options, wanted in (
        ({}, [layers[-1].mean(0) for layers in states]),
        ({"pooling": "first"}, [layers[-1][0] for layers in states]),
        ({"layers": 0}, [layers[0].mean(0) for layers in states]),
        ({"layers": 1}, [layers[1].mean(0) for layers in states]),
        (
            {"layers": list(range(1, len(states[0]))), "combine": "sum"},
            [sum(layers[1:]).mean(0) for layers in states],
        ),
    ):
        found = layout.in_their_order(torch.from_numpy(task.embed(given, **options)))
        torch.testing.assert_close(found, torch.stack(wanted), atol=1e-5, rtol=0, msg=str(options))
    for rows, layers in zip(task.embed(given, granularity="token"), states, strict=True):
        found = layout.in_their_order(torch.from_numpy(np.array(rows)))
        torch.testing.assert_close(found, layers[-1], atol=1e-5, rtol=0)
    assert np.abs(task.embed(given[0]) - task.embed(given)[0]).max() < 1e-6
    assert task.similarity("the cat", "the cat") == pytest.approx(1)
    scaled = task.encode(given, normalize_embeddings=True)
    assert np.allclose(scaled, task.embed(given, normalize=True), atol=1e-6)
    assert task.embed([]).shape == (0, 16) and np.isfinite(task.embed("")).all()


def test_gradients_reach_the_weights_of_the_model_itself(tmp_path):
    write(tmp_path, "bart")
    model = regard.load(tmp_path, device="cpu").module
    batch = Sequences.of([[0, 9, 8, 2], [0, 2]], model.config.pad)
    model.source_encoder().encode(batch).square().sum().backward()
    assert float(model.encoder[0].feed.inner.weight.grad.abs().sum()) > 0
    assert model.decoder[0].feed.inner.weight.grad is None
