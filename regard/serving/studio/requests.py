"""The fields of what views ask for. As everywhere, a field that is not listed is an error."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from regard.serving.requests import Request

ShownText = Annotated[str, Field(max_length=20_000)]


class ShownTexts(Request):
    """One text, of which something is drawn."""

    texts: ShownText
    """The text."""
