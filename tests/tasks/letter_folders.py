"""Folders of tiny encoders, with pieces of single letters, as `transformers` writes them.

Words of many pieces are what these are for.
"""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

SIZE = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2)
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = [*string.ascii_lowercase, *string.digits, *".,!?'-()$%:\u6771"]


def bert(folder: Path, ending: str, positions: int = 64, **options: Any) -> Path:
    """A BERT whose pieces are single characters and a few words."""
    folder.mkdir()
    pieces = [*SPECIALS, *LETTERS, *(f"##{letter}" for letter in LETTERS), "the", "##ing", "in"]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    transformers.BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=len(pieces), max_position_embeddings=positions, **SIZE, **options
    )
    torch.manual_seed(1)
    model = getattr(transformers, f"BertFor{ending}")(config).eval()
    with torch.no_grad():  # far enough from their start for answers to differ
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.5 if weight.dim() > 1 else 0.05)
    model.save_pretrained(folder)
    return folder
