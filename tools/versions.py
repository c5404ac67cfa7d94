"""Tests the versions that pyproject.toml declares: every Python, and the lowest of each dependency.

    python tools/versions.py                         all tests, with every Python
    python tools/versions.py tests/test_recipe.py    these tests
    python tools/versions.py --python 3.12 ...       with this Python alone

Every Python of the classifiers gets an environment with the versions in constraints.txt; the
oldest one gets a second environment with the lowest version of each dependency. In each of them
those tests run whose packages are installed. A Python that is not on this machine is named.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENTS = ROOT / "build" / "versions"
PINS = ROOT / "constraints.txt"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = ("plot", "serve")  # they are small, and many tests need them
OPTIONAL = PROJECT["optional-dependencies"]
NEEDS = [*PROJECT["dependencies"], *(need for extra in EXTRAS for need in OPTIONAL[extra])]
TOOLS = (
    "pytest",
    "hypothesis",
    "jaxtyping",
    "beartype",
    "packaging",
    "wheel",
    "setuptools>=77,<82",
)


def pythons() -> list[str]:
    """The versions of Python that the classifiers name, such as 3.11."""
    return re.findall(r"Python :: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), re.M)


def interpreter(version: str) -> str | None:
    """A Python of this version, on the PATH or of pyenv; None: there is none."""
    managed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for command in (shutil.which(f"python{version}"), *map(str, managed)):
        check = f"import sys; sys.exit('%d.%d' % sys.version_info[:2] != {version!r})"
        if command and not subprocess.run([command, "-c", check], capture_output=True).returncode:
            return command
    return None


def lowest() -> list[str]:
    """The lowest version of each dependency of the core and of EXTRAS, as requirements."""
    bounds = [re.fullmatch(r"([\w-]+)>=([\d.]+)", need) for need in NEEDS]
    return [f"{bound[1]}=={bound[2]}" for bound in bounds if bound]


def pinned() -> list[str]:
    """The same dependencies at the versions of constraints.txt."""
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", PINS.read_text(encoding="utf-8"), re.M))
    names = [re.split(r"[<>=]", need)[0] for need in NEEDS]
    return [f"{name}=={pins[name]}" for name in names]


def environment(folder: Path, python: str, needs: list[str]) -> Path:
    """The Python of an environment that has these packages."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    inside = folder / "bin" / "python"
    install = [str(inside), "-I", "-m", "pip", "install", "--quiet", *needs, *TOOLS]
    subprocess.run(install, check=True)
    return inside


def imported(file: Path) -> Iterator[str]:
    """The packages that a test imports anywhere, by itself or by the helpers in tests/."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names = [name.name for name in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        for name in {name.partition(".")[0] for name in names}:
            helper = ROOT / "tests" / f"{name}.py"
            if helper.exists() and helper != file:
                yield from imported(helper)
            elif not helper.exists():
                yield name


def without_packages(python: Path, tests: list[Path]) -> list[Path]:
    """The tests that need a package which this environment lacks."""
    needs = {test: {*imported(test)} for test in tests}
    names = sorted(set().union(*needs.values()))
    code = (
        "import sys, importlib.util as u\nsys.path += ['tests', 'tools', 'examples']\n"
        f"print(*[n for n in {names} if not u.find_spec(n)])"
    )
    run = subprocess.run([str(python), "-c", code], cwd=ROOT, capture_output=True, text=True)
    missing = {*run.stdout.split()}
    return [test for test in tests if needs[test] & missing]


def tested(title: str, python: Path, chosen: list[str]) -> bool:
    """Run the tests in an environment; whether they passed."""
    places = [ROOT / place for place in chosen or ["tests"]]
    tests = [t for p in places for t in ([p] if p.is_file() else sorted(p.rglob("test_*.py")))]
    left_out = without_packages(python, tests)
    print(f"{title}: {len(tests) - len(left_out)} files of tests of {len(tests)}", flush=True)
    command = [str(python), "-m", "pytest", "-p", "no:cacheprovider"]
    kept = [str(test) for test in tests if test not in left_out]
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return not subprocess.run([*command, *kept], cwd=ROOT, env=env).returncode


def main() -> int:
    """0, or 1 where a test failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", help="a version such as 3.12: it alone")
    parser.add_argument("tests", nargs="*", help="files and folders; all tests without them")
    given = parser.parse_args()
    failed, missing = [], []
    for version in [given.python] if given.python else pythons():
        python = interpreter(version)
        if python is None:
            missing.append(version)
            continue
        kinds = {"constraints.txt": pinned()}
        if version == pythons()[0]:
            kinds["the lowest versions"] = lowest()
        for kind, needs in kinds.items():
            folder = ENVIRONMENTS / f"{version}-{kind.split()[-1]}"
            title = f"Python {version}, {kind}"
            if not tested(title, environment(folder, python, needs), given.tests):
                failed.append(title)
    for title in failed:
        print(f"failed: {title}")
    if missing:
        print(f"not tested, for lack of an interpreter: Python {', '.join(missing)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
