"""What a request must pass before it is answered: the address, the key, the size of the body."""

from __future__ import annotations

import asyncio
import base64
import hmac
import ipaddress
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import SplitResult, urlsplit

from regard.serving.problems import Problem

Receive = Callable[[], Awaitable[Any]]
MOST_BYTES = 5 * 2**19  # of a body: 2.5 MiB
DISCARDED = 64 * 2**20  # bytes of a larger body that are read, so that its client reads the answer
ONCE = ("origin", "authorization", "content-encoding")  # headers that may stand once
ARRIVAL_SECONDS = 30.0  # in which the head of a request must arrive, and in which its body must


@dataclass(frozen=True)
class Guard:
    """Who may ask.

    key: that requests must have; "": none.
    loopback: whether the server listens to this machine alone. A page of another site could send
        requests through the browser of its reader: then `Host` names that site.
    """

    CHALLENGE: ClassVar[str] = "Bearer"  # what an error asks for

    key: str = ""
    loopback: bool = True

    def check(self, headers: Any) -> None:
        """Check the headers of a request, `starlette.datastructures.Headers`.

        Raises:
            Problem: 400 where the body has two lengths or a header two values, of which a proxy
                may have believed the other; 403 for the host or the origin of another site, 401
                without the key.
        """
        if twice := next((name for name in ONCE if len(headers.getlist(name)) > 1), None):
            message = f"The request has the header {twice} twice. Send one."
            raise Problem(400, message, "two_headers", headers={"Connection": "close"})
        if "content-length" in headers and "transfer-encoding" in headers:
            message = "The body has two lengths: Content-Length and Transfer-Encoding. Send one."
            raise Problem(400, message, "two_lengths", headers={"Connection": "close"})
        host, origin = headers.get("host", ""), headers.get("origin")
        if self.loopback and not is_loopback(_parts(f"//{host}").hostname or ""):
            message = f"This server answers as localhost, but `Host` is {host!r:.80}."
            raise Problem(403, message, "wrong_host")
        if origin is not None and not (host and _parts(origin).netloc == host):
            message = f"Pages of another site may not ask this server: `Origin` is {origin!r:.80}."
            raise Problem(403, message, "wrong_origin")
        if self.key and not self.accepts(headers.get("authorization", "")):
            message = "This server needs its API key: `Authorization: Bearer KEY`."
            raise Problem(401, message, "wrong_key", headers={"WWW-Authenticate": self.CHALLENGE})

    def accepts(self, given: str) -> bool:
        """Whether an `Authorization` header has the key."""
        scheme, _, key = given.partition(" ")
        known = hmac.compare_digest(_bytes(key), self.key.encode())
        return known and scheme.lower() == "bearer"


class PageGuard(Guard):
    """Of a server with a page: browsers ask for the key as a password, with any user name."""

    CHALLENGE = 'Basic realm="regard", charset="UTF-8"'

    def accepts(self, given: str) -> bool:
        """See `Guard`."""
        scheme, _, coded = given.partition(" ")
        if scheme.lower() != "basic":
            return super().accepts(given)
        try:
            password = base64.b64decode(coded, validate=True).partition(b":")[2]
        except ValueError:
            return False
        return hmac.compare_digest(password, self.key.encode())


def is_loopback(host: str) -> bool:
    """Whether a host is this machine and no other: a name that DNS resolves is not known to be."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _parts(url: str) -> SplitResult:
    """The parts of a URL; empty ones where it is none."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")


def _bytes(header: str) -> bytes:
    """What a client has sent as the value of a header, which is decoded as Latin-1."""
    return header.encode("latin-1", "replace")


class ClientDisconnected(Exception):
    """The client has closed its connection."""


async def read_body(receive: Receive) -> bytes:
    """The body of a request.

    Raises:
        Problem: 413 where it is too large, 408 where it does not arrive in time.
        ClientDisconnected: the connection was closed before its end.
    """
    try:
        async with asyncio.timeout(ARRIVAL_SECONDS):
            return await _body(receive)
    except TimeoutError:
        message = f"The body did not arrive within {ARRIVAL_SECONDS:.0f} s."
        raise Problem(408, message, "slow_body", headers={"Connection": "close"}) from None


async def _body(receive: Receive) -> bytes:
    parts, size, more = list[bytes](), 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        part, more = message.get("body", b""), message.get("more_body", False)
        size += len(part)
        if size <= MOST_BYTES:
            parts.append(part)
        elif size > DISCARDED:
            break
    if size > MOST_BYTES:
        message = (
            f"The body must have at most {MOST_BYTES:,} bytes. Send fewer texts in a request, or a "
            "smaller image."
        )
        raise Problem(413, message, "body_too_large", headers={"Connection": "close"})
    return b"".join(parts)
