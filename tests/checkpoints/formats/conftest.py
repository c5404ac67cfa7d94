"""Tests of layouts use the models of other libraries that the tests of architectures define."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "models"))
