"""Decoding with a GPT-2: one sequence, several, long prompts, other sizes; and with a Llama.

The weights are random, of GPT-2's shape, and the same for everybody. What quantized ones lose is
measured on a small model that was trained (`quality`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.decoding.quality import measured
from benchmarks.decoding.shape import Shape
from benchmarks.measure import Work
from benchmarks.options import Options
from benchmarks.workers import Condition

HERE = "benchmarks.decoding."
LLAMA, CT2, ONNX, TORCH = (
    ("llama_cpp", "gguf"),
    ("ctranslate2", "transformers"),
    ("onnxruntime", "onnx"),
    ("transformers",),
)
QUANTIZED = "regard int8 quantized while opening"
SIDES: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "regard int8": ("ours:Ours", {"weights": "int8"}, ()),
    "regard bfloat16": ("ours:Ours", {"weights": "bfloat16"}, ()),
    "regard float32": ("ours:Ours", {"weights": "float32"}, ()),
    QUANTIZED: ("ours:QuantizedWhileOpening", {"weights": "int8"}, ()),
    "llama.cpp Q8_0": ("llama:Llama", {"weights": "Q8_0"}, LLAMA),
    "llama.cpp BF16": ("llama:Llama", {"weights": "BF16"}, LLAMA),
    "ONNX Runtime int8": ("onnx_side:OnnxRuntime", {"weights": "int8"}, ONNX),
    "ONNX Runtime int8 blocks": ("onnx_side:OnnxRuntime", {"weights": "blocks"}, ONNX),
    "ONNX Runtime float32": ("onnx_side:OnnxRuntime", {"weights": "float32"}, ONNX),
    "CTranslate2 int8": ("ct2:CTranslate2", {"weights": "int8_float32"}, CT2),
    "CTranslate2 int8 bfloat16": ("ct2:CTranslate2", {"weights": "int8_bfloat16"}, CT2),
    "CTranslate2 float32": ("ct2:CTranslate2", {"weights": "float32"}, CT2),
    "transformers bfloat16": ("torch_side:Transformers", {"dtype": "bfloat16"}, TORCH),
    "transformers bfloat16 compiled": (
        "torch_side:Transformers",
        {"dtype": "bfloat16", "compiled": True},
        TORCH,
    ),
    "transformers float32": ("torch_side:Transformers", {"dtype": "float32"}, TORCH),
}
WRITERS = {  # what writes the files that a side opens
    "ours:Ours": "ours:prepare",
    "llama:Llama": "llama:prepare",
    "ct2:CTranslate2": "ct2:prepare",
    "onnx_side:OnnxRuntime": "onnx_side:prepare",
}
SHORT = (
    "regard int8",
    "regard bfloat16",
    "llama.cpp Q8_0",
    "ONNX Runtime int8",
    "ONNX Runtime int8 blocks",
    "CTranslate2 int8",
    "transformers bfloat16",
)
BYTES = {"int8": 1, "Q8_0": 34 / 32, "blocks": 36 / 32, "bfloat16": 2, "BF16": 2, "float32": 4}
RATES = {2: "int8 GOP/s", 4: "bfloat16 GFLOP/s", 8: "float32 GFLOP/s"}  # of fewer bytes a number
GOALS = {"llama.cpp Q8_0": 1.5, "CTranslate2 int8": 4.0, "transformers bfloat16": 6.0}
SMOLLM2 = Shape("llama", width=576, inner=1536, heads=9, shared=3, layers=30, vocab_size=49152)
TINY = Shape(width=64, heads=2, layers=2, vocab_size=96, length=64, prompt=4, new=8)


def works(options: Options) -> Iterator[Work]:
    """One sequence and eight of the 124M shape; then a long prompt and other sizes."""
    if options.quick:
        yield _work("a tiny GPT-2, one sequence", TINY, tuple(SIDES), options)
        tiny = replace(TINY, family="llama", shared=1)
        sides = tuple(name for name in SIDES if not name.startswith("ONNX"))  # GPT-2's graph alone
        yield _work("a tiny Llama, one sequence", tiny, sides, options)
        return
    small = Shape()
    yield _work("GPT-2 124M, one sequence", small, tuple(SIDES), options, GOALS)
    eight = replace(small, rows=8)
    goals = dict.fromkeys((name for name in SIDES if not name.startswith("regard")), 2.0)
    together = tuple(name for name in SIDES if name != QUANTIZED)
    yield _work("GPT-2 124M, 8 sequences", eight, together, options, goals)
    long = replace(small, length=1152, prompt=1000)
    yield _work("GPT-2 124M, a prompt of 1,000", long, SHORT, options)
    both = ("regard int8", "regard bfloat16", "llama.cpp Q8_0", "llama.cpp BF16")
    modern = (*both, "transformers bfloat16")
    yield _work("a Llama of 135M, one sequence", SMOLLM2, modern, options, GOALS)
    yield _work("a Llama of 135M, 8 sequences", replace(SMOLLM2, rows=8), modern, options)
    first = replace(long, new=1)
    yield _work("GPT-2 124M, time to first token, prompt of 1,000 tokens", first, SHORT, options)
    if options.full:
        shapes = {
            "6 layers": replace(small, layers=6),
            "345M": replace(small, width=1024, heads=16, layers=24),
            "vocabulary 8,000": replace(small, vocab_size=8000),
            "vocabulary 250,000": replace(small, vocab_size=250_000),
        }
        for name, shape in shapes.items():
            yield _work(f"GPT-2 {name}, one sequence", shape, SHORT, options)


def _work(
    name: str,
    shape: Shape,
    sides: tuple[str, ...],
    options: Options,
    goals: dict[str, float] | None = None,
) -> Work:
    folder = shape.folder(options.cache)
    alone = shape.new == 1  # then the prompt is what takes time
    read, new = shape.rows * shape.prompt, "one new one" if alone else f"{shape.new} new ones each"
    return Work(
        name,
        "tokens of prompts/s" if alone else "tokens/s",
        read if alone else shape.tokens,
        conditions(folder, shape, sides),
        goals or {},
        {} if options.quick else {side: _least(side, shape, alone) for side in sides},
        judge=lambda results: measured(options, tuple(results)),
        note=f"prompts of {shape.prompt} tokens, {new}, greedy",
    )


def _least(side: str, shape: Shape, prompt: bool) -> tuple[str, float]:
    """The ceiling of a side, and how much of it a turn takes: multiplications and additions of a
    prompt in the layers, or bytes of weights for each new token.
    """
    width = next(size for kind, size in BYTES.items() if kind in side.split())
    if prompt:
        fastest = next(rate for size, rate in RATES.items() if width < size)
        return fastest, 24 * shape.layers * shape.width**2 * shape.rows * shape.prompt / 1e9
    small = width * shape.matrices < 2**28
    ceiling = "read 128 MB again GB/s" if small else "read GB/s"
    return ceiling, shape.new * width * shape.matrices / 1e9


def conditions(folder: Path, shape: Shape, sides: tuple[str, ...]) -> list[Condition]:
    """The named sides, on the weights of a folder."""
    given = {"folder": str(folder), "shape": shape.settings()}
    return [
        Condition(
            name,
            HERE + SIDES[name][0],
            given | SIDES[name][1],
            SIDES[name][2],
            prepare=HERE + WRITERS[SIDES[name][0]] if SIDES[name][0] in WRITERS else "",
        )
        for name in sides
    ]
