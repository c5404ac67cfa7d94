"""RNNsearch against the equations of its paper, one word at a time, in float64."""

from __future__ import annotations

import torch

from regard.attention.capture import listening
from regard.data.batches import Sequences
from regard.models.seq2seq import RNNSearch, RNNSearchConfig

WORDS, SIZES = 17, {"d_model": 6, "d_embedding": 5, "d_score": 4, "d_maxout": 3}
SOURCES = [[5, 6, 7, 2], [8, 2], [9, 10, 11, 12, 13, 2]]
TARGETS = torch.tensor([[1, 4, 5, 6], [1, 8, 9, 3], [1, 16, 15, 14]])


def tiny():
    torch.manual_seed(0)
    model = RNNSearch(RNNSearchConfig(WORDS, **SIZES)).double().eval()
    with torch.no_grad():  # weights so large that every term counts
        for parameter in model.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return model


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
    return [torch.cat(pair) for pair in zip(ahead, back[::-1], strict=True)], s


def naive(weights, source, target):
    """Of each word of the target the logits of the next one and the weights of the source."""
    memory, back = annotations(weights, source)
    s = torch.tanh(weights["first.weight"] @ back + weights["first.bias"])
    found, alphas = [], []
    for y in target:
        word = weights["embedding.weight"][y]
        scores = [
            weights["score.weigh.weight"][0]
            @ torch.tanh(
                weights["score.query.weight"] @ s
                + weights["score.key.weight"] @ h
                + weights["score.key.bias"]
            )
            for h in memory
        ]
        alpha = torch.stack(scores).softmax(0)
        c = sum(a * h for a, h in zip(alpha, memory, strict=True))
        t = weights["readout.weight"] @ torch.cat([s, word, c]) + weights["readout.bias"]
        t = torch.stack([torch.maximum(t[2 * j], t[2 * j + 1]) for j in range(3)])
        found.append(weights["head.weight"] @ t + weights["head.bias"])
        alphas.append(alpha)
        s = unit(weights, "gru", torch.cat([word, c]), s)
    return torch.stack(found), torch.stack(alphas)


def test_logits_and_gradients_equal_the_equations():
    model = tiny()
    weights = {
        name: one.detach().clone().requires_grad_() for name, one in model.state_dict().items()
    }
    hidden = model(Sequences.of(SOURCES, pad=0), Sequences.full(TARGETS)).hidden
    logits = model.head.logits(hidden)
    expected = torch.stack(
        [naive(weights, *pair)[0] for pair in zip(SOURCES, TARGETS.tolist(), strict=True)]
    )
    torch.testing.assert_close(logits, expected, atol=1e-12, rtol=1e-12)
    weigh = torch.randn_like(logits)
    (logits * weigh).sum().backward()
    (expected * weigh).sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, weights[name].grad, atol=1e-11, rtol=1e-11)


class Recorder:
    def __init__(self):
        self.seen = []

    def wants(self, point):
        return True

    def take(self, point, weights):
        self.seen.append(weights.detach())


def test_captured_attention_is_that_before_the_recurrent_step():
    model, recorder = tiny(), Recorder()
    token = listening.set(recorder)
    try:
        model(Sequences.of(SOURCES, pad=0), Sequences.full(TARGETS))
    finally:
        listening.reset(token)
    found = torch.cat(recorder.seen, 2)  # (B, H, T, S)
    for row, source in enumerate(SOURCES):
        _, expected = naive(model.state_dict(), source, TARGETS[row].tolist())
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
