"""The library without its optional package of compiled kernels, in a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "regard"

PROGRAM = """
import torch
import regard
from regard import ops
from regard.data.batches import Sequences
from regard.decoding import generate
from regard.models.bert import Bert, BertConfig
from regard.models.gpt2 import GPT2, GPT2Config
from regard.models.quantize import prepare
from regard.models.recurrent import RecurrentConfig, RecurrentLanguageModel
from regard.models.transformer import Transformer, TransformerConfig
from regard.registry import kernel_package

ops.load_kernels()
assert kernel_package() is None
torch.manual_seed(1)
sizes = dict(d_model=16, heads=2, max_length=40)
models = [
    GPT2(GPT2Config(30, layers=2, bos=1, eos=2, pad=0, **sizes)),
    Transformer(TransformerConfig(30, d_ff=32, encoder_layers=1, decoder_layers=1, **sizes)),
    RecurrentLanguageModel(RecurrentConfig(30, "lstm", 16)),
]
texts = Sequences.of([[1, 5, 6], [1, 7, 8, 9, 10]], 0)
for model in models:
    before = torch.optim.SGD(model.parameters(), 0.1)
    for precision in (torch.float32, torch.bfloat16):
        with torch.autocast("cpu", precision, enabled=precision != torch.float32):
            target = texts.ids[:, 1:]
            read = texts.ids[:, :-1]
            given = (read,) if model.continues else (texts, Sequences.full(read))
            hidden = model(*given).hidden.flatten(0, 1)
            loss, _ = model.head.loss(hidden, target.flatten(), 0.1)
        loss.backward()
    before.step()
    wide = generate(model.eval(), texts, beams=2, max_tokens=6)
    prepare(model, "int8")  # which keeps the float32 weights here
    assert [[h.tokens for h in row] for row in generate(model, texts, beams=2, max_tokens=6)] == [
        [h.tokens for h in row] for row in wide
    ]
encoder = Bert(BertConfig(30, d_ff=32, layers=2, **sizes))
assert encoder.encode(texts).isfinite().all()
assert encoder.encode(texts, texts.first_tokens()).isfinite().all()
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
