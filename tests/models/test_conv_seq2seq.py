"""ConvS2S and ByteNet against the formulas of their papers, from the weights alone, in float64."""

from __future__ import annotations

import math

import pytest
import torch
from captured_weights import captured
from random_weights import randomized
from torch.nn import functional as F

from regard.data.batches import Sequences
from regard.models.conv_seq2seq import ByteNet, ByteNetConfig, ConvSeq2Seq, ConvSeq2SeqConfig

WORDS = 17
SOURCES = [[5, 6, 7, 2], [8], [9, 10, 11, 12, 13, 2], [4, 2]]
TARGETS = torch.tensor([[1, 4, 5, 6, 7], [1, 8, 9, 3, 3], [1, 16, 15, 14, 2], [1, 7, 7, 7, 7]])
SHAPES = {
    "even widths": dict(encoder=((3, 6),) * 2, decoder=((3, 6),) * 2),
    "other widths": dict(encoder=((1, 4), (5, 7)), decoder=((2, 5), (4, 5), (1, 8))),
    "wider than the text": dict(encoder=((9, 6),), decoder=((8, 6),), tied=True),
}


def tiny(shape="other widths", **options):
    torch.manual_seed(0)
    sizes = dict(d_model=6, dropout=0.3, max_length=9)
    model = ConvSeq2Seq(ConvSeq2SeqConfig(WORDS, **sizes | SHAPES[shape] | options))
    return randomized(model, 0.3).eval().double()


def convolved(matrix, bias, xs, before, after, dilation=1):
    """A convolution over (T, D) whose windows begin `before` and end `after` positions away."""
    width = xs.size(1)
    kernel = matrix.view(len(matrix), -1, width).mT  # (outputs, D, taps)
    padded = F.pad(xs.T, (before * dilation, after * dilation))
    return F.conv1d(padded[None], kernel, bias, dilation=dilation)[0].T


class Naive:
    """Section 3 of the paper for one pair of texts; `weights` may be leaves of a graph."""

    def __init__(self, weights, config):
        self.weights, self.config = weights, config

    def matrix(self, name):
        scale = self.weights[f"{name}.parametrizations.weight.original0"]
        direction = self.weights[f"{name}.parametrizations.weight.original1"]
        return scale * F.normalize(direction, dim=1)

    def linear(self, name, x):
        return F.linear(x, self.matrix(name), self.weights[f"{name}.bias"])

    def convolve(self, name, xs, before, after):
        name = f"{name}.convolution.linear"
        return F.glu(convolved(self.matrix(name), self.weights[f"{name}.bias"], xs, before, after))

    def residual(self, name, x, width):
        return x if x.size(1) == width else self.linear(f"{name}.residual", x)

    def embed(self, ids, side):
        positions = self.weights[f"{side}_positions.vectors.weight"]
        return self.weights["embedding.weight"][ids] + positions[: len(ids)]

    def hidden(self, source, target, scale_gradient=lambda x: x):
        words = self.embed(source, "source")
        xs = self.linear("encoder.input", words)
        for n, (kernel, width) in enumerate(self.config.encoder):
            name = f"encoder.blocks.{n}"
            v = self.convolve(name, xs, kernel // 2, kernel // 2)
            xs = (v + self.residual(name, xs, width)) * 0.5**0.5
        keys = scale_gradient(self.linear("encoder.output", xs))
        values = (keys + words) * 0.5**0.5
        targets, looks = self.embed(target, "target"), []
        xs = self.linear("decoder.input", targets)
        for n, (kernel, width) in enumerate(self.config.decoder):
            name = f"decoder.blocks.{n}"
            h = self.convolve(name, xs, kernel - 1, 0)
            d = (self.linear(f"{name}.query", h) + targets) * 0.5**0.5
            looks.append((d @ keys.T).softmax(1))
            c = looks[-1] @ values * len(keys) ** 0.5  # m sqrt(1 / m)
            h = (h + self.linear(f"{name}.context", c)) * 0.5**0.5
            xs = (h + self.residual(name, xs, width)) * 0.5**0.5
        return self.linear("decoder.output", xs), looks


@pytest.mark.parametrize("shape", SHAPES)
def test_states_and_weights_of_every_layer_are_those_of_the_formulas(shape):
    model, batch = tiny(shape), Sequences.of(SOURCES, 0)
    found, kinds, layers = captured(lambda: model(batch, Sequences.full(TARGETS)).hidden)
    assert kinds == ["cross"] * len(model.config.decoder)
    naive = Naive(model.state_dict(), model.config)
    for row, source in enumerate(SOURCES):
        expected, looks = naive.hidden(source, TARGETS[row].tolist())
        torch.testing.assert_close(found[row], expected, atol=1e-10, rtol=1e-10)
        for weights, wanted in zip(layers, looks, strict=True):
            torch.testing.assert_close(weights[row, 0, :, : len(source)], wanted)
            assert not weights[row, 0, :, len(source) :].any()


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_are_those_of_the_formulas_with_the_encoders_mean(shape):
    model, config = tiny(shape), ConvSeq2SeqConfig(WORDS, **SHAPES[shape])
    weights = {k: v.detach().clone().requires_grad_() for k, v in model.state_dict().items()}
    if model.config.tied:
        weights["head.weight"] = weights["embedding.weight"]
    output = model(Sequences.of(SOURCES, 0), Sequences.full(TARGETS)).hidden
    model.head.logits(output).log_softmax(-1)[..., 5].sum().backward()
    share = 1 / len(config.decoder)
    total = 0.0
    for row, source in enumerate(SOURCES):
        hidden, _ = Naive(weights, model.config).hidden(
            source, TARGETS[row].tolist(), lambda x: share * x + (1 - share) * x.detach()
        )
        scores = hidden @ weights["head.weight"].T + weights["head.bias"]
        total = total + scores.log_softmax(-1)[..., 5].sum()
    total.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, weights[name].grad, atol=1e-9, rtol=1e-8)


