"""Thin sketches of what will strain the contracts: the same attend, masks and states carry them.

None of these is a model of the library yet. Each is the shortest honest program of a paper's
equation through our parts, and is compared with that equation written as a loop in float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import ops
from regard.attention.attend import attend
from regard.attention.capture import CapturePoint, ReshapedCapture, listening
from regard.attention.masks import Coordinates, causal, given, global_, padding, window
from regard.attention.scores import PLAIN, Additive
from regard.data.batches import Sequences
from regard.decoding.steps import start
from regard.layers.positions import sinusoid
from regard.layers.softmax import IGNORE
from regard.models.protocols import Head
from regard.models.transformer import Transformer, TransformerConfig
from regard.ops import KeyMask
from regard.state import State


def normal(*shape: int, seed: int = 0) -> Tensor:
    made = torch.Generator().manual_seed(seed + 31 * sum(shape))
    return torch.randn(*shape, generator=made, dtype=torch.float64)


class Recorder:
    def __init__(self):
        self.taken: list[Tensor] = []

    def __enter__(self):
        self.token = listening.set(self)
        return self

    def __exit__(self, *error):
        listening.reset(self.token)

    def wants(self, point: CapturePoint) -> bool:
        return True

    def take(self, point: CapturePoint, weights: Tensor) -> None:
        self.taken.append(weights.detach())

    def label(self, source: object, target: object) -> None: ...


# ---- Transformer-XL: relative positions as a bias, memory as a state ---------------------------


@dataclass
class SegmentMemory(State):
    """What earlier segments left: (B, M, D)."""

    hidden: Tensor


class RelativeLayer(nn.Module):
    """One attention of Dai et al. 2019, section 3.3, with its memory."""

    def __init__(self, d_model: int, heads: int):
        super().__init__()
        self.heads, self.width = heads, d_model // heads
        self.query, self.key, self.value, self.position = (
            nn.Linear(d_model, d_model, bias=False) for _ in range(4)
        )
        self.u, self.v = (nn.Parameter(normal(heads, self.width, seed=s)) for s in (1, 2))
        self.capture = CapturePoint("decoder")

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, self.width)).transpose(-3, -2)  # (…, H, T, K)

    def forward(self, segment: Tensor, memory: SegmentMemory) -> tuple[Tensor, SegmentMemory]:
        together = torch.cat([memory.hidden, segment], 1)
        before, count = memory.hidden.size(1), segment.size(1)
        length = before + count
        query = self.split(self.query(segment))
        key, value = self.split(self.key(together)), self.split(self.value(together))
        distances = torch.arange(length - 1, -1, -1)
        position = self.split(self.position(sinusoid(distances, segment.size(-1)).double()))
        # (q + v) · r for every distance, then each row shifted to its own keys (appendix B)
        by_distance = (query + self.v[:, None]) @ position.transpose(-2, -1)
        bias = shift(by_distance) * self.width**-0.5
        allowed = causal().resolve(torch.arange(before, length), length)
        context = attend(
            query + self.u[:, None], key, value, mask=allowed, bias=bias, capture=self.capture
        )
        return context.transpose(1, 2).flatten(2), SegmentMemory(together)


def shift(scores: Tensor) -> Tensor:
    """Column c of row t moves to c + t - (T - 1): from "how far back" to "which key"."""
    *lead, count, length = scores.shape
    padded = F.pad(scores, (1, 0)).reshape(*lead, length + 1, count)
    return padded[..., 1:, :].reshape(*lead, count, length)


def equation_of_transformer_xl(layer: RelativeLayer, together: Tensor, count: int) -> Tensor:
    """A[i, j] = q_i k_j + q_i W r_(i-j) + u k_j + v W r_(i-j), pair by pair."""
    rows, length, d_model = together.shape
    query, key, value = (layer.split(m(together)) for m in (layer.query, layer.key, layer.value))
    found = torch.zeros(rows, count, d_model, dtype=torch.float64)
    for b in range(rows):
        for h in range(layer.heads):
            for t, i in enumerate(range(length - count, length)):
                scores = []
                for j in range(i + 1):
                    r = layer.position(sinusoid(torch.tensor(i - j), d_model).double())
                    r = r.view(layer.heads, layer.width)[h]
                    q, k = query[b, h, i], key[b, h, j]
                    scores.append(q @ k + q @ r + layer.u[h] @ k + layer.v[h] @ r)
                weights = (torch.stack(scores) / math.sqrt(layer.width)).softmax(0)
                columns = slice(h * layer.width, (h + 1) * layer.width)
                found[b, t, columns] = weights @ value[b, h, : i + 1]
    return found


def test_transformer_xl_equals_its_formula_with_a_bias_and_a_state(monkeypatch):
    fused = []
    real = F.scaled_dot_product_attention
    monkeypatch.setattr(
        F, "scaled_dot_product_attention", lambda *a, **k: fused.append(1) or real(*a, **k)
    )
    layer = RelativeLayer(8, 2).double()
    x = normal(2, 7, 8)
    memory, segment = SegmentMemory(x[:, :4]), x[:, 4:]
    out, after = layer(segment, memory)
    assert fused, "a bias must not close the fused path"
    expected = equation_of_transformer_xl(layer, x, 3)
    torch.testing.assert_close(out, expected)
    with Recorder() as recorder:
        torch.testing.assert_close(layer(segment, memory)[0], expected)
    assert recorder.taken[0].shape == (2, 2, 3, 7) and len(fused) == 1
    grads = torch.autograd.grad(out.square().sum(), list(layer.parameters()))
    true = torch.autograd.grad(expected.square().sum(), list(layer.parameters()))
    torch.testing.assert_close(grads, true)
    assert torch.equal(after.hidden, x)


def test_the_memory_of_transformer_xl_is_selected_and_detached_like_any_state():
    layer = RelativeLayer(8, 2).double()
    x = normal(3, 6, 8).requires_grad_()
    whole, _ = layer(x, SegmentMemory(x[:, :0]))
    _, memory = layer(x[:, :4], SegmentMemory(x[:, :0]))
    rows = torch.tensor([2, 0, 0])
    late, _ = layer(x[rows, 4:], memory.select(rows))
    torch.testing.assert_close(late, whole[rows, 4:])
    cut = memory.detach().with_tensors({"hidden": memory.hidden.detach()})
    out, _ = layer(x[:, 4:], cut)
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert (grad[:, :4] == 0).all() and (grad[:, 4:] != 0).any()


# ---- XLNet: two streams under the masks of a permutation ---------------------------------------


def test_xlnet_equals_two_streams_under_given_masks():
    """Yang et al. 2019, eq. 4: content sees itself, query does not; both read content."""
    order = torch.tensor([[2, 0, 3, 1], [0, 1, 2, 3]])  # when each position is predicted
    sees = given(order[:, None, :] <= order[:, :, None])  # (B, T, S)
    predicts = given(order[:, None, :] < order[:, :, None])
    content, query = normal(2, 2, 4, 3), normal(2, 2, 4, 3, seed=1)
    key, value = normal(2, 2, 4, 3, seed=2), normal(2, 2, 4, 3, seed=3)

    def stream(q: Tensor, b: int, h: int, t: int, allowed: list[int]) -> Tensor:
        if not allowed:
            return torch.zeros(3, dtype=torch.float64)
        scores = torch.stack([q[b, h, t] @ key[b, h, s] / math.sqrt(3) for s in allowed])
        return scores.softmax(0) @ value[b, h, allowed]

    one = [attend(content, key, value, mask=sees.resolve(4, 4, sequences=2)),
           attend(query, key, value, mask=predicts.resolve(4, 4, sequences=2))]  # fmt: skip
    # Both streams as one call: a leading dimension more, and the grids beside each other.
    grids = torch.stack([m.grid(4, 4, sequences=2) for m in (sees, predicts)])  # (2, B, 1, T, S)
    wide = (t.expand(2, *t.shape) for t in (key, value))
    both = attend(torch.stack([content, query]), *wide, mask=KeyMask(grids))
    for b in range(2):
        for h in range(2):
            for t in range(4):
                now = int(order[b, t])
                until = [s for s in range(4) if order[b, s] <= now]
                before = [s for s in range(4) if order[b, s] < now]
                expected = [stream(content, b, h, t, until), stream(query, b, h, t, before)]
                for n in (0, 1):
                    torch.testing.assert_close(one[n][b, h, t], expected[n])
                    torch.testing.assert_close(both[n, b, h, t], expected[n])


# ---- Luong's local-p: a window around a predicted position, a Gaussian after the softmax --------


class Gaussian:
    """Luong et al. 2015, eq. 10: the weights fall off around the predicted position p (B, T)."""

    def __init__(self, centers: Tensor, keys: int, spread: float):
        distance = torch.arange(keys) - centers[:, None, :, None]  # (B, 1, T, S)
        self.factor = torch.exp(-distance.square() / (2 * spread**2))

    def __call__(self, weights: Tensor) -> Tensor:
        return weights * self.factor


def test_local_p_attention_equals_its_formula():
    reach, lengths = 2, torch.tensor([9, 5])
    query, memory = normal(2, 1, 3, 4), normal(2, 1, 9, 4, seed=1)
    w, v = normal(4, 4, seed=2), normal(4, seed=3)
    centers = lengths[:, None] * torch.sigmoid(torch.tanh(query[:, 0] @ w) @ v)  # eq. 9, (B, T)
    around = window(reach) & padding(lengths)
    out = attend(
        query, memory, memory, score=PLAIN, capture=CapturePoint("cross"),
        mask=around.resolve(centers, 9), reweight=Gaussian(centers, 9, reach / 2),
    )  # fmt: skip
    for b in range(2):
        for t in range(3):
            p = centers[b, t].item()
            near = [s for s in range(int(lengths[b])) if p - reach <= s <= p + reach]
            scores = torch.stack([query[b, 0, t] @ memory[b, 0, s] for s in near])
            gauss = torch.tensor([math.exp(-((s - p) ** 2) / (2 * (reach / 2) ** 2)) for s in near])
            expected = (scores.softmax(0) * gauss.double()) @ memory[b, 0, near]
            torch.testing.assert_close(out[b, 0, t], expected)


def test_the_predicted_position_of_local_p_gets_a_gradient():
    centers = torch.tensor([[2.3]], dtype=torch.float64, requires_grad=True)
    x = normal(1, 1, 5, 4)

    def context(centers: Tensor) -> Tensor:
        allowed = window(2).resolve(centers.detach(), 5)
        return attend(x[:, :, :1], x, x, mask=allowed, reweight=Gaussian(centers, 5, 1.0))

    assert torch.autograd.gradcheck(context, (centers,))


# ---- Hard attention: a sample after the softmax, with its probability --------------------------


class HardSample:
    """One key a query, drawn by the weights (Xu et al. 2015, section 4.1); made for one pass."""

    def __init__(self, generator: torch.Generator):
        self.generator = generator

    def __call__(self, weights: Tensor) -> Tensor:
        flat = weights.flatten(0, -2)
        self.chosen = torch.multinomial(flat, 1, generator=self.generator).view(weights.shape[:-1])
        picked = weights.gather(-1, self.chosen.unsqueeze(-1)).squeeze(-1)
        self.log_probability = picked.log()
        return F.one_hot(self.chosen, weights.size(-1)).to(weights)


def test_a_hard_sample_selects_one_position_and_stores_its_probability():
    query, memory = normal(2, 1, 3, 4).requires_grad_(), normal(2, 1, 5, 4, seed=1)
    allowed = padding(torch.tensor([5, 2])).resolve(3, 5, sequences=2)

    def look(seed: int) -> tuple[Tensor, HardSample]:
        sample = HardSample(torch.Generator().manual_seed(seed))
        out = attend(
            query, memory, memory, mask=allowed, reweight=sample, capture=CapturePoint("cross")
        )
        return out, sample

    with Recorder() as recorder:
        out, sample = look(0)
    again, same = look(0)
    assert torch.equal(out, again) and torch.equal(sample.chosen, same.chosen)
    assert any(not torch.equal(look(seed)[0], out) for seed in range(1, 6))
    soft = ops.attention_weights(query @ memory.transpose(-2, -1) / 2, allowed)
    for b in range(2):
        for t in range(3):
            s = int(sample.chosen[b, 0, t])
            assert s < (5, 2)[b]
            assert torch.equal(out[b, 0, t], memory[b, 0, s])
            torch.testing.assert_close(sample.log_probability[b, 0, t], soft[b, 0, t, s].log())
    assert torch.equal(recorder.taken[0].sum(-1), torch.ones(2, 1, 3).double())
    # REINFORCE needs the gradient of the log-probability, and gets it.
    (grad,) = torch.autograd.grad(sample.log_probability.sum(), query)
    assert grad.isfinite().all() and (grad != 0).any()


def test_hard_samples_have_the_distribution_of_the_weights():
    query, memory = normal(1, 1, 1, 4), normal(1, 1, 4, 4, seed=1)
    sample = HardSample(torch.Generator().manual_seed(0))
    many = query.expand(20_000, 1, 1, 4)
    attend(many, memory, memory, reweight=sample)
    share = torch.bincount(sample.chosen.flatten(), minlength=4) / 20_000
    soft = (query @ memory.transpose(-2, -1) / 2).softmax(-1).flatten()
    torch.testing.assert_close(share.double(), soft, atol=0.02, rtol=0)


# ---- BigBird: blocks as a leading dimension ----------------------------------------------------


def gathered_blocks(count: int, chosen: list[list[int]]) -> Tensor:
    """Key blocks of each query block: first, its neighbours, the chosen; each once, -1 is none."""
    rows = [sorted({0, *range(max(n - 1, 0), min(n + 2, count)), *chosen[n]}) for n in range(count)]
    widest = max(map(len, rows))
    return torch.tensor([row + [-1] * (widest - len(row)) for row in rows])


def test_bigbird_equals_attention_under_its_mask():
    """Zaheer et al. 2020: window | global | random equals dense attention under the same mask."""
    size, count, rows, heads = 3, 6, 2, 2
    length = size * count
    query, key, value = (normal(rows, heads, length, 4, seed=s) for s in (1, 2, 3))
    chosen = [[], [4], [5], [1], [2], [3]]
    random = torch.zeros(count, count, dtype=torch.bool)
    for n, blocks in enumerate(chosen):
        random[n, blocks] = True
    wide = random.repeat_interleave(size, 0).repeat_interleave(size, 1)
    mask = (window(size) | global_(size) | given(wide)) & padding(torch.tensor([length, 11]))
    with Recorder() as dense:
        allowed = mask.resolve(length, length, sequences=rows)
        expected = attend(query, key, value, mask=allowed, capture=CapturePoint("encoder"))

    # The same mask, asked at the positions that were gathered.
    blocks = gathered_blocks(count, chosen)  # (N, G)
    at = (blocks[..., None] * size + torch.arange(size)).flatten(1)  # (N, G * size)
    there = (blocks >= 0).repeat_interleave(size, 1)
    positions = Coordinates(
        sequence=torch.arange(rows).view(-1, 1, 1, 1, 1),
        head=torch.arange(heads).view(1, -1, 1, 1, 1),
        query=torch.arange(length).view(1, 1, count, size, 1),
        key=at.view(1, 1, count, 1, -1),
    )
    sparse = KeyMask(mask.allows(positions) & there[None, None, :, None])
    by_block = query.unflatten(2, (count, size))  # (B, H, T, K) -> (B, H, N, size, K)
    take = at.clamp(min=0)

    def on_the_grid(weights: Tensor) -> Tensor:
        """(B, H, N, size, G * size) -> (B, H, T, S)"""
        full = weights.new_zeros(rows, heads, count, size, length)
        index = take[:, None].expand(weights.shape)
        return full.scatter_add(-1, index, weights).flatten(2, 3)

    with Recorder() as seen:
        capture = ReshapedCapture(CapturePoint("encoder"), on_the_grid)
        looked = attend(by_block, key[:, :, take], value[:, :, take], mask=sparse, capture=capture)
    out = attend(by_block, key[:, :, take], value[:, :, take], mask=sparse)
    assert at.size(1) < length
    for found in (out.flatten(2, 3), looked.flatten(2, 3)):
        # The first block sees everything: a dense row of its own, as the paper's code has it.
        torch.testing.assert_close(found[:, :, size:], expected[:, :, size:])
    first = attend(
        query[:, :, :size],
        key,
        value,
        mask=mask.resolve(torch.arange(size), length, sequences=rows),
    )
    torch.testing.assert_close(first, expected[:, :, :size])
    torch.testing.assert_close(seen.taken[0][:, :, size:], dense.taken[0][:, :, size:])


# ---- A captioner: regions are a memory, weights are part of the loss ---------------------------


class Kept:
    """A reweighting that keeps the weights with their gradient and changes nothing."""

    def __init__(self):
        self.weights: list[Tensor] = []

    def __call__(self, weights: Tensor) -> Tensor:
        self.weights.append(weights)
        return weights


def test_a_captioner_attends_to_regions_with_the_doubly_stochastic_penalty():
    """Xu et al. 2015, eq. 14: the penalty sum_i (1 - sum_t a_ti)^2 needs every step's weights."""
    score = Additive(4, 6, 5).double()
    regions = normal(2, 7, 6)
    prepared, kept, contexts = score.prepare(regions)[:, None], Kept(), []
    hidden = [normal(2, 4, seed=t).requires_grad_() for t in range(3)]
    for state in hidden:
        query = state[:, None, None]  # (B, D) -> (B, H=1, T=1, D)
        context = attend(query, prepared, regions[:, None], score=score, reweight=kept)
        contexts.append(context[:, 0, 0])
    penalty = (1 - torch.stack(kept.weights).sum(0)).square().sum()
    expected = torch.zeros((), dtype=torch.float64)
    for b in range(2):
        spent = torch.zeros(7, dtype=torch.float64)
        for t, state in enumerate(hidden):
            inner = score.query(state[b]) + score.key(regions[b])
            weights = (torch.tanh(inner) @ score.weigh.weight[0]).softmax(0)
            torch.testing.assert_close(contexts[t][b], weights @ regions[b])
            spent = spent + weights
        expected = expected + (1 - spent).square().sum()
    torch.testing.assert_close(penalty, expected)
    grads = torch.autograd.grad(penalty, hidden)
    torch.testing.assert_close(grads, torch.autograd.grad(expected, hidden))
    assert all((grad != 0).any() for grad in grads)


