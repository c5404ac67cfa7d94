"""Errors as HTTP answers, in the form that OpenAI's clients read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.errors import RegardError, TextError

LONGEST = 4000  # characters of a message
TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class Problem(Exception):
    """A request that is not answered.

    status: of HTTP.  code: one word for programs.  param: the field that is wrong.
    """

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(message)
        self.status, self.code, self.param = status, code, param
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """As JSON."""
        server = self.status >= 500
        kind = TYPES.get(self.status, "server_error" if server else "invalid_request_error")
        message = str(self).encode(errors="backslashreplace").decode()
        if len(message) > LONGEST:  # it quotes what the client has sent
            message = f"{message[: LONGEST - 3]}..."
        error = {"message": message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}


def problem_of(error: BaseException) -> Problem:
    """The answer for an error: 400 with the library's own words for what the client can mend."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, TextError):
        return Problem(400, str(error), "invalid_text")
    if isinstance(error, RegardError):
        return Problem(400, str(error), "invalid_request")
    return Problem(500, f"unexpected error: {type(error).__name__}: {error}", "unexpected")
