"""Sequence to sequence against plain formulas, one sentence and one word at a time, in float64."""

from __future__ import annotations

import pytest
import torch
from captured_weights import captured
from drawn_numbers import key_of, number_of
from random_weights import randomized
from torch.nn import functional as F

from regard.data.batches import Sequences
from regard.models.seq2seq import RNNSearch, RNNSearchConfig, Seq2Seq, Seq2SeqConfig

FORMS = {
    **{kind: {"attention": kind} for kind in ("none", "additive", "dot", "general")},
    "location": {"attention": "location", "max_length": 12},
    "scaled-dot": {"attention": "scaled-dot"},
    "local-m": {"attention": "content-based", "window": "local-m", "half_width": 1},
    "local-p": {"attention": "general", "window": "local-p", "half_width": 2},
    "hard": {"attention": "general", "selection": "hard"},
    "hard-drawn": {"attention": "cosine", "selection": "hard", "choice_seed": 5},
    "hard-expected": {"attention": "dot", "window": "local-p", "selection": "hard-expected"},
}
KINDS = list(FORMS)
LOOKING = KINDS[1:]
SMOOTH = [kind for kind in KINDS if not kind.startswith("hard")]
WORDS = 17
SOURCES = [[5, 6, 7, 2], [8, 2], [9, 10, 11, 12, 13, 2]]
TARGETS = torch.tensor([[1, 4, 5, 6, 7], [1, 8, 9, 3, 3], [1, 16, 15, 14, 2]])


