"""The perplexity of a text: by an LSTM 2 x 650, whose state is carried, and by a GPT-2.

All sides have the same weights and read the same random words. The peers read as their own examples
do: one stream through `nn.LSTM`, one window after the other through `transformers`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from benchmarks.decoding.shape import Shape
from benchmarks.measure import Work
from benchmarks.options import Options
from benchmarks.recurrent import MEDIUM, TINY
from benchmarks.workers import Condition

FORGET_BIAS = 1.0  # added to that of forget gates: some hundred words are remembered
STEPS = 256  # of one stream
SIDES = {
    "regard float32": ("OurCarried", {"weights": "float32"}),
    "regard bfloat16": ("OurCarried", {"weights": "bfloat16"}),
    "regard int8": ("OurCarried", {"weights": "int8"}),
    "PyTorch float32": ("TheirCarried", {"quantized": False}),
    "PyTorch dynamic int8": ("TheirCarried", {"quantized": True}),
}
WINDOWS = {
    "regard float32": ("OurWindows", {"weights": "float32"}),
    "regard bfloat16": ("OurWindows", {"weights": "bfloat16"}),
    "regard int8": ("OurWindows", {"weights": "int8"}),
    "transformers float32": ("TheirWindows", {"dtype": "float32"}),
    "transformers bfloat16": ("TheirWindows", {"dtype": "bfloat16"}),
}


def works(options: Options) -> Iterator[Work]:
    """32,768 words by the LSTM; windows of 1,024 tokens, 512 apart, by the GPT-2."""
    sizes, words = (TINY, 4096) if options.quick else (MEDIUM, 32_768)
    weights = sizes["layers"] * 8 * sizes["d_model"] ** 2 + sizes["vocab_size"] * sizes["d_model"]
    yield Work(
        f"perplexity, LSTM 2 x {sizes['d_model']}",
        "tokens/s",
        words,
        [
            Condition(name, f"{__name__}:{kind}", {"sizes": sizes, "words": words} | settings)
            for name, (kind, settings) in SIDES.items()
        ],
        least={} if options.quick else _least(SIDES, 2 * weights * words),
        judge=_told,
        note=f"a text of {words:,} words, the state carried from its beginning to its end",
    )
    shape = (
        Shape(width=64, heads=2, layers=2, vocab_size=96, length=64) if options.quick else Shape()
    )
    stride = shape.length // 2
    tokens = stride * 5
    given = {
        "folder": str(shape.folder(options.cache)),
        "shape": shape.settings(),
        "tokens": tokens,
        "stride": stride,
    }
    matrices = 12 * shape.layers * shape.width**2
    attended = 2 * shape.layers * shape.width * shape.length // 2  # of each position, on average
    read = (tokens // stride - 1) * shape.length * (matrices + attended)
    yield Work(
        "perplexity, GPT-2 124M" if not options.quick else "perplexity, a tiny GPT-2",
        "tokens/s",
        tokens,
        [
            Condition(
                name,
                f"{__name__}:{kind}",
                given | settings,
                needs=("transformers",) if kind == "TheirWindows" else (),
                prepare=f"{__name__}:write_ours" if kind == "OurWindows" else "",
            )
            for name, (kind, settings) in WINDOWS.items()
        ],
        least={}
        if options.quick
        else _least(WINDOWS, 2 * (read + tokens * shape.vocab_size * shape.width)),
        judge=_told,
        note=f"windows of {shape.length:,} tokens, {stride} apart",
    )


def _least(sides: dict[str, Any], operations: float) -> dict[str, tuple[str, float]]:
    """Of the sides whose products the machine's ceilings are measured of."""
    kinds = {name: name.split()[-1] for name in sides}
    return {
        name: (f"{kind} GFLOP/s", operations / 1e9)
        for name, kind in kinds.items()
        if kind in ("float32", "bfloat16")
    }


def _told(results: dict[str, float]) -> dict[str, str]:
    return {name: f"perplexity {math.exp(nats):,.3f}" for name, nats in results.items()}


def _text(words: int, vocab_size: int) -> Any:
    """Random words, and one that stands before them."""
    import numpy as np

    draw = np.random.default_rng(1)
    return draw.integers(3, vocab_size, words + 1, dtype=np.uint16)


def _recurrent(sizes: dict[str, int]) -> Any:
    import torch

    from regard import ops
    from regard.models.recurrent import RecurrentConfig, RecurrentLanguageModel

    ops.load_kernels()
    torch.manual_seed(1)
    model = RecurrentLanguageModel(RecurrentConfig(**sizes, init_range=0.05))
    for layer in model.stack.layers:
        layer.input.bias.data[sizes["d_model"] : 2 * sizes["d_model"]] += FORGET_BIAS
    return model.eval().requires_grad_(False)


