"""Tokenization step by step, as `regard.text.explain` has it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from regard.text.explain import LookedUpWord, MatchedWord, MergedWord, SegmentedWord, encoding

if TYPE_CHECKING:
    from regard.tasks.task import Task

ALGORITHMS: dict[type, str] = {
    MergedWord: "merges",
    MatchedWord: "longest match",
    SegmentedWord: "best segmentation",
    LookedUpWord: "vocabulary",
}


def tokenization_steps(task: Task, items: list[str], options: dict[str, Any]) -> list[Any]:
    """The words of each text, with the steps in which each becomes tokens."""
    return [
        {
            "tokenizer": task.tokenizer.kind,
            "words": [_values(word) for word in encoding(task.tokenizer, text)],
        }
        for text in items
    ]


def _values(word: Any) -> dict[str, Any]:
    """The fields of a word as JSON has them."""
    values = {"algorithm": ALGORITHMS[type(word)], **asdict(word), "tokens": list(word.tokens)}
    if isinstance(word, SegmentedWord):
        values["best_share"] = word.best_share
    return values
