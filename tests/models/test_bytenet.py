"""ByteNet against loops over positions and kernels, from the weights alone, in float64."""

from __future__ import annotations

import math

import pytest
import torch

from regard.data.batches import Sequences
from regard.errors import ConfigError
from regard.models.conv_seq2seq import SIZES, ByteNet, ByteNetConfig

WORDS = 17
SOURCES = [[5, 6, 7, 2], [8], [9, 10, 11, 12, 13, 14, 2], [4, 2]]
TARGETS = torch.tensor([[1, 4, 5, 6, 7], [1, 8, 9, 3, 3], [1, 16, 15, 14, 2], [1, 7, 7, 7, 7]])
SHAPES = {
    "relu": dict(dilations=(1, 2, 4), sets=1),
    "multiplicative": dict(unit="multiplicative", dilations=(1, 3), sets=1, kernel=5),
    "two sets, many columns": dict(sets=2, length_ratio=1.7, extra_columns=3),
    "fewer columns than words": dict(length_ratio=0.3, kernel=1),
}


def tiny(shape="relu", **options):
    torch.manual_seed(0)
    sizes = dict(d_model=6, dilations=(1, 2), dropout=0.3)
    model = ByteNet(ByteNetConfig(WORDS, **sizes | SHAPES[shape] | options)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.4)
    return model.double()


class Naive:
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

    def unit(self, name, h, found):
        if self.config.unit == "relu":
            return self.norm(f"{name}.norm", found).clamp(min=0)
        parts = found.chunk(4)
        g1, g2, g3, u = (self.norm(f"{name}.norms.{n}", part) for n, part in enumerate(parts))
        inside = torch.sigmoid(g2) * h + torch.sigmoid(g3) * torch.tanh(u)
        return torch.sigmoid(g1) * torch.tanh(inside)

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
                found = self.convolve(f"{name}.unit.convolution.linear", inner, taps)
                whole = self.unit(f"{name}.unit", inner[at], found)
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


@pytest.mark.parametrize("shape", SHAPES)
def test_states_and_gradients_are_those_of_the_formulas(shape):
    model = tiny(shape)
    weights = {k: v.detach().clone().requires_grad_() for k, v in model.state_dict().items()}
    found = model(Sequences.of(SOURCES, 0), Sequences.full(TARGETS)).hidden
    naive = Naive(weights, model.config)
    rows = [naive.hidden(s, t.tolist()) for s, t in zip(SOURCES, TARGETS, strict=True)]
    expected = torch.stack(rows)
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)
    for hidden, head in ((found, model.head.weight), (expected, weights["head.weight"])):
        (hidden @ head.T).log_softmax(-1)[..., 5].sum().backward()
    for name, parameter in model.named_parameters():
        if name != "head.bias":
            torch.testing.assert_close(parameter.grad, weights[name].grad, atol=1e-9, rtol=1e-8)


@pytest.mark.parametrize("shape", SHAPES)
@torch.no_grad()
def test_steps_go_on_when_the_source_is_used_up(shape):
    model, source = tiny(shape), Sequences.of(SOURCES, 0)
    target = torch.randint(3, WORDS, (4, 23), generator=torch.Generator().manual_seed(2))
    whole = model.head.logits(model(source, Sequences.full(target)).hidden)
    state, found = model.read(source), []
    assert state.columns.values.size(3) < 23
    for count in (1, 1, 5, 1, 9, 1, 1, 4):
        at = state.read.longest
        scores, state = model.step(target[:, at : at + count], state)
        found.append(scores)
    torch.testing.assert_close(torch.cat(found, 1), whole, atol=1e-10, rtol=1e-10)


@torch.no_grad()
def test_a_column_reaches_the_target_from_its_position_on():
    model = tiny()
    source, target = Sequences.of(SOURCES[2:3], 0), Sequences.full(TARGETS[:1])
    state = model.read(source)
    before, _ = model.step(target.ids, state.copy())
    state.columns.values[:, 0, 0, 3, 0] += 1.0  # in all dimensions the norms would take it away
    after, _ = model.step(target.ids, state)
    assert torch.equal(after[:, :3], before[:, :3])
    assert not torch.allclose(after[:, 3], before[:, 3])


def test_dilations_reach_as_far_as_their_sum():
    """Section 3.4: the receptive field grows exponentially with the blocks of a set."""
    model = tiny(dilations=(1, 2, 4), kernel=3)
    state = model.read(Sequences.of([[4]], 0))
    target = torch.full((1, 20), 5)
    words = model.embedding(target).detach().requires_grad_()
    model.embedding.register_forward_hook(lambda module, given, found: words)
    hidden, _ = model._decode(target, state)
    hidden[0, 19].sum().backward()
    seen = words.grad[0].abs().sum(-1) > 0
    assert seen.tolist() == [at >= 19 - 2 * (1 + 2 + 4) for at in range(20)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(d_model=7), "`d_model` must be even, but is 7"),
        (dict(kernel=2), "`kernel` must be odd"),
        (dict(sets=5001), "must make at most 10,000 blocks, but make 15,003"),
        (dict(dilations=()), "`dilations` must name at least one"),
        (dict(unit="gated"), "`unit` must be one of relu, multiplicative"),
    ],
)
def test_blocks_that_cannot_be_are_an_error(options, message):
    with pytest.raises(ConfigError, match=message):
        tiny(**options)


def test_the_published_size_has_thirty_blocks_each():
    with torch.device("meta"):
        model = ByteNet(ByteNetConfig(300, **SIZES["wmt14-en-de"]))
    assert len(model.encoder) == len(model.decoder) == 30
    assert model.decoder[0].reduce.weight.shape == (800, 1600)


@pytest.mark.parametrize("sets", [1, 6])
@torch.no_grad()
def test_at_the_start_words_and_columns_are_of_one_size(sets):
    """Of their sum, which enters the decoder, neither hides the other."""
    torch.manual_seed(3)
    model = ByteNet(ByteNetConfig(WORDS, 64, dilations=(1, 2, 4, 8, 16), sets=sets))
    columns = model.read(Sequences.of(SOURCES[2:3], 0)).columns.values[:, 0, 0, : len(SOURCES[2])]
    ratio = columns.square().mean().sqrt() / model.embedding.weight.square().mean().sqrt()
    assert 0.5 < ratio < 2


def test_bytenet_learns_to_copy():
    torch.manual_seed(1)
    model = ByteNet(ByteNetConfig(9, 64, dilations=(1, 2, 4), sets=1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(60):
        words = [torch.randint(3, 9, (int(n),)).tolist() for n in torch.randint(1, 6, (32,))]
        target = [[*text, 2] for text in words]
        source = Sequences.of([[*text, 2] for text in words], 0)
        given = Sequences.of([[1, *text[:-1]] for text in target], 0)
        wanted = Sequences.of(target, 0)
        logits = model.head.logits(model(source, given).hidden)[wanted.keep]
        loss = torch.nn.functional.cross_entropy(logits, wanted.ids[wanted.keep])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    right = logits.argmax(-1) == wanted.ids[wanted.keep]
    assert right.float().mean() > 0.98