# ---- bytenet

LONG_SOURCES = [[5, 6, 7, 2], [8], [9, 10, 11, 12, 13, 14, 2], [4, 2]]
BYTENETS = {
    "relu": dict(dilations=(1, 2, 4), sets=1),
    "wide": dict(dilations=(1, 3), sets=1, kernel=5),
    "two sets, many columns": dict(sets=2, length_ratio=1.7, extra_columns=3),
    "fewer columns than words": dict(length_ratio=0.3, kernel=1),
}


def bytenet(shape="relu", **options):
    torch.manual_seed(0)
    sizes = dict(d_model=6, dilations=(1, 2), dropout=0.3)
    model = ByteNet(ByteNetConfig(WORDS, **sizes | BYTENETS[shape] | options))
    return randomized(model, 0.4).eval().double()


class NaiveByteNet:
    """Section 3 of the paper for one pair of texts; `weights` may be leaves of a graph."""

    def __init__(self, weights, config):
        self.weights, self.config = weights, config

    def linear(self, name, x):
        return F.linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def norm(self, name, x):
        gain, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return F.layer_norm(x, gain.shape, gain, bias).relu()

    def blocks(self, side, xs, before, after):
        """All blocks; a kernel's taps are up to so many dilations before and after a position."""
        for n, dilation in enumerate(self.config.dilations * self.config.sets):
            name = f"{side}.{n}"
            inner = self.linear(f"{name}.reduce", self.norm(f"{name}.norm", xs))
            inner = self.norm(f"{name}.inner_norm", inner)
            matrix, bias = (
                self.weights[f"{name}.convolution.linear.{part}"] for part in ("weight", "bias")
            )
            found = convolved(matrix, bias, inner, before, after, dilation)
            xs = xs + self.linear(f"{name}.expand", self.norm(f"{name}.outer_norm", found))
        return xs

    def hidden(self, source, target):
        config, embedding = self.config, self.weights["embedding.weight"]
        count = max(
            len(source), math.ceil(config.length_ratio * len(source) + config.extra_columns)
        )
        padded = [*source, *[config.pad] * (count - len(source))]
        half = config.kernel // 2
        columns = self.blocks("encoder", embedding[padded], half, half)[: len(target)]
        read = columns @ self.weights["column.weight"].T
        xs = embedding[target] + F.pad(read, (0, 0, 0, len(target) - len(read)))
        xs = self.norm("output_norm", self.blocks("decoder", xs, config.kernel - 1, 0))
        return self.linear("output", xs).relu()


@pytest.mark.parametrize("shape", BYTENETS)
def test_states_and_gradients_are_those_of_the_formulas(shape):
    model = bytenet(shape)
    weights = {k: v.detach().clone().requires_grad_() for k, v in model.state_dict().items()}
    found = model(Sequences.of(LONG_SOURCES, 0), Sequences.full(TARGETS)).hidden
    naive = NaiveByteNet(weights, model.config)
    rows = [naive.hidden(s, t.tolist()) for s, t in zip(LONG_SOURCES, TARGETS, strict=True)]
    expected = torch.stack(rows)
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)
    for hidden, head in ((found, model.head.weight), (expected, weights["head.weight"])):
        (hidden @ head.T).log_softmax(-1)[..., 5].sum().backward()
    for name, parameter in model.named_parameters():
        if name != "head.bias":
            torch.testing.assert_close(parameter.grad, weights[name].grad, atol=1e-9, rtol=1e-8)


@pytest.mark.parametrize("sets", [1, 6])
@torch.no_grad()
def test_at_the_start_words_and_columns_are_of_one_size(sets):
    """Of their sum, which enters the decoder, neither hides the other."""
    torch.manual_seed(3)
    model = ByteNet(ByteNetConfig(WORDS, 64, dilations=(1, 2, 4, 8, 16), sets=sets))
    columns = model.read(Sequences.of(LONG_SOURCES[2:3], 0)).columns.values[
        :, 0, 0, : len(LONG_SOURCES[2])
    ]
    ratio = columns.square().mean().sqrt() / model.embedding.weight.square().mean().sqrt()
    assert 0.5 < ratio < 2
