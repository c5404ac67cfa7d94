"""The softmax head against torch's cross-entropy in float64, and a softmax over a sample."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import regard.layers.softmax as output
from regard.layers.softmax import SampledSoftmax, Softmax, expected_counts, zipfian

D, V, N = 6, 12, 9


def case(n: int, *, bias: bool, tied: bool = False, dtype=torch.float64) -> tuple:
    torch.manual_seed(n)
    embedding = nn.Embedding(V, D) if tied else None
    head = Softmax(D, V, tied=embedding, bias=bias).to(dtype)
    if head.bias is not None:
        nn.init.normal_(head.bias)
    hidden = torch.randn(n, D, dtype=dtype, requires_grad=True)
    targets = torch.randint(V, (n,))
    return head, embedding, hidden, targets


def judge(head: Softmax, hidden: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    logits = F.linear(hidden, head.weight, head.bias)
    return F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)


def assert_equals_judge(head: Softmax, hidden: Tensor, targets: Tensor, smoothing: float) -> None:
    wanted = [hidden, *head.parameters()]
    total, count = head.loss(hidden, targets, smoothing)
    expected = judge(head, hidden, targets, smoothing)
    assert count == int((targets != -100).sum()) and isinstance(count, int)
    torch.testing.assert_close(total, expected)
    with torch.no_grad():
        torch.testing.assert_close(head.loss(hidden, targets, smoothing), (expected, count))
    # Scaled as accumulation scales it: gradients must be multiplied, not merely kept.
    ours = torch.autograd.grad(total * 0.3, wanted)
    torch.testing.assert_close(ours, torch.autograd.grad(expected * 0.3, wanted))


@pytest.mark.parametrize("rows_a_slice", [1, 3, 1000])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
def test_the_sliced_loss_and_its_gradients_equal_cross_entropy(
    monkeypatch, rows_a_slice, smoothing, bias
):
    monkeypatch.setattr(output, "TRAINING_SLICE", rows_a_slice * V)
    for n in (1, 7, 8, 20):
        head, _, hidden, targets = case(n, bias=bias)
        assert_equals_judge(head, hidden, targets, smoothing)
        targets[::3] = -100
        if n > 1:
            assert_equals_judge(head, hidden, targets, smoothing)


@pytest.mark.parametrize("n", [0, 5])
def test_the_loss_without_targets_is_zero_with_zero_gradients(n):
    head, _, hidden, targets = case(n, bias=True)
    total, count = head.loss(hidden, targets.fill_(-100), 0.1)
    assert total.item() == 0.0 and count == 0
    for grad in torch.autograd.grad(total, [hidden, *head.parameters()]):
        assert (grad == 0).all()


def test_a_tied_embedding_sums_both_gradients():
    head, embedding, _, targets = case(9, bias=False, tied=True)
    assert head.weight is embedding.weight
    words = torch.randint(V, (9,))
    total, _ = head.loss(embedding(words), targets, 0.1)
    (ours,) = torch.autograd.grad(total, embedding.weight)
    expected = judge(head, embedding(words), targets, 0.1)
    torch.testing.assert_close(ours, torch.autograd.grad(expected, embedding.weight)[0])


def test_extreme_logits_give_a_finite_loss():
    head, _, hidden, targets = case(6, bias=False, dtype=torch.float32)
    assert_equals_judge(
        head.double(), (hidden * 3000).double().detach().requires_grad_(), targets, 0.1
    )
    total, _ = head.float().loss(hidden * 1e4, targets)
    assert total.isfinite() and torch.autograd.grad(total, hidden)[0].isfinite().all()


def test_the_loss_passes_gradcheck_and_a_second_derivative_raises_an_error():
    head, _, hidden, targets = case(5, bias=True)

    def loss(hidden, weight, bias):
        return output._SlicedCrossEntropy.apply(hidden, weight, bias, targets, 0.1, True)

    assert torch.autograd.gradcheck(loss, (hidden, head.weight, head.bias))
    total, _ = head.loss(hidden, targets)
    (grad,) = torch.autograd.grad(total**2, hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_the_loss_without_autograd_computes_no_gradients(monkeypatch):
    head, _, hidden, targets = case(7, bias=True)
    expected = judge(head, hidden, targets, 0.0)

    def never(*args):
        raise AssertionError("gradients of an evaluation")

    monkeypatch.setattr(output._Gradients, "add", never)
    with torch.no_grad():
        total, count = head.loss(hidden, targets)
    torch.testing.assert_close(total, expected.detach())
    with torch.inference_mode():
        torch.testing.assert_close(head.loss(hidden, targets)[0], expected.detach())
    with pytest.raises(AssertionError, match="gradients of an evaluation"):
        head.loss(hidden, targets)
    frozen = head.requires_grad_(False)
    frozen.loss(hidden.detach(), targets)


def test_the_loss_in_bfloat16_is_close_to_float32():
    head, _, hidden, targets = case(64, bias=True, dtype=torch.float32)
    wanted = [hidden, head.weight, head.bias]
    expected = judge(head, hidden, targets, 0.1)
    true = torch.autograd.grad(expected, wanted)
    with torch.autocast("cpu", torch.bfloat16):
        total, _ = head.loss(hidden, targets, 0.1)
    ours = torch.autograd.grad(total, wanted)
    assert total.dtype == torch.float32 and all(g.dtype == torch.float32 for g in ours)
    assert not torch.equal(total, expected)  # it was computed in bfloat16
    torch.testing.assert_close(total, expected, rtol=0.01, atol=0)
    for one, other in zip(ours, true, strict=True):
        assert (one - other).norm() < 0.02 * other.norm()
    half = head.to(torch.bfloat16)
    total, _ = half.loss(hidden.bfloat16(), targets, 0.1)
    total.backward()
    assert total.dtype == torch.float32 and half.weight.grad.dtype == torch.bfloat16
    torch.testing.assert_close(total, expected, rtol=0.02, atol=0)


def test_the_backward_pass_stores_gradients_and_no_logits():
    sizes = []

    def pack(tensor):
        sizes.append(tensor.numel())
        return tensor

    head, _, hidden, targets = case(23, bias=False)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        head.loss(hidden, targets)
    assert sorted(sizes) == sorted([23 * D, V * D])


@pytest.mark.parametrize("rows_a_slice", [3, 1000])
@pytest.mark.parametrize("frozen", ["weight", "bias", "hidden"])
def test_gradients_that_are_not_needed_are_not_computed(monkeypatch, rows_a_slice, frozen):
    monkeypatch.setattr(output, "TRAINING_SLICE", rows_a_slice * V)
    head, _, hidden, targets = case(23, bias=True)
    tensors = {"hidden": hidden, "weight": head.weight, "bias": head.bias}
    expected = torch.autograd.grad(judge(head, hidden, targets, 0.1), [*tensors.values()])
    tensors[frozen].requires_grad_(False)
    shapes, product = [], output.linear_no_grad

    def counted(*given):
        shapes.append(tuple(product(*given).shape))
        return product(*given)

    monkeypatch.setattr(output, "linear_no_grad", counted)
    head.loss(hidden, targets, 0.1)[0].backward()
    assert tensors[frozen].grad is None
    for (name, tensor), gradient in zip(tensors.items(), expected, strict=True):
        if name != frozen:
            torch.testing.assert_close(tensor.grad, gradient)
    assert ((V, D) in shapes) == (frozen != "weight")
    assert any(shape[1] == D and shape[0] != V for shape in shapes) == (frozen != "hidden")


def sampled_head(samples: int, seed: int = 0) -> SampledSoftmax:
    torch.manual_seed(seed)
    made = SampledSoftmax(D, V, samples)
    torch.nn.init.normal_(made.bias)
    return made


def sampled_data() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(N, D), torch.randint(0, V, (N,))


def test_probabilities_are_those_of_a_zipfian_text():
    found = zipfian(V)
    assert math.isclose(found.sum(), 1.0) and (np.diff(found) < 0).all()
    assert math.isclose(found[0], math.log(2) / math.log(V + 1))


def test_a_sample_of_all_words_gives_the_full_softmax_and_its_gradients():
    head, (hidden, targets) = sampled_head(V), sampled_data()
    results = []
    for mode in (True, False):
        head.train(mode)
        head.zero_grad()
        read = hidden.clone().requires_grad_()
        loss, count = head.loss(read, targets)
        loss.backward()
        assert count == N
        results.append([loss.detach(), read.grad, head.weight.grad.clone(), head.bias.grad.clone()])
    torch.testing.assert_close(results[0], results[1], atol=1e-5, rtol=1e-5)


def test_the_loss_equals_its_formula_in_float64():
    head, (hidden, targets) = sampled_head(5), sampled_data()
    sampled = torch.tensor([0, 3, 4, 7, 11])
    q = expected_counts(zipfian(V), 5)
    scores = (hidden.double() @ head.weight.double().T + head.bias.double()).detach().numpy()
    expected = 0.0
    for row, target in enumerate(targets.tolist()):
        corrected = scores[row] - np.log(q)
        others = [corrected[k] for k in sampled.tolist() if k != target]
        expected -= corrected[target] - np.logaddexp.reduce([corrected[target], *others])
    found = head.sampled_loss(hidden, targets, sampled)
    assert math.isclose(float(found.detach()), expected, rel_tol=1e-5)


def test_expected_counts_are_near_those_of_all_samples_in_every_order():
    """Words are drawn one after the other, and those drawn before are left out."""
    p, samples = zipfian(7), 3
    exact = np.zeros(7)
    for drawn in permutations(range(7), samples):
        chance, left = 1.0, 1.0
        for word in drawn:
            chance, left = chance * p[word] / left, left - p[word]
        exact[list(drawn)] += chance
    assert math.isclose(exact.sum(), samples)
    found = expected_counts(p, samples)
    assert math.isclose(found.sum(), samples, rel_tol=1e-9)
    np.testing.assert_allclose(found, exact, atol=0.03)


def test_a_seed_repeats_the_sample_and_targets_may_be_ignored():
    head, (hidden, targets) = sampled_head(4).train(), sampled_data()
    targets[2] = -100
    found = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        loss, count = head.loss(hidden, targets)
        found.append(float(loss))
        assert count == N - 1
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("samples", [0, V + 1])
def test_samples_must_fit_the_vocabulary(samples):
    with pytest.raises(ValueError, match="`negative_samples` must be"):
        SampledSoftmax(D, V, samples)
