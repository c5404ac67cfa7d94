"""ONNX Runtime: GPT-2 in the runtime's own fused operators, the cache kept in place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from benchmarks.cache import cached
from benchmarks.decoding.quality import told
from benchmarks.decoding.shape import Shape
from benchmarks.onnx_session import session


def prepare(folder: str, shape: dict[str, int], weights: str) -> None:
    """Write the graph."""
    from benchmarks.decoding.onnx_gpt2 import convert

    cached(
        _path(folder, weights),
        lambda made: convert(folder, Shape(**shape), made / "model.onnx", weights),
    )


def _path(folder: str, weights: str) -> Path:
    return Path(folder) / f"onnx-{weights}"


class OnnxRuntime:
    """weights: "float32", "blocks" or "int8"."""

    def __init__(self, folder: str, shape: dict[str, int], weights: str, threads: int):
        self.shape = Shape(**shape)
        self.session = session(_path(folder, weights) / "model.onnx", threads)

    def turn(self) -> list[list[int]]:
        """The new tokens of each sequence."""
        ids = np.array(self.shape.prompts(), np.int64)
        length = self.shape.prompt + self.shape.new
        run = _Bound(self.session, self.shape, len(ids), length)
        found = [run.step(ids, 0)]
        for step in range(self.shape.new - 1):
            found.append(run.step(found[-1], self.shape.prompt + step))
        return np.concatenate(found, 1).tolist()

    def scores(self, ids: list[list[int]]) -> list[tuple[float, list[int]]]:
        """See `quality.told`."""
        found = []
        for row in ids:
            run = _Bound(self.session, self.shape, 1, len(row), "logits", every=True)
            found.append(told(run.step(np.array([row], np.int64), 0)[0], row))
        return found


class _Bound:
    """Buffers of one generation: keys and values are written where they are read."""

    def __init__(
        self,
        session: Any,
        shape: Shape,
        rows: int,
        length: int,
        output: str = "next",
        every: bool = False,
    ):
        self.session, self.output, self.every = session, output, every
        self.binding = session.io_binding()
        self.rows = rows
        heads = (rows, shape.heads, length, shape.width // shape.heads)
        for layer in range(shape.layers):
            for kind in ("key", "value"):
                cached = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(heads, np.float32))
                self.binding.bind_ortvalue_input(f"past_{kind}_{layer}", cached)
                self.binding.bind_ortvalue_output(f"present_{kind}_{layer}", cached)

    def step(self, ids: np.ndarray, past: int) -> np.ndarray:
        """Tokens (B, T) behind `past` others; the next token of each row (B, 1), or all logits."""
        count = ids.shape[1]
        positions = np.broadcast_to(np.arange(past, past + count), ids.shape)
        bind = self.binding.bind_cpu_input
        bind("ids", ids)
        bind("positions", np.ascontiguousarray(positions, np.int64))
        bind("lengths", np.full(self.rows, past + count - 1, np.int32))
        bind("total", np.array(past + count, np.int32))
        bind("first", np.array([0 if self.every else count - 1], np.int64))
        self.binding.bind_output(self.output)
        self.session.run_with_iobinding(self.binding)
        return self.binding.get_outputs()[-1].numpy()
