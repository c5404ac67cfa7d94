"""What goes to which stream, what an error looks like, and what an exit code means.

stdout    the result, and with --json nothing but JSON
stderr    everything a person is told beside it
"""

from __future__ import annotations

import gc
import inspect
import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import IO, Annotated, Any, Literal, get_type_hints

import typer
from typer.core import TyperGroup

from regard.errors import ConfigError, RegardError

UNEXPECTED, MENDABLE, INTERRUPTED, BROKEN_PIPE = 1, 2, 130, 141
DEBUG = "REGARD_DEBUG"  # an environment variable: show where an error comes from
RENAMED_VERBS = {"convert": "quantize"}
RENAMED_FLAGS = {"--weights": "`--quantize` (of `regard quantize`: `--dtype`)"}


def _existing(model: Path) -> Path:
    """Says that there is no such folder before anything heavy is imported to look into it."""
    from regard.checkpoints.hub import NAME, resolve

    if model.parent.is_dir() or not NAME.fullmatch(str(model)):
        resolve(model)
    return model


Model = Annotated[
    Path,
    typer.Argument(help="A run's folder, or a folder with a model.", callback=_existing),
]
Quantize = Annotated[
    Literal["int8", "bfloat16"] | None,
    typer.Option(help="Quantize the weights: faster answers on a CPU."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show warnings alone, no progress.")]


class Verbs(TyperGroup):
    """The verbs, every one of which ends with a message and a code."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The verb that is called.

        Raises:
            ConfigError: it has another name now.
        """
        if args[0] in RENAMED_VERBS:
            new = RENAMED_VERBS[args[0]]
            raise ConfigError(f"`regard {args[0]}` is now `regard {new}`: see regard {new} --help.")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the verb."""
        with ended_with_a_code():
            return super().invoke(ctx)


@contextmanager
def ended_with_a_code() -> Iterator[None]:
    """Errors become a message on stderr and an exit code; a traceback only under REGARD_DEBUG."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warned  # type: ignore[assignment]
            yield
    except (typer.Exit, typer.Abort):
        raise
    except KeyboardInterrupt as error:  # training's Interrupted has a message and a code
        _ended(error, str(error) or "interrupted", getattr(error, "code", INTERRUPTED))
    except RegardError as error:
        _ended(error, f"error: {error}", MENDABLE)
    except BrokenPipeError as error:
        with suppress(OSError, ValueError):  # what is still buffered would complain at the end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _ended(error, "", BROKEN_PIPE)
    except OSError as error:
        _ended(error, f"error: {_said(error)}", MENDABLE)
    except Exception as error:
        if (flag := getattr(error, "option_name", None)) in RENAMED_FLAGS:
            _ended(error, f"error: `{flag}` is now {RENAMED_FLAGS[flag]}.", MENDABLE)
        if hasattr(error, "exit_code"):  # the command line was wrong: typer says how
            raise
        kind = type(error).__name__
        message = f"unexpected error: {kind}: {error}\nSet {DEBUG}=1 to see where it comes from."
        _ended(error, message, UNEXPECTED)


def loaded(model: str | Path, quantize: Any = None) -> Any:
    """The task of a folder; see `regard.load`.

    What is imported and loaded stays: to look for garbage in between would take an eighth of the
    time that torch needs to be imported.
    """
    gc.disable()
    try:
        from regard.tasks.folders import load

        return load(model, quantize=quantize)
    finally:
        gc.enable()
        gc.freeze()


def _ended(error: BaseException, message: str, code: int) -> None:
    if os.environ.get(DEBUG):
        raise error
    if message:
        say(message)
    raise typer.Exit(code) from None


def _said(error: OSError) -> str:
    named = f"{error.filename}: " if error.filename else ""
    return f"{named}{error.strerror or error}"


def _warned(message: Warning | str, *rest: Any) -> None:
    say(f"warning: {message}")


def say(message: str) -> None:
    """Tell a person something that is not the result."""
    typer.echo(message, err=True)


def emit(text: str) -> None:
    """A part of the result that must not wait: written and flushed."""
    sys.stdout.write(text)
    sys.stdout.flush()


def show(facts: Any, text: str, as_json: bool) -> None:
    """The result: as JSON on one line, or as text."""
    emit((dumps(facts) if as_json else text) + "\n")


def dumps(facts: Any) -> str:
    """JSON on one line; what JSON has no word for becomes text (paths) or null (NaN, infinity)."""
    try:
        return json.dumps(facts, ensure_ascii=False, default=str, allow_nan=False)
    except ValueError:
        return json.dumps(_with_nulls(facts), ensure_ascii=False, default=str, allow_nan=False)


def _with_nulls(facts: Any) -> Any:
    """The same with None in the place of numbers that JSON does not have."""
    if isinstance(facts, float):
        return facts if math.isfinite(facts) else None
    if isinstance(facts, dict):
        return {key: _with_nulls(value) for key, value in facts.items()}
    if isinstance(facts, list | tuple):
        return [_with_nulls(value) for value in facts]
    return facts


def write_utf8(stream: IO[str]) -> None:
    """Output that a program reads is UTF-8, whatever the language of the machine.

    A path that is not UTF-8 does not end the output: its bytes are written as escapes.
    """
    if not hasattr(stream, "reconfigure"):
        return
    stream.reconfigure(errors="backslashreplace")
    if not stream.isatty():
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def tracked(parts: Sequence[Any], what: str) -> Iterator[Any]:
    """The parts one after another; on a terminal with a bar, the rate and the time left."""
    if not sys.stderr.isatty():
        yield from parts
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(parts, what, console=Console(stderr=True), transient=True)


# -------------------------------------------------------------------------- decoding flags


def _flags(
    beams: Annotated[int | None, typer.Option(help="Hypotheses side by side: beam search.")] = None,
    n_best: Annotated[int | None, typer.Option(help="How many of them to give.")] = None,
    length_penalty: Annotated[
        str | None, typer.Option(metavar="A", help="Divide scores by length^A, or gnmt:A.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="Sample, with this.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample among the K likeliest.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Sample among this mass.")] = None,
    samples: Annotated[int | None, typer.Option(help="How many samples.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the samples.")] = None,
    no_repeat_ngram: Annotated[int | None, typer.Option(help="No N tokens occur twice.")] = None,
    min_tokens: Annotated[int | None, typer.Option(help="At least so many tokens.")] = None,
    draft: Annotated[
        str | None, typer.Option(metavar="D", help="ngram, or a small model's folder: guess ahead.")
    ] = None,
    draft_tokens: Annotated[int | None, typer.Option(help="So many tokens at a time.")] = None,
    max_tokens: Annotated[
        str | None, typer.Option(metavar="N", help="At most so many, or like 1.5x+10.")
    ] = None,
) -> None:
    """How to decode, where it differs from the model's own way."""


def with_decoding(verb: Callable[..., None]) -> Callable[..., None]:
    """Adds the flags of decoding to a verb, which gets those that were given as `decoding`."""
    own, added = _parameters(verb), _parameters(_flags)
    own = {name: one for name, one in own.items() if name != "decoding"}

    @wraps(verb)
    def run(**given: Any) -> None:
        chosen = {name: given.pop(name) for name in added}
        decoding = {name: value for name, value in chosen.items() if value is not None}
        verb(**given, decoding=decoding)

    parameters = [*own.values(), *added.values()]
    del run.__wrapped__  # type: ignore[attr-defined]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a function by name, their annotations no longer strings."""
    hints = get_type_hints(function, include_extras=True)
    return {
        name: one.replace(annotation=hints[name], kind=one.KEYWORD_ONLY)
        for name, one in inspect.signature(function).parameters.items()
    }
