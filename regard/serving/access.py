"""Who may ask: the site of a request, and its key."""

import hmac
import ipaddress
from collections.abc import Awaitable, Callable
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends
from fastapi.security import (
    HTTPAuthorizationCredentials,
    HTTPBasic,
    HTTPBasicCredentials,
    HTTPBearer,
)
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from regard.serving.problems import Problem

Token = Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]
# Browsers give the key as a password, with any user name.
Password = Annotated[HTTPBasicCredentials | None, Depends(HTTPBasic(auto_error=False))]
PASSWORD = 'Basic realm="regard", charset="UTF-8"'


class SameSite:
    """Refuses what a page of another site asks through the browser of its reader.

    `Host` then names that site, or `Origin` does. Starlette's middlewares for both answer 400, or
    answer the request, and leave it to the browser to hide the answer.

    Args:
        loopback: whether the server listens to this machine alone, so that hosts are known.
    """

    def __init__(self, app: ASGIApp, loopback: bool):
        self.app, self.loopback = app, loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI's specification."""
        problem = self._problem(Headers(scope=scope)) if scope["type"] == "http" else None
        await (self.app if problem is None else problem.response())(scope, receive, send)

    def _problem(self, headers: Headers) -> Problem | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if self.loopback and not is_loopback(_host_name(f"//{host}")):
            message = f"This server answers as localhost, but `Host` is {host!r:.80}."
            return Problem(403, message, "wrong_host")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            message = f"Pages of another site may not ask this server: `Origin` is {origin!r:.80}."
            return Problem(403, message, "wrong_origin")
        return None


def is_loopback(host: str) -> bool:
    """Whether a host is this machine and no other: a name that DNS resolves is not known to be."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host_name(url: str) -> str:
    """The host in a URL; "" where it is none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def key_check(key: str, challenge: str) -> Callable[..., Awaitable[None]]:
    """A dependency that refuses requests without the key; "" is none.

    challenge: what browsers and other clients are asked for.
    """

    async def check(token: Token, password: Password) -> None:
        sent = token.credentials if token else password.password if password else ""
        # Headers are decoded as Latin-1.
        if key and not hmac.compare_digest(sent.encode("latin-1", "replace"), key.encode()):
            wrong = "The API key is wrong. " if sent else ""
            message = f"{wrong}This server needs its API key: `Authorization: Bearer KEY`."
            raise Problem(401, message, "wrong_key", headers={"WWW-Authenticate": challenge})

    return check
