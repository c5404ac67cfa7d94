"""How much context helps trained models: python examples/effective_context.py RUNS TEXT MODEL...

RUNS is a folder of runs, such as runs/long-memory-ptb of examples/long_memory.py, TEXT a file of
lines and MODEL the name of a run. The table has the perplexity of 3,000 tokens after contexts of
8 to 256 tokens; then the relative effective context length (Dai et al. 2019) of each model.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np

import regard
from regard.data import encode_texts
from regard.experiments.effective_context import losses_by_context, relative_effective_context

CONTEXTS = (8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)
SHOWN = (8, 16, 32, 64, 128, 256)


def main(runs: str, text: str, *names: str) -> None:
    """Print the table and the lengths."""
    tasks = {name: regard.load(Path(runs) / name / "model") for name in names}
    tokenizer = tasks[names[0]].tokenizer
    lines = Path(text).read_text(encoding="utf-8").splitlines()
    ids = encode_texts(lines, tokenizer, after=tokenizer.required_ids("eos")).ids.tolist()
    targets = random.Random(0).sample(range(max(CONTEXTS), len(ids)), 3000)
    losses = {
        name: losses_by_context(task.module, ids, CONTEXTS, sorted(targets))
        for name, task in tasks.items()
    }
    print(f"{'context':28}", *(f"{one:7}" for one in SHOWN))
    for name, found in losses.items():
        means = dict(zip(CONTEXTS, np.exp(found.mean(1)), strict=True))
        print(f"{name:28}", *(f"{means[one]:7.1f}" for one in SHOWN))
    for threshold in (0.01, 0.002):
        for share in (0.1, 1.0):
            found = relative_effective_context(losses, CONTEXTS, share=share, threshold=threshold)
            print(f"{share:.0%} of the tokens, gains of {threshold:.1%}:", found)


if __name__ == "__main__":
    main(*sys.argv[1:])