class OurCarried:
    """The library's perplexity of a text by a model with a state."""

    def __init__(self, sizes: dict[str, int], words: int, weights: str, threads: int):
        import torch

        from regard.data import TokenArray
        from regard.models.conversions import prepare

        torch.set_num_threads(threads)
        self.model = _recurrent(sizes)
        if weights != "float32":
            prepare(self.model, weights)  # type: ignore[arg-type]
        self.text = TokenArray.of([_text(words, sizes["vocab_size"])], sizes["vocab_size"])

    def turn(self) -> float:
        """Nats per word."""
        from regard.tasks.stateful_perplexity import stateful_likelihood

        found = stateful_likelihood(self.model, self.text)
        return found.nats / found.count


class TheirCarried:
    """One stream through `nn.LSTM`; quantized: torch's dynamic quantization."""

    def __init__(self, sizes: dict[str, int], words: int, quantized: bool, threads: int):
        import torch
        from torch import nn

        torch.set_num_threads(threads)
        ours, width = _recurrent(sizes), sizes["d_model"]
        self.embedding, output = ours.embedding, nn.Linear(width, sizes["vocab_size"])
        output.load_state_dict(ours.head.state_dict())
        lstm = nn.LSTM(width, width, sizes["layers"], batch_first=True)
        for number, layer in enumerate(ours.stack.layers):
            for name, value in (
                (f"weight_ih_l{number}", layer.input.weight),
                (f"weight_hh_l{number}", layer.recurrent.weight),
                (f"bias_ih_l{number}", layer.input.bias),
                (f"bias_hh_l{number}", torch.zeros(4 * width)),
            ):
                getattr(lstm, name).data.copy_(value)
        self.parts: Any = nn.ModuleList([lstm, output]).eval()
        if quantized:
            self.parts = torch.ao.quantization.quantize_dynamic(self.parts, {nn.LSTM, nn.Linear})
        self.ids = torch.from_numpy(_text(words, sizes["vocab_size"]).astype("int64"))

    def turn(self) -> float:
        """Nats per word."""
        import torch
        from torch.nn import functional as F

        lstm, output = self.parts
        nats, state, last = 0.0, None, len(self.ids) - 1
        with torch.inference_mode():
            for start in range(0, last, STEPS):
                end = min(last, start + STEPS)
                hidden, state = lstm(self.embedding(self.ids[None, start:end]), state)
                targets = self.ids[start + 1 : end + 1]
                nats += F.cross_entropy(output(hidden)[0], targets, reduction="sum").item()
        return nats / last


def write_ours(folder: str, shape: dict[str, int], tokens: int, stride: int, weights: str) -> None:
    """The quantized folder."""
    from benchmarks.decoding.ours import prepare

    prepare(folder, shape, weights)


class OurWindows:
    """The library's perplexity of a text by a model with a context."""

    def __init__(
        self,
        folder: str,
        shape: dict[str, int],
        tokens: int,
        stride: int,
        weights: str,
        threads: int,
    ):

        from benchmarks.decoding.ours import Ours
        from regard.data import SlidingWindows, TokenArray
        from regard.tasks.embedder import batch_budget

        self.model: Any = Ours(folder, shape, weights, threads).model
        text = TokenArray.of([_text(tokens, shape["vocab_size"])], shape["vocab_size"])
        window = shape["length"]
        rows = max(1, batch_budget(self.model) // window)
        self.windows = SlidingWindows(text, window=window, stride=stride, batch_size=rows)

    def turn(self) -> float:
        """Nats per token."""
        import torch

        nats, count = 0.0, 0
        with torch.no_grad():
            for batch in self.windows:
                hidden = self.model(batch.tokens).hidden.flatten(0, 1)
                loss, tokens = self.model.head.loss(hidden, batch.targets.flatten())
                nats, count = nats + float(loss), count + tokens
        return nats / count


class TheirWindows:
    """The loop of the library's own page on perplexity: a window at a time, with its labels."""

    def __init__(
        self,
        folder: str,
        shape: dict[str, int],
        tokens: int,
        stride: int,
        dtype: str,
        threads: int,
    ):
        import torch
        import transformers

        torch.set_num_threads(threads)
        self.model = transformers.GPT2LMHeadModel.from_pretrained(
            folder, dtype=getattr(torch, dtype)
        ).eval()
        self.ids = torch.from_numpy(_text(tokens, shape["vocab_size"]).astype("int64"))
        self.window, self.stride = shape["length"], stride

    def turn(self) -> float:
        """Nats per token."""
        import torch

        nats, reached, last = 0.0, 0, len(self.ids) - 1
        with torch.inference_mode():
            for start in range(0, last, self.stride):
                end = min(start + self.window, last)
                ids = self.ids[None, start:end]
                labels = self.ids[None, start + 1 : end + 1].clone()
                labels[:, : reached - start] = -100
                # The labels stand one position before where this model looks for them.
                found = self.model(ids, shift_labels=labels, labels=labels)
                nats += float(found.loss) * (end - reached)
                reached = end
                if end == last:
                    break
        return nats / last
