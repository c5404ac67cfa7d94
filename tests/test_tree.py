"""The shape of the project: imports run one way, the README's tree is true, nothing sprawls."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import tree  # noqa: E402

# Each part may import its own station and those before it.
STATIONS = [
    {"errors", "suggest", "lazy", "schema", "registry", "ops", "file_pages"},
    {"text", "recipe"},
    {"data"},
    {"positions", "masks", "state"},
    {"layers"},
    {"attention"},
    {"models"},
    {"checkpoints"},
    {"decoding"},
    {"kernels"},
    {"metrics"},
    {"tasks"},
    {"training"},
    {"visual"},
    {"experiments"},
    {"cli"},
]
RANK = {part: number for number, station in enumerate(STATIONS) for part in station}
SOURCES = sorted((ROOT / "regard").rglob("*.py"))
PROGRAMS = [
    *SOURCES,
    *(f for folder in ("tools", "benchmarks", "examples") for f in (ROOT / folder).rglob("*.py")),
]


def part_of(file: Path) -> str:
    return file.relative_to(ROOT / "regard").parts[0].removesuffix(".py")


MODULE = re.compile(r"(regard(?:\.\w+)+)(?::\w+)?")  # a name in a table that is imported on demand


def imported(file: Path) -> Iterator[tuple[int, str]]:
    """(line, part of regard) for each import of the package, wherever in the file it stands.

    Relative imports, those inside functions and strings that name a module count, too.
    """
    folder = ["regard", *file.parent.relative_to(ROOT / "regard").parts]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            up = folder[: len(folder) + 1 - node.level] if node.level else []
            base = ".".join([*up, *filter(None, [node.module])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            named = MODULE.fullmatch(node.value)
            names = [named[1]] if named and _is_module(named[1]) else []
        for name in names:
            package, _, rest = name.partition(".")
            if package == "regard" and rest and not rest.startswith("__"):
                yield node.lineno, rest.split(".")[0]


def _is_module(name: str) -> bool:
    place = ROOT.joinpath(*name.split("."))
    return place.with_suffix(".py").exists() or (place / "__init__.py").exists()


def test_imports_run_one_way():
    wrong = []
    for file in SOURCES:
        part = part_of(file)
        if part == "__init__":
            continue
        assert part in RANK, f"regard/{part} has no station: give it one in {Path(__file__).name}"
        for line, other in imported(file):
            if part == "registry" and other == "kernels":  # a name, from which it is loaded
                continue
            if other == "kernels" != part:
                wrong.append(f"{file.relative_to(ROOT)}:{line}: the kernels are optional: {part}")
            if RANK.get(other, -1) > RANK[part]:
                wrong.append(f"{file.relative_to(ROOT)}:{line}: {part} imports {other}, above it")
    assert not wrong, "\n".join(wrong)


def test_a_wrong_import_would_be_seen(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    file = tmp_path / "regard" / "text" / "low.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        "def f():\n    from regard.models import x\n    import regard.tasks.y\n"
        "from ..visual import z\nfrom . import w\nfrom .bpe import v\n"
        'TABLE = {"low": "regard.text.low:Low", "gone": "regard.gone:Gone"}\n'
    )
    seen = sorted(imported(file))
    known = [(2, "models"), (3, "tasks"), (4, "visual"), (5, "text"), (6, "text"), (7, "text")]
    assert seen == known


def test_the_readme_tells_the_tree_that_is_on_disk():
    changes = tree.differences(ROOT)
    assert not changes, "the tree in README.md:\n  " + "\n  ".join(changes)


def test_a_missing_line_and_a_stale_line_of_the_tree_would_be_seen(tmp_path):
    package = tmp_path / "regard" / "text"
    package.mkdir(parents=True)
    for name in ("__init__.py", "bpe.py"):
        (package / name).write_text('"""Byte-pair encoding."""\n')
    (tmp_path / "README.md").write_text(
        "```text\nregard/\n  text/    text -> tokens\n    old.py    gone\n```\n"
    )
    assert tree.differences(tmp_path) == [
        "add under regard/text/: `    bpe.py              Byte-pair encoding`",
        "remove regard/text/old.py: it is not on disk",
    ]


def test_no_function_is_longer_than_70_lines_and_no_file_than_700():
    long = []
    for file in PROGRAMS:
        text = file.read_text(encoding="utf-8")
        name = file.relative_to(ROOT)
        if text.count("\n") > 700:
            long.append(f"{name}: {text.count(chr(10))} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > 70:
                    long.append(f"{name}:{node.lineno}: {node.name} has {length} lines")
    assert not long, "\n".join(long)


def test_no_constructor_takes_more_than_12_parameters():
    wide = []
    for file in PROGRAMS:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                count = len(node.args.args) + len(node.args.kwonlyargs) - 1
                if count > 12:
                    wide.append(f"{file.relative_to(ROOT)}:{node.lineno}: {count} parameters")
    assert not wide, "\n".join(wide)


def texts() -> Iterator[tuple[Path, str]]:
    """Every text file that git tracks."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in filter(None, listed.stdout.split("\0")):
        try:
            yield Path(name), (ROOT / name).read_text(encoding="utf-8")
        except (UnicodeDecodeError, FileNotFoundError):
            continue


# Written as patterns so that they do not match themselves.
PRIVATE = re.compile(r"(?<![\w.}$])/(?:work|root|home|opt|tmp)/\w|\bpypi[.]org|python[h]osted")


def test_the_text_names_no_folder_of_one_machine_and_no_host_of_packages():
    found = [
        f"{path}:{number}: {line.strip()[:80]}"
        for path, text in texts()
        if path != Path("LICENSE")
        for number, line in enumerate(text.splitlines(), 1)
        if PRIVATE.search(line)
    ]
    assert not found, "\n".join(found)
