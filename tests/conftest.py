"""Loads the fixtures of all tests, but in a process that only distributes tests among others.

That one needs no PyTorch, whose import takes two seconds before the others are started.
"""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    distributes = config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput")
    if not distributes:
        config.pluginmanager.import_plugin("shared_fixtures")
