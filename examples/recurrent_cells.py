"""Cells of a character LSTM: python examples/recurrent_cells.py SHAKESPEARE [OUT] [NAME=VALUE...]

SHAKESPEARE is the file of tiny Shakespeare. The second text is the standard library of the Python
that runs this: the modules of its top folder in ASCII, every tenth of them held out. An LSTM is
trained on each (recipes/shakespeare-char-lstm.toml and python-char-lstm.toml), and an RNN on
Shakespeare. Then cells are searched on the text that was held out, the best of each property is
drawn over a part of it, and the gradients of RNN and LSTM side by side. Trained runs are kept: a
second call only draws.

    python examples/recurrent_cells.py input.txt runs/cells training.max_steps=100
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import regard
from regard.experiments import runs
from regard.recipe import read
from regard.visual import (
    cell_activation,
    find_cells,
    gradient_curves,
    gradient_norms,
    python_properties,
    text_properties,
)

RECIPES = Path(__file__).resolve().parents[1] / "recipes"
SEARCHED = 120_000  # characters
RNN = ("model.cell=rnn", "training.optimizer.learning_rate=1e-3")


def main(shakespeare: Path, out: Path, overrides: Sequence[str] = ()) -> None:
    """Train, search, draw."""
    play, library = prepare(shakespeare, out / "shakespeare-text"), prepare_library(out / "source")
    recipe, texts = "shakespeare-char-lstm", out / "shakespeare-text"
    lstm = trained(recipe, out / "shakespeare", texts, overrides)
    rnn = trained(recipe, out / "rnn", texts, [*RNN, *overrides])
    code = trained("python-char-lstm", out / "python", out / "source", overrides)
    draw_best(lstm, [play[:SEARCHED]], play[2000:2900], text_properties, out, "shakespeare")
    draw_best(code, some(library), library["graphlib.py"][:2200], python_properties, out, "python")
    models = {"RNN": rnn, "LSTM": lstm}
    norms = {
        name: gradient_norms(task.module, task.tokenizer, play[:6464], length=100)
        for name, task in models.items()
    }
    gradient_curves(norms).save(out / "gradients.png")


def prepare(shakespeare: Path, folder: Path) -> str:
    """The first nine tenths for training; the rest, which is returned."""
    folder.mkdir(parents=True, exist_ok=True)
    text = shakespeare.read_text()
    at = 1_003_854 * len(text) // 1_115_394
    (folder / "train.txt").write_text(text[:at])
    (folder / "valid.txt").write_text(text[at:])
    return text[at:]


def prepare_library(folder: Path) -> dict[str, str]:
    """Modules for training; every tenth is held out and returned by its name."""
    folder.mkdir(parents=True, exist_ok=True)
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    texts = {file.name: file.read_bytes() for file in files}
    plain = {
        name: text.decode()
        for name, text in texts.items()
        if text.isascii() and not set(b"\r\t\f") & set(text)
    }
    held_out = dict(list(plain.items())[::10])
    read = (text for name, text in plain.items() if name not in held_out)
    (folder / "train.txt").write_text("".join(read))
    (folder / "valid.txt").write_text("".join(held_out.values()))
    return held_out


def some(library: dict[str, str]) -> list[str]:
    """Modules that were held out, each of at most 60,000 characters."""
    return [text for text in library.values() if len(text) < 60_000]


def trained(recipe: str, run: Path, data: Path, overrides: Sequence[str]) -> Any:
    """The task of a run, which is trained where it is not there yet."""
    if not (run / "model").exists():
        files = [f"data.train={data / 'train.txt'}", f"data.valid={data / 'valid.txt'}"]
        runs.train_recipe(read(RECIPES / f"{recipe}.toml", [*files, *overrides]), out=run)
    return regard.load(run)


def draw_best(
    task: Any, texts: list[str], shown: str, properties: Any, out: Path, name: str
) -> None:
    """The table of cells, and of each property the best cell over a part of the text."""
    table = find_cells(task.module, task.tokenizer, texts, properties)
    table.show()
    for named, cells in table.numbers.items():
        for best in cells[:1]:
            cell = {"layer": best.layer, "number": best.number}
            picture = cell_activation(task.module, task.tokenizer, shown, **cell)
            picture.save(out / f"{name} {named}.png")


if __name__ == "__main__":
    given = [word for word in sys.argv[1:] if "=" not in word]
    if not 1 <= len(given) <= 2:
        sys.exit(__doc__)
    out = Path(given[1] if given[1:] else "runs/recurrent-cells")
    main(Path(given[0]), out, [word for word in sys.argv[1:] if "=" in word])
