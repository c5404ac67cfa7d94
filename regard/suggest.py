"""The nearest known name, for error messages."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str]) -> str:
    """'Did you mean …?', or the list of all names where none is near."""
    known = list(known)
    close = get_close_matches(name, known, n=1, cutoff=0.6)
    return f"Did you mean {close[0]!r}?" if close else f"Known are: {', '.join(known)}."
