"""GPT's input transformations: texts of any task as one row for a model that reads to the right.

    one text      start A extract
    two           start A delimiter B extract
    choices       start context question delimiter choice extract, one row for each

The three pieces are new, and so are their vectors; what stands at `extract` sums up the row ("Input
transformations", Radford et al. 2018, section 3.3 and figure 1).
"""

from __future__ import annotations

from regard.models.headed import Headed
from regard.models.resize_embeddings import with_vocabulary
from regard.text import Tokenizer

# role -> the piece that is added; padding only where the tokenizer has none
MARKS = {"bos": "[START]", "sep": "[DELIMITER]", "cls": "[EXTRACT]", "pad": "[PAD]"}


def transformed(model: Headed, tokenizer: Tokenizer, source: Headed) -> tuple[Headed, Tokenizer]:
    """Model and tokenizer with the pieces that mark texts, where the model reads to the right.

    A tokenizer that marks texts already stays as it is. So does that of a model whose head is the
    one that its `source` came with: it was trained on rows as the tokenizer's file says.
    """
    kept = set(model.heads.values()) & set(source.heads.values())
    if not model.encoder.continues or kept:
        return model, tokenizer
    if not _marks(tokenizer):
        given = {role: piece for role, piece in MARKS.items() if role != "pad"}
        tokenizer = tokenizer.with_roles(MARKS if tokenizer.pad_id is None else given)
        tokenizer = tokenizer.with_template(model.encoder.template(tokenizer))
    ids = {"bos": tokenizer.bos_id, "pad": tokenizer.pad_id}
    return with_vocabulary(model, tokenizer.vocab_size, **ids), tokenizer


def _marks(tokenizer: Tokenizer) -> bool:
    """Whether texts have marks around them, in the tokenizer's file or by the model's own rule."""
    template = tokenizer.template
    roles = (tokenizer.bos_id, tokenizer.sep_id, tokenizer.cls_id)
    return None not in roles and (template is None or template.special_count(2) > 2)