# ---- Another head: the adaptive softmax --------------------------------------------------------


class AdaptiveSoftmax(nn.Module):
    """Grave et al. 2017: frequent words at once, others through their cluster's low-rank matrix."""

    def __init__(self, d_model: int, ends: list[int], narrower: int):
        super().__init__()
        self.first, self.starts, self.ends = ends[0], ends[:-1], ends[1:]
        clusters = list(zip(self.starts, self.ends, strict=True))
        self.short = nn.Linear(d_model, self.first + len(clusters), bias=False)
        widths = [d_model // narrower ** (n + 1) for n in range(len(clusters))]
        self.tails = nn.ModuleList(
            nn.Sequential(nn.Linear(d_model, w, bias=False), nn.Linear(w, end - start, bias=False))
            for w, (start, end) in zip(widths, clusters, strict=True)
        )

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., V), log-probabilities."""
        short = self.short(hidden).log_softmax(-1)
        tails = [
            short[..., self.first + n, None] + tail(hidden).log_softmax(-1)
            for n, tail in enumerate(self.tails)
        ]
        return torch.cat([short[..., : self.first], *tails], -1)

    def loss(
        self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0, count: int | None = None
    ) -> tuple[Tensor, int]:
        if smoothing:
            raise ValueError(f"`smoothing` must be 0 for an adaptive softmax, but is {smoothing}.")
        counted = targets != IGNORE
        hidden, targets = hidden[counted], targets[counted]
        shortlist = targets.clone()
        total = hidden.new_zeros(())
        for n, (first, end) in enumerate(zip(self.starts, self.ends, strict=True)):
            rows = ((targets >= first) & (targets < end)).nonzero()[:, 0]
            shortlist[rows] = self.first + n
            total = total + F.cross_entropy(
                self.tails[n](hidden[rows]), targets[rows] - first, reduction="sum"
            )
        return total + F.cross_entropy(
            self.short(hidden), shortlist, reduction="sum"
        ), targets.numel()


def adaptive() -> tuple[AdaptiveSoftmax, nn.AdaptiveLogSoftmaxWithLoss]:
    torch.manual_seed(0)
    ours = AdaptiveSoftmax(8, [5, 11, 19], narrower=2)
    theirs = nn.AdaptiveLogSoftmaxWithLoss(8, 19, [5, 11], div_value=2.0)
    theirs.head.weight = ours.short.weight
    for mine, other in zip(ours.tails, theirs.tail, strict=True):
        other[0].weight, other[1].weight = mine[0].weight, mine[1].weight
    return ours, theirs


def test_an_adaptive_softmax_equals_that_of_torch():
    ours, theirs = adaptive()
    head: Head = ours
    hidden, targets = torch.randn(40, 8), torch.randint(19, (40,))
    torch.testing.assert_close(head.logits(hidden), theirs.log_prob(hidden))
    total, count = head.loss(hidden, targets)
    torch.testing.assert_close(total, -theirs(hidden, targets).output.sum())
    assert count == 40
    targets[::2] = IGNORE
    total, count = head.loss(hidden, targets)
    torch.testing.assert_close(total, -theirs(hidden[1::2], targets[1::2]).output.sum())
    assert count == 20
    total, count = head.loss(hidden, targets.fill_(IGNORE))
    assert total == 0 and count == 0


def test_a_model_trains_and_decodes_with_another_head():
    sizes = dict(d_model=8, d_ff=8, heads=2, encoder_layers=1, decoder_layers=1)
    model = Transformer(TransformerConfig(vocab_size=19, **sizes)).eval()
    model.head = adaptive()[0]
    source, target = Sequences.of([[4, 5, 2], [6, 2]], pad=0), torch.tensor([[1, 7, 8], [1, 9, 2]])
    hidden = model(source, Sequences.full(target)).hidden
    total, count = model.head.loss(hidden.flatten(0, 1), target.flatten())
    total.backward()
    assert count == 6 and all(p.grad is not None for p in model.parameters())
    state, _ = start(model, source)
    scores, _ = model.step(target, state)
    torch.testing.assert_close(scores.exp().sum(-1), torch.ones(2, 3))
    torch.testing.assert_close(scores, model.head.logits(hidden), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("smoothing", [0.1])
def test_an_adaptive_softmax_with_label_smoothing_raises_an_error(smoothing):
    with pytest.raises(ValueError, match="`smoothing` must be 0 .* but is 0.1"):
        adaptive()[0].loss(torch.randn(2, 8), torch.tensor([1, 2]), smoothing)
