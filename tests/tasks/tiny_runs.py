"""Short trainings of tasks, as keywords of `regard.train` with data in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from every_task import ENCODER_DECODERS

import regard
from regard.training.callbacks import Callback

TEXTS = ["a good film", "dull and bad", "i liked it", "slow", "good fun", "very bad"] * 4
LABELS = ["yes", "no", "yes", "no", "yes", "no"] * 4
TAGGED = [{"words": t.split(), "tags": ["B-A", *["O"] * t.count(" ")]} for t in TEXTS]
QUESTION = {
    "context": "the cat sleeps on a mat", "question": "who sleeps ?",
    "answers": {"text": ["the cat"], "answer_start": [0]},
}  # fmt: skip
CHOICE = {"context": "the cat sleeps", "question": "who ?", "choices": ["cat", "dog"], "answer": 0}
TREES = ["(S (NP (N cats)) (VP (V sleep)))", "(NP (D the) (N dog))", "(S (VP (V run)))"] * 8
PAIRS = [task for task in ENCODER_DECODERS if task != "span-corruption"]  # which reads files
# task -> rows
DATA: dict[str, list[Any]] = {
    "classification": list(zip(TEXTS, LABELS, strict=True)),
    "regression": [(text, len(text)) for text in TEXTS],
    "multi-label-classification": [(t, [w for w in ("good", "bad") if w in t]) for t in TEXTS],
    "tagging": TAGGED,
    "crf-tagging": TAGGED,
    "question-answering": [{**QUESTION, "id": str(n)} for n in range(8)],
    "multiple-choice": [CHOICE] * 8,
    "parsing": [{"tree": tree} for tree in TREES],
    "language-modeling": [f"{text} ." for text in TEXTS * 4],
    "hybrid-language-modeling": [f"{text} ." for text in TEXTS * 4],
    "permutation-language-modeling": [f"{text} ." for text in TEXTS * 4],
    **dict.fromkeys(PAIRS, [(text, text[::-1]) for text in TEXTS]),
}
SIZES = dict(d_model=8, d_ff=8, heads=2)
ENCODER = dict(name="bert", layers=1, max_length=32, **SIZES)
SEGMENTS = dict(batch_size=2, sequence_length=8)
# task -> options other than those of an encoder
OPTIONS: dict[str, dict[str, Any]] = {
    "language-modeling": dict(model=dict(name="lstm-lm", d_model=8, layers=1), **SEGMENTS),
    "hybrid-language-modeling": dict(
        model=dict(name="gpt2", d_model=8, heads=2, layers=1, max_length=8), **SEGMENTS,
    ),
    "permutation-language-modeling": dict(
        model=dict(name="xlnet", layers=1, memory_length=8, memory_in_training=True, **SIZES),
        every=4, **SEGMENTS,
    ),
    **dict.fromkeys(PAIRS, dict(
        model=dict(name="transformer", encoder_layers=1, decoder_layers=1, **SIZES),
        max_tokens_per_batch=60,
    )),
}  # fmt: skip


def options_of(task: str) -> dict[str, Any]:
    """Two epochs, a quarter of the rows for validation."""
    kind = "words" if task in OPTIONS else "wordpiece"
    return dict(
        task=task, train=DATA[task], valid=0.25, tokenizer={"kind": kind, "vocab_size": 80},
        epochs=2, learning_rate=1e-2, schedule={"name": "constant"}, threads=1, progress=False,
        **{"model": ENCODER, **OPTIONS.get(task, {})},
    )  # fmt: skip


class Stop(Callback):
    """Stops a training after a step."""

    def __init__(self, step: int):
        self.step = step

    def on_step(self, step: Any) -> None:
        if step.number == self.step:
            raise KeyboardInterrupt


def weights_of(run: Path) -> dict[str, bytes]:
    """All tensors that a run publishes, and those of its last checkpoint."""
    files = [file for file in run.rglob("*.safetensors") if "checkpoints" not in file.parts]
    files += max((run / "checkpoints").iterdir()).glob("*.safetensors")
    return {str(file.relative_to(run)): file.read_bytes() for file in files}


def assert_resumes(stop: int, **options: Any) -> regard.Run:
    """Stopped at a step and resumed, a training ends with the bits of one that never stopped."""
    whole = regard.train(**options, out="whole")
    with pytest.raises(KeyboardInterrupt):
        regard.train(**options, out="stopped", callbacks=[Stop(stop)])
    resumed = regard.resume("stopped", progress=False)
    assert resumed.result.scores == whole.scores
    assert weights_of(Path("stopped")) == weights_of(whole.folder)
    return whole
