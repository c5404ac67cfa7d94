"""Memory on large pages."""

from __future__ import annotations

import copy
import mmap
import sys

import pytest
import torch

from regard.kernels import tensors as memory
from regard.layers.quantized import QuantizedMatrix


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


@pytest.mark.parametrize("problem", [OSError, AttributeError])
def test_without_large_pages_tensors_use_the_memory_of_torch(monkeypatch, problem):
    def refuse(*arguments, **options):
        raise problem("no")

    monkeypatch.setattr(mmap, "mmap", refuse)
    tensor = torch.ones(3)
    assert torch.equal(filled(tensor), tensor)


@pytest.mark.parametrize("kind", ["int8", "bfloat16"])
def test_quantized_matrices_keep_their_memory_when_types_are_converted(kind):
    matrix = QuantizedMatrix(torch.randn(20, 30), kind)
    before = matrix.weight.data_ptr()
    assert matrix.float().double().weight.data_ptr() == before
    other = copy.deepcopy(matrix)
    assert other.weight.data_ptr() != before and torch.equal(other.weight, matrix.weight)
