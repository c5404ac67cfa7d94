"""Request targets in absolute form: `GET http://localhost:8000/health HTTP/1.1`."""

from __future__ import annotations

from urllib.parse import unquote

from starlette.types import Scope


def in_origin_form(scope: Scope) -> Scope:
    """The scope of a request with a path as its target.

    Clients send a whole URL to proxies, and every server must accept it and take the host of the
    URL instead of the header's (RFC 9112, section 3.2.2); the guard then checks that one.
    """
    scheme, marked, rest = scope["raw_path"].partition(b"://")
    if not marked or scheme.lower() not in (b"http", b"https"):
        return scope
    host, slash, path = rest.partition(b"/")
    raw_path = slash + path or b"/"
    headers = [(name, value) for name, value in scope["headers"] if name != b"host"]
    return {
        **scope,
        "path": unquote(raw_path.decode("latin-1")),
        "raw_path": raw_path,
        "headers": [(b"host", host), *headers],
    }
