"""The library without its optional package of compiled kernels, in a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "regard"

PROGRAM = """
import warnings

import torch
import regard
from regard import ops
from regard.data.batches import Sequences
from regard.decoding import generate
from regard.layers.quantized import QuantizedLinear, QuantizedSoftmax
from regard.models.bert import Bert, BertConfig
from regard.models.gpt2 import GPT2, GPT2Config
from regard.models.conversions import prepare
from regard.models.recurrent import RecurrentConfig, RecurrentLanguageModel
from regard.models.transformer import Transformer, TransformerConfig
from regard.registry import kernel_package

ops.load_kernels()
assert kernel_package() is None
torch.manual_seed(1)
sizes = dict(d_model=16, heads=2, max_length=40)
makers = [
    lambda: GPT2(GPT2Config(30, layers=2, bos=1, eos=2, pad=0, **sizes)),
    lambda: Transformer(
        TransformerConfig(30, d_ff=32, encoder_layers=1, decoder_layers=1, **sizes)
    ),
    lambda: RecurrentLanguageModel(RecurrentConfig(30, "lstm", 16)),
]
texts = Sequences.of([[1, 5, 6], [1, 7, 8, 9, 10]], 0)


def inputs_of(model):
    read = texts.ids[:, :-1]
    return (read,) if model.continues else (texts, Sequences.full(read))


for model in [make() for make in makers]:
    before = torch.optim.SGD(model.parameters(), 0.1)
    for precision in (torch.float32, torch.bfloat16):
        with torch.autocast("cpu", precision, enabled=precision != torch.float32):
            hidden = model(*inputs_of(model)).hidden.flatten(0, 1)
            loss, _ = model.head.loss(hidden, texts.ids[:, 1:].flatten(), 0.1)
        loss.backward()
    before.step()
    assert all(generate(model.eval(), texts, beams=2, max_tokens=6))


def quantized(model, dtype):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        prepare(model.eval(), dtype)
    (warning,) = caught
    assert "no compiled kernels" in str(warning.message)
    assert "save memory, but are slower" in str(warning.message)
    parts = [part for part in model.modules() if isinstance(part, QuantizedLinear)]
    assert parts and not any(p.requires_grad for p in model.parameters())
    return model


@torch.no_grad()
def close(found, expected):
    error = (found - expected).pow(2).mean().sqrt() / expected.std()
    assert error < 0.1, error


for make in makers:
    for dtype in ("int8", "bfloat16"):
        torch.manual_seed(2)
        model = make().eval()
        expected = model.head.logits(model(*inputs_of(model)).hidden)
        model = quantized(model, dtype)
        assert isinstance(model.head, QuantizedSoftmax)
        close(model.head.logits(model(*inputs_of(model)).hidden), expected)
        assert all(generate(model, texts, beams=2, max_tokens=6))
encoder = Bert(BertConfig(30, d_ff=32, layers=2, **sizes)).eval()
expected = encoder.encode(texts)
close(quantized(encoder, "int8").encode(texts), expected)
print("reached the end")
"""


def test_everything_runs_without_the_kernels(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "regard", ignore=shutil.ignore_patterns("kernels", "*.pyc"))
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.endswith("reached the end\n")
