"""Folders of an earlier version open and answer as they did; stopped runs go on to the same end."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tarfile
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import regard
from regard.experiments.runs import resume

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import make  # noqa: E402

EXPECTED = json.loads((HERE / "expected.json").read_text())
ANSWERS = EXPECTED["answers"]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """The folders, as if they had been written here."""
    found = tmp_path_factory.mktemp("baseline")
    with tarfile.open(HERE / "folders.tar.xz") as archive:
        archive.extractall(found, filter="data")
    for run in (found / "stopped").iterdir():
        _move(run, "/".join(EXPECTED["root"]), str(found))
    torch.set_num_threads(1)
    return found


def _move(run: Path, old: str, new: str) -> None:
    """Replace the folder that recorded paths begin with; checksums follow."""
    for path in [run / "recipe.toml", *run.glob("checkpoints/*/facts.json")]:
        path.write_text(path.read_text().replace(old, new))
    for manifest in run.glob("checkpoints/*/manifest.json"):
        facts = manifest.with_name("facts.json").read_bytes()
        content = json.loads(manifest.read_bytes())
        content["sha256"]["facts.json"] = hashlib.sha256(facts).hexdigest()
        manifest.write_text(json.dumps(content))


def same(found, expected) -> bool:
    """Equal, numbers up to rounding."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            same(found[k], expected[k]) for k in expected
        )
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, float):
        return found == pytest.approx(expected, rel=1e-3, abs=2e-4)
    return found == expected


@pytest.mark.parametrize("folder", sorted(ANSWERS))
def test_a_folder_of_an_earlier_version_answers_as_it_did(place, folder, monkeypatch, request):
    if folder.startswith("quantized/"):  # where nothing is compiled they are read as float32
        request.getfixturevalue("some_kernels")
    monkeypatch.chdir(place)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = make.answers(regard.load(folder, device="cpu"))
    assert same(found, ANSWERS[folder])


OTHER_DROPOUT = {"classification-distilbert"}


@pytest.mark.parametrize("name", sorted(make.RECIPES))
def test_a_run_that_an_earlier_version_stopped_ends_with_the_same_weights(
    place, name, monkeypatch, capsys
):
    monkeypatch.chdir(place)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        resume(f"stopped/{name}", show="none")
    said = f"stopped/{name} was started by an earlier version of Regard: the result will be as good"
    assert said in capsys.readouterr().err
    weights = [
        load_file(f"{end}/{name}/model/model.safetensors") for end in ("finished", "stopped")
    ]
    assert weights[0].keys() == weights[1].keys()
    # Another processor rounds otherwise. Since embeddings are dropped without padding, the rest of
    # a run on batches with padding draws other dropout masks than the version that began it.
    limit = 2e-2 if "bfloat16" in name or name in OTHER_DROPOUT else 1e-4
    for tensor, expected in weights[0].items():
        torch.testing.assert_close(weights[1][tensor], expected, rtol=limit, atol=limit)


def test_the_baseline_has_every_family_and_every_kind_of_weights():
    from regard.models import MODELS

    names = {Path(folder).name for folder in ANSWERS}
    families = {name.split("-")[0] for name in names}
    assert {name.split("-")[0] for name in MODELS} <= families | {"features"}
    assert {f"recurrent-{cell}" for cell in ("lstm", "gru", "rnn")} <= names
    assert any(name.endswith("-int8") for name in names)
    assert os.path.getsize(HERE / "folders.tar.xz") < 5 * 2**20
