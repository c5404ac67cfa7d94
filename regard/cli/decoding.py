"""What the commands that decode share: their flags, hypotheses as values, counts."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from regard.cli.console import say
from regard.errors import ConfigError

if TYPE_CHECKING:
    from regard.decoding import AcceptanceStats
    from regard.decoding.hypothesis import Hypothesis


def _flags(
    beams: Annotated[int | None, typer.Option(help="Beam search with this many beams.")] = None,
    n_best: Annotated[int | None, typer.Option(help="How many hypotheses to return.")] = None,
    length_penalty: Annotated[
        str | None, typer.Option(metavar="A", help="Divide scores by length^A, or gnmt:A.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="Sample at this temperature.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample among the K likeliest tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Sample among the likeliest tokens of this mass.")
    ] = None,
    samples: Annotated[int | None, typer.Option(help="How many samples.")] = None,
    seed: Annotated[int | None, typer.Option(help="The seed of sampling.")] = None,
    no_repeat_ngram: Annotated[
        int | None, typer.Option(help="No n-gram of this size may repeat.")
    ] = None,
    min_tokens: Annotated[int | None, typer.Option(help="The least tokens of an output.")] = None,
    draft: Annotated[
        str | None,
        typer.Option(metavar="D", help="Speculative decoding: ngram, or a small model's folder."),
    ] = None,
    draft_tokens: Annotated[int | None, typer.Option(help="Tokens of a draft.")] = None,
    max_tokens: Annotated[
        str | None, typer.Option(metavar="N", help="The most tokens of an output, or 1.5x+10.")
    ] = None,
) -> None:
    """How to decode, where it differs from the model's own settings."""


def with_decoding(command: Callable[..., None]) -> Callable[..., None]:
    """Add the flags of decoding to a command, which gets those that were given as `decoding`."""
    own, added = _parameters(command), _parameters(_flags)
    del own["decoding"]

    @wraps(command)
    def run(**given: Any) -> None:
        chosen = {name: given.pop(name) for name in added}
        decoding = {name: value for name, value in chosen.items() if value is not None}
        command(**given, decoding=decoding)

    parameters = [*own.values(), *added.values()]
    del run.__wrapped__  # type: ignore[attr-defined]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a function by name, with annotations that are no strings."""
    hints = get_type_hints(function, include_extras=True)
    return {
        name: one.replace(annotation=hints[name], kind=one.KEYWORD_ONLY)
        for name, one in inspect.signature(function).parameters.items()
    }


def check_no_decoding(what: str, options: Mapping[str, Any]) -> None:
    """Check that no options of decoding are given for something that does not decode.

    Raises:
        ConfigError: options were given.
    """
    if options:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in options)
        raise ConfigError(
            f"{what} decodes nothing, so {names} would be without effect. Leave it out."
        )


def values_of(hypotheses: Sequence[Hypothesis], texts: Sequence[str]) -> list[dict[str, Any]]:
    """Hypotheses of one text as plain values."""
    return [
        {"text": text, "score": h.score, "log_prob": h.log_prob, "finished": h.finished}
        for h, text in zip(hypotheses, texts, strict=True)
    ]


def say_unfinished(counts: Counter[str]) -> None:
    """Say how many outputs reached the limit on their length, where any did."""
    if counts["unfinished"]:
        of = f"{counts['unfinished']:,} of {counts['texts']:,} answers"
        say(f"{of} were cut off at the limit on their length (--max-tokens)")


def say_acceptance(acceptance: AcceptanceStats) -> None:
    """Say how many tokens of drafts were accepted, where there was a draft."""
    if acceptance.steps:
        say(str(acceptance))
