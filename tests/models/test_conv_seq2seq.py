"""ConvS2S against loops over positions and kernels, from the weights alone, in float64."""

from __future__ import annotations

import math

import pytest
import torch
from captured_weights import captured

from regard.data.batches import Sequences
from regard.errors import ConfigError
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
    model = ConvSeq2Seq(ConvSeq2SeqConfig(WORDS, **sizes | SHAPES[shape] | options)).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases are no longer 0, nor norms those of the start
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model.double()


class Naive:
    """Section 3 of the paper, position by position; `weights` may be leaves of a graph."""

    def __init__(self, weights, config):
        self.weights, self.config = weights, config

    def matrix(self, name):
        scale = self.weights[f"{name}.parametrizations.weight.original0"]
        direction = self.weights[f"{name}.parametrizations.weight.original1"]
        return scale * direction / direction.square().sum(1, keepdim=True).sqrt()

    def linear(self, name, x):
        return self.matrix(name) @ x + self.weights[f"{name}.bias"]

    def convolve(self, name, xs, at, before, kernel):
        """The output at one position, whose window begins `before` positions earlier."""
        matrix, width = self.matrix(f"{name}.linear"), len(xs[0])
        out = self.weights[f"{name}.linear.bias"]
        for j in range(kernel):
            if 0 <= at - before + j < len(xs):
                out = out + matrix[:, j * width : (j + 1) * width] @ xs[at - before + j]
        a, b = out.chunk(2)
        return a / (1 + (-b).exp())

    def residual(self, name, x, width):
        return x if len(x) == width else self.linear(f"{name}.residual", x)

    def embed(self, ids, side):
        positions = self.weights[f"{side}_positions.vectors.weight"]
        return [self.weights["embedding.weight"][word] + positions[n] for n, word in enumerate(ids)]

    def encode(self, ids):
        words = self.embed(ids, "source")
        xs = [self.linear("encoder.input", word) for word in words]
        for n, (kernel, width) in enumerate(self.config.encoder):
            name = f"encoder.blocks.{n}"
            found = [
                self.convolve(f"{name}.convolution", xs, at, kernel // 2, kernel)
                for at in range(len(xs))
            ]
            pairs = zip(found, xs, strict=True)
            xs = [(v + self.residual(name, x, width)) * 0.5**0.5 for v, x in pairs]
        keys = [self.linear("encoder.output", x) for x in xs]
        return keys, words

    def hidden(self, source, target, scale_gradient=lambda x: x):
        keys, words = self.encode(source)
        keys = [scale_gradient(key) for key in keys]
        values = [(key + word) * 0.5**0.5 for key, word in zip(keys, words, strict=True)]
        targets, looks = self.embed(target, "target"), []
        xs = [self.linear("decoder.input", word) for word in targets]
        for n, (kernel, width) in enumerate(self.config.decoder):
            name, outputs, rows = f"decoder.blocks.{n}", [], []
            for at, x in enumerate(xs):
                h = self.convolve(f"{name}.convolution", xs, at, kernel - 1, kernel)
                d = (self.linear(f"{name}.query", h) + targets[at]) * 0.5**0.5
                a = torch.stack([d @ key for key in keys]).exp()
                a = a / a.sum()
                m = len(keys)
                c = sum(a[j] * values[j] for j in range(m)) * m * (1 / m) ** 0.5
                h = (h + self.linear(f"{name}.context", c)) * 0.5**0.5
                outputs.append((h + self.residual(name, x, width)) * 0.5**0.5)
                rows.append(a)
            xs = outputs
            looks.append(torch.stack(rows))
        return torch.stack([self.linear("decoder.output", x) for x in xs]), looks


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(encoder=((2, 4),)), "must be odd, to have a middle: 2"),
        (dict(encoder=()), "`encoder` must have at least one layer"),
        (dict(decoder=()), "`decoder` must have at least one layer"),
    ],
)
def test_layers_that_cannot_be_are_an_error(options, message):
    with pytest.raises(ConfigError, match=message):
        tiny(**options)


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
    model = ByteNet(ByteNetConfig(WORDS, **sizes | BYTENETS[shape] | options)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.4)
    return model.double()


