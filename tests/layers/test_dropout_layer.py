"""Our own dropout: unbiased, of the right rate, repeatable, right in its gradient."""

from __future__ import annotations

import pytest
import torch

from regard.layers.dropout import Dropout, dropout


@pytest.mark.parametrize("probability", [0.1, 0.3, 0.5, 0.9])
def test_dropout_has_the_given_rate_and_scale_and_keeps_the_mean(probability):
    torch.manual_seed(0)
    n = 400_001  # not divisible by four
    out = dropout(torch.ones(n), probability)
    values = out.unique()
    assert len(values) == 2 and values[0] == 0
    assert values[1].item() == pytest.approx(1 / (1 - probability), rel=2e-4)
    spread = (probability * (1 - probability) / n) ** 0.5
    assert (out == 0).float().mean().item() == pytest.approx(probability, abs=5 * spread)
    assert out.mean().item() == pytest.approx(1.0, abs=5 * spread / (1 - probability))


def test_a_restored_generator_repeats_dropout():
    x = torch.randn(3, 5)
    torch.manual_seed(2)
    saved = torch.get_rng_state()
    first, second = dropout(x, 0.5), dropout(x, 0.5)
    assert not torch.equal(first, second)
    torch.set_rng_state(saved)
    assert torch.equal(dropout(x, 0.5), first) and torch.equal(dropout(x, 0.5), second)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (7, 5), (2, 0, 3)])
def test_the_gradient_of_dropout_has_the_same_mask(dtype, shape):
    x = torch.ones(shape, dtype=dtype, requires_grad=True)
    out = dropout(x, 0.4)
    assert out.shape == x.shape and out.dtype == dtype
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(grad, out)  # of ones: both are 0 or the scale


def test_the_gradients_of_dropout_pass_gradcheck():
    x = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)

    def seeded(x):
        torch.manual_seed(5)
        return dropout(x, 0.3)

    assert torch.autograd.gradcheck(seeded, (x,))
    assert torch.autograd.gradgradcheck(seeded, (x,))


def test_dropout_with_probability_0_or_in_evaluation_returns_its_input():
    x = torch.randn(5)
    assert dropout(x, 0.0) is x
    layer = Dropout(0.9)
    assert not torch.equal(layer(x), x)
    assert layer.eval()(x) is x


@pytest.mark.parametrize("probability", [-0.1, 1.0, 1.5, float("nan")])
def test_a_probability_outside_0_to_1_raises_an_error(probability):
    with pytest.raises(ValueError, match=r"`probability` must be in \[0, 1\), but is"):
        Dropout(probability)
    with pytest.raises(ValueError, match=r"`probability` must be in \[0, 1\), but is"):
        dropout(torch.ones(3), probability)
