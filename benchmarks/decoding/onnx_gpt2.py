"""GPT-2 as a graph of ONNX Runtime's fused operators.

The graph is what its generation tools build for decoders: grouped-query attention that writes into
preallocated keys and values, norms fused with the residual sum, gelu fused with its bias.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.decoding.shape import Shape
from benchmarks.onnx_graph import FUSED, Graph, value

EPS = 1e-5


def convert(folder: str, shape: Shape, path: Path, weights: str) -> None:
    """Build the graph from the weights of the folder and write it."""
    from safetensors.numpy import load_file

    tensors = load_file(Path(folder) / "model.safetensors")
    tensors = {name.removeprefix("transformer."): each for name, each in tensors.items()}
    graph = Graph(weights)
    words = graph.add("Gather", [graph.keep("wte", tensors["wte.weight"]), "ids"], ["words"])
    where = graph.add("Gather", [graph.keep("wpe", tensors["wpe.weight"]), "positions"], ["where"])
    hidden, added, bias = words, where, ""
    inputs, outputs = [], []
    for layer in range(shape.layers):
        own = {
            name.removeprefix(f"h.{layer}."): each
            for name, each in tensors.items()
            if name.startswith(f"h.{layer}.")
        }
        hidden, added, bias = _block(graph, shape, layer, own, (hidden, added, bias))
        for kind in ("key", "value"):
            heads = ["rows", shape.heads, "length", shape.width // shape.heads]
            inputs.append(value(f"past_{kind}_{layer}", "float", heads))
            outputs.append(value(f"present_{kind}_{layer}", "float", heads))
    affine = tensors["ln_f.weight"], tensors["ln_f.bias"]
    last = graph.norm("ln_f", *affine, (hidden, added, bias), EPS)
    ends = [graph.keep(n, np.array([v], np.int64)) for n, v in (("end", 2**31), ("axis", 1))]
    last = graph.add("Slice", [last[0], "first", *ends], ["asked"])
    logits = graph.product(last, "head", tensors["wte.weight"].T)
    graph.add("Identity", [logits], ["logits"])
    graph.add("ArgMax", [logits], ["next"], axis=-1, keepdims=0)
    inputs = [
        value("ids", "int64", ["rows", "new"]),
        value("positions", "int64", ["rows", "new"]),
        value("lengths", "int32", ["rows"]),
        value("total", "int32", []),
        value("first", "int64", [1]),
        *inputs,
    ]
    outputs = [
        *outputs,
        value("next", "int64", ["rows", "asked"]),
        value("logits", "float", ["rows", "asked", shape.vocab_size]),
    ]
    graph.write(path, inputs, outputs)


def _block(
    graph: Graph,
    shape: Shape,
    layer: int,
    own: dict[str, np.ndarray],
    sum_of: tuple[str, str, str],
) -> tuple[str, str, str]:
    """One layer; what it adds to the residual sum is left to the next norm."""

    def norm(name: str, given: tuple[str, str, str]) -> tuple[str, str]:
        affine = own[f"{name}.weight"], own[f"{name}.bias"]
        return graph.norm(f"{layer}.{name}", *affine, given, EPS)

    def product(hidden: str, name: str) -> tuple[str, str]:
        bias = graph.keep(f"{layer}.{name}.bias", own[f"{name}.bias"])
        return graph.product(hidden, f"{layer}.{name}", own[f"{name}.weight"]), bias

    first, hidden = norm("ln_1", sum_of)
    packed = graph.add("Add", [*product(first, "attn.c_attn")], [f"{layer}.qkv"])
    past = [f"past_{kind}_{layer}" for kind in ("key", "value")]
    present = [f"present_{kind}_{layer}" for kind in ("key", "value")]
    graph.add(
        "GroupQueryAttention",
        [packed, "", "", *past, "lengths", "total"],
        [f"{layer}.attended", *present],
        FUSED,
        num_heads=shape.heads,
        kv_num_heads=shape.heads,
    )
    attended, bias = product(f"{layer}.attended", "attn.c_proj")
    second, hidden = norm("ln_2", (hidden, attended, bias))
    inner = graph.add("FastGelu", [*product(second, "mlp.c_fc")], [f"{layer}.inner"], FUSED)
    return hidden, *product(inner, "mlp.c_proj")
