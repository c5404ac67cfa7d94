"""Calls the `tokenizers` library and turns its exceptions into errors of this library.

`tokenizers` raises plain `Exception`s, and its Rust code panics on input that its authors did not
expect, such as a regular expression that exceeds its limits or an index out of range. A panic
becomes a pyo3_runtime.PanicException, which `except Exception` does not catch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import tokenizers

from regard.errors import DataError, RegardError

T = TypeVar("T")


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
