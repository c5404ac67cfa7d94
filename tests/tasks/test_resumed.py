"""Trainings of every task, and of what has a state of its own: resumed, they end as others do."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_folders import folder
from tiny_runs import DATA, OPTIONS, PAIRS, TEXTS, assert_resumes, options_of

import regard

ATTENTION = dict(name="lstm-seq2seq", d_model=8, layers=1, dropout=0.1, max_length=40)
PENALTIES = dict(
    variable_length=True, activation_regularization=2, temporal_activation_regularization=1
)
# name -> a task, and options that change what is stored
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{task: (task, {}) for task in DATA if task not in PAIRS[1:]},  # pairs train alike
    "averaged weights": ("language-modeling", dict(
        model=dict(name="awd-lstm", d_model=8, d_hidden=12, layers=2), objective=PENALTIES,
        averaging=dict(start=1), optimizer=dict(name="sgd", max_grad_norm=0.25),
    )),
    "added tokens": ("classification", dict(
        model="gpt2", tokenizer=None, aux_lm_weight=0.5, both_orders=True,
        train=list(zip(TEXTS, TEXTS[::-1], "yn" * 12, strict=True)),
    )),
    "a student": ("embedding", dict(
        model=dict(path="bert", layers=[1]), teacher=dict(path="bert"), tokenizer=None,
        train=[(text,) for text in TEXTS],
    )),
    "negatives": ("embedding", dict(
        model="bert", tokenizer=None, max_tokens_per_batch=50,
        train=[dict(anchor=text, positive=text[::-1], negatives=TEXTS[:2]) for text in TEXTS],
    )),
    "adapters": ("classification", dict(
        model=dict(path="bert", lora=dict(rank=2, dropout=0.1)), tokenizer=None,
    )),
    **{f"word vectors{' frozen' * frozen}": ("classification", dict(
        model=dict(name="bilstm", d_words=4, d_model=6, d_character=3, d_characters=4),
        tokenizer=dict(kind="words"), word_vectors="vectors.txt", freeze_word_vectors=frozen,
    )) for frozen in (True, False)},
    "drawn choices": ("translation", dict(
        model=ATTENTION | dict(attention="general", selection="hard"),
    )),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_a_stopped_run_ends_with_the_bits_of_one_that_never_stopped(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("vectors.txt").write_text("good 1 2 -3 4\nbad -1 0 0.5 2\n")
    task, changes = CASES[name]
    for family, ending in (("bert", "Model"), ("gpt2", "LMHeadModel")):
        if family in str(changes.get("model")):
            folder(tmp_path / family, family, ending)
    options = options_of(task if task in DATA else "classification") | {"task": task}
    options |= dict(epochs=None, max_steps=5) | changes
    options |= {} if task in OPTIONS else {"batch_size": 6}  # an epoch has three batches
    options |= dict(checkpoints={"save_steps": 2}, validation={"eval_steps": 3})
    assert_resumes(3, **options)


def test_several_threads_give_the_same_bits_again(tmp_path):
    words = [f"w{n}" for n in range(300)]
    draw = random.Random(1)
    rows = [
        (" ".join(draw.choices(words, k=draw.randint(3, 40))), draw.choice("ab")) for _ in range(80)
    ]
    before, bits = torch.get_num_threads(), []
    try:
        for name in ("one", "two"):
            run = regard.train(
                task="classification", train=rows, model="bilstm", d_words=32, d_model=64,
                threads=2, max_steps=3, precision="float32", out=tmp_path / name, progress=False,
            )  # fmt: skip
            bits.append((run.folder / "model/model.safetensors").read_bytes())
    finally:
        torch.set_num_threads(before)
    assert bits[0] == bits[1]
