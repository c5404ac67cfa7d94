"""Folders of an earlier version give the same answers; stopped runs resume to the same result."""

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
from regard import ops
from regard.experiments.runs import resume

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import make  # noqa: E402

EXPECTED = json.loads((HERE / "expected.json").read_text())
ANSWERS = EXPECTED["answers"]


@pytest.fixture(scope="module")
def workdir(tmp_path_factory) -> Path:
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


def same(found, expected, rel: float) -> bool:
    """Equal, numbers up to rounding."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            same(found[k], expected[k], rel) for k in expected
        )
    if isinstance(expected, list):
        return len(found) == len(expected) and all(
            same(*pair, rel) for pair in zip(found, expected, strict=True)
        )
    if isinstance(expected, float):
        return found == pytest.approx(expected, rel=rel, abs=2e-4)
    return found == expected


@pytest.mark.parametrize("folder", sorted(ANSWERS))
def test_a_folder_of_an_earlier_version_gives_its_predictions(workdir, folder, monkeypatch):
    monkeypatch.chdir(workdir)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = make.answers(regard.load(folder, device="cpu"))
    # They were computed with kernels, which keep keys and values in float16 beside such weights.
    other_types = folder.startswith("quantized/") and not ops.load_kernels()
    assert same(found, ANSWERS[folder], rel=5e-3 if other_types else 1e-3)


OTHER_DROPOUT = {"classification-distilbert"}


@pytest.mark.parametrize("name", sorted(make.RECIPES))
def test_a_run_stopped_by_an_earlier_version_ends_with_its_weights(
    workdir, name, monkeypatch, capsys
):
    monkeypatch.chdir(workdir)
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
        found = weights[1][tensor]
        if tensor.endswith("c_attn.bias"):  # of query, key and value, (3D,)
            found, expected = without_key_bias(found), without_key_bias(expected)
        torch.testing.assert_close(found, expected, rtol=limit, atol=limit)


def without_key_bias(bias: torch.Tensor) -> torch.Tensor:
    """The bias of keys adds the same number to all scores of a query, so that its gradient is zero
    but for rounding, and Adam makes updates of their usual size of that rounding."""
    query, _, value = bias.chunk(3)
    return torch.cat([query, value])


NEWER = {"xlm-roberta", "mpnet", "electra", "albert", "big_bird", "t5", "t5-encoder", "xlnet"} | {
    "segabert",
    "elmo",
    "bart",
    "bart-as-encoder",
    "mbart",
    "mbart-as-encoder",
    "m2m-100",
    "transformer-xl",
    "sega-transformer-xl",
    "compressive-transformer",
    "adaptive-transformer",
    "awd-lstm",
    "rnnsearch",
    "conv-seq2seq",
    "bytenet",
    "bilstm",
    "kim-cnn",
    "show-attend-tell",
    "region-transformer",
    "llama",
    "gpt3",
    "gpt-neo",
    "decoder-only",
}


def test_the_baseline_has_every_family_and_every_kind_of_weights():
    from regard.models import MODELS

    names = {Path(folder).name for folder in ANSWERS}
    families = {name.split("-")[0] for name in names}
    # The models that are newer than the fixtures are compared with other judges alone.
    assert {name.split("-")[0] for name in MODELS if name not in NEWER} <= families | {"features"}
    assert {f"recurrent-{cell}" for cell in ("lstm", "gru", "rnn")} <= names
    assert any(name.endswith("-int8") for name in names)
    assert os.path.getsize(HERE / "folders.tar.xz") < 5 * 2**20
