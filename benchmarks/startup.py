"""What it costs to begin: time of an import in a new process, and memory of a translation."""

from __future__ import annotations

import subprocess
import sys
from statistics import median

IMPORTS = {
    "python": "pass",
    "torch": "import torch",
    "regard": "import regard",
    "regard's Transformer": "from regard.models.transformer import Transformer",
    "transformers' MarianMTModel": "from transformers import MarianMTModel",
}

PEAK = """
import resource
{body}
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""

# One update of a Transformer base with 58,101 words on 32 sentences of 13 words.
OURS = """
from benchmarks.translation import _batch, _our_step, sentences
import torch
from regard.models.transformer import Transformer, TransformerConfig
model = Transformer(TransformerConfig(vocab_size=58101, dropout=0.0))
_our_step(model)(_batch(sentences(32, 58101)))
"""
THEIRS = """
from benchmarks.translation import _batch, _their_step, sentences
import transformers
model = transformers.MarianMTModel(transformers.MarianConfig(
    vocab_size=58101, d_model=512, encoder_layers=6, decoder_layers=6, encoder_ffn_dim=2048,
    decoder_ffn_dim=2048, encoder_attention_heads=8, decoder_attention_heads=8, pad_token_id=0,
    decoder_start_token_id=1, dropout=0.0))
_their_step(model)(_batch(sentences(32, 58101)))
"""


def imports(rounds: int) -> dict[str, float]:
    """Seconds of a process that only imports, in turn; the median of several rounds."""
    times: dict[str, list[float]] = {name: [] for name in IMPORTS}
    for _ in range(rounds):
        for name, code in IMPORTS.items():
            timer = f"import time; t = time.perf_counter(); {code}; print(time.perf_counter() - t)"
            times[name].append(float(_run(timer)))
    return {name: median(found) for name, found in times.items()}


def peaks() -> dict[str, float]:
    """Peak memory in MB of a process that makes one training update."""
    bodies = {"regard": OURS, "transformers": THEIRS}
    return {name: float(_run(PEAK.format(body=body))) / 1024 for name, body in bodies.items()}


def _run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()[-1]
