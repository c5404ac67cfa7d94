"""Tokens of texts, and what the tokenizer of a model is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.tasks.verbs import TaskVerbs


def tokenized(task: TaskVerbs, items: list[Any], options: dict[str, Any]) -> list[Any]:
    """The tokens of each text, without those that a model adds, and where each stands in it."""
    found = []
    for text in items:
        encoding = task.tokenizer.encode(text)
        names = [task.tokenizer.token(number) for number in encoding.ids]
        offsets = [list(both) for both in encoding.offsets]
        found.append({"ids": list(encoding.ids), "tokens": names, "offsets": offsets})
    return found


def tokenizer_info(task: TaskVerbs) -> dict[str, Any]:
    """The kind, the size and the special tokens of a model's tokenizer."""
    tokenizer = task.tokenizer
    ids = {
        "bos": tokenizer.bos_id,
        "eos": tokenizer.eos_id,
        "pad": tokenizer.pad_id,
        "unk": tokenizer.unk_id,
        "mask": tokenizer.mask_id,
    }
    special = {
        role: {"id": number, "token": tokenizer.token(number)}
        for role, number in ids.items()
        if number is not None
    }
    return {
        "kind": tokenizer.kind,
        "vocab_size": tokenizer.vocab_size,
        "special_tokens": special,
        "max_length": task.model.config.max_length,
    }
