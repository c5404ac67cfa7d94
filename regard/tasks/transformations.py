"""GPT's input transformations: the texts of any task as one sequence for a causal model.

    one text      start A extract
    two           start A delimiter B extract
    choices       start context question delimiter choice extract, one row for each

The three special tokens are new, and so are their embeddings; the hidden state at `extract`
represents the sequence ("Input transformations", Radford et al. 2018, section 3.3 and figure 1).
"""

from __future__ import annotations

from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.resizing import with_vocabulary
from regard.text import Tokenizer

# role -> the special token that is added; padding only where the tokenizer has none
SPECIAL_TOKENS = {"bos": "[START]", "sep": "[DELIMITER]", "cls": "[EXTRACT]", "pad": "[PAD]"}


def transformed(
    model: EncoderWithHeads, tokenizer: Tokenizer, source: EncoderWithHeads
) -> tuple[EncoderWithHeads, Tokenizer]:
    """A causal model and its tokenizer with special tokens around texts; others as they are.

    If the tokenizer already defines these special tokens they are reused. A model that keeps the
    head of its `source` keeps its own input format, with which the head was trained.
    """
    kept_heads = set(model.heads.values()) & set(source.heads.values())
    if not model.encoder.adds_special_tokens or kept_heads:
        return model, tokenizer
    if not _has_special_tokens(tokenizer):
        roles = {role: token for role, token in SPECIAL_TOKENS.items() if role != "pad"}
        tokenizer = tokenizer.with_roles(SPECIAL_TOKENS if tokenizer.pad_id is None else roles)
        tokenizer = tokenizer.with_template(model.encoder.template(tokenizer))
    ids = {"bos": tokenizer.bos_id, "pad": tokenizer.pad_id}
    return with_vocabulary(model, tokenizer.vocab_size, **ids), tokenizer


def _has_special_tokens(tokenizer: Tokenizer) -> bool:
    """Whether texts get special tokens, by the tokenizer's file or by the model's own rule."""
    template = tokenizer.template
    roles = (tokenizer.bos_id, tokenizer.sep_id, tokenizer.cls_id)
    return None not in roles and (template is None or template.special_count(2) > 2)