def tiny(kind="general", **options):
    """A model with one of the forms, whose scores are so far apart that choices are certain."""
    torch.manual_seed(0)
    form = FORMS.get(kind, {"attention": kind})
    sizes = {"d_model": 8, "layers": 2, "dropout": 0.3}
    model = Seq2Seq(Seq2SeqConfig(WORDS, **sizes | form | options)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith(("decoder.score", "decoder.form")):
                parameter.mul_(3.0)
    return model


def sources(rows=SOURCES):
    return Sequences.of(rows, pad=0)


def assert_close(found, expected, tolerance=1e-5):
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


class Naive:
    """The same model from its weights alone, which are leaves of a graph."""

    def __init__(self, model):
        state = model.state_dict().items()
        self.weights = {name: value.double().detach().requires_grad_() for name, value in state}
        self.config = model.config

    def linear(self, name, x):
        return F.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def lstm(self, name, x, hidden, cell):
        z = self.linear(f"{name}.input", x) + self.linear(f"{name}.recurrent", hidden)
        return self.advance(z, cell)

    def advance(self, z, cell):
        i, f, g, o = z.chunk(4)
        cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(cell), cell

    def fed_lstm(self, n, x, word, hidden, cell):
        """Layer n of the decoder that is fed: `word` enters at the bottom."""
        z = self.linear(f"decoder.gates.{n}", torch.cat([x, hidden]))
        return self.advance(z if n else z + self.linear("decoder.words", word), cell)

    def read(self, name, xs):
        half = self.config.d_model // 2
        hidden, cell, out = torch.zeros(half).double(), torch.zeros(half).double(), []
        for x in xs:
            hidden, cell = self.lstm(name, x, hidden, cell)
            out.append(hidden)
        return out, hidden

    def encode(self, words):
        xs, states = list(self.weights["embedding.weight"][words]), []
        for n in range(self.config.layers):
            ahead, h = self.read(f"encoder.ahead.{n}", xs)
            back, hb = self.read(f"encoder.back.{n}", xs[::-1])
            xs = [torch.cat(pair) for pair in zip(ahead, back[::-1], strict=True)]
            hidden, cell = self.linear("bridge", torch.cat([h, hb])).chunk(2)
            states.append((torch.tanh(hidden), cell))
        return torch.stack(xs), states

    def scores(self, query, memory):
        match self.config.attention:
            case "dot":
                return memory @ query
            case "scaled-dot":
                return memory @ query / len(query) ** 0.5
            case "general":
                return self.linear("decoder.score.key", memory) @ query
            case "location":
                return self.linear("decoder.score.weigh", query)[: len(memory)]
            case "cosine":
                return F.cosine_similarity(memory, query[None])
            case "content-based":
                strength = F.softplus(self.linear("decoder.score.strength", query))
                return strength * F.cosine_similarity(memory, query[None])
        inner = self.linear("decoder.score.query", query)
        inner = torch.tanh(inner + self.linear("decoder.score.key", memory))
        return self.linear("decoder.score.weigh", inner)[:, 0]

    def attention(self, query, memory, t, source):
        """The weights of step t over all positions."""
        config, count = self.config, len(memory)
        scores = self.scores(query, memory)
        centre, width = None, config.half_width or 10
        if config.window == "local-m":
            centre = torch.tensor(float(min(t, count - 1)))
        if config.window == "local-p":
            inner = torch.tanh(self.linear("decoder.form.window.inner", query))
            centre = count * torch.sigmoid(self.linear("decoder.form.window.outer", inner))
        positions = torch.arange(count)
        if centre is not None:
            scores = scores.masked_fill((positions - centre).abs() > width, -torch.inf)
        weights = scores.softmax(0)
        if config.window == "local-p":
            weights = weights * torch.exp(-((positions - centre) ** 2) / (2 * (width / 2) ** 2))
        if config.selection == "soft":
            return weights
        at = int(weights.argmax())
        if config.choice_seed is not None:
            number = number_of(key_of(source, config.choice_seed), t + 1)
            at = int((weights / weights.sum()).cumsum(0).le(number).sum())
        return torch.zeros_like(weights).index_fill_(0, torch.tensor([at]), 1.0)

    def hidden(self, source, target):
        memory, states = self.encode(source)
        fed, out, looks = torch.zeros(self.config.d_model).double(), [], []
        for t, word in enumerate(target):
            word = self.weights["embedding.weight"][word]
            plain = self.config.attention == "none"
            x = word if plain else fed
            for n in range(self.config.layers):
                if plain:
                    states[n] = self.lstm(f"decoder.stack.layers.{n}", x, *states[n])
                else:
                    states[n] = self.fed_lstm(n, x, word, *states[n])
                x = states[n][0]
            if self.config.attention != "none":
                looks.append(self.attention(x, memory, t, source))
                context = looks[-1] @ memory
                x = fed = torch.tanh(self.linear("decoder.combine", torch.cat([context, x])))
            out.append(x)
        return torch.stack(out), looks


@pytest.mark.parametrize("attention", KINDS)
def test_states_and_gradients_equal_the_formulas(attention):
    """Hard choices have no gradient of their own."""
    model = tiny(attention).double()
    naive, found = Naive(model), model(sources(), Sequences.full(TARGETS)).hidden
    rows = zip(SOURCES, TARGETS.tolist(), strict=True)
    expected = torch.stack([naive.hidden(source, target)[0] for source, target in rows])
    assert_close(found, expected, 1e-9)
    if attention in SMOOTH:
        weigh = torch.randn_like(found)
        for hidden in (found, expected):
            (hidden * weigh).sum().backward()
        for name, parameter in model.named_parameters():
            if name != "head.bias":
                assert parameter.grad.any(), name
                assert_close(parameter.grad, naive.weights[name].grad, 1e-8)


@pytest.mark.parametrize("attention", LOOKING)
def test_captured_attention_equals_the_formulas(attention):
    model = tiny(attention)
    looked, kinds, steps = captured(lambda: model(sources(), Sequences.full(TARGETS)).hidden)
    assert_close(looked, model(sources(), Sequences.full(TARGETS)).hidden)
    assert {*kinds} == {"cross"}
    weights = torch.cat(steps, 2)
    assert weights.shape == (3, 1, 5, 6)  # (B, H, T, S)
    for row, source in enumerate(SOURCES):
        _, expected = Naive(model).hidden(source, TARGETS[row].tolist())
        assert_close(weights[row, 0, :, : len(source)].double(), torch.stack(expected))
        assert not weights[row, :, :, len(source) :].any()


@pytest.mark.parametrize(
    ("name", "alias"),
    [("additive", "concat"), ("additive", "multi-layer-perceptron"), ("general", "bilinear")],
)
def test_other_names_of_a_score_give_the_same_model(name, alias):
    one, other = tiny(name), tiny(alias)
    assert other.load_state_dict(one.state_dict())
    assert_close(*(model(sources(), Sequences.full(TARGETS)).hidden for model in (one, other)), 0.0)


# ---- rnnsearch

SIZES = {"d_model": 6, "d_embedding": 5, "d_score": 4, "d_maxout": 3}
RNN_TARGETS = torch.tensor([[1, 4, 5, 6], [1, 8, 9, 3], [1, 16, 15, 14]])


def rnnsearch():
    torch.manual_seed(0)
    return randomized(RNNSearch(RNNSearchConfig(WORDS, **SIZES)).double().eval(), 0.5)


def unit(weights, name, x, s):
    """Section A.1.1 with biases: the reset multiplies s, and z is the share of what is new."""
    into, own = weights[f"{name}.input.weight"], weights[f"{name}.recurrent.weight"]
    bias = weights[f"{name}.input.bias"]
    (w_r, w_z, w), (u_r, u_z, u), (b_r, b_z, b) = into.chunk(3), own.chunk(3), bias.chunk(3)
    r = torch.sigmoid(w_r @ x + u_r @ s + b_r)
    z = torch.sigmoid(w_z @ x + u_z @ s + b_z)
    return (1 - z) * s + z * torch.tanh(w @ x + u @ (r * s) + b)


def annotations(weights, source):
    """h_j = [ahead_j; back_j], and back_1."""
    words, zeros = weights["source_embedding.weight"][source], torch.zeros(6).double()
    ahead, back, s = [], [], zeros
    for word in words:
        ahead.append(s := unit(weights, "encoder.ahead.0", word, s))
    s = zeros
    for word in words.flip(0):
        back.append(s := unit(weights, "encoder.back.0", word, s))
    return torch.cat([torch.stack(ahead), torch.stack(back[::-1])], 1), s


def naive(weights, source, target):
    """Of each word of the target the logits of the next one and the weights of the source."""

    def linear(name, x):
        return F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    memory, back = annotations(weights, source)
    s, found, alphas = torch.tanh(linear("first", back)), [], []
    for y in target:
        word = weights["embedding.weight"][y]
        inner = torch.tanh(linear("score.query", s) + linear("score.key", memory))
        alphas.append(linear("score.weigh", inner)[:, 0].softmax(0))
        c = alphas[-1] @ memory
        t = linear("readout", torch.cat([s, word, c])).view(-1, 2).amax(1)
        found.append(linear("head", t))
        s = unit(weights, "gru", torch.cat([word, c]), s)
    return torch.stack(found), torch.stack(alphas)


def test_logits_and_gradients_equal_the_equations():
    model = rnnsearch()
    weights = {
        name: one.detach().clone().requires_grad_() for name, one in model.state_dict().items()
    }
    hidden = model(Sequences.of(SOURCES, pad=0), Sequences.full(RNN_TARGETS)).hidden
    logits = model.head.logits(hidden)
    expected = torch.stack(
        [naive(weights, *pair)[0] for pair in zip(SOURCES, RNN_TARGETS.tolist(), strict=True)]
    )
    torch.testing.assert_close(logits, expected, atol=1e-12, rtol=1e-12)
    weigh = torch.randn_like(logits)
    (logits * weigh).sum().backward()
    (expected * weigh).sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, weights[name].grad, atol=1e-11, rtol=1e-11)


