"""Pages of mapped weights are released, and read again when they are needed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from regard.checkpoints.filling import check_finite
from regard.checkpoints.store import read_tensors, write_tensors
from regard.errors import CheckpointError
from regard.file_pages import release, releasing

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="pages of Linux")
MB = 1 << 20


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def matrix_in(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """A matrix of 64 MB in a mapped file, and the same numbers in memory of their own."""
    matrix = torch.randn(4096, 4096)
    write_tensors(folder / "model.safetensors", {"weight": matrix})
    return read_tensors(folder / "model.safetensors")["weight"], matrix


@pytest.fixture
def mapped(tmp_path):
    return matrix_in(tmp_path)


@LINUX
def test_released_pages_of_a_file_free_memory_and_are_read_again(mapped):
    weight, matrix = mapped
    before = resident()
    assert torch.equal(weight, matrix) and resident() > before + 50 * MB
    release(weight)
    assert resident() < before + 8 * MB
    assert torch.equal(weight, matrix)


@LINUX
def test_releasing_a_tensor_without_file_changes_nothing():
    tensor = torch.full((4 * MB,), 7.0)
    release(tensor)
    assert bool((tensor == 7).all())
    release(torch.empty(0)), release(torch.ones(3)), release(torch.ones(2, device="meta"))


def test_check_finite_finds_nan_in_a_mapped_tensor(mapped):
    weight, _ = mapped
    with releasing():
        check_finite({"weight": weight})
        broken = weight.clone()
        broken[4000, 17] = torch.nan
        with pytest.raises(CheckpointError, match=r"weight\[4000, 17\] is nan"):
            check_finite({"weight": broken})
