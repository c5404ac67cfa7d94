"""Streams, error messages and exit codes of the command line.

stdin     texts to process, line by line as they arrive, where the command names none
stdout    the result, and with --json nothing but JSON
stderr    progress, warnings and errors
"""

import gc
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import typer
from typer.core import TyperGroup

from regard.data.files import ENDINGS, ending, is_file_name, line_blocks, without_ends
from regard.data.text_chunks import MAX_TEXTS, Chunk
from regard.errors import ConfigError, DataError, RegardError, warn
from regard.progress import Lines, clock
from regard.schema import to_json as to_json

UNEXPECTED, USER_ERROR, INTERRUPTED, BROKEN_PIPE = 1, 2, 130, 141
DEBUG = "REGARD_DEBUG"  # an environment variable: errors are shown with their traceback
ONE_PROCESS = (  # commands that torchrun must not start several times
    *("cross-validate", "compare", "sweep"),
    *("quantize", "export", "corpus", "init", "serve"),
)

_results: IO[str] | None = None  # where `emit` writes while `json_alone` holds; None: sys.stdout


class Commands(TyperGroup):
    """The commands. Each ends with an exit code, and with one message where it fails."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is called.

        Raises:
            ConfigError: torchrun started it in several processes, and it needs one.
        """
        if args[0] in ONE_PROCESS and int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1:
            raise ConfigError(
                f"`regard {args[0]}` needs one process: start it without torchrun, which is for "
                "`regard train` and `regard resume`."
            )
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with exit_codes():
            return super().invoke(ctx)


@contextmanager
def exit_codes() -> Iterator[None]:
    """Turn errors into a message and an exit code; a traceback only under REGARD_DEBUG."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: say(f"warning: {message}")  # type: ignore[assignment]
            yield
    except (typer.Exit, typer.Abort):
        raise
    except KeyboardInterrupt as error:  # `Interrupted` of training has a message and a code
        _exit(error, str(error) or "interrupted", getattr(error, "code", INTERRUPTED))
    except RegardError as error:
        _exit(error, f"error: {error}", USER_ERROR)
    except BrokenPipeError as error:
        _discard_output()
        _exit(error, "", BROKEN_PIPE)
    except OSError as error:
        try:
            sys.stdout.flush()
        except OSError:
            _discard_output()
        file = f"{error.filename}: " if error.filename else ""
        _exit(error, f"error: {file}{error.strerror or error}", USER_ERROR)
    except Exception as error:
        if hasattr(error, "exit_code"):  # a wrong command line: typer prints the message
            raise
        kind = type(error).__name__
        message = f"unexpected error: {kind}: {error}\nSet {DEBUG}=1 to see where it comes from."
        _exit(error, message, UNEXPECTED)


def _discard_output() -> None:
    """Output that cannot be written goes nowhere: Python would report it again at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _exit(error: BaseException, message: str, code: int) -> None:
    if os.environ.get(DEBUG):
        raise error
    if message:
        say(message)
    raise typer.Exit(code) from None


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Inside, modules are imported without garbage collection, which would free nothing.

    It would take an eighth of the time that torch needs to be imported.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.freeze()


@no_garbage_collection()
def load_task(model: str | Path, **opening: Any) -> Any:
    """The task of a folder; `opening`: options of `regard.load`."""
    from regard.malloc import keep_freed_blocks
    from regard.tasks.folders import load

    task = load(model, **opening)
    keep_freed_blocks()
    return task


def say(message: str) -> None:
    """Print a message that is not part of the result; where it cannot be printed, work goes on."""
    with suppress(OSError):
        typer.echo(message, err=True)


def warn_truncated(
    truncated: int, total: int, limit: int | None = None, what: str = "texts"
) -> None:
    """Warn how many of the texts, or of what they are called, were truncated, where any were."""
    if truncated:
        from regard.tasks.inputs import warn_of_truncation

        warn_of_truncation(truncated, total, what, limit)


def warn_unfinished(unfinished: int, total: int) -> None:
    """Warn how many outputs reached the limit on their length, where any did."""
    if unfinished:
        of = f"{unfinished:,} of {total:,} answers"
        warn(f"{of} were cut off at the limit on their length (--max-tokens)")


