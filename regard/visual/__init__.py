"""Pictures of what models do: for the terminal, a notebook, a file, a page.

Internal: names that `regard` itself does not have may change with every version.
"""

from __future__ import annotations

from regard.lazy import names_of

__all__, __getattr__ = names_of(
    __name__,
    {
        "alignment": "AlignedToken Alignment alignment_of",
        "image_regions": "AttendedRegions attended_regions",
        "attention_arcs": "AttentionArcs",
        "attention_record": "look run_encoder",
        "beam_tree": "BeamNode BeamTrace BeamTree",
        "compare_attention": "AttentionComparison",
        "cell_search": "FoundCell find_cells",
        "cell_text": "CellText",
        "character_properties": "python_properties text_properties",
        "comparison": "ComparedModel compare_results",
        "constituents": "TreePicture n_best_picture",
        "curves": "Curves Series",
        "distribution": "Distribution next_tokens",
        "gradients": "gradient_curves gradient_norms",
        "head_grid": "HeadGrid Panel",
        "heatmap": "Heatmap",
        "inputs": "Inputs",
        "lattice": "Lattice",
        "picture": "Illustration Note Picture PictureChoice PictureColumn PictureRow",
        "positions_and_masks": "mask_grid sinusoids sparse_patterns",
        "recurrent_cells": "cell_activation",
        "report": "ReportSample RunReport",
        "table": "Table",
        "text_map": "TextMap",
    },
)
