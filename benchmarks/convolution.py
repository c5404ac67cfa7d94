"""Convolutional translators: their layer beside `nn.Conv1d`, and steps beside whole texts.

The peer of the layer is what section 3.2 of the paper says, written with torch's own convolution.
The peer of decoding by steps is the same model, which reads all of its own tokens at every step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.measure import Work
from benchmarks.options import Options
from benchmarks.workers import Condition

KERNEL, WORDS, PASSES = 3, 10_000, 4
LAYERS = {"regard": "OurLayer", "PyTorch Conv1d": "TheirLayer"}
DECODERS = {"regard, steps": "Steps", "regard, the whole text at every step": "WholeTexts"}


def works(options: Options) -> Iterator[Work]:
    """Training passes of a gated convolution; then greedy search with ConvS2S and ByteNet."""
    rows, positions, width = (2, 5, 8) if options.quick else (32, 30, 512)
    for gradient, unit in ((False, "forward"), (True, "forward and backward")):
        given = {"rows": rows, "positions": positions, "width": width, "gradient": gradient}
        yield Work(
            f"gated convolution, {width} wide, {unit}",
            "positions/s",
            PASSES * rows * positions,
            [Condition(name, f"{__name__}:{kind}", given) for name, kind in LAYERS.items()],
            {"PyTorch Conv1d": 1.0},
            judge=lambda results: {name: f"{one:.5g}" for name, one in results.items()},
            note=f"{rows} texts of {positions} positions, kernel {KERNEL}, weight normalization",
        )
    source, new = (4, 5) if options.quick else (30, 100)
    for model in ("ConvS2S", "ByteNet"):
        given = {"model": model, "quick": options.quick, "source": source, "new": new}
        yield Work(
            f"{model}, one sequence",
            "tokens/s",
            new,
            [Condition(name, f"{__name__}:{kind}", given) for name, kind in DECODERS.items()],
            {"regard, the whole text at every step": 1.0},
            judge=lambda results: {name: str(one[-3:]) for name, one in results.items()},
            note=f"a source of {source} tokens, {new} new ones, greedy",
        )


# ---- the layer ---------------------------------------------------------------------------------


class Layer:
    """Passes over texts (B, T, D) without padding; a turn gives a sum of all that was computed."""

    def __init__(self, rows: int, positions: int, width: int, gradient: bool, threads: int):
        torch.set_num_threads(threads)
        draw = torch.Generator().manual_seed(1)
        self.hidden = torch.randn(rows, positions, width, generator=draw).requires_grad_(gradient)
        self.gradient, self.layer = gradient, self.made(width)
        self.keep = torch.ones(rows, positions, dtype=torch.bool)
        with torch.no_grad():  # the same numbers on both sides
            for parameter in self.layer.parameters():
                parameter.fill_(0.02)

    def made(self, width: int) -> nn.Module:
        """The layer that is measured."""
        raise NotImplementedError

    def found(self) -> Tensor:
        """What it gives, (B, T, D)."""
        raise NotImplementedError

    def turn(self) -> float:
        """The sum of the last pass, or of its gradient."""
        total = torch.zeros(())
        for _ in range(PASSES):
            with torch.set_grad_enabled(self.gradient):
                total = self.found().square().sum()
            if self.gradient:
                self.layer.zero_grad()
                self.hidden.grad = None
                total.backward()
                assert self.hidden.grad is not None
                total = self.hidden.grad.abs().sum()
        return float(total)


class OurLayer(Layer):
    """The block of the library's encoder."""

    def made(self, width: int) -> nn.Module:
        """See `Layer`."""
        from regard import ops
        from regard.models.conv_seq2seq import GatedConvolution

        ops.load_kernels()
        return GatedConvolution(width, KERNEL, width, dropout=0.0)

    def found(self) -> Tensor:
        """See `Layer`."""
        return self.layer(self.hidden, self.keep)


class TheirLayer(Layer):
    """The same by torch's convolution, which has the positions last."""

    def made(self, width: int) -> nn.Module:
        """See `Layer`."""
        convolution = nn.Conv1d(width, 2 * width, KERNEL, padding=KERNEL // 2)
        return nn.utils.parametrizations.weight_norm(convolution)

    def found(self) -> Tensor:
        """See `Layer`."""
        hidden = self.hidden.masked_fill(~self.keep[..., None], 0.0)
        gated = F.glu(self.layer(hidden.mT), 1).mT
        return (gated + self.hidden) * 0.5**0.5


# ---- decoding ----------------------------------------------------------------------------------


def _model(name: str, quick: bool) -> Any:
    """Random weights, six convolutions in the decoder."""
    from regard.models.conv_seq2seq import ByteNet, ByteNetConfig, ConvSeq2Seq, ConvSeq2SeqConfig

    words, width, layers = (20, 8, 2) if quick else (WORDS, 512, 6)
    torch.manual_seed(1)
    if name == "ConvS2S":
        blocks = ((KERNEL, width),) * layers
        return ConvSeq2Seq(ConvSeq2SeqConfig(words, width, blocks, blocks))
    dilations = (1, 2, 4)[: layers // 2]
    return ByteNet(ByteNetConfig(words, 2 * width, dilations=dilations, sets=2))


class Steps:
    """Greedy search by steps, each of which reads one token."""

    def __init__(self, model: str, quick: bool, source: int, new: int, threads: int):
        from regard import ops
        from regard.data.batches import Sequences

        ops.load_kernels()
        torch.set_num_threads(threads)
        self.model, self.new = _model(model, quick).eval(), new
        self.source = Sequences.of([list(range(3, 3 + source))], pad=0)

    def turn(self) -> list[int]:
        """The tokens."""
        found = [self.model.config.bos]
        with torch.no_grad():
            state = self.model.read(self.source)
            for _ in range(self.new):
                scores, state = self.model.step(torch.tensor([found[-1:]]), state)
                found.append(int(scores[0, -1].argmax()))
        return found[1:]


class WholeTexts(Steps):
    """The same search, which begins with the first token at every step."""

    def turn(self) -> list[int]:
        """The tokens."""
        found = [self.model.config.bos]
        with torch.no_grad():
            start = self.model.read(self.source)
            for _ in range(self.new):
                scores, _ = self.model.step(torch.tensor([found]), start.copy())
                found.append(int(scores[0, -1].argmax()))
        return found[1:]
