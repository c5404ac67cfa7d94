"""Texts of megabytes, encoded in parts: the library holds a hundred bytes for each character.

A text is cut before a space between two ASCII letters or digits. Tokenizers that first of all
separate words there, by white space or by the regular expression of GPT-2, give the same tokens to
the parts as to the whole text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tokenizers

Encode = Callable[[Sequence[str]], list[list[int]]]

LONG = 2**20  # characters; shorter texts are encoded as a whole
PART = 2**18  # characters of a part, at least
AT_ONCE = 2**20  # characters of parts in one call
SPACE = re.compile(r"(?<=[0-9A-Za-z]) (?=[0-9A-Za-z])")
WORDS_APART = ("BertPreTokenizer", "Whitespace", "WhitespaceSplit")
# Of characters, or of characters with those that modify them: none looks across a space.
LOCAL = ("BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "StripAccents")


def can_be_divided(fast: tokenizers.Tokenizer) -> bool:
    """Whether this tokenizer gives the same tokens to the parts of a text as to the whole."""
    content: dict[str, Any] = json.loads(fast.to_str())
    if any(_takes_spaces(fast, token) for token in content["added_tokens"]):
        return False
    steps = _steps(content["pre_tokenizer"], "pretokenizers")
    if any(step.get("prepend_scheme") == "first" for step in steps):  # of a text, so of each part
        return False
    apart = steps and (
        steps[0]["type"] in WORDS_APART
        or (len(steps) == 1 and steps[0]["type"] == "ByteLevel" and steps[0]["use_regex"])
    )
    local = all(step["type"] in LOCAL for step in _steps(content["normalizer"], "normalizers"))
    return bool(apart) and local


def _takes_spaces(fast: tokenizers.Tokenizer, token: dict[str, Any]) -> bool:
    """Whether an added token has a space inside, as written or as it is searched in a normalized
    text, or takes the spaces after it.
    """
    searched = content = token["content"]
    if token["normalized"] and fast.normalizer is not None:
        searched = fast.normalizer.normalize_str(content)
    return token["rstrip"] or any(map(str.isspace, content + searched))


def encode_in_parts(encode: Encode, texts: Sequence[str]) -> list[list[int]]:
    """The ids of each text.  encode: gives the ids of texts, by a tokenizer that can be divided."""
    ids: list[list[int]] = [[] for _ in texts]
    waiting: list[tuple[int, str]] = []
    characters = 0  # that wait
    for number, text in enumerate(texts):
        for part in parts(text):
            waiting.append((number, part))
            characters += len(part)
            if characters >= AT_ONCE:
                _encode(encode, waiting, ids)
                waiting, characters = [], 0
    _encode(encode, waiting, ids)
    return ids


def parts(text: str) -> Iterator[str]:
    """The parts of a text, which are the text if they are joined."""
    start = 0
    while (space := SPACE.search(text, start + PART)) is not None:
        yield text[start : space.start()]
        start = space.start()
    yield text[start:]


def _encode(encode: Encode, parts: Sequence[tuple[int, str]], ids: Sequence[list[int]]) -> None:
    rows = encode([part for _, part in parts])
    for (number, _), row in zip(parts, rows, strict=True):
        ids[number].extend(row)


def _steps(part: dict[str, Any] | None, name: str) -> list[dict[str, Any]]:
    """The steps of a normalizer or pre-tokenizer, which may be a sequence of them."""
    if part is None:
        return []
    return part[name] if part["type"] == "Sequence" else [part]
