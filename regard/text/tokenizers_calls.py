"""Errors of the `tokenizers` library as errors of this one.

The library raises plain `Exception`s, and where it meets what its authors thought impossible it
panics: a regular expression that gives up, a table that points outside itself. A panic arrives as
pyo3_runtime.PanicException, which no `except Exception` catches.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import tokenizers
from tokenizers import normalizers

from regard.errors import DataError, RegardError

T = TypeVar("T")

LONGEST = 10_000  # times that replacements may lengthen a text
LARGEST = 10**8  # characters that one replacement may make of the text that tries it


def reason(error: BaseException) -> str:
    """What went wrong inside the library, in one line.

    Raises:
        BaseException: `error` itself, where it is not the library's: an interrupt, no memory left.
    """
    if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit | MemoryError):
        raise error
    said = " ".join(str(error).split()) or type(error).__name__
    return said if len(said) <= 300 else f"{said[:297]}..."


def call(work: Callable[[], T], problem: Callable[[str], RegardError]) -> T:
    """`work()`; whatever the library raises in it is `problem(reason)`."""
    try:
        return work()
    except RegardError:
        raise
    except BaseException as error:
        raise problem(reason(error)) from None


def parse(path: Path, text: str) -> tokenizers.Tokenizer:
    """The tokenizer of a tokenizer.json, read from `path`.

    Raises:
        DataError: the library cannot read it.
    """

    def problem(said: str) -> DataError:
        hint = "Was it written by a newer release of `tokenizers`?"
        return DataError(path, None, f"does not parse as tokenizer.json: {said}.", hint)

    return call(lambda: tokenizers.Tokenizer.from_str(text), problem)


def check_growth(path: Path, content: dict[str, Any]) -> None:
    """Refuse replacements that make a short text so long that memory does not hold it.

    Thirty replacements of "a" by "aa", one after the other, make a gigabyte of every "a".

    Raises:
        DataError: a text of the replaced and the inserted characters grows too much.
    """
    for part in ("normalizer", "decoder"):
        rules = [rule for rule in _steps(content.get(part)) if rule.get("type") == "Replace"]
        text = probe = "".join(dict.fromkeys(json.dumps(rules, ensure_ascii=False))) + "\n\t é"
        for rule in rules:
            inserted = rule.get("content")
            size = len(text) * len(inserted) if isinstance(inserted, str) else 0
            if size <= LARGEST:  # at most so long is the text that comes out
                text = _replaced(rule, text)
            if size > LARGEST or len(text) > LONGEST * len(probe):
                problem = f"the replacements of its {part} make texts {LONGEST:,} times as long."
                raise DataError(path, None, problem, "Remove those that feed each other.")


def _steps(part: Any) -> Iterator[dict[str, Any]]:
    """The steps of a normalizer or decoder; a sequence has several."""
    if isinstance(part, dict):
        yield part
        for name in ("normalizers", "decoders"):
            inner = part.get(name)
            for one in inner if isinstance(inner, list) else []:
                yield from _steps(one)


def _replaced(rule: dict[str, Any], text: str) -> str:
    """The text after one replacement; unchanged where the library cannot make the rule."""
    pattern, content = rule.get("pattern"), str(rule.get("content"))
    kind = "Regex" if isinstance(pattern, dict) and "Regex" in pattern else "String"
    try:
        found = pattern[kind]  # type: ignore[index]
        made = tokenizers.Regex(found) if kind == "Regex" else found
        return normalizers.Replace(made, content).normalize_str(text)
    except BaseException as error:
        reason(error)
        return text