def emit(text: str) -> None:
    """Write a part of the result and flush it."""
    out = _results or sys.stdout
    try:
        out.write(text)
        out.flush()
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from error


def json_alone(context: typer.Context, as_json: bool) -> bool:
    """The callback of --json: what others than `emit` print goes to stderr until the command ends.

    Libraries print on stdout in their own threads, as Ray does when a machine dies.
    """
    if as_json and _results is None:
        context.with_resource(_results_apart())
    return as_json


@contextmanager
def _results_apart() -> Iterator[None]:
    """Within it, `emit` alone writes to stdout: what libraries print goes to stderr."""
    global _results
    _results = stdout = sys.stdout
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        _results, sys.stdout = None, stdout


def show(facts: Any, text: str, as_json: bool) -> None:
    """Write the result: `facts` as JSON on one line, or `text`; nothing where that is empty."""
    if as_json or text:
        emit((to_json(facts) if as_json else text) + "\n")


def show_drawn(facts: Mapping[str, Any], draw: Callable[[], Any], as_json: bool) -> None:
    """Draw a picture or a table in the terminal, or write its facts as JSON."""
    if as_json:
        show(facts, "", True)
    else:
        draw().show()


def write_utf8(stream: IO[str]) -> None:
    """Write UTF-8 to files and pipes, whatever the locale.

    A path that is not UTF-8 does not end the output: its bytes are written as escapes.
    """
    if not hasattr(stream, "reconfigure"):
        return
    stream.reconfigure(errors="backslashreplace")
    if not stream.isatty():
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def with_progress(items: Sequence[Any], label: str) -> Iterator[Any]:
    """The items one after another, with a bar on a terminal and lines elsewhere."""
    if not sys.stderr.isatty():
        lines, began = Lines(), time.monotonic()
        due = began + lines.every
        for done, item in enumerate(items, 1):
            yield item
            if (now := time.monotonic()) >= due:
                left = clock((now - began) * (len(items) / done - 1))
                lines.say(f"{label}: {done / len(items):.0%} · {left} left")
                due = now + lines.every
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(items, label, console=Console(stderr=True), transient=True)


# ---- input

STANDARD_INPUT = "standard input"
LINES = "< {}, without the name as a text"  # how a file is given to a command that reads lines


def check_no_file(texts: Sequence[str] | None, form: str = LINES, table: str = "") -> None:
    """Check that no text is the name of a file, whose contents are meant.

    form: how a file is given to the command.  table: how a table is, where in another way.

    Raises:
        ConfigError: one is.
    """
    if name := next(filter(is_file_name, texts or ()), None):
        right = (table if table and ending(name) in ENDINGS else form).format(name)
        raise ConfigError(f"{name!r} is given as a text, but is a file. Give {right}.")


def chunks_of(texts: Sequence[str] | None) -> Iterator[Chunk]:
    """The given texts; those of standard input where there are none, or "-" alone.

    Raises:
        DataError: a text is not UTF-8; lines of standard input before it have been yielded.
    """
    if not texts or list(texts) == ["-"]:
        yield from _arriving(sys.stdin.buffer)
    else:
        yield Chunk(0, list(map(checked_argument, texts)), "text")


def checked_argument(text: str) -> str:
    """A text of the command line.

    Raises:
        DataError: it is not UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError:  # Python decodes other bytes to lone surrogates
        raise DataError("text", None, "has bytes that are not UTF-8.", "Give UTF-8.") from None
    return text


def _arriving(stream: Any) -> Iterator[Chunk]:
    """The lines of a stream; what has been read is yielded before more is waited for.

    Raises:
        DataError: a line is not UTF-8; those before it have been yielded.
    """
    first = 0
    for block in line_blocks(stream, STANDARD_INPUT):
        texts = without_ends(block)
        for start in range(0, len(texts), MAX_TEXTS):
            chunk = Chunk(first, texts[start : start + MAX_TEXTS], STANDARD_INPUT)
            yield chunk
            first += len(chunk.texts)
