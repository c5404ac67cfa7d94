"""What `regard.data` gives is what it gave before: tests/results/data.json."""

from __future__ import annotations

from functools import cache

import every_task
import numpy as np
from PIL import Image
from stored_results import check, each_section

from regard.text import Tokenizer, train

SIZES = {"words": 60, "wordpiece": 60, "byte-bpe": 300, "unigram": 40, "characters": 40}


@cache
def tokenizer(kind: str) -> Tokenizer:
    """A small tokenizer; that of word pieces has the special tokens of BERT."""
    special = {"special_tokens": every_task.SPECIALS} if kind == "wordpiece" else {}
    return train(kind, every_task.lines(), SIZES[kind], **special)


def picture(number: int) -> None:
    """Write a small image whose name is its number."""
    pixels = np.arange(30, dtype=np.uint8).reshape(2, 5, 3) * (number + 1)
    Image.fromarray(pixels).save(f"{number}.png")


@each_section("data")
def test_statements_give_what_they_gave_before(section):
    check("data", section)
