"""Errors as HTTP answers, in the form that OpenAI's clients read."""

from collections.abc import Mapping
from typing import Any, TypeVar

from fastapi import Request
from fastapi.exceptions import HTTPException, RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException as StarletteHTTPException

from regard.errors import RegardError, TextError, TextTooLong
from regard.schema import error_messages

LONGEST = 4000  # characters of a message
TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
NO_SNIFFING = {"X-Content-Type-Options": "nosniff"}  # browsers take no text for a page


class Problem(HTTPException):
    """A request that is not answered.

    code: one word for programs.  param: the field that is wrong.
    """

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(status, message, headers)
        self.code, self.param = code, param

    def __str__(self) -> str:
        return str(self.detail)

    def response(self) -> JSONResponse:
        """The answer."""
        content, headers = self.body(), {**NO_SNIFFING, **(self.headers or {})}
        return JSONResponse(content, self.status_code, headers)

    def body(self) -> dict[str, Any]:
        """As JSON: an `ErrorAnswer`."""
        server = self.status_code >= 500
        kind = TYPES.get(self.status_code, "server_error" if server else "invalid_request_error")
        message = str(self).encode(errors="backslashreplace").decode()
        if len(message) > LONGEST:  # it quotes what the client has sent
            message = f"{message[: LONGEST - 3]}..."
        error = {"message": message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}


Named = TypeVar("Named")


def named(table: Mapping[str, Named], name: str, what: str = "model") -> Named:
    """What has this name in a table.

    Raises:
        Problem: 404 where nothing has it.
    """
    if name in table:
        return table[name]
    message = f"This server has no {what} {name!r:.80}. It has: {', '.join(table) or 'none'}."
    raise Problem(404, message, f"{what}_not_found", what)


class ErrorDetails(BaseModel):
    """What went wrong. param: the field that is wrong. code: one word for programs."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    """The body of every answer that is an error."""

    error: ErrorDetails


def problem_of(error: BaseException) -> Problem:
    """The answer for an error: 400 with the library's own words for what the client can mend."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, TextError):
        return Problem(400, str(error), "invalid_text")
    if isinstance(error, RegardError):
        return Problem(400, str(error), "invalid_request")
    if isinstance(error, RequestValidationError):
        return _invalid_body(error)
    if isinstance(error, StarletteHTTPException):
        return Problem(error.status_code, f"{error.detail}.", headers=error.headers)
    return Problem(500, f"unexpected error: {type(error).__name__}: {error}", "unexpected")


def _invalid_body(error: RequestValidationError) -> Problem:
    """400, which names the wrong fields."""
    first, *_ = errors = [{**each, "loc": each["loc"][1:]} for each in error.errors()]
    if first["type"] == "json_invalid":
        message = f"The body is not JSON: {first['ctx']['error']} (character {first['loc'][0]})."
        return Problem(400, message, "invalid_body")
    if not first["loc"]:
        return Problem(400, "The body must be a JSON object.", "invalid_body")
    return Problem(400, "\n".join(error_messages(errors)), "invalid_body", str(first["loc"][0]))


async def error_response(request: Request, error: Exception) -> JSONResponse:
    """The answer for an error that a handler, the framework or the library has raised."""
    if isinstance(error, StarletteHTTPException) and error.status_code == 404:
        if not isinstance(error, Problem):
            path = request.scope["path"]
            message = f"This server has no path {path!r:.80}. /openapi.json has its paths."
            error = Problem(404, message, "no_such_path")
    if isinstance(error, TextTooLong) and request.url.path.startswith("/v1/"):
        error = error.without_option()  # OpenAI's fields have none
    return problem_of(error).response()
