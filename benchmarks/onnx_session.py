"""A graph, opened by ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime


def session(path: Path, threads: int) -> Any:
    """The graph, ready to run."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
