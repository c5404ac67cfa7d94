"""Fixtures that choose the fast kernels of this processor, the portable ones, or none."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("regard.kernels", reason="the package of kernels is absent")

from regard.kernels import build, operations  # noqa: E402

PLAIN = (("-DPORTABLE", "-O1"),)
OLDER = (("-mavx2", "-mfma", "-O1"), *PLAIN)  # without AVX-512


@pytest.fixture(autouse=True)
def seed():
    """Every test draws the same random numbers each time."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def libraries():
    """The fast and the plain kernels, or a skip where no compiler is."""
    try:
        kinds = {"fast": build.KINDS, "older": OLDER, "plain": PLAIN}
        found = {name: build.load(build.build(kind)) for name, kind in kinds.items()}
    except build.BuildError as error:
        pytest.skip(f"no kernels on this machine: {error}")
    operations.register()
    return found


@pytest.fixture
def use(libraries, monkeypatch):
    """`use("fast")`, `use("plain")` or `use(None)` sets the kernels that are used from now on."""

    def choose(kind):
        found = None if kind is None else libraries[kind]
        monkeypatch.setattr(build, "kernels", lambda: found)

    return choose
