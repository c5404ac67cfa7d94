"""SegaBERT's published layout: BERT's, with three tables of positions.

Its folders say that they are BERT's (`model_type`), and most do not say how large the tables are:
their tensors tell both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from regard.checkpoints.formats import bert
from regard.checkpoints.formats.config_table import ConfigTable, Field
from regard.checkpoints.formats.encoder_layout import EncoderLayout
from regard.models.config import Size
from regard.models.segabert import SegaBert

TABLES = {
    "paragraphs": "para_position_embeddings",
    "sentences": "sent_position_embeddings",
    "sentence_length": "token_position_embeddings",
}


@dataclass(frozen=True)
class SegaBertLayout(EncoderLayout):
    """BERT's, where the tensors say how large the tables of positions are."""

    def _adjusted(self, ours: Any, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Any:
        sizes = {}
        for name, table in TABLES.items():
            tensor = tensors.get(f"{self.prefix}embeddings.{table}.weight")
            if tensor is not None and tensor.dim() and config.get(f"max_{table}") is None:
                sizes[name] = tensor.size(0)
        return replace(ours, **sizes)


SEGABERT = SegaBertLayout(
    model=SegaBert,
    family="Bert",
    model_type="bert",
    config=ConfigTable(
        bert.FIELDS
        | {
            "paragraphs": Field("max_para_position_embeddings", 50, Size),
            "sentences": Field("max_sent_position_embeddings", 100, Size),
            "sentence_length": Field("max_token_position_embeddings", 512, Size),
        },
        bert.FIXED,
        bert.SILENT,
        only=bert.LEARNED,
    ),
    prefix="bert.",
    body=[
        *(row for row in bert.BODY if row[0] != "positions.vectors.weight"),
        ("positions.paragraph.weight", "embeddings.para_position_embeddings.weight"),
        ("positions.sentence.weight", "embeddings.sent_position_embeddings.weight"),
        ("positions.token.weight", "embeddings.token_position_embeddings.weight"),
    ],
    # BERT's own table is in their files, but nothing reads it.
    ignored=[*bert.IGNORED, "embeddings.position_embeddings.weight"],
    heads=bert.BERT.heads,
    unsupported_architectures=bert.BERT.unsupported_architectures,
)
