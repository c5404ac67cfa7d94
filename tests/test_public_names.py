"""The public names: one list for Python and for type checkers, and types that find mistakes."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import regard

ROOT = Path(__file__).parents[1]
FUNCTIONS = (
    "train resume load save quantize export compare cross_validate sweep evaluate predict_files "
    "search mine_negatives look serve list_models"
)
ERRORS = (
    "RegardError ConfigError DataError CheckpointError MissingExtra NotSupportedError Interrupted"
)
RESULTS = "Run StudyResults FileResults AttentionRecord Exported ListedModel"
PROGRAM = """
import regard

regard.trian  # 4
regard.load("x").predict("a")
regard.train("r.toml", tokens=10_000, learning_rate=1e-3, model={"d_model": 64})
regard.train(seeed=1, stop_after_fraction="half")  # 7
regard.load(regard.resume(regard.train("r.toml", train=[("a", "b")], lr=1e-3)))
reveal_type(regard.train("r.toml"))
reveal_type(regard.resume("run"))
reveal_type(regard.compare(["a.toml"]))
reveal_type(regard.load("x"))
"""


def test_the_public_names_are_these_and_nothing_else():
    assert {*regard.__all__} == {*f"{FUNCTIONS} Tokenizer {ERRORS} {RESULTS}".split()}
    assert list(regard.__all__) == dir(regard) == sorted(regard.__all__)
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        _ = regard.lode


def test_type_checkers_and_python_read_the_same_names_from_the_same_modules():
    tree = ast.parse((ROOT / "regard" / "__init__.py").read_text(encoding="utf-8"))
    (branch,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {}
    for node in ast.walk(ast.Module(branch.body, [])):
        if isinstance(node, ast.ImportFrom):
            seen |= {alias.asname: f"{node.module}:{alias.name}" for alias in node.names}
    assert seen.keys() == {*regard.__all__}
    for name, where in seen.items():
        module, _, original = where.partition(":")
        __import__(module)
        assert getattr(regard, name) is getattr(sys.modules[module], original)


@pytest.mark.slow("regard/__init__.py", "regard/experiments")
def test_mypy_finds_misspelled_names_and_wrong_types(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "program.py").write_text(PROGRAM)
    libraries = "torch numpy pydantic transformers tokenizers rich typer".split()
    libraries += "fastapi starlette uvicorn prometheus_client".split()
    skipped = "".join(f"[mypy-{name}.*]\nfollow_imports = skip\n" for name in libraries)
    (tmp_path / "mypy.ini").write_text(f"[mypy]\nignore_missing_imports = true\n{skipped}")
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "program.py"]
    command += ["--follow-imports", "silent", "--cache-dir", str(ROOT / ".mypy_cache" / "program")]
    run = subprocess.run(
        command,
        cwd=tmp_path,
        env={"MYPYPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
    )
    told = run.stdout.splitlines()
    errors = [line.split(":")[1] for line in told if ": error: " in line]
    assert errors == ["4", "7"], run.stdout + run.stderr
    types = [line.rpartition("is ")[2].strip('"') for line in told if "Revealed type" in line]
    assert types == [
        "regard.experiments.runs.Run",
        "regard.experiments.runs.Run",
        "regard.experiments.results.StudyResults",
        "regard.tasks.task.Task",
    ]


def test_a_notebook_offers_what_a_model_can_do_and_holds():
    import every_task

    offered = dir(every_task.MAKERS["tagging"]())
    assert {"tag", "predict", "save", "labels", "module", "tokenizer", "device"} <= {*offered}
    assert not {"translate", "train_batches"} & {*offered}
