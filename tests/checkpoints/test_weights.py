"""Weights of other libraries are read exactly, and pickles run no code."""

from __future__ import annotations

import json
import os
import pickle
import re

import pytest
import torch
from safetensors.torch import save_file

from regard.checkpoints.store import read_weights
from regard.errors import CheckpointError

TENSORS = {
    "half": torch.arange(6, dtype=torch.float16).reshape(2, 3),
    "brain": torch.randn(3, dtype=torch.float32).bfloat16(),
    "full": torch.randn(2, 2),
    "ids": torch.arange(4),
}
FORMS = ["zip", "legacy", "bare"]


def assert_equal_tensors(found, wanted=TENSORS):
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def sharded(folder, whole, suffix, save, promised=None):
    """Two shards and their index; gives the names of the shards."""
    shards = [f"{whole}-0000{n}-of-00002{suffix}" for n in (1, 2)]
    names = list(TENSORS)
    parts = [names[:2], names[2:]]
    for shard, part in zip(shards, parts, strict=True):
        save({name: TENSORS[name] for name in part}, folder / shard)
    table = {name: shards[names.index(name) // 2] for name in names} | (promised or {})
    index = folder / f"{whole}{suffix}.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": table}))
    return shards


def test_safetensors_and_pickles_whole_or_sharded_keep_their_types(tmp_path):
    folders = {name: tmp_path / name for name in ("one", "shards", "bin", "bin-shards")}
    for path in folders.values():
        path.mkdir()
    save_file(TENSORS, folders["one"] / "model.safetensors")
    sharded(folders["shards"], "model", ".safetensors", save_file)
    torch.save(TENSORS, folders["bin"] / "pytorch_model.bin")
    sharded(folders["bin-shards"], "pytorch_model", ".bin", torch.save)
    torch.save({"other": torch.zeros(1)}, folders["one"] / "pytorch_model.bin")  # is not preferred
    for path in folders.values():
        assert_equal_tensors(read_weights(path))


def test_shards_written_by_transformers_are_read(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=8, max_position_embeddings=8,
    )  # fmt: skip
    model = transformers.BertModel(config)
    model.save_pretrained(tmp_path, max_shard_size="2KB")
    assert not (tmp_path / "model.safetensors").exists()
    assert_equal_tensors(read_weights(tmp_path), model.state_dict())


def test_pickles_in_the_old_format_with_shared_parameters_are_read(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    weight = torch.nn.Parameter(torch.randn(3, 2))
    torch.save({"a": weight, "b": weight}, path, _use_new_zipfile_serialization=False)
    found = read_weights(tmp_path)
    assert_equal_tensors(found, {"a": weight.detach(), "b": weight.detach()})
    assert not found["a"].requires_grad


# ---- errors


def test_an_index_of_safetensors_never_opens_a_pickle(tmp_path):
    shards = sharded(tmp_path, "model", ".safetensors", save_file)
    torch.save({name: TENSORS[name] for name in ("full", "ids")}, tmp_path / shards[1])
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        read_weights(tmp_path)


# ---- pickles that are programs


class Attack:
    """Runs a command when it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self.mark}",)


def written(path, content, form):
    if form == "bare":
        path.write_bytes(pickle.dumps(content, protocol=4))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=form == "zip")


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("form", FORMS)
def test_a_pickle_with_calls_raises_an_error_and_runs_nothing(tmp_path, form, monkeypatch):
    mark, path = tmp_path / "mark", tmp_path / "pytorch_model.bin"
    written(path, {"weight": torch.zeros(2), "more": Attack(mark)}, form)
    torch.load(path, weights_only=False) if form != "bare" else pickle.loads(path.read_bytes())
    assert mark.exists()  # it does run where somebody opens it
    mark.unlink()
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    with pytest.raises(CheckpointError) as raised:
        read_weights(tmp_path)
    assert not mark.exists()
    assert str(path) in str(raised.value)
    if form != "bare":  # which torch refuses as a whole
        assert re.search(rf"it would run .*{os.system.__module__}\.system", str(raised.value))
