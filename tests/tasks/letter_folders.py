"""Folders of tiny encoders, with pieces of single letters, as `transformers` writes them.

Words of many pieces are what these are for.
"""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import pytest
import tokenizers
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
    return saved(getattr(transformers, f"BertFor{ending}"), config, folder)


def byte_level(folder: Path, family: str, ending: str, **options: Any) -> Path:
    """A RoBERTa or a GPT-2 with byte-level pieces: bytes and a few merges."""
    folder.mkdir()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    fast = tokenizers.ByteLevelBPETokenizer()
    fast.train_from_iterator(
        ["the cat in the hat", "der Hut über dem Tür 東京"] * 4, 300, 2, special_tokens=special
    )
    fast.save_model(str(folder))
    kind = {"Roberta": transformers.RobertaTokenizerFast, "GPT2": transformers.GPT2TokenizerFast}
    read = {"vocab": str(folder / "vocab.json"), "merges": str(folder / "merges.txt")}
    kind[family](**read, add_prefix_space=False).save_pretrained(folder)
    if family == "GPT2":
        options |= dict(n_embd=16, n_layer=2, n_head=2, n_positions=64)
        options |= dict(bos_token_id=292, eos_token_id=292)
    else:
        options |= dict(**SIZE, max_position_embeddings=66, type_vocab_size=1)
        options |= dict(pad_token_id=1, bos_token_id=0, eos_token_id=2)
    config = getattr(transformers, f"{family}Config")(vocab_size=310, **options)
    return saved(getattr(transformers, f"{family}For{ending}"), config, folder)


def saved(kind: Any, config: Any, folder: Path) -> Path:
    """A model with weights far enough from their start for its answers to differ."""
    torch.manual_seed(1)
    model = kind(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.5 if weight.dim() > 1 else 0.05)
    model.save_pretrained(folder)
    return folder
