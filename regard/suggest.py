"""The nearest known names, in spelling and in meaning, for error messages."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

MOST = 4  # names that are offered


def nearest(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """'Did you mean …?', what to do instead, or the list of all names where none is near.

    otherwise: in place of the list, where it is long.
    """
    from regard.habit_names import ELSEWHERE, OTHER_NAMES, near_in_meaning

    names = list(known)
    if name in ELSEWHERE:
        return ELSEWHERE[name]
    ours = {other: option for other, option in OTHER_NAMES.items() if option in names}
    ours |= dict(zip(names, names, strict=True))
    close = [ours[one] for one in get_close_matches(name, ours, n=1) if not _is_longer(name, one)]
    meant = [one for one in near_in_meaning(name, names) if one not in close]
    if offered := [*close, *meant][:MOST]:
        *others, last = map(repr, offered)
        return f"Did you mean {', '.join(others) + ' or ' if others else ''}{last}?"
    return otherwise or f"Known are: {', '.join(names)}."


def _is_longer(name: str, known: str) -> bool:
    """Whether a name is a known one after other letters: albert is no misspelled bert.

    After a separator it is meant: n_layers is layers.
    """
    before = name.removesuffix(known)
    return before != name and before[-1:].isalnum()
