"""Pictures of what models do: for the terminal, a notebook, a file, a page."""

from __future__ import annotations

from regard.lazy import names_of

# name: the module that has it
_PUBLIC = {
    "AttentionComparison": "compare_attention",
    "AttentionLines": "attention_lines",
    "BeamNode": "beam_tree",
    "BeamTrace": "beam_tree",
    "BeamTree": "beam_tree",
    "ComparedModel": "comparison",
    "Curves": "curves",
    "Distribution": "distribution",
    "HeadGrid": "head_grid",
    "Heatmap": "heatmap",
    "Illustration": "picture",
    "Inputs": "inputs",
    "Note": "picture",
    "Panel": "head_grid",
    "Picture": "picture",
    "PictureColumn": "picture",
    "PictureRow": "picture",
    "ReportSample": "report",
    "RunReport": "report",
    "Series": "curves",
    "Table": "table",
    "compare_results": "comparison",
    "contextual_vectors": "contextual_words",
    "look": "attention_record",
    "mask_grid": "positions_and_masks",
    "next_tokens": "distribution",
    "position_table": "positions_and_masks",
    "run_encoder": "attention_record",
    "sinusoids": "positions_and_masks",
    "vocabulary_statistics": "vocabulary",
}
__all__ = list(_PUBLIC)


__getattr__ = names_of(__name__, _PUBLIC)
