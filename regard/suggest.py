"""The nearest known name in spelling, ours or that of another library, for error messages."""

from collections.abc import Collection, Iterable
from difflib import get_close_matches

from regard.errors import ConfigError


def nearest(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """'Did you mean …?', what to do instead, or the list of all names where none is near.

    otherwise: in place of the list, where it is long.
    """
    from regard.habit_names import ELSEWHERE, OTHER_NAMES

    names = list(known)
    if name in ELSEWHERE:
        return ELSEWHERE[name]
    ours = {other: option for other, option in OTHER_NAMES.items() if option in names}
    ours |= dict(zip(names, names, strict=True))
    for close in get_close_matches(name, ours, n=1):
        before = name.removesuffix(close)
        if before == name or not before[-1:].isalnum():  # albert is no misspelled bert
            return f"Did you mean {ours[close]!r}?"
    return otherwise or f"Known are: {', '.join(names)}."


def check_options(owner: str, options: Iterable[str], known: Collection[str]) -> None:
    """Check that a method, or what else has options, has all of these.

    Raises:
        ConfigError: it has not; the nearest one is offered.
    """
    if unknown := next((name for name in options if name not in known), None):
        raise ConfigError(f"`{owner}` has no option {unknown!r}. {nearest(unknown, known)}")
