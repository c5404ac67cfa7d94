"""Our side: what `regard.load` opens, and greedy search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import regard
from benchmarks.cache import cached
from benchmarks.decoding.shape import Shape
from regard import decoding
from regard.data import Sequences


def prepare(folder: str, shape: dict[str, int], weights: str) -> None:
    """Write the quantized folder, as `regard quantize` does."""
    if weights != "float32":
        cached(_path(folder, weights), lambda made: regard.quantize(folder, made, weights))


class Ours:
    """weights: "float32", or "bfloat16" and "int8" from a folder that holds them."""

    def __init__(self, folder: str, shape: dict[str, int], weights: str, threads: int):
        torch.set_num_threads(threads)
        self.shape = Shape(**shape)
        self.model = self.opened(folder, weights)
        self.method = decoding.Greedy(max_tokens=self.shape.new)
        self.prompts = Sequences.of(self.shape.prompts(), 0)

    def opened(self, folder: str, weights: str) -> Any:
        """The model."""
        path = folder if weights == "float32" else _path(folder, weights)
        return regard.load(path, device="cpu").module

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


class QuantizedWhileOpening(Ours):
    """The float32 folder, quantized each time that it is opened."""

    def opened(self, folder: str, weights: str) -> Any:
        """The model."""
        chosen: Any = weights
        return regard.load(folder, quantize=chosen, device="cpu").module


def _path(folder: str, weights: str) -> Path:
    return Path(folder) / f"regard-{weights}"
