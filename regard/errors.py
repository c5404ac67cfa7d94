"""Errors that a user can act on. Each says what is wrong, where, and what to do.

RegardError
├── DataError         a file of data: names file, line and field
│   └── TextError     one of several texts that a task is given
│       └── TextTooLong   it is longer than the model reads
├── ConfigError       a recipe, an option, a model's configuration
│   └── NotSupportedError   a method or command that the task of a model does not have
├── CheckpointError   a run folder or a file of weights
└── MissingExtra      an optional package is needed: names its install line
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Collection
from numbers import Integral
from pathlib import Path


class RegardError(ValueError):
    """What the user gave cannot be honoured; the message says why and what to do."""


class DataError(RegardError):
    """A data file is missing, malformed or of the wrong shape."""

    def __init__(self, path: str | Path, line: int | None, problem: str, hint: str = ""):
        self.path, self.line, self.problem, self.hint = str(path), line, problem, hint
        where = f"{path}:{line}" if line is not None else str(path)
        message = f"{where}: {problem}" + (f" {hint}" if hint else "")
        super().__init__(message.encode(errors="backslashreplace").decode())  # can be printed


class TextError(DataError):
    """There is no prediction for one of several texts.

    index: of the text, from 0.  what: how the message calls a text ("Question").
    """

    def __init__(self, index: int, problem: str, hint: str = "", *, what: str = "Text"):
        super().__init__("texts", index + 1, problem, hint)
        self.index, self.what = index, what
        self.args = (f"{what} {index + 1} {problem} {hint}".rstrip(),)

    def of_row(self, file: str, line: int) -> DataError:
        """The error for the row of a file that has the text."""
        return DataError(file, line, self.problem, self.hint)

    def moved(self, count: int) -> TextError:
        """The same error, counted in a list with `count` texts before these."""
        return TextError(self.index + count, self.problem, self.hint, what=self.what)


class TextTooLong(TextError):
    """A text is longer than the model reads.

    shorten: what to do with the text.  cut: what `too_long="truncate"` does with it.
    """

    def __init__(
        self,
        index: int,
        problem: str,
        shorten: str = "Shorten it",
        cut: str = "cut its end",
        *,
        what: str = "Text",
    ):
        super().__init__(
            index,
            problem,
            f"{shorten}, or {cut} with `too_long` (--too-long) truncate.",
            what=what,
        )
        self.shorten, self.cut = shorten, cut

    def moved(self, count: int) -> TextTooLong:
        """The same error, counted in a list with `count` texts before these."""
        return TextTooLong(self.index + count, self.problem, self.shorten, self.cut, what=self.what)

    def without_option(self) -> TextError:
        """The same error where there is no option `too_long`."""
        return TextError(self.index, self.problem, f"{self.shorten}.", what=self.what)


class ConfigError(RegardError):
    """A recipe, an option or a configuration is wrong."""


class NotSupportedError(ConfigError):
    """The task of this model does not have a method or command that other tasks have.

    The message says which ones it has.
    """


PACKAGE = str(Path(__file__).parent) + os.sep


def warn(message: str) -> None:
    """Warn, at the line that has called this package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def check_at_least(least: int, **options: int | None) -> None:
    """Check that each of these options is a whole number, `least` or more; None is no number.

    Raises:
        ConfigError: one is not.
    """
    for name, value in options.items():
        if isinstance(value, bool) or not (value is None or isinstance(value, Integral)):
            raise ConfigError(f"`{name}` must be a whole number, but is {shown(value)}.")
        if value is not None and value < least:
            raise ConfigError(f"`{name}` must be at least {least}, but is {value}.")


def check_choice(option: str, value: object, choices: Collection[object]) -> None:
    """Check that an option has one of these values.

    Raises:
        ConfigError: it has another one.
    """
    if value not in choices:
        names = ", ".join(map(str, choices))
        raise ConfigError(f"`{option}` must be one of {names}, but is {value!r}.")


class CheckpointError(RegardError):
    """A run folder or weights cannot be read or written."""


class MissingExtra(RegardError):
    """An optional package is not installed.

    Args:
        extra: the extra of Regard that installs the package.
        distribution: the name for pip if no extra does.
    """

    def __init__(self, package: str, extra: str, purpose: str, distribution: str | None = None):
        installed = distribution or f"'regard[{extra}]'"
        super().__init__(
            f"{purpose} needs `{package}`, which is not installed. "
            f"Install it with: pip install {installed}"
        )


def shown(value: object, most: int = 80) -> str:
    """A value as a message shows it, at most so many characters; its type where it has no text."""
    try:
        return repr(value)[:most]
    except Exception:  # nested too deeply, or an object with a faulty `__repr__`
        return f"a {type(value).__name__}"
