"""Pages of mapped weights are released, and read again when they are needed."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.overrides import TorchFunctionMode

from regard import ops
from regard.checkpoints.filling import check_finite
from regard.checkpoints.store import read_tensors, write_tensors
from regard.errors import CheckpointError
from regard.file_pages import release, releasing
from regard.layers.quantized import QuantizedMatrix, WeightType

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="pages of Linux")
MB = 1 << 20


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


class Watched(TorchFunctionMode):
    """Records the most memory after any call of torch."""

    peak = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        self.peak = max(self.peak, resident())
        return found


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


@LINUX
@pytest.mark.parametrize(
    "kind",
    ["int8", pytest.param("bfloat16", marks=pytest.mark.slow("regard/file_pages.py"))],
)
def test_quantizing_a_mapped_matrix_takes_little_more_memory_than_the_result(tmp_path, kind):
    # In a process of its own: after a training this one keeps the memory that is freed.
    command = [sys.executable, __file__, kind, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def check_memory_of_quantizing(kind: WeightType, folder: Path) -> None:
    weight, matrix = matrix_in(folder)
    wanted = QuantizedMatrix(matrix, kind)
    before = resident()
    with Watched() as seen, releasing():
        found = QuantizedMatrix(weight, kind)
    assert torch.equal(found.weight, wanted.weight)
    if kind == "int8":
        assert torch.equal(found.scale, wanted.scale)
    assert seen.peak - before < found.weight.nbytes + 64 * MB  # some slices of 8 MB
    ctypes.CDLL(None).malloc_trim(0)  # what was freed, but kept by the allocator, does not count
    assert resident() - before < found.weight.nbytes + 24 * MB


def test_check_finite_finds_nan_in_a_mapped_tensor(mapped):
    weight, _ = mapped
    with releasing():
        check_finite({"weight": weight})
        broken = weight.clone()
        broken[4000, 17] = torch.nan
        with pytest.raises(CheckpointError, match=r"weight\[4000, 17\] is nan"):
            check_finite({"weight": broken})


if __name__ == "__main__":
    ops.load_kernels()
    check_memory_of_quantizing(sys.argv[1], Path(sys.argv[2]))
