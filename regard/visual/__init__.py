"""Pictures of what models do: for the terminal, a notebook, a file, a page.

Internal: names that `regard` itself does not have may change with every version.
"""

from regard.lazy import names_of

__all__, __getattr__ = names_of(
    __name__,
    {
        "attention_record": "attention_comparison look run_encoder",
        "cell_search": "FoundCell find_cells python_properties text_properties",
        "constituents": "TreePicture n_best_picture",
        "curves": "Curves Series",
        "decoding": "BeamNode BeamTrace BeamTree Distribution next_tokens",
        "head_grid": "HeadGrid Panel",
        "heatmap": "Heatmap mask_grid sinusoids sparse_patterns",
        "image_regions": "AttendedRegions attended_regions",
        "picture": "Illustration Note Picture PictureColumn PictureRow Table",
        "recurrent_cells": "CellText cell_activation gradient_curves gradient_norms",
        "report": "ComparedModel ReportSample RunReport compare_results",
        "text_map": "TextMap",
        "tokens": "encoder_inputs lattice",
    },
)
