"""ELMo's published layout: options.json, HDF5 weights and a vocabulary."""

from __future__ import annotations

import json
import re
import sys

import numpy as np
import pytest
import torch

import regard
from regard.checkpoints.formats import elmo
from regard.errors import CheckpointError, MissingExtra

h5py = pytest.importorskip("h5py")
OPTIONS = {
    "lstm": {
        "dim": 7, "projection_dim": 5, "n_layers": 2, "cell_clip": 3, "proj_clip": 3,
        "use_skip_connections": True,
    },
    "char_cnn": {
        "embedding": {"dim": 4}, "filters": [[1, 4], [2, 8]], "n_highway": 1, "n_characters": 262,
        "max_characters_per_token": 50, "activation": "relu",
    },
}  # fmt: skip


def published(seed: int = 0) -> dict[str, np.ndarray]:
    """Weights with the names and shapes of the authors' program."""
    draw = np.random.default_rng(seed)
    shapes = {"char_embed": (261, 4), "CNN_proj/W_proj": (12, 5), "CNN_proj/b_proj": (5,)}
    for n, (width, count) in enumerate(OPTIONS["char_cnn"]["filters"]):
        shapes |= {f"CNN/W_cnn_{n}": (1, width, 4, count), f"CNN/b_cnn_{n}": (count,)}
    for gate in ("carry", "transform"):
        shapes |= {f"CNN_high_0/W_{gate}": (12, 12), f"CNN_high_0/b_{gate}": (12,)}
    for side in (0, 1):
        for layer in (0, 1):
            cell = f"RNN_{side}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            shapes |= {f"{cell}/W_0": (10, 28), f"{cell}/B": (28,), f"{cell}/W_P_0": (7, 5)}
    return {k: draw.normal(0, 0.4, shape).astype(np.float32) for k, shape in shapes.items()}


def written(folder, tensors=None, options=None, changes=()):
    folder.mkdir(exist_ok=True)
    options = json.loads(json.dumps(options or OPTIONS))
    for path, value in changes:
        *parts, last = path.split(".")
        section = options
        for part in parts:
            section = section[part]
        if value is None:
            section.pop(last, None)
        else:
            section[last] = value
    (folder / "elmo_options.json").write_text(json.dumps(options))
    with h5py.File(folder / "elmo_weights.hdf5", "w") as file:
        for name, tensor in (tensors or published()).items():
            file[name] = tensor
    return folder


def test_a_cell_equals_the_published_equations(tmp_path):
    """One step of the first forward layer, in the authors' order of gates: i, g, f + 1, o."""
    tensors = published()
    model = elmo.read(written(tmp_path / "elmo")).eval()
    cell = {
        name: tensors[f"RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/{name}"].astype(np.float64)
        for name in ("W_0", "B", "W_P_0")
    }
    draw = np.random.default_rng(1)
    x, h, c = draw.normal(size=5), draw.normal(size=5), draw.normal(size=7)
    i, g, f, o = np.split(np.concatenate([x, h]) @ cell["W_0"] + cell["B"], 4)

    def sigmoid(z):
        return 1 / (1 + np.exp(-z))

    new = np.clip(sigmoid(f + 1) * c + sigmoid(i) * np.tanh(g), -3, 3)
    out = np.clip((sigmoid(o) * np.tanh(new)) @ cell["W_P_0"], -3, 3)
    as_tensors = (torch.tensor(one, dtype=torch.float32)[None] for one in (x, h, c))
    x_in, *state = as_tensors
    hidden, cells = model.ahead[0](x_in[None], *state)
    np.testing.assert_allclose(cells[0, 0].detach(), new, atol=1e-6)
    np.testing.assert_allclose(hidden[0, 0].detach(), out, atol=1e-6)


