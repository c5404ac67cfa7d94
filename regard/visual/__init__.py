"""Pictures of what models do: for the terminal, a notebook, a file, a page."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "BeamTrace": "tree",
    "Beside": "side_by_side",
    "Contestant": "comparison",
    "Curves": "curves",
    "Distribution": "distribution",
    "Heads": "heads",
    "Heatmap": "heatmap",
    "Inputs": "inputs",
    "Lines": "lines",
    "Node": "tree",
    "Note": "picture",
    "Panel": "heads",
    "Picture": "picture",
    "Report": "report",
    "Row": "picture",
    "Sample": "report",
    "Series": "curves",
    "Stack": "picture",
    "Table": "table",
    "Tree": "tree",
    "beside": "side_by_side",
    "compare": "comparison",
    "contextual": "senses",
    "look": "record",
    "mask_grid": "tables",
    "next_words": "distribution",
    "position_table": "tables",
    "read": "record",
    "sinusoids": "tables",
    "vocabulary": "pieces",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'regard.visual' has no attribute {name!r}")
    return getattr(import_module(f"regard.visual.{_HOME[name]}"), name)
