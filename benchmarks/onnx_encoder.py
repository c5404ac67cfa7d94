"""MiniLM as a graph of ONNX Runtime's fused operators.

Written by hand: torch's exporters leave its attention unfused, or fused without the mask.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from benchmarks.onnx_graph import FUSED, Graph, value

LAST = "attention.output.dense", "attention.output.LayerNorm"


def convert(folder: str, path: Path, weights: str) -> None:
    """Write the encoder of a folder in BERT's published format; weights: see `onnx_graph`."""
    from safetensors.numpy import load_file

    config = json.loads(Path(folder, "config.json").read_text())
    tensors = load_file(Path(folder) / "model.safetensors")
    eps, heads = config["layer_norm_eps"], config["num_attention_heads"]
    graph = Graph(weights)
    table = "embeddings.{}_embeddings.weight".format
    words = [graph.keep("words", tensors[table("word")]), "input_ids"]
    where = [graph.keep("positions", tensors[table("position")]), "positions_asked"]
    # Every token is of the first segment.
    first = graph.keep("segment", tensors[table("token_type")][0])
    sum_of = (graph.add("Gather", words, ["w"]), graph.add("Gather", where, ["p"]), first)
    own = {name.removeprefix("embeddings."): each for name, each in tensors.items()}
    norm = own["LayerNorm.weight"], own["LayerNorm.bias"]
    hidden = graph.norm("start", *norm, sum_of, eps)[0]
    for layer in range(config["num_hidden_layers"]):
        begin = f"encoder.layer.{layer}."
        own = {
            name.removeprefix(begin): each
            for name, each in tensors.items()
            if name.startswith(begin)
        }
        hidden = _block(graph, str(layer), own, hidden, heads, eps)
    graph.add("Identity", [hidden], ["hidden"])
    sizes = ["rows", "length"]
    inputs = [
        value("input_ids", "int64", sizes),
        value("positions_asked", "int64", sizes),
        value("attention_mask", "int32", sizes),
    ]
    graph.write(path, inputs, [value("hidden", "float", [*sizes, config["hidden_size"]])])


def _block(
    graph: Graph, layer: str, own: dict[str, np.ndarray], hidden: str, heads: int, eps: float
) -> str:
    """norm(x + attend(x)), then norm(x + feed(x))."""

    def product(given: str, name: str) -> str:
        return graph.product(given, f"{layer}.{name}", own[f"{name}.weight"].T)

    def bias(name: str) -> str:
        return graph.keep(f"{layer}.{name}.bias", own[f"{name}.bias"])

    def norm(name: str, parts: tuple[str, str, str]) -> str:
        affine = own[f"{name}.weight"], own[f"{name}.bias"]
        return graph.norm(f"{layer}.{name}", *affine, parts, eps)[0]

    names = [f"attention.self.{kind}" for kind in ("query", "key", "value")]
    biases = np.concatenate([own[f"{name}.bias"] for name in names])
    parts = [product(hidden, name) for name in names]
    attended = graph.add(
        "MultiHeadAttention",
        [*parts, graph.keep(f"{layer}.biases", biases), "attention_mask"],
        [f"{layer}.attended"],
        FUSED,
        num_heads=heads,
    )
    dense, after = LAST
    hidden = norm(after, (hidden, product(attended, dense), bias(dense)))
    inner = [product(hidden, "intermediate.dense"), bias("intermediate.dense")]
    fed = product(graph.add("BiasGelu", inner, [f"{layer}.inner"], FUSED), "output.dense")
    return norm("output.LayerNorm", (hidden, fed, bias("output.dense")))
