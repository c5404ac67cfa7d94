"""Names on the hub: the requests, the error messages, and no request for other paths."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import constants, errors

from regard.checkpoints.hub import resolve
from regard.checkpoints.sentence_transformers import OLD_TRANSFORMER as OLD
from regard.errors import CheckpointError, RegardError

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = [
    "config.json", "model.safetensors", "pytorch_model.bin", "tf_model.h5", "tokenizer.json",
    "vocab.txt", "README.md", "1_Pooling/config.json", "onnx/model.onnx", "modules.json",
    "model-00001-of-00002.safetensors", "openvino/model.safetensors",
]  # fmt: skip


@pytest.fixture
def hosted(tmp_path, monkeypatch):
    """A hub with REPOSITORY but without the files in `absent`; gives the calls and that set."""
    calls, absent = [], set()
    monkeypatch.chdir(tmp_path)

    def download(repo_id, **options):
        calls.append((repo_id, options))
        there = [name for name in REPOSITORY if name not in absent]
        for name in there:
            if any(fnmatch(name, pattern) for pattern in options["allow_patterns"]):
                (tmp_path / "cache" / name).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / "cache" / name).touch()
        return str(tmp_path / "cache")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return calls, absent


def downloaded(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_resolve_returns_an_existing_folder_without_asking_the_hub(hosted, tmp_path):
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert resolve("org/name") == Path("org/name")
    assert resolve(tmp_path) == tmp_path
    assert hosted[0] == []


def test_resolve_downloads_only_supported_files(hosted):
    folder = resolve("org/name")
    assert downloaded(folder) == [
        "1_Pooling/config.json", "config.json", "model-00001-of-00002.safetensors",
        "model.safetensors", "modules.json", "tokenizer.json", "vocab.txt",
    ]  # fmt: skip
    [(name, options)] = hosted[0]
    assert name == "org/name" and options["revision"] is None and not options["local_files_only"]


@pytest.mark.parametrize(
    "names",
    [
        ["source.spm", "target.spm", "vocab.json", "target_vocab.json", "tokenizer_config.json"],
        ["sentencepiece.bpe.model", "spiece.model", "special_tokens_map.json", "tokenizer.model"],
        ["spm.model", "tokenizer_config.json", "added_tokens.json"],
        ["vocab.json", "merges.txt", "encoder.json", "vocab.bpe", "added_tokens.json"],
        ["vocab.txt", "modules.json", "sentence_bert_config.json", *OLD],
    ],
)
def test_all_files_of_each_kind_of_tokenizer_are_downloaded(hosted, names, monkeypatch):
    others = ["config.json", "model.safetensors"]
    monkeypatch.setitem(globals(), "REPOSITORY", [*others, *names, "rust_model.ot"])
    assert downloaded(resolve("org/name")) == sorted([*others, *names])


def test_hf_hub_offline_forbids_downloads(hosted, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    resolve("org/name")
    assert hosted[0][0][1]["local_files_only"]


def test_a_pickle_is_downloaded_only_without_safetensors(hosted):
    hosted[1].update(("model.safetensors", "model-00001-of-00002.safetensors"))
    assert "pytorch_model.bin" in downloaded(resolve("org/name"))


@pytest.mark.parametrize("revision", ["main", "v1.0", COMMIT, "refs/pr/3"])
def test_a_name_with_an_at_sign_selects_a_revision(hosted, revision):
    resolve(Path(f"org/name.2-x@{revision}"))
    assert hosted[0][0][0] == "org/name.2-x"
    assert hosted[0][0][1]["revision"] == revision


def _answer(status):
    return SimpleNamespace(status_code=status, headers={}, request=None)


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (lambda: errors.GatedRepoError("No access", response=_answer(403)), "Gated.*No access"),
        (lambda: errors.LocalEntryNotFoundError("Connect"), "it could not be reached. A folder"),
        (lambda: OSError("disk full"), "OSError: disk full"),
    ],
)
def test_each_download_error_names_the_model_and_the_reason(hosted, monkeypatch, raised, said):
    def fail(*_, **__):
        raise raised()

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(CheckpointError, match=f"^org/name@v9: .*{said}"):
        resolve("org/name@v9")


def test_without_huggingface_hub_the_error_has_the_install_command(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(RegardError, match="pip install huggingface_hub"):
        resolve("org/name")


# ---- offline, with the package's own code


def offline(cache: Path, name: str) -> subprocess.CompletedProcess[str]:
    """`resolve` in a process with this cache, in which every connection fails."""
    code = (
        "import socket, sys; from regard.checkpoints.hub import resolve\n"
        "def refuse(*_): raise AssertionError('the network was touched')\n"
        "socket.socket.connect = socket.getaddrinfo = refuse\n"
        "try: print(resolve(sys.argv[1]))\n"
        "except ValueError as error: print(type(error).__name__, error)"
    )
    environment = {**os.environ, "HF_HOME": str(cache), "HF_HUB_OFFLINE": "1"}
    environment.pop("HF_HUB_CACHE", None)
    return subprocess.run(
        [sys.executable, "-c", code, name],
        env=environment,
        cwd=cache,
        capture_output=True,
        text=True,
    )


def test_offline_models_come_from_the_cache_without_network(tmp_path, weights="pytorch_model.bin"):
    cached = tmp_path / "hub" / "models--org--name"
    folder = cached / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    for name in ("config.json", weights):
        (folder / name).write_text(json.dumps({}))
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(COMMIT)
    run = offline(tmp_path, f"org/name@{COMMIT}")
    assert run.stdout.strip() == str(folder), run.stderr
    run = offline(tmp_path, "org/other")
    assert run.stdout.startswith("CheckpointError org/other: "), run.stderr
    assert "HF_HUB_OFFLINE" in run.stdout
