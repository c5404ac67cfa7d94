"""Weights on disk: the name table is strict and reversible, a folder is complete or absent."""

from __future__ import annotations

import os
import resource

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.checkpoints.names import keep, split, transpose
from regard.checkpoints.store import read_folder, write_folder, write_tensors
from regard.errors import CheckpointError
from regard.file_writing import write_text

# ---- the name table ---------------------------------------------------------------------------


@given(st.integers(1, 3))
def test_writing_inverts_reading_for_every_transform(width):
    tensor = torch.randn(4 * width, 4 * width)
    for change in (keep, transpose, split(4), split(4).then(keep)):
        assert torch.equal(change.write(change.read([tensor]))[0], tensor)
    parts = list(tensor.chunk(4))
    fused = split(4).reversed()
    assert all(map(torch.equal, fused.write(fused.read(parts)), parts))


# ---- files and folders ------------------------------------------------------------------------

TENSORS = {
    "weights": {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([1, 2])},
    "memory": {"state": torch.arange(5, dtype=torch.uint8), "half": torch.ones(2).bfloat16()},
}
FACTS = {"step": 7, "best": None, "sampler": {"epoch": 1}, "score": float("nan")}


def test_a_flipped_byte_in_a_checkpoint_raises_an_error(tmp_path):
    folder = tmp_path / "step"
    write_folder(folder, TENSORS, FACTS)
    for file in folder.iterdir():
        whole = file.read_bytes()
        for offset in range(0, len(whole), max(1, len(whole) // 25)):
            broken = bytearray(whole)
            broken[offset] ^= 0x40
            file.write_bytes(broken)
            try:
                tensors, _ = read_folder(folder)
            except CheckpointError as error:
                assert str(folder) in str(error)
            else:  # only white space of the manifest may change unnoticed: nothing depends on it
                assert file.name == "manifest.json"
                assert torch.equal(tensors["weights"]["a"], TENSORS["weights"]["a"])
        file.write_bytes(whole)
    read_folder(folder)


def test_files_are_synced_before_the_folder_is_renamed(tmp_path, monkeypatch):
    """Each file and the folder are synced, then renamed, then the parent is synced."""
    steps, sync, rename = [], os.fsync, os.rename

    def synced(descriptor):
        steps.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        sync(descriptor)

    def renamed(source, target):
        steps.append(f"{os.path.basename(source)} -> {os.path.basename(target)}")
        rename(source, target)

    monkeypatch.setattr("os.fsync", synced)
    monkeypatch.setattr("os.rename", renamed)
    write_folder(tmp_path / "checkpoints" / "step", TENSORS, FACTS)
    assert steps == [
        "weights.safetensors",
        "memory.safetensors",
        "facts.json",
        "manifest.json",
        ".step.writing",
        ".step.writing -> step",
        "checkpoints",
    ]


@pytest.mark.parametrize("limit", [60, 200, 400, 700])
def test_a_failed_write_leaves_existing_files_unchanged(tmp_path, limit):
    """The system refuses to write more than `limit` bytes to a file."""
    path = tmp_path / "model.safetensors"
    write_tensors(path, TENSORS["weights"])
    before = path.read_bytes()
    larger = {"a": torch.zeros(300)}
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        refused = 0
        for write in (
            lambda: write_tensors(path, larger),
            lambda: write_folder(tmp_path / "step", {"weights": larger}, FACTS),
            lambda: write_text(tmp_path / "text", "x" * 1000),
        ):
            try:
                write()
            except CheckpointError as error:
                refused += "File too large" in str(error) and "Nothing that was" in str(error)
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]
    assert path.read_bytes() == before
