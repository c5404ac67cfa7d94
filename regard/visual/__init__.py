"""Pictures of what models do: for the terminal, a notebook, a file, a page.

Internal: names that `regard` itself does not have may change with every version.
"""

from regard.lazy import names_of

__all__, __getattr__ = names_of(
    __name__,
    {
        "attention_record": "attention_comparison look run_encoder",
        "charts": "Curves Heatmap Series mask_grid sinusoids sparse_patterns",
        "decoding": "BeamNode BeamTrace BeamTree Distribution next_tokens",
        "head_grid": "HeadGrid Panel",
        "image_regions": "AttendedRegions attended_regions",
        "picture": "Illustration Note Picture PictureColumn PictureRow Table",
        "recurrent_cells": "CellText FoundCell cell_activation find_cells gradient_curves "
        "gradient_norms python_properties text_properties",
        "report": "RunReport",
        "texts": "TextMap TreePicture encoder_inputs n_best_picture",
    },
)