def test_captured_attention_is_that_before_the_recurrent_step():
    model, source = rnnsearch(), Sequences.of(SOURCES, pad=0)
    *_, steps = captured(lambda: model(source, Sequences.full(RNN_TARGETS)))
    found = torch.cat(steps, 2)  # (B, H, T, S)
    for row, source in enumerate(SOURCES):
        _, expected = naive(model.state_dict(), source, RNN_TARGETS[row].tolist())
        torch.testing.assert_close(found[row, 0, :, : len(source)], expected)
        assert not found[row, :, :, len(source) :].any()


def test_the_default_size_has_the_parameters_of_the_paper_s_matrices():
    """Section A.2.3: n = 1000, m = 620, l = 500, n' = 1000."""
    with torch.device("meta"):
        model = RNNSearch(RNNSearchConfig(30_000))
    n, m, maxout, inner = 1000, 620, 500, 1000
    encoder = 2 * 3 * n * (m + n)
    decoder = 3 * n * (m + n + 2 * n) + n * n
    alignment = inner * (n + 2 * n + 1)
    output = 2 * maxout * (n + m + 2 * n) + 30_000 * (maxout + 2 * m)
    biases = 2 * 3 * n + 3 * n + n + inner + 2 * maxout + 30_000  # which the paper leaves out
    expected = encoder + decoder + alignment + output + biases
    assert sum(p.numel() for p in model.parameters()) == expected
