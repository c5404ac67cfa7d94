"""The nearest known name, for error messages."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str]) -> str:
    """'Did you mean …?', or the list of all names where none is near."""
    known = list(known)
    close = [one for one in get_close_matches(name, known, n=1) if not _is_longer(name, one)]
    return f"Did you mean {close[0]!r}?" if close else f"Known are: {', '.join(known)}."


def _is_longer(name: str, known: str) -> bool:
    """Whether a name is a known one after other letters: albert is no misspelled bert.

    After a separator it is meant: n_layers is layers.
    """
    before = name.removesuffix(known)
    return before != name and before[-1:].isalnum()