class NaiveByteNet:
    """Section 3 of the paper, position by position; `weights` may be leaves of a graph."""

    def __init__(self, weights, config):
        self.weights, self.config = weights, config

    def linear(self, name, x):
        return self.weights[f"{name}.weight"] @ x + self.weights[f"{name}.bias"]

    def norm(self, name, x):
        centred = x - x.mean()
        scaled = centred / (centred.square().mean() + 1e-5).sqrt()
        return scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def convolve(self, name, xs, positions):
        """The sum over the kernel's taps, of which those outside of the text are zeros."""
        matrix, out = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        for j, at in enumerate(positions):
            if 0 <= at < len(xs):
                width = len(xs[0])
                out = out + matrix[:, j * width : (j + 1) * width] @ xs[at]
        return out

    def blocks(self, side, xs, first):
        """All blocks; a kernel's taps are `first` ... `first` + k - 1 dilations away."""
        dilations = self.config.dilations * self.config.sets
        for n, dilation in enumerate(dilations):
            name = f"{side}.{n}"
            inner = [self.norm(f"{name}.norm", x).clamp(min=0) for x in xs]
            inner = [self.linear(f"{name}.reduce", x) for x in inner]
            inner = [self.norm(f"{name}.inner_norm", x).clamp(min=0) for x in inner]
            out = []
            for at, x in enumerate(xs):
                taps = [at + (first + j) * dilation for j in range(self.config.kernel)]
                found = self.convolve(f"{name}.convolution.linear", inner, taps)
                whole = self.norm(f"{name}.outer_norm", found).clamp(min=0)
                out.append(x + self.linear(f"{name}.expand", whole))
            xs = out
        return xs

    def hidden(self, source, target):
        config, embedding = self.config, self.weights["embedding.weight"]
        count = max(
            len(source), math.ceil(config.length_ratio * len(source) + config.extra_columns)
        )
        padded = [*source, *[config.pad] * (count - len(source))]
        columns = self.blocks(
            "encoder", [embedding[word] for word in padded], -(config.kernel // 2)
        )
        xs = []
        for at, word in enumerate(target):
            x = embedding[word]
            if at < count:
                x = x + self.weights["column.weight"] @ columns[at]
            xs.append(x)
        xs = self.blocks("decoder", xs, 1 - config.kernel)
        xs = [self.norm("output_norm", x).clamp(min=0) for x in xs]
        return torch.stack([self.linear("output", x).clamp(min=0) for x in xs])


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


@pytest.mark.parametrize("shape", BYTENETS)
@torch.no_grad()
def test_steps_go_on_when_the_source_is_used_up(shape):
    model, source = bytenet(shape), Sequences.of(LONG_SOURCES, 0)
    target = torch.randint(3, WORDS, (4, 23), generator=torch.Generator().manual_seed(2))
    whole = model.head.logits(model(source, Sequences.full(target)).hidden)
    state, found = model.read(source), []
    assert state.columns.values.size(3) < 23
    for count in (1, 1, 5, 1, 9, 1, 1, 4):
        at = state.read.longest
        scores, state = model.step(target[:, at : at + count], state)
        found.append(scores)
    torch.testing.assert_close(torch.cat(found, 1), whole, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(d_model=7), "`d_model` must be even, but is 7"),
        (dict(kernel=2), "`kernel` must be odd"),
        (dict(sets=5001), "must make at most 10,000 blocks, but make 15,003"),
        (dict(dilations=()), "`dilations` must name at least one"),
    ],
)
def test_blocks_that_cannot_be_are_an_error(options, message):
    with pytest.raises(ConfigError, match=message):
        bytenet(**options)


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
