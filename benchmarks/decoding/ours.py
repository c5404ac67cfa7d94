"""Our side: `regard.load`'s model and greedy search."""

from __future__ import annotations

import torch

from benchmarks.decoding.shape import Shape
from regard import decoding
from regard.data import Sequences
from regard.native.engine import prepare
from regard.runs import read_model


class Ours:
    """weights: "float32" as it comes, "bfloat16" or "int8"."""

    def __init__(self, folder: str, shape: dict[str, int], weights: str, threads: int):
        torch.set_num_threads(threads)
        self.shape = Shape(**shape)
        self.model = read_model(folder).eval()
        if weights != "float32":
            prepare(self.model, weights)  # type: ignore[arg-type]
        self.method = decoding.Greedy(max_tokens=self.shape.new)
        self.prompts = Sequences.of(self.shape.prompts(), 0)

    def turn(self) -> list[list[int]]:
        """The new tokens of each sequence."""
        with torch.no_grad():
            found = decoding.generate(self.model, self.prompts, self.method)
        return [best[0].tokens for best in found]

    def scores(self, ids: list[list[int]]) -> list[tuple[float, list[int]]]:
        """See `quality.told`."""
        from benchmarks.decoding.quality import told

        with torch.no_grad():
            hidden = (self.model(torch.tensor([row])).hidden[0] for row in ids)
            logits = [self.model.head.logits(each) for each in hidden]
        return [told(each, row) for each, row in zip(logits, ids, strict=True)]