def test_the_character_layers_equal_the_published_equations(tmp_path):
    tensors = published()
    model = elmo.read(written(tmp_path / "elmo")).eval()
    row = [258, *"zoé".encode(), 259]
    ids = np.array(row + [260] * (50 - len(row)))  # the authors' ids: ours less one
    vectors = tensors["char_embed"][ids].astype(np.float64)  # (50, 4)
    found = []
    for n, (width, _) in enumerate(OPTIONS["char_cnn"]["filters"]):
        windows = [
            np.einsum("wd,wdf->f", vectors[s : s + width], tensors[f"CNN/W_cnn_{n}"][0])
            for s in range(50 - width + 1)
        ]
        found.append(np.maximum(np.max(windows, 0) + tensors[f"CNN/b_cnn_{n}"], 0))
    x = np.concatenate(found)
    gate = 1 / (1 + np.exp(-(x @ tensors["CNN_high_0/W_carry"] + tensors["CNN_high_0/b_carry"])))
    new = x @ tensors["CNN_high_0/W_transform"] + tensors["CNN_high_0/b_transform"]
    x = gate * np.maximum(new, 0) + (1 - gate) * x
    wanted = x @ tensors["CNN_proj/W_proj"] + tensors["CNN_proj/b_proj"]
    task = regard.load(tmp_path / "elmo")
    (vector,) = task.embed(["zoé"], granularity="word", layers=0)
    np.testing.assert_allclose(vector[0], np.concatenate([wanted, wanted]), atol=2e-6)
    assert not model.embedding.weight[0].any()


@pytest.mark.parametrize(
    "changes, field",
    [
        ([("lstm.dim", 9)], "RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_0"),
        ([("lstm.projection_dim", 12)], "CNN_proj/W_proj"),
        ([("lstm.n_layers", 1)], "RNN_0/RNN/MultiRNNCell/Cell1/LSTMCell/W_0"),
        ([("char_cnn.embedding.dim", 5)], "char_embed"),
        ([("lstm.n_layers", 10**7)], "`lstm.n_layers` is 10,000,000"),
        ([("lstm.dim", 10**7)], "asks for a tensor of shape"),
        ([("lstm.projection_dim", 10**7)], "`lstm.projection_dim, twice` must be at most 261"),
    ],
)  # fmt: skip
def test_sizes_that_the_weights_do_not_have_name_the_options_file(changes, field, tmp_path):
    folder = written(tmp_path / "elmo", changes=changes)
    with pytest.raises(CheckpointError, match=re.escape(field)) as error:
        elmo.read(folder)
    assert "elmo_options.json" in str(error.value) and "config.json" not in str(error.value)


@pytest.mark.parametrize(("kind", "which"), [("<f8", ""), (">f4", "CNN/"), (">f2", "RNN_1")])
def test_weights_of_any_type_and_byte_order_are_read_as_float32(kind, which, tmp_path):
    stored = {
        name: tensor.astype(kind) if name.startswith(which) else tensor
        for name, tensor in published().items()
    }
    rounded = {name: tensor.astype(np.float32) for name, tensor in stored.items()}
    read, wanted = (
        elmo.read(written(tmp_path / f"{n}", t)) for n, t in enumerate((stored, rounded))
    )
    assert {parameter.dtype for parameter in read.parameters()} == {torch.float32}
    for name, tensor in wanted.state_dict().items():
        torch.testing.assert_close(read.state_dict()[name], tensor, rtol=0, atol=0)
    task = regard.load(tmp_path / "0")
    assert np.isfinite(task.embed(["the zebra sat", "cat"])).all()


def test_without_h5py_the_error_names_its_extra(tmp_path, monkeypatch):
    folder = written(tmp_path / "elmo")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingExtra, match=r"pip install 'regard\[elmo\]'"):
        elmo.read(folder)


def test_a_published_folder_is_opened_saved_and_opened_again(tmp_path):
    folder = written(tmp_path / "elmo")
    (folder / "vocab.txt").write_text("</S>\n<S>\n<UNK>\nthe\ncat\n")
    task = regard.load(folder)
    texts = ["the zebra sat", "", "naïve \U0001f600"]
    options = dict(layers=[0, 1, 2], combine=[0.0, 1.0, 2.0])
    vectors = task.embed(texts, **options)
    assert vectors.shape == (3, 10) and np.isfinite(vectors).all()
    np.testing.assert_allclose(task.embed(texts[0], **options), vectors[0], atol=1e-6)
    from regard.experiments.runs import save

    save(task, tmp_path / "saved")
    again = regard.load(tmp_path / "saved")
    np.testing.assert_array_equal(again.embed(texts, **options), vectors)
