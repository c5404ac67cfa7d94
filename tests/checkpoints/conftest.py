"""Tests here use models of other libraries and tokenizers that tests of other parts define."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path += [str(HERE / "formats"), str(HERE.parent / "models"), str(HERE.parent / "text")]
