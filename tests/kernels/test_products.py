"""Products with quantized weights against their definitions, their memory and their threads."""

from __future__ import annotations

import copy
import sys

import numpy as np
import pytest
import torch

from regard.kernels import products
from regard.kernels import tensors as memory
from regard.layers.quantized import QuantizedMatrix, QuantizedSoftmax
from regard.layers.softmax import Softmax

SHAPES = [(1, 1), (16, 64), (17, 100), (50, 130), (200, 256)]


def expected_int8(x: torch.Tensor, weight: torch.Tensor) -> np.ndarray:
    """Weights with a scale for each line, inputs with one for each 64 numbers, in float64."""
    w, x = weight.double().numpy(), x.double().numpy()
    scale = np.abs(w).max(1, keepdims=True) / 127
    w = np.rint(w / scale) * scale
    parts = []
    for start in range(0, x.shape[1], 64):
        part = x[:, start : start + 64]
        step = np.abs(part).max(1, keepdims=True) / 127
        parts.append(np.rint(part / step) * step)
    return np.concatenate(parts, 1) @ w.T


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", ["fast", "older", "plain", None])
def test_int8_products_equal_the_formula(use, kind, threads, monkeypatch):
    use(kind)
    monkeypatch.setattr(products, "threads_for", lambda *work: threads)
    for lines, columns in SHAPES:
        weight = torch.randn(lines, columns)
        for rows in (1, 2, 3, 7, 70):
            x = torch.randn(rows, columns)
            found = QuantizedMatrix(weight, "int8")(x).double().numpy()
            wanted = expected_int8(x, weight)
            # A number half way between two steps may go either way in float32.
            assert np.abs(found - wanted).max() < 2e-2 * max(np.abs(wanted).max(), 1)
            assert np.abs(found - wanted).mean() < 1e-4


@pytest.mark.parametrize("kind", ["fast", "older", "plain", None])
def test_bfloat16_products_round_both_sides_and_sum_in_float32(use, kind):
    use(kind)
    for lines, columns in SHAPES:
        weight, bias = torch.randn(lines, columns), torch.randn(lines)
        for rows in (1, 2, 3, 7, 70):
            x = torch.randn(rows, columns)
            found = QuantizedMatrix(weight, "bfloat16")(x, bias)
            wanted = x.bfloat16().double() @ weight.bfloat16().double().t() + bias
            assert torch.allclose(found.double(), wanted, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("weights", ["int8", "bfloat16"])
@pytest.mark.parametrize("kind", ["fast", "older", "plain"])
def test_the_product_of_a_row_does_not_depend_on_the_batch(
    use, kind, weights, threads, monkeypatch
):
    use(kind)
    monkeypatch.setattr(products, "threads_for", lambda *work: threads)
    for lines, columns in SHAPES:
        matrix, bias = QuantizedMatrix(torch.randn(lines, columns), weights), torch.randn(lines)
        x = torch.randn(300, columns)
        alone = torch.cat([matrix(row, bias) for row in x.split(1)])
        for rows in (*range(2, 35), 97, 200, 300):
            assert torch.equal(matrix(x[-rows:], bias), alone[-rows:]), (lines, columns, rows)


@pytest.mark.parametrize("weights", ["int8", "bfloat16"])
@pytest.mark.parametrize("kind", ["fast", "older", "plain", None])
def test_nan_in_a_row_gives_nan_in_that_row_only(use, kind, weights):
    use(kind)
    matrix = QuantizedMatrix(torch.randn(20, 130), weights)
    x = torch.randn(3, 130)
    x[1, 100] = torch.nan
    found = matrix(x).isnan()
    assert found[1].all() and not found[[0, 2]].any()
    assert matrix(torch.full((130,), torch.inf)).isnan().any()
    assert not matrix(torch.zeros(2, 130)).any()
    assert matrix(torch.full((130,), 1e-37)).abs().max() < 1e-34


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_quantized_output_layer_has_the_loss_of_its_logits(use, smoothing):
    use("fast")
    softmax = Softmax(32, 50, tied=None, bias=True)
    quantized = QuantizedSoftmax(softmax, QuantizedMatrix(softmax.weight, "int8"))
    hidden, targets = torch.randn(9, 32), torch.randint(50, (9,))
    targets[4] = -100
    total, count = quantized.loss(hidden, targets, smoothing)
    wanted = torch.nn.functional.cross_entropy(
        quantized.logits(hidden), targets, reduction="sum", label_smoothing=smoothing
    )
    assert count == 8 and total.item() == pytest.approx(wanted.item(), rel=1e-5)
    theirs, _ = softmax.loss(hidden, targets, smoothing)
    assert total.item() == pytest.approx(theirs.item(), rel=1e-2)


# ---------------------------------------------------------------------------------- building


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(memory, "_last", None)


def filled(tensor: torch.Tensor) -> torch.Tensor:
    return memory.large_empty(tensor.shape, tensor.dtype).copy_(tensor)


def test_copies_on_large_pages_equal_the_tensors():
    tensors = [torch.randn(3, 5), torch.ones(7, dtype=torch.uint8), torch.randn(4, 4).bfloat16()]
    found = [filled(tensor) for tensor in tensors]
    for one, other in zip(found, tensors, strict=True):
        assert one.dtype == other.dtype and torch.equal(one, other)
    assert filled(torch.ones(0)).shape == (0,)


@pytest.mark.skipif(sys.platform != "linux", reason="pages of Linux")
def test_small_tensors_share_a_block_and_large_ones_have_their_own(monkeypatch):
    monkeypatch.setattr(memory, "BLOCK", 1 << 20)
    first, second = (filled(torch.full((100,), n, dtype=torch.uint8)) for n in (1, 2))
    assert second.data_ptr() - first.data_ptr() == 128
    assert first.data_ptr() % memory.PAGE == 0
    large = filled(torch.zeros(5 << 20, dtype=torch.uint8))
    assert large.data_ptr() % memory.PAGE == 0 and first.eq(1).all() and second.eq(2).all()


@pytest.mark.parametrize("kind", ["int8", "bfloat16"])
def test_quantized_matrices_keep_their_memory_when_types_are_converted(kind):
    matrix = QuantizedMatrix(torch.randn(20, 30), kind)
    before = matrix.weight.data_ptr()
    assert matrix.float().double().weight.data_ptr() == before
    other = copy.deepcopy(matrix)
    assert other.weight.data_ptr() != before and torch.equal(other.weight, matrix.weight)
