"""`attend` against the formula in float64, on both of its paths, forward and backward."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from captured_weights import Recorder, heard_by
from torch import Tensor
from torch.nn import functional as F

from regard import ops
from regard.attention.attend import PLAIN, Dot, attend
from regard.attention.capture import CapturePoint
from regard.attention.masks import padding
from regard.ops import KeyMask

DEVICES = ["cpu", *["cuda"] * torch.cuda.is_available()]


@pytest.fixture
def recorder():
    listener = Recorder()
    with heard_by(listener):
        yield listener


def formula(query, key, value, grid=None, bias=None, scale=None) -> Tensor:
    """softmax(q k / sqrt(K) + bias) v over the allowed keys, term by term, in float64."""
    query, key, value = query.double(), key.double(), value.double()
    scale = 1 / math.sqrt(query.size(-1)) if scale is None else scale
    scores = torch.einsum("...tk,...sk->...ts", query, key) * scale
    if bias is not None:
        scores = scores + bias.double()
    grid = torch.ones_like(scores, dtype=torch.bool) if grid is None else grid.expand_as(scores)
    if not scores.size(-1):
        return torch.einsum("...ts,...sv->...tv", scores, value)
    top = torch.where(grid, scores, -math.inf).amax(-1, keepdim=True).clamp(min=-1e300).detach()
    terms = torch.where(grid, torch.exp(torch.where(grid, scores, top) - top), 0.0)
    total = terms.sum(-1, keepdim=True)
    weights = terms / torch.where(total == 0, 1.0, total)
    return torch.einsum("...ts,...sv->...tv", weights, value)


def with_capture(function, *args, **options):
    """The explicit path, on which weights are captured."""
    with heard_by(Recorder()):
        return function(*args, capture=CapturePoint("encoder"), **options)


def leaves(lead, T, S, K, V, *, dtype, device, grid, bias):
    made = torch.Generator().manual_seed(T * 1000 + S * 100 + K * 10 + V)

    def normal(*shape):
        drawn = torch.randn(*lead, *shape, generator=made, dtype=torch.float64)
        return drawn.to(device, dtype).requires_grad_()

    found = dict(query=normal(T, K), key=normal(S, K), value=normal(S, V))
    allowed = torch.rand(*lead, T, S, generator=made) < 0.6
    if T > 1:
        allowed[..., 0, :] = False  # a query that may see nothing
    return found, allowed.to(device) if grid else None, normal(T, S) if bias else None


def gradients(out: Tensor, wanted: list[Tensor]) -> list[Tensor]:
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
    found = torch.autograd.grad(out, wanted, grad, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(w) if g is None else g for g, w in zip(found, wanted, strict=True)]


SHAPES = [(5, 7, 4, 4), (1, 6, 5, 5), (6, 1, 3, 3), (1, 1, 1, 1), (9, 4, 7, 2), (0, 3, 4, 4),
          (3, 0, 4, 4), (4, 300, 8, 8)]  # fmt: skip
LEADS = [(2, 3), (), (0, 2)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "dtype, atol", [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 0.06)]
)
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("grid", [False, True], ids=["", "mask"])
@pytest.mark.parametrize("path", [attend, lambda *a, **k: with_capture(attend, *a, **k)],
                         ids=["no capture", "capture"])  # fmt: skip
def test_attend_equals_its_formula_with_and_without_capture(path, grid, bias, dtype, atol, device):
    for lead, shape in itertools.product(LEADS, SHAPES):
        given, allowed, added = leaves(
            lead, *shape, dtype=dtype, device=device, grid=grid, bias=bias
        )
        out = path(**given, mask=KeyMask(allowed), bias=added)
        wide = {name: t.detach().double().requires_grad_() for name, t in given.items()}
        wide_bias = added.detach().double().requires_grad_() if added is not None else None
        judge = formula(**wide, grid=allowed, bias=wide_bias)
        where = f"leading {lead}, T S K V {shape}"
        assert out.dtype == dtype and out.shape == judge.shape, where
        torch.testing.assert_close(out.double(), judge, atol=atol, rtol=atol, msg=where)
        wanted = [*given.values(), *([added] if bias else [])]
        judges = [*wide.values(), *([wide_bias] if bias else [])]
        for ours, true in zip(gradients(out, wanted), gradients(judge, judges), strict=True):
            assert ours.isfinite().all(), where
            torch.testing.assert_close(ours.double(), true, atol=2 * atol, rtol=atol, msg=where)


def test_the_fused_kernel_runs_unless_the_weights_are_needed(monkeypatch):
    fused = []
    real = F.scaled_dot_product_attention
    monkeypatch.setattr(
        F, "scaled_dot_product_attention", lambda *a, **k: fused.append(1) or real(*a, **k)
    )
    x = torch.randn(2, 2, 5, 4)
    attend(x, x, x, capture=CapturePoint("encoder"))
    assert len(fused) == 1
    with_capture(attend, x, x, x)
    assert len(fused) == 1
    # What the fused kernel cannot honour takes the explicit path without a listener.
    attend(x, x, x, reweight=lambda weights: weights)
    attend(x, x, x, score=lambda q, k: q @ k.transpose(-2, -1))
    attend(x, x, x, dropout=0.5)
    assert len(fused) == 1
    attend(x, x, x, score=PLAIN)
    assert len(fused) == 2


@pytest.mark.parametrize("score, scale", [(Dot(), 0.5), (PLAIN, 1.0), (Dot(0.1), 0.1)])
def test_the_scale_of_a_score_acts_with_and_without_capture(score, scale):
    q, k = torch.randn(2, 3, 4), torch.randn(2, 5, 4)
    expected = formula(q, k, k, scale=scale).float()
    torch.testing.assert_close(attend(q, k, k, score=score), expected)
    torch.testing.assert_close(with_capture(attend, q, k, k, score=score), expected)


def test_the_gradients_of_attend_pass_gradcheck():
    query, key, value, bias = (
        torch.randn(*shape, dtype=torch.float64, requires_grad=True)
        for shape in ((2, 1, 3, 3), (2, 1, 4, 3), (2, 1, 4, 2), (2, 1, 3, 4))
    )
    allowed = KeyMask(torch.rand(2, 1, 3, 4) < 0.6)
    explicit = lambda q, k, v, b: with_capture(attend, q, k, v, mask=allowed, bias=b)  # noqa: E731
    fused = lambda q, k, v, b: attend(q, k, v, mask=allowed, bias=b)  # noqa: E731
    assert torch.autograd.gradcheck(explicit, (query, key, value, bias))
    assert torch.autograd.gradcheck(fused, (query, key, value, bias))
    assert torch.autograd.gradgradcheck(explicit, (query, key, value, bias))


def test_captured_weights_are_those_before_dropout_and_after_reweight(recorder):
    x = torch.randn(2, 2, 5, 4)
    attend(x, x, x, dropout=0.5, capture=CapturePoint("encoder"))
    torch.testing.assert_close(recorder.seen[0][1].sum(-1), torch.ones(2, 2, 5))
    attend(x, x, x, reweight=lambda weights: 2 * weights, capture=CapturePoint("encoder"))
    torch.testing.assert_close(recorder.seen[1][1], 2 * recorder.seen[0][1])


def test_a_mask_with_more_dimensions_than_the_scores_raises_an_error():
    x = torch.randn(3, 5, 4)  # rows without a heads' dimension: the grid has one
    allowed = padding(torch.tensor([5, 2, 1])).resolve(5, 5, sequences=3)
    for path in (attend, lambda *a, **k: with_capture(attend, *a, **k)):
        with pytest.raises(ValueError, match="`mask`.*4.*`query`.*3"):
            path(x, x, x, mask=allowed)
        one_head = x[:, None]
        assert path(one_head, one_head, one_head, mask=allowed).shape == (3, 1, 5, 4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_softmax_of_16_bit_scores_is_computed_in_float32(dtype):
    scores = torch.linspace(-3, 3, 2000, dtype=torch.float32).to(dtype)[None]
    weights = ops.attention_weights(scores)
    judge = scores.double().softmax(-1)
    assert weights.dtype == dtype
    torch.testing.assert_close(weights.double(), judge.to(dtype).double(), rtol=0.01, atol=0)


# ---- capture points ---------------------------------------------------------------------------
