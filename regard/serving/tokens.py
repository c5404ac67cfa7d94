"""Tokens of texts, and what the tokenizer of a model is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from regard.serving.work import Work, work_maker

if TYPE_CHECKING:
    from regard.serving.models import ServedModel
    from regard.serving.requests import Tokenize
    from regard.tasks.task import Task


def tokenize(served: ServedModel, request: Tokenize) -> Work:
    """The tokens of texts, or the ids of a prompt.

    Raises:
        ConfigError: neither is given, or both.
    """
    work = work_maker(tokens_of_texts)(served, request)
    if (prompt := request.prompt) is None:
        return work
    roles, id_of = served.task.tokenizer.roles, served.task.tokenizer.id

    def render(results: list[Any]) -> dict[str, Any]:
        # Clients of vLLM ask so for the ids of the tokens that `/tokenizer_info` names.
        ids = [id_of(prompt)] if prompt in roles.values() else results[0]["ids"]
        return {"count": len(ids), "tokens": ids}

    return replace(work, render=render)


def tokens_of_texts(task: Task, items: list[Any], options: dict[str, Any]) -> list[Any]:
    """The tokens of each text, without those that a model adds, and where each stands in it."""
    found = []
    for text in items:
        encoding = task.tokenizer.encode(text)
        names = [task.tokenizer.token(number) for number in encoding.ids]
        offsets = [list(both) for both in encoding.offsets]
        found.append({"ids": list(encoding.ids), "tokens": names, "offsets": offsets})
    return found


def tokenizer_info(task: Task) -> dict[str, Any]:
    """The kind, the size and the special tokens of a model's tokenizer; some also under the names
    that vLLM's `/tokenizer_info` has for them.
    """
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
    named = {f"{role}_token": tokenizer.roles.get(role) for role in ("bos", "eos", "pad")}
    return {
        "kind": tokenizer.kind,
        "vocab_size": tokenizer.vocab_size,
        "special_tokens": special,
        "max_length": task.module.config.max_length,
        **named,
    }
