"""Prints `test-all` where a change touches what a slow test covers, else `test`.

    make $(python tools/slow_tests.py HEAD~1)

A slow test says what it covers, files or folders: `@pytest.mark.slow("regard/kernels")`.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
ALWAYS = ("Makefile", "constraints.txt", "pyproject.toml", "tests/shared_fixtures.py")


def marks(root: Path = ROOT) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each test file with a mark, and what the mark says that it covers."""
    for path in sorted((root / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if "mark.slow" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("mark.slow"):
                names = tuple(ast.literal_eval(argument) for argument in node.args)
                yield path.relative_to(root).as_posix(), names


def target(changed: Iterable[str], root: Path = ROOT) -> str:
    """The target of make for these changed files."""
    covered = {*ALWAYS}
    for file, names in marks(root):
        covered |= {file, *names}
    paths = map(PurePosixPath, changed)
    needed = any(path.is_relative_to(name) for path in paths for name in covered)
    return "test-all" if needed else "test"


def changed_since(commit: str) -> list[str]:
    """The changed files, also those not committed yet; `ALWAYS` where there is no such commit."""
    command = ["git", "diff", "--name-only", commit]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return run.stdout.splitlines() if run.returncode == 0 else list(ALWAYS)


if __name__ == "__main__":
    print(target(changed_since(sys.argv[1])))
