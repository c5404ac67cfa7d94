"""The validation data of pre-training: masks, pairs, spans and orders are those of every seed, so
that runs with several seeds are scored on the same ones."""

from __future__ import annotations

import random

import pytest

from regard.experiments import runs

WORDS = "the old cat sat on a warm mat and was sleeping in the sun".split()
ENCODER = "d_model = 16\nd_ff = 16\nheads = 2\nlayers = 1"
TASKS = {
    "masked words": (
        "masked-language-modeling", 'train = ["text.txt"]\nvalid = 0.2\nmax_length = 16',
        f'name = "bert"\n{ENCODER}',
    ),
    "masked words and pairs": (
        "masked-language-modeling",
        'train = ["text.txt"]\nvalid = 0.2\nmax_length = 16\nsentence_pairs = true',
        f'name = "bert"\n{ENCODER}',
    ),
    "replaced tokens": (
        "replaced-tokens", 'train = ["text.txt"]\nvalid = 0.2\nmax_length = 16',
        f'name = "electra"\nd_embedding = 8\n{ENCODER}\n[objective]\ngenerator_size = 0.5',
    ),
    "corrupted spans": (
        "span-corruption",
        'train = ["text.txt"]\nvalid = 0.2\nsource_length = 60\nbatch_size = 3',
        f'name = "t5"\nhead_dim = 8\n{ENCODER}',
    ),
    "orders": (
        "permutation-language-modeling",
        'train = "text.txt"\nvalid = 0.2\nsequence_length = 24\nbatch_size = 4',
        f'name = "xlnet"\n{ENCODER}',
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", TASKS)
def test_equal_weights_have_equal_scores_whatever_the_seed(kind, tmp_path, monkeypatch):
    draw = random.Random(1)
    texts = ["\n".join(" ".join(draw.choices(WORDS, k=9)) for _ in range(4)) for _ in range(40)]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("\n\n".join(texts))
    task, data, model = TASKS[kind]
    tasks = []
    for seed in (1, 2):
        (tmp_path / "one.toml").write_text(
            f'task = "{task}"\nseed = {seed}\n[data]\n{data}\n[tokenizer]\nkind = "words"\n'
            f"[model]\n{model}\n[training]\nmax_steps = 1\n"
        )
        tasks.append(runs.plan(runs.read_recipe(tmp_path / "one.toml")).task)
    first, second = tasks
    assert first.validate() != second.validate()
    second.module.load_state_dict(first.module.state_dict())
    assert first.validate() == pytest.approx(second.validate(), rel=1e-6)
