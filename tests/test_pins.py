"""What is installed: pinned to the last package, PyTorch first, and the core light."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import weight  # noqa: E402

PINS = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M))
PINNED = {canonicalize_name(name): version for name, version in PINS.items()}


def test_every_package_that_make_installs_is_pinned():
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    texts = [text for name in ("test", "lint") for text in groups[name]]
    tops = ["regard", *(canonicalize_name(Requirement(text).name) for text in texts)]
    needed = {name for top in tops for name in weight.closure(top)} - {"regard"}
    assert len(needed) > 60
    assert not needed - PINNED.keys()
    peers = {canonicalize_name(Requirement(t).name) for t in groups["bench"] if isinstance(t, str)}
    lines = {*re.findall(r"\$\(PINS\) (\S+) \|\| echo", (ROOT / "Makefile").read_text())}
    docs = {canonicalize_name(Requirement(text).name) for text in groups["docs"]}
    assert len(peers) == 5 and "llama-cpp-python" in lines and "sphinx" in docs
    assert not (peers | lines | docs) - PINNED.keys()


def test_torch_is_pinned_and_installed_first():
    assert PINNED["torch"] == "2.13.0"
    installs = re.findall(r"^\t\$\(PIP\) install (.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert len(installs) >= 3
    assert installs[0].endswith('"$(TORCH)"')


def test_the_core_is_at_most_35_packages_beside_torch():
    core = weight.closure("regard").keys() - weight.closure("torch").keys() - {"regard"}
    assert {"tokenizers", "safetensors", "pydantic", "typer"} <= core
    assert len(core) <= 35
