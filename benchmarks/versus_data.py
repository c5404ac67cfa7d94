"""The models' sizes, random texts and recipes on which two checkouts are compared."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = tuple[str, str, float, str, dict[str, Any]]


@dataclass(frozen=True)
class Sizes:
    """Sizes of the models and of the data; TINY only checks that everything runs."""

    gpt2: tuple[int, int, int] = (768, 12, 12)  # width, layers, heads
    encoder: tuple[int, int, int] = (384, 6, 12)
    translator: tuple[int, int, int] = (512, 6, 8)
    words: int = 30_000
    new: int = 96
    texts: int = 512
    sentences: int = 128
    updates: int = 40


TINY = Sizes((64, 2, 2), (32, 2, 2), (32, 2, 2), 500, 8, 16, 8, 3)


class Folders:
    """The folders of the models; `works` lists the benchmarks."""

    def __init__(self, folder: Path, quick: bool = False):
        self.folder, self.quick = folder / ("quick" if quick else "full"), quick
        self.sizes = TINY if quick else Sizes()

    def settings(self) -> dict[str, Any]:
        """The arguments for a worker."""
        return {"folder": str(self.folder.parent), "quick": self.quick}

    def works(self) -> list[Row]:
        """(name, unit, units per call, class in versus_sides, its arguments) of each benchmark."""
        s = self.sizes
        rows: list[Row] = []
        for weights in ("int8", "bfloat16", "float32"):
            about = {"weights": weights}
            new = s.new if weights != "float32" else s.new // 4
            one = {**about, "rows": 1, "new": new}
            eight = {**about, "rows": 8, "new": new}
            rows += [(f"generate {weights}, one sequence", "tokens/s", new, "Generate", one)]
            if weights != "float32":
                rows += [
                    (f"generate {weights}, 8 sequences", "tokens/s", 8 * new, "Generate", eight)
                ]
                rows += [(f"translate {weights}", "texts/s", s.sentences, "Translate", about)]
            rows += [(f"embed {weights}", "texts/s", s.texts, "Embed", about)]
        for name in RECIPES:
            rows += [(f"train {name}", "updates/s", s.updates, "Train", {"recipe": name})]
        rows += [("start-up of regard predict", "runs/s", 1, "Predict", {})]
        return rows

    def texts(self, count: int, seed: int = 1) -> list[str]:
        """Random texts of 5 to 25 words. Words are numbers; smaller numbers are more frequent."""
        draw = random.Random(seed)
        return [
            " ".join(
                str(int(self.sizes.words ** draw.random()) - 1) for _ in range(draw.randint(5, 25))
            )
            for _ in range(count)
        ]


RECIPES = {
    "LSTM language model": """
task = "language-modeling"
[data]
train = "{texts}"
valid = "{texts}-valid"
format = "lines"
[tokenizer]
kind = "words"
vocab_size = 10000
[model]
name = "lstm-lm"
size = "small"
[training]
max_steps = {max_steps}
precision = "{precision}"
""",
    "Transformer": """
task = "translation"
[data]
train = ["{texts}", "{other}"]
valid = ["{texts}-valid", "{other}-valid"]
[tokenizer]
kind = "words"
vocab_size = 8000
[model]
name = "transformer"
size = "tiny"
[training]
max_steps = {max_steps}
precision = "{precision}"
""",
    "fine-tuning an encoder": """
task = "classification"
[data]
train = "{table}"
format = "tsv"
[model]
path = "{encoder}"
[training]
max_steps = {max_steps}
precision = "{precision}"
""",
}
