"""Weights on disk: the name table is strict and reversible, a folder is complete or absent."""

from __future__ import annotations

import os
import resource

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.checkpoints.filling import load_weights
from regard.checkpoints.names import Names, keep, split, transpose
from regard.checkpoints.store import read_folder, read_tensors, write_folder, write_tensors
from regard.errors import CheckpointError
from regard.file_writing import write_text

# ---- the name table ---------------------------------------------------------------------------

GPT2 = Names(
    [
        ("tokens.weight", "wte.weight"),
        (
            tuple(f"layers.{{layer}}.attention.{p}.weight" for p in ("query", "key", "value")),
            "h.{layer}.attn.c_attn.weight",
            transpose.then(split(3)),
        ),
        (
            tuple(f"layers.{{layer}}.attention.{p}.bias" for p in ("query", "key", "value")),
            "h.{layer}.attn.c_attn.bias",
            split(3),
        ),
        ("layers.{layer}.norm{n}.bias", "h.{layer}.ln_{n}.bias"),
        ("norm.bias", "ln_f.bias"),
    ],
    tied={"head.weight": "tokens.weight"},
    duplicates={"lm_head.weight": "wte.weight"},
    ignored=["h.{layer}.attn.bias"],
)


def ours(layers: int = 2, d: int = 4) -> dict[str, torch.Tensor]:
    """Our names for the table above, with random tensors."""
    shapes: dict[str, tuple[int, ...]] = {"tokens.weight": (7, d), "norm.bias": (d,)}
    for i in range(layers):
        for part in ("query", "key", "value"):
            shapes[f"layers.{i}.attention.{part}.weight"] = (d, d)
            shapes[f"layers.{i}.attention.{part}.bias"] = (d,)
        shapes |= {f"layers.{i}.norm{n}.bias": (d,) for n in (1, 2)}
    tensors = {name: torch.randn(shape) for name, shape in shapes.items()}
    return tensors | {"head.weight": tensors["tokens.weight"]}


def test_written_names_are_read_back_from_fused_and_transposed_tensors():
    state = ours(layers=12)
    published = GPT2.write(state)
    fused = published["h.1.attn.c_attn.weight"]  # (D, 3D), as Conv1D stores it
    assert fused.shape == (4, 12)
    assert torch.equal(fused[:, 4:8].t(), state["layers.1.attention.key.weight"])
    back = GPT2.read(published, state)
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)


def test_a_tensor_outside_of_the_layers_of_the_model_is_named_in_a_warning():
    published = GPT2.write(ours())
    published |= {"h.2.ln_1.bias": torch.zeros(4), "stray": torch.ones(1)}
    with pytest.warns(UserWarning, match=r"nor its class in transformers: h\.2\.ln_1\.bias, stray"):
        GPT2.read(published, ours())


def test_tied_duplicates_and_buffers_in_a_file_are_accepted():
    state = ours()
    published = GPT2.write(state)
    published["lm_head.weight"] = published["wte.weight"].clone()
    published["h.1.attn.bias"] = torch.ones(3, 3)
    assert torch.equal(GPT2.read(published, state)["norm.bias"], state["norm.bias"])


def test_a_tied_duplicate_replaces_the_missing_tensor():
    state = ours()
    published = GPT2.write(state)
    published["lm_head.weight"] = published.pop("wte.weight")
    assert torch.equal(GPT2.read(published, state)["tokens.weight"], state["tokens.weight"])
    del published["lm_head.weight"]
    with pytest.raises(CheckpointError, match=r"missing: wte\.weight"):
        GPT2.read(published, state)


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


def test_a_written_checkpoint_folder_is_read_unchanged(tmp_path):
    write_folder(tmp_path / "step", TENSORS, FACTS)
    tensors, facts = read_folder(tmp_path / "step")
    assert {k: sorted(v) for k, v in tensors.items()} == {k: sorted(v) for k, v in TENSORS.items()}
    for name, content in TENSORS.items():
        for key, value in content.items():
            assert tensors[name][key].dtype == value.dtype
            assert torch.equal(tensors[name][key], value)
    assert facts.pop("score") != 0
    assert facts == {k: v for k, v in FACTS.items() if k != "score"}


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


def test_tied_weights_are_stored_once_and_fill_the_model(tmp_path):
    model = torch.nn.ModuleDict({"in": torch.nn.Embedding(5, 3), "out": torch.nn.Linear(3, 5)})
    model["out"].weight = model["in"].weight
    write_tensors(tmp_path / "model.safetensors", model.state_dict())
    tensors = read_tensors(tmp_path / "model.safetensors")
    assert sorted(tensors) == ["in.weight", "out.bias"]
    other = torch.nn.ModuleDict({"in": torch.nn.Embedding(5, 3), "out": torch.nn.Linear(3, 5)})
    with pytest.raises(CheckpointError, match=r"missing: out\.weight"):
        load_weights(other, tensors)
    other["out"].weight = other["in"].weight
    load_weights(other, tensors)
    assert torch.equal(other["out"].weight, model["in"].weight)
    with pytest.raises(CheckpointError, match=r"extra: gate"):
        load_weights(other, tensors | {"gate": torch.zeros(1)})
    with pytest.raises(CheckpointError, match=r"out\.bias must be \(5,\), but is \(4,\)"):
        load_weights(other, tensors | {"out.bias": torch.zeros(4)})
