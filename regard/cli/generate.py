"""generate."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from regard.cli.console import emit, load_task, show
from regard.cli.input_texts import checked_argument, chunks_of, hint_at_file
from regard.cli.options import (
    AsJson,
    Delimiter,
    ModelFolder,
    Opening,
    TooLong,
    check_none,
    with_decoding,
    with_opening,
)
from regard.cli.sharding import ShardedWork, Sharding, with_sharding
from regard.errors import ConfigError


@with_opening
@with_decoding
@with_sharding
def generate(
    model: ModelFolder,
    prompt: Annotated[
        list[str] | None,
        Argument(
            metavar="PROMPT",
            help="The text to continue; - is standard input as a whole; without one its lines.",
        ),
    ] = None,
    too_long: TooLong = "error",
    window: Annotated[
        bool, Option("--window", help="Go on beyond the context: read the last tokens that fit.")
    ] = False,
    columns: Annotated[
        str | None,
        Option(
            metavar="COLUMN", help="With --workers: the column of the files that holds prompts."
        ),
    ] = None,
    delimiter: Delimiter = None,
    out: Annotated[
        Path | None,
        Option(metavar="FOLDER", help="With --workers: the folder that the parts are written to."),
    ] = None,
    as_json: AsJson = False,
    *,
    opening: Opening,
    decoding: dict[str, Any],
    sharding: Sharding | None,
) -> None:
    """Continue a prompt, or generate a text for a source.

    A prompt that leaves no room for a token is an error; --too-long truncate keeps its end.

    With --workers the arguments are files of prompts, and --out is a folder with parts of 1024
    rows.
    """
    if window:
        decoding["window"] = True
    if sharding is not None:
        work = ShardedWork(model, "generate", too_long, opening, decoding, columns, delimiter)
        return sharding.run(work, prompt, out, as_json)
    check_none("without --workers", {"columns": columns, "delimiter": delimiter, "out": out})
    hint_at_file(prompt, "- < {}")
    _generate(model, _prompts(prompt), too_long, opening, as_json, decoding)


def _prompts(given: Sequence[str] | None) -> list[str]:
    """The prompt of the command line, or with - standard input as a whole; without one the lines of
    standard input, or where there are none the empty prompt.

    Raises:
        ConfigError: there are several.
        DataError: it is not UTF-8.
    """
    if given is not None and len(given) > 1:
        hint = " --window takes no number." if any(map(str.isdigit, given)) else ""
        raise ConfigError(
            f"several prompts are given: {given[0]!r}, {given[1]!r}. Put quotes around one.{hint}"
        )
    if given and given != ["-"]:
        return [checked_argument(given[0])]
    piped = given or not sys.stdin.isatty()
    lines = [text for chunk in chunks_of(None) for text in chunk.texts] if piped else []
    return ["\n".join(lines)] if given else lines or [""]


def _generate(
    model: Path,
    prompts: list[str],
    too_long: str,
    opening: Opening,
    as_json: bool,
    decoding: dict[str, Any],
) -> None:
    """Print what the model generates after each prompt."""
    from regard.decoding import IncrementalMethod, with_options
    from regard.decoding.hypothesis import values_of

    task = load_task(model, **vars(opening))
    task.require("generate", model, f"{model} answers a text and does not continue one.")
    streams = task.module.continues and not as_json and decoding.get("samples", 1) == 1
    of_method = {name: value for name, value in decoding.items() if name not in ("stop", "window")}
    for prompt in prompts:
        if streams and isinstance(with_options(task.method, **of_method), IncrementalMethod):
            tokens = task.stream(prompt, too_long=too_long, **decoding)
            emit(prompt + next(tokens, ""))  # after an error nothing is printed
            for token in tokens:
                emit(token)
            emit("\n")
        else:
            ranked = task.hypotheses([prompt], too_long=too_long, **decoding)
            texts = task.spelled([prompt], ranked)[0]
            facts = {"prompt": prompt, "hypotheses": values_of(ranked[0], texts)}
            show(facts, "\n\n".join(texts), as_json)
