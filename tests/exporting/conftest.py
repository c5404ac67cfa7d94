"""The same random weights in every run."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(1)
