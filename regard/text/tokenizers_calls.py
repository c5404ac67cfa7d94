"""Calls the `tokenizers` library and turns its exceptions into errors of this library.

`tokenizers` raises plain `Exception`s, and its Rust code panics on input that its authors did not
expect, such as a regular expression that exceeds its limits or an index out of range. A panic
becomes a pyo3_runtime.PanicException, which `except Exception` does not catch.
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

LONGEST = 10_000  # by this factor replacements may lengthen a text
LARGEST = 10**8  # characters that a replacement may make of the test text


def reason(error: BaseException) -> str:
    """The message of an exception of `tokenizers`, in one line.

    Raises:
        BaseException: `error` itself, if `tokenizers` did not cause it: an interrupt or a lack of
            memory.
    """
    if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit | MemoryError):
        raise error
    message = " ".join(str(error).split()) or type(error).__name__
    return message if len(message) <= 300 else f"{message[:297]}..."


def call(work: Callable[[], T], problem: Callable[[str], RegardError]) -> T:
    """Return `work()`; what `tokenizers` raises in it becomes the error `problem(reason)`."""
    try:
        return work()
    except RegardError:
        raise
    except BaseException as error:
        raise problem(reason(error)) from None


def parse(path: Path, text: str) -> tokenizers.Tokenizer:
    """The tokenizer of a tokenizer.json, read from `path`.

    Raises:
        DataError: `tokenizers` cannot read it.
    """

    def problem(message: str) -> DataError:
        hint = "Was it written by a newer release of `tokenizers`?"
        return DataError(path, None, f"is not a valid tokenizer.json: {message}.", hint)

    return call(lambda: tokenizers.Tokenizer.from_str(text), problem)


def check_growth(path: Path, content: dict[str, Any]) -> None:
    """Raise an error for replacement rules that make a short text too long for the memory.

    Thirty rules that replace "a" by "aa", one after another, turn every "a" into a gigabyte.

    Raises:
        DataError: a test text of the replaced and the inserted characters grows too much.
    """
    for part in ("normalizer", "decoder"):
        rules = [rule for rule in _steps(content.get(part)) if rule.get("type") == "Replace"]
        text = probe = "".join(dict.fromkeys(json.dumps(rules, ensure_ascii=False))) + "\n\t é"
        for rule in rules:
            inserted = rule.get("content")
            size = len(text) * len(inserted) if isinstance(inserted, str) else 0
            if size <= LARGEST:  # an upper bound of the result's length
                text = _replaced(rule, text)
            if size > LARGEST or len(text) > LONGEST * len(probe):
                problem = (
                    f"the replacements of its {part} make texts over {LONGEST:,} times as long."
                )
                raise DataError(
                    path, None, problem, "Remove replacements of what other replacements insert."
                )


def _steps(part: Any) -> Iterator[dict[str, Any]]:
    """The steps of a normalizer or decoder, those of nested sequences included."""
    if isinstance(part, dict):
        yield part
        for name in ("normalizers", "decoders"):
            inner = part.get(name)
            for step in inner if isinstance(inner, list) else []:
                yield from _steps(step)


def _replaced(rule: dict[str, Any], text: str) -> str:
    """The text after one replacement; unchanged if `tokenizers` cannot read the rule."""
    pattern, content = rule.get("pattern"), str(rule.get("content"))
    kind = "Regex" if isinstance(pattern, dict) and "Regex" in pattern else "String"
    try:
        written = pattern[kind]  # type: ignore[index]
        expression = tokenizers.Regex(written) if kind == "Regex" else written
        return normalizers.Replace(expression, content).normalize_str(text)
    except BaseException as error:
        reason(error)
        return text
