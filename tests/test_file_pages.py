"""Pages of mapped weights are given back, and read again where they are needed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch.overrides import TorchFunctionMode

from regard.checkpoints.filling import check_finite
from regard.checkpoints.store import read_tensors, write_tensors
from regard.errors import CheckpointError
from regard.file_pages import release, releasing
from regard.layers.quantized import QuantizedMatrix

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="pages of Linux")
MB = 1 << 20


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


class Watched(TorchFunctionMode):
    """The most memory after any call of torch."""

    peak = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        self.peak = max(self.peak, resident())
        return found


@pytest.fixture
def mapped(tmp_path):
    """A matrix of 64 MB in a mapped file, and the same numbers in memory of their own."""
    matrix = torch.randn(4096, 4096)
    write_tensors(tmp_path / "model.safetensors", {"weight": matrix})
    return read_tensors(tmp_path / "model.safetensors")["weight"], matrix


@LINUX
def test_what_was_read_of_a_file_is_given_back_and_can_be_read_again(mapped):
    weight, matrix = mapped
    before = resident()
    assert torch.equal(weight, matrix) and resident() > before + 50 * MB
    release(weight)
    assert resident() < before + 8 * MB
    assert torch.equal(weight, matrix)


@LINUX
def test_memory_of_the_process_is_not_touched():
    tensor = torch.full((4 * MB,), 7.0)
    release(tensor)
    assert bool((tensor == 7).all())
    release(torch.empty(0)), release(torch.ones(3)), release(torch.ones(2, device="meta"))


@LINUX
@pytest.mark.parametrize("kind", ["int8", "bfloat16"])
def test_a_matrix_is_quantized_in_little_more_memory_than_it_takes(mapped, kind):
    weight, matrix = mapped
    wanted = QuantizedMatrix(matrix, kind)
    before = resident()
    with Watched() as seen, releasing():
        found = QuantizedMatrix(weight, kind)
    assert torch.equal(found.weight, wanted.weight)
    if kind == "int8":
        assert torch.equal(found.scale, wanted.scale)
    assert seen.peak - before < found.weight.nbytes + 64 * MB  # some slices of 8 MB
    assert resident() - before < found.weight.nbytes + 24 * MB


def test_numbers_are_looked_at_piece_by_piece(mapped):
    weight, _ = mapped
    with releasing():
        check_finite({"weight": weight})
        broken = weight.clone()
        broken[4000, 17] = torch.nan
        with pytest.raises(CheckpointError, match=r"weight\[4000, 17\] is nan"):
            check_finite({"weight": broken})
