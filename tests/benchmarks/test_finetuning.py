"""Both sides of the fine-tuning benchmark train a tiny encoder on each kind of task."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tasks"))
from tiny_folders import folder  # noqa: E402

from benchmarks.finetuning import library, trainer  # noqa: E402
from benchmarks.finetuning.conditions import Columns, Recipe, Task  # noqa: E402
from benchmarks.finetuning.rows import Row  # noqa: E402

TEXT = Columns(texts=(0,), label=1)
KINDS = {
    "classes": (Task("", {}, (), TEXT, ("no", "yes")), [Row(("a b",), "no"), Row(("b c",), "yes")]),
    "pairs": (Task("", {}, (), TEXT, ("0", "1")), [Row(("a", "b"), "0"), Row(("b", "c"), "1")]),
    "numbers": (Task("", {}, (), TEXT, ()), [Row(("a b",), 0.5), Row(("b c",), 2.5)]),
    "tags": (Task("", {}, (), None, ("O", "B-X")), [Row(("a", "b"), ["O", "B-X"])]),
}


@pytest.mark.parametrize("side", [library, trainer], ids=["library", "trainer"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_side_encodes_trains_and_predicts(side, kind, tmp_path):
    pytest.importorskip("accelerate")
    task, rows = KINDS[kind]
    encoder = folder(tmp_path / "encoder", "bert", "Model")
    one = side.Side(task, Recipe(epochs=1, batch=2, max_length=16), 1, encoder)
    assert one.encode(rows * 2) > 0
    one.train()
    guesses, unseen = one.predict(rows)
    assert len(guesses) == len(rows) and unseen == 0
    for guess, row in zip(guesses, rows, strict=True):
        assert type(guess) is type(row.label)
