"""Graphs of ONNX Runtime's own fused operators, with products in float32 or in 8 bits.

"float32"   MatMul
"int8"      dynamic quantization, a scale for each output (DynamicQuantizeMatMul)
"blocks"    8 bits with scales for blocks of 32 (MatMulNBits)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FUSED = "com.microsoft"
BLOCK = 32
KINDS = {"float": TensorProto.FLOAT, "int64": TensorProto.INT64, "int32": TensorProto.INT32}


class Graph:
    """Nodes and weights, as they are added."""

    def __init__(self, weights: str):
        self.weights = weights
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []

    def add(
        self, kind: str, inputs: list[str], outputs: list[str], domain: str = "", **about: Any
    ) -> str:
        self.nodes.append(helper.make_node(kind, inputs, outputs, domain=domain, **about))
        return outputs[-1] or outputs[0]

    def keep(self, name: str, value: np.ndarray) -> str:
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def product(self, hidden: str, name: str, weight: np.ndarray) -> str:
        """hidden @ weight, weight (K, N); its bias is added by what follows."""
        out = f"{name}.out"
        if self.weights == "float32":
            return self.add("MatMul", [hidden, self.keep(name, weight)], [out])
        if self.weights == "int8":
            scale = np.abs(weight).max(0) / 127
            quantized = np.rint(weight / scale).astype(np.int8)
            parts = [
                self.keep(name, quantized),
                self.keep(f"{name}.scale", scale.astype(np.float32)),
            ]
            return self.add("DynamicQuantizeMatMul", [hidden, *parts], [out], FUSED)
        inner, outer = weight.shape
        # (K, N) -> (N, K / block, block)
        blocks = weight.T.reshape(outer, inner // BLOCK, BLOCK)
        scale = np.abs(blocks).max(-1, keepdims=True) / 127
        quantized = (np.rint(blocks / scale) + 128).astype(np.uint8)
        parts = [
            self.keep(name, quantized),
            self.keep(f"{name}.scale", scale[..., 0].astype(np.float32)),
        ]
        about = dict(K=inner, N=outer, bits=8, block_size=BLOCK, accuracy_level=4)
        return self.add("MatMulNBits", [hidden, *parts], [out], FUSED, **about)

    def norm(
        self,
        name: str,
        weight: np.ndarray,
        bias: np.ndarray,
        parts: tuple[str, str, str],
        eps: float,
    ) -> tuple[str, str]:
        """Of the sum of (hidden, added, bias): its norm, and the sum itself."""
        weights = [self.keep(f"{name}.weight", weight), self.keep(f"{name}.bias", bias)]
        hidden, added, extra = parts
        outputs = [f"{name}.norm", "", "", f"{name}.sum"]
        given = [hidden, added, *weights, *([extra] if extra else [])]
        self.add("SkipLayerNormalization", given, outputs, FUSED, epsilon=eps)
        return outputs[0], outputs[3]

    def write(self, path: Path, inputs: list[Any], outputs: list[Any]) -> None:
        """The file, and its weights beside it."""
        made = helper.make_graph(self.nodes, "model", inputs, outputs, self.initializers)
        sets = [helper.make_opsetid("", 21), helper.make_opsetid(FUSED, 1)]
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(
            helper.make_model(made, opset_imports=sets, ir_version=10),
            path,
            save_as_external_data=True,
            location="weights",
        )


def value(name: str, kind: str, sizes: list[Any]) -> Any:
    """An input or output."""
    return helper.make_tensor_value_info(name, KINDS[kind], sizes)
