"""Tests here use models of other libraries and tokenizers that tests of other parts define."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "models"))
sys.path.append(str(Path(__file__).parents[1] / "text"))
