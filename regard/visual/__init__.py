"""Pictures of what models do: for the terminal, a notebook, a file, a page."""

from __future__ import annotations

from regard.demand import names_of

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


__getattr__ = names_of(__name__, _HOME)
