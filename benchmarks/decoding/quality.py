"""How good the scores are at which a speed was reached: perplexity, and the most probable token.

Random weights have no quality, so this is measured on a GPT-2 of 0.8M weights that has learned to
spell Shakespeare (recipes/shakespeare-char-cpu.toml), on text it has not seen.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.cache import cached
from benchmarks.options import Options
from benchmarks.workers import ROOT, Condition, Failed, Worker, prepare

EXACT = "regard float32"
ROWS = 200
Told = tuple[float, list[int]]


def told(logits: Any, ids: list[int]) -> Told:
    """Of one text: the sum of its tokens' negative log-probabilities, and the tokens guessed.

    logits: (T, V), a tensor or an array, of the tokens that follow ids[0] ... ids[T - 1].
    """
    import torch

    scores = torch.as_tensor(logits)[: len(ids) - 1].double()
    targets = torch.tensor(ids[1:])
    lost = torch.nn.functional.cross_entropy(scores, targets, reduction="sum")
    return float(lost), scores.argmax(-1).tolist()


@cache
def measured(options: Options, sides: tuple[str, ...]) -> dict[str, str]:
    """Of each side: its perplexity beside float32's, and how often it guesses the same."""
    from benchmarks.decoding import conditions
    from benchmarks.decoding.shape import Shape

    folder = _trained(options)
    if folder is None:
        return {}
    config = json.loads((folder / "config.json").read_text())
    names = {"width": "n_embd", "heads": "n_head", "layers": "n_layer", "length": "n_positions"}
    sizes = {ours: config[theirs] for ours, theirs in names.items()}
    shape = Shape(**sizes, vocab_size=config["vocab_size"], prompt=8, new=8)
    rows = _rows(folder, shape.length, 4 if options.quick else ROWS)
    found: dict[str, list[Told]] = {}
    for condition in conditions(folder, shape, (EXACT, *(s for s in sides if s != EXACT))):
        try:
            found[condition.name] = _scores(condition, rows)
        except Failed:
            pass  # it has no quality then; its speed was told with its own failure
    return {name: _said(scores, found[EXACT]) for name, scores in found.items() if name in sides}


def _scores(condition: Condition, rows: list[list[int]]) -> list[Told]:
    prepare(condition, threads=1)
    with Worker(condition, threads=1) as worker:
        worker.make()
        return [(lost, guesses) for lost, guesses in worker.call("scores", rows).result]


def _said(scores: list[Told], exact: list[Told]) -> str:
    counts = [
        (a == b)
        for (_, ours), (_, theirs) in zip(scores, exact, strict=True)
        for a, b in zip(ours, theirs, strict=True)
    ]
    more = (sum(s for s, _ in scores) - sum(s for s, _ in exact)) / len(counts)
    return f"perplexity {math.expm1(more):+.3%}, the same guess in {sum(counts) / len(counts):.1%}"


def _trained(options: Options) -> Path | None:
    """The folder of the small model, trained once; None without the text."""
    text = options.file("tiny_shakespeare", "input.txt")
    if text is None:
        return None

    def train(path: Path) -> None:
        written = text.read_text(encoding="utf-8")
        end = int(len(written) * 0.9)
        path.mkdir()
        (path / "train.txt").write_text(written[:end], encoding="utf-8")
        (path / "valid.txt").write_text(written[end:], encoding="utf-8")
        recipe = str(ROOT / "recipes" / "shakespeare-char-cpu.toml")
        command = ["-m", "regard", "train", recipe, "--out", str(path / "run")]
        changes = [f"training.max_steps={4 if options.quick else 2000}"]
        environment = os.environ | {"SHAKESPEARE": str(path)}
        subprocess.run(
            [sys.executable, *command, *changes], check=True, env=environment, capture_output=True
        )

    path = cached(options.cache / ("shakespeare-quick" if options.quick else "shakespeare"), train)
    return path / "run" / "model"


def _rows(folder: Path, length: int, count: int) -> list[list[int]]:
    """Ids of the held-out text, `length` in a row."""
    from regard.text import Tokenizer

    text = (folder.parents[1] / "valid.txt").read_text(encoding="utf-8")
    ids = Tokenizer.load(folder).encode_many([text[: 2 * length * count]])[0]
    return [ids[at : at + length] for at in range(0, length * count, length)]
