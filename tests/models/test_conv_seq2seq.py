"""ConvS2S against loops over positions and kernels, from the weights alone, in float64."""

from __future__ import annotations

import pytest
import torch

from regard.attention.capture import CapturePoint, listening
from regard.data.batches import Sequences
from regard.errors import ConfigError
from regard.models.conv_seq2seq import ConvSeq2Seq, ConvSeq2SeqConfig

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


class Recorder:
    def __init__(self):
        self.seen = []

    def wants(self, point: CapturePoint) -> bool:
        return True

    def take(self, point: CapturePoint, weights) -> None:
        self.seen.append((point.kind, weights))


@pytest.mark.parametrize("shape", SHAPES)
def test_states_and_weights_of_every_layer_are_those_of_the_formulas(shape):
    model, recorder = tiny(shape), Recorder()
    token = listening.set(recorder)
    try:
        found = model(Sequences.of(SOURCES, 0), Sequences.full(TARGETS)).hidden
    finally:
        listening.reset(token)
    assert [kind for kind, _ in recorder.seen] == ["cross"] * len(model.config.decoder)
    naive = Naive(model.state_dict(), model.config)
    for row, source in enumerate(SOURCES):
        expected, looks = naive.hidden(source, TARGETS[row].tolist())
        torch.testing.assert_close(found[row], expected, atol=1e-10, rtol=1e-10)
        for (_, weights), wanted in zip(recorder.seen, looks, strict=True):
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
        (dict(encoder=((2, 4),)), "must be odd, so that it has a middle, but is 2"),
        (dict(encoder=()), "`encoder` must have at least one layer"),
        (dict(decoder=()), "`decoder` must have at least one layer"),
    ],
)
def test_layers_that_cannot_be_are_an_error(options, message):
    with pytest.raises(ConfigError, match=message):
        tiny(**options)
