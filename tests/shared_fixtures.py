"""Shared fixtures: where the real data lies, and one thread for exact comparisons."""

from __future__ import annotations

import functools
import gc
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

import torch  # noqa: E402
import typer.testing  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402

from regard import ops, registry  # noqa: E402

ops.load_kernels()

SHARED = Path(os.environ.get("REGARD_SHARED", Path(__file__).parents[2] / "shared"))

# How fast examples come says something about the machine, and nothing about the code. Each run
# draws the same examples, so that a failure is due to the change at hand; others are drawn by
# `pytest --hypothesis-profile=explore`.
MACHINE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same examples", MACHINE, derandomize=True)
settings.register_profile("explore", MACHINE)
settings.load_profile("same examples")


def pytest_collection_finish(session):
    """What the tests have imported stays: the garbage collector does not search it again and again,
    which would take 7 % of the time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(scope="session", autouse=True)
def no_seeds_for_absent_devices():
    """`torch.manual_seed` keeps a stack trace for each kind of device that is not there, which
    takes longer than many a test.
    """
    with pytest.MonkeyPatch.context() as patched:
        for devices in (torch.cuda, torch.xpu, torch.mtia):
            if not devices.is_available():
                patched.setattr(devices, "manual_seed_all", lambda seed: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_syncing():
    """Files are not synced: no test cuts the power."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("os.fsync", lambda file: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def commands_made_once():
    """`CliRunner` makes all commands of the program again at each call, which takes longer than
    most calls do. Commands keep nothing of a call.
    """
    with pytest.MonkeyPatch.context() as patched:
        made = functools.cache(typer.main.get_command)
        patched.setattr("typer.testing._get_command", made, raising=False)
        yield


@pytest.fixture
def shared():
    """`shared("multi30k/tok")` gives the path of real data, or skips the test by name."""

    def find(name: str) -> Path:
        for path in (SHARED / "data" / name, SHARED / name):
            if path.exists():
                return path
        pytest.skip(f"real data {name} is not on this machine (set REGARD_SHARED)")

    return find


@pytest.fixture(scope="session")
def folders(tmp_path_factory) -> dict[str, Path]:
    """A folder with a tiny random model for each task; no test writes there."""
    import every_task  # most of the package, which a run of few tests does not need

    return every_task.make(tmp_path_factory.mktemp("tasks"))


WAITING = {
    *("item", "tolist", "cpu", "numpy", "__array__", "equal", "allclose", "is_nonzero"),
    *("__bool__", "__int__", "__float__", "__index__", "nonzero", "argwhere", "masked_select"),
    *("unique", "unique_consecutive", "repeat_interleave", "bincount"),
}


class DeviceWaits(TorchFunctionMode):
    """Collects the names of calls that wait until a device has computed a tensor."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        if name in WAITING or (name in ("__getitem__", "__setitem__") and by_boolean(args[1])):
            self.found.append(name)
        return func(*args, **(kwargs or {}))


def by_boolean(index) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, torch.Tensor) and part.dtype == torch.bool for part in parts)


@pytest.fixture
def device_waits():
    """`with device_waits() as seen:` puts the names of calls that waited into `seen.found`."""
    return DeviceWaits


def compiled() -> list[str]:
    """The names of all compiled implementations, which are absent where nothing can be compiled."""
    found = (one.name for op in ops.OPERATIONS.values() for one in op.implementations)
    return [name for name in found if name.endswith(".compiled")]


@pytest.fixture
def no_kernels(monkeypatch):
    """As in an installation without the package of kernels."""
    monkeypatch.setattr(registry, "KERNELS", "regard.absent")
    with ops.without(*compiled()):
        yield


@pytest.fixture
def some_kernels():
    """Skips the test where nothing can be compiled."""
    if not compiled():
        pytest.skip("no kernels on this machine")
