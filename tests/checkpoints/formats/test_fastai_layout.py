"""fastai's layout of ULMFiT, judged by what fastai computed of a file that it wrote.

fastai_files/make.py made the files.
"""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch

from regard import load, train
from regard.checkpoints.model_folder import open_folder
from regard.checkpoints.store import read_tensors
from regard.data.batches import Sequences
from regard.errors import CheckpointError
from regard.models.encoder_with_heads import EncoderWithHeads

MADE = Path(__file__).parent / "fastai_files"


@pytest.fixture
def folder(tmp_path) -> Path:
    for name in ("lstm_tiny.pth", "itos_tiny.pkl"):
        shutil.copy(MADE / name, tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def expected() -> dict[str, torch.Tensor]:
    return read_tensors(MADE / "expected.safetensors")


def changed(folder: Path, change) -> None:
    file = folder / "lstm_tiny.pth"
    tensors = torch.load(file, weights_only=True)
    torch.save(change(dict(tensors)), file)


def test_the_language_model_computes_what_fastai_computes(folder, expected):
    task = load(folder)
    model, ids = task.module, expected["ids"]
    first = model(ids[:, :4])
    second = model(ids[:, 4:], first.state)
    hidden = torch.cat([first.hidden, second.hidden], 1)
    torch.testing.assert_close(model.head.logits(hidden), expected["logits"], atol=1e-6, rtol=1e-5)
    assert model.config.pad == 1 and model.config.bos == 2 and model.config.eos is None
    assert task.tokenizer.encode("w3 w11 never").ids == [8, 16, 0]
    assert task.generate("w3 w11", max_tokens=2).startswith("w3 w11")


def test_the_classifier_computes_what_fastai_computes(folder, expected):
    """Its own order of parts and concat pooling, over rows of different lengths."""
    encoder = load(folder).module
    head = encoder.new_head("classes", 2)
    parts = {"0.0": head.inner.norm_in, "1.0": head.inner.norm_out}
    parts |= {"0.2": head.inner.dense, "1.2": head.output}
    for theirs, part in parts.items():
        start = f"head.layers.{theirs}."
        own = {n.removeprefix(start): t for n, t in expected.items() if n.startswith(start)}
        part.load_state_dict({"bias": torch.zeros(part.weight.size(0))} | own)
    whole = EncoderWithHeads(encoder, {"classes": head}).eval()
    found = whole.scores("classes", Sequences(expected["ids"], expected["lengths"]))
    torch.testing.assert_close(found, expected["scores"], atol=1e-5, rtol=1e-5)


def as_v07(tensors):
    """The names of fastai before 1.0; `weight_hh_l0` is what the last pass left of the matrix."""
    found = {}
    for name, tensor in tensors.items():
        name = name.replace("encoder_dp.emb", "encoder_with_dropout.embed")
        if name.endswith("weight_hh_l0_raw"):
            name = name.replace(".weight_hh", ".module.weight_hh")
            found[name.removesuffix("_raw")] = tensor * 0
        found[name] = tensor
    return found


@pytest.mark.parametrize(
    "change",
    [
        as_v07,
        lambda tensors: {"model": tensors, "opt": {"state": [], "hypers": [{"lr": 0.1}]}},
        lambda tensors: {n: t for n, t in tensors.items() if n != "0.encoder_dp.emb.weight"},
    ],
    ids=["v0.7", "with optimizer", "stored once"],
)
def test_other_versions_of_the_file_are_read(folder, expected, change):
    changed(folder, change)
    (folder / "lstm_tiny.pth").rename(folder / "fwd_tiny.h5")
    (folder / "itos_tiny.pkl").unlink()
    words = pickle.loads((MADE / "itos_tiny.pkl").read_bytes())
    (folder / "itos.json").write_text(json.dumps(words))
    model = load(folder).module
    found = model.head.logits(model(expected["ids"]).hidden)
    torch.testing.assert_close(found, expected["logits"], atol=1e-6, rtol=1e-5)


def test_an_output_of_its_own_is_kept(folder, expected):
    changed(folder, lambda tensors: tensors | {"1.decoder.weight": tensors["1.decoder.weight"] * 2})
    model = load(folder).module
    assert not model.config.tied
    bias = model.head.bias
    found = model.head.logits(model(expected["ids"]).hidden) - bias
    torch.testing.assert_close(found, 2 * (expected["logits"] - bias), atol=1e-5, rtol=1e-5)


class Malicious:
    def __reduce__(self):
        return print, ("executed",)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda f: (f / "itos_tiny.pkl").write_bytes(pickle.dumps(["a", Malicious()])),
            "it would run builtins.print",
        ),
        (
            lambda f: (f / "itos_tiny.pkl").write_bytes(pickle.dumps(["a", "b"])),
            "must have 21 words, .* but has 2",
        ),
        (
            lambda f: shutil.copy(f / "lstm_tiny.pth", f / "bwd.pth"),
            "must hold one model, but holds bwd",
        ),
        (
            lambda f: changed(
                f, lambda t: {n: x for n, x in t.items() if "rnns.1.module" not in n}
            ),
            "missing",
        ),
        (lambda f: changed(f, lambda t: t | {"0.rnns.1.module.more": torch.ones(1)}), "more"),
    ],
)
def test_damaged_files_raise_an_error_that_names_them(folder, change, said, capsys):
    change(folder)
    with pytest.raises(CheckpointError, match=said):
        load(folder)
    assert "executed" not in capsys.readouterr().out


def test_a_classifier_is_trained_from_the_published_files(folder, tmp_path):
    (folder / "rows.tsv").write_text("w1 w2\ta\nw4 w5\tb\n" * 8)
    recipe = folder / "classify.toml"
    recipe.write_text(
        f"""
task = "classification"
[data]
train = "{folder}/rows.tsv"
columns = [0, 1]
batch_size = 4
[model]
path = "{folder}"
[training]
epochs = 40
gradual_unfreezing_interval = 1
[training.optimizer]
learning_rate = 0.05
layerwise_lr_decay = 0.385
[training.schedule]
name = "slanted-triangular"
"""
    )
    run = train(recipe, out=tmp_path / "run", progress=False)
    task = load(run.folder)
    assert task.predict(["w1 w2", "w4 w5"]) == ["a", "b"]
    assert open_folder(run.folder).config["bos"] == 2
