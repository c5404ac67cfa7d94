"""`regard quantize`, and messages that come before heavy imports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from regard.cli import app
from regard.models.gpt2 import GPT2, GPT2Config
from regard.tasks import folders
from regard.tasks.language_modeling import TextGenerator
from regard.text import train


def regard(*words: object):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("models") / "wide"
    words = train("characters", ["a dog runs"], 30)
    torch.manual_seed(1)
    config = GPT2Config(words.vocab_size, layers=1, d_model=64, heads=2, max_length=32)
    folders.save(TextGenerator(GPT2(config), words), path)
    return path


def test_a_model_that_is_saved_over_another_leaves_none_of_its_files(model, tmp_path):
    task = folders.load(model)
    folders.save(task, tmp_path / "new")
    (tmp_path / "old").mkdir()
    stale = "model-00001-of-00002.safetensors model.safetensors.index.json modules.json vocab.txt"
    for name in (*stale.split(), "adapter_config.json", "generation_config.json", "notes.txt"):
        (tmp_path / "old" / name).write_text("{}")
    folders.save(task, tmp_path / "old")
    new = {path.name: path.read_bytes() for path in (tmp_path / "new").iterdir()}
    old = {path.name: path.read_bytes() for path in (tmp_path / "old").iterdir()}
    assert old == {**new, "notes.txt": b"{}"}


def test_a_quantized_folder_is_used_like_any_other(model, tmp_path):
    run = regard("quantize", model, "--out", tmp_path / "small", "--json")
    assert run.exit_code == 0, run.stderr
    facts = json.loads(run.stdout)
    assert facts["dtype"] == "int8" and facts["bytes"] < 0.4 * facts["bytes_before"]
    said = regard("quantize", model, "--out", tmp_path / "half", "--dtype", "bfloat16").stdout
    assert said.startswith(f"{tmp_path / 'half'}: bfloat16, ")
    for folder in ("small", "half"):
        dtype = facts["dtype"] if folder == "small" else "bfloat16"
        words = ("a dog", "--max-tokens", 4)
        found = regard("generate", tmp_path / folder, *words)
        wanted = regard("generate", model, *words, "--quantize", dtype)
        assert found.exit_code == 0 and found.stdout == wanted.stdout, found.stderr
    (tmp_path / "text.txt").write_text("a dog runs\n")
    scored = regard("evaluate", tmp_path / "small", "--data", tmp_path / "text.txt", "--json")
    assert json.loads(scored.stdout)["scores"][0]["count"] > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("quantize", "{model}", "--out", "{model}"), "is there already"),
        (("quantize", "{small}", "--out", "{new}"), "holds int8 weights already"),
        (("predict", "{small}", "a", "--quantize", "bfloat16"), "holds int8 weights"),
        (("quantize", "{nowhere}", "--out", "{new}"), "there is no such folder"),
    ],
)
def test_wrong_uses_are_one_line_errors(model, tmp_path, words, said):
    paths = {"model": model, "small": tmp_path / "small", "new": tmp_path / "new"}
    regard("quantize", model, "--out", tmp_path / "small")
    run = regard(*(word.format(nowhere=tmp_path / "nowhere", **paths) for word in words))
    assert run.exit_code == 2 and said in run.stderr and not run.stdout
    assert run.stderr.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_training_from_quantized_weights_is_an_error(model, tmp_path):
    regard("quantize", model, "--out", tmp_path / "small")
    (tmp_path / "text.txt").write_text("a dog runs\n" * 20)
    (tmp_path / "r.toml").write_text(
        'task = "language-modeling"\n[data]\ntrain = "text.txt"\nvalid = "text.txt"\n'
        'batch_size = 2\n[model]\npath = "small"\n[training]\nmax_steps = 1\n'
    )
    run = regard("train", tmp_path / "r.toml", "--out", tmp_path / "run")
    assert run.exit_code == 2 and "int8 weights, which can be used but not changed" in run.stderr


@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], ["predict", "--nope"], ["predict", "no/such/folder", "x"]]
)
def test_commands_without_a_model_do_not_import_torch(words):
    code = (
        "import sys\nfrom regard.cli import app\ntry:\n    app(sys.argv[1:])\n"
        "finally:\n    assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    run = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert "AssertionError" not in run.stderr and run.returncode in (0, 2), run.stderr


def test_generate_imports_nothing_that_it_does_not_need(model):
    code = (
        "import sys, torch\nbefore = set(sys.modules)\nfrom regard.cli import app\n"
        "try:\n    app(sys.argv[1:])\nfinally:\n    print(*(set(sys.modules) - before))"
    )
    words = ["generate", str(model), "a", "--max-tokens", "2"]
    run = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    heavy = {"torch._dynamo", "sympy", "onnx", "transformers", "sacrebleu", "matplotlib", "scipy"}
    needless = {"regard.training", "regard.visual", "regard.experiments.runs", "rich"}
    assert run.returncode == 0, run.stderr
    assert not set(run.stdout.split()) & (heavy | needless)
