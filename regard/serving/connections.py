"""Connections whose clients send nothing, or half of what begins a request, or read no answer."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from regard.plain_json import to_json_bytes
from regard.serving import guards
from regard.serving.problems import Problem

UNREAD = 120.0  # seconds in which a client must read something of an answer
LONGEST_HEAD = 2**14  # bytes of a request line and headers, as in uvicorn
EMPTY_LINES = re.compile(rb"\A(?:\r?\n)+")
LOOKS = 12  # how often that is looked at in this time


class Connection(H11Protocol):
    """A connection that is closed where the head of a request does not arrive in time, or the
    client reads nothing of an answer, which would stay in memory for ever.

    uvicorn limits the time between two requests, but neither that before the first one nor that of
    a head (request line and headers) of which a part has arrived: each such connection would keep a
    file open for ever. The time of the body is limited by `guards.read_body`.
    """

    _head_timer: asyncio.TimerHandle | None = None
    _unread_timer: asyncio.TimerHandle | None = None
    _empty_lines = 0  # bytes of those since the last request; h11 refuses more than a head has

    def connection_made(self, transport: Any) -> None:
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self._start_timer()
        self._look_at_unread(0)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:  # a head is complete
            self._empty_lines = 0
            self._stop_timer()
        elif self._head_timer is None and self.cycle.response_complete:
            self._start_timer()

    def handle_events(self) -> None:
        """See uvicorn. Empty lines before a request line are left out, since some clients send one
        behind a body (RFC 9112, section 2.2).
        """
        if self.conn.their_state is h11.IDLE and self._empty_lines < LONGEST_HEAD:
            data, _ = self.conn.trailing_data
            rest = EMPTY_LINES.sub(b"", data)
            if rest != data:  # h11 has a way to add data, and none to take some away
                self._empty_lines += len(data) - len(rest)
                self.conn = h11.Connection(h11.SERVER, LONGEST_HEAD)
                if rest:  # nothing would be the end of the connection
                    self.conn.receive_data(rest)
            if rest == b"\r":  # the end of this line has not arrived
                return
        super().handle_events()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._stop_timer()
        if self._unread_timer is not None:
            self._unread_timer.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP; msg: uvicorn's words."""
        problem = Problem(400, f"{msg} A request line or a header is wrong or too long.", "no_http")
        self._answer_and_close(problem)

    def _look_at_unread(self, before: int, same: int = 0) -> None:
        """Close where nothing of an answer was read for `UNREAD` seconds.

        before: bytes that were unread at the last look.  same: at how many looks there were as
            many.
        """
        unread = self.transport.get_write_buffer_size()
        same = same + 1 if unread and unread == before else 0
        if same == LOOKS:
            self.transport.abort()  # to close it would wait for the client
        else:
            seconds = UNREAD / LOOKS
            self._unread_timer = self.loop.call_later(seconds, self._look_at_unread, unread, same)

    def _start_timer(self) -> None:
        self._head_timer = self.loop.call_later(guards.ARRIVAL_SECONDS, self._head_is_late)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        message = f"No complete request arrived within {guards.ARRIVAL_SECONDS:.0f} s."
        self._answer_and_close(Problem(408, message, "slow_request"))

    def _answer_and_close(self, problem: Problem) -> None:
        """Answer what was not read as a request, where no answer has begun, and close."""
        if self.transport.is_closing():
            return
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            content = to_json_bytes(problem.body())
            headers = [
                ("Content-Type", "application/json"),
                ("Content-Length", str(len(content))),
                ("Connection", "close"),
            ]
            events = (
                h11.Response(status_code=problem.status, headers=headers),
                h11.Data(data=content),
                h11.EndOfMessage(),
            )
            self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))
        self.transport.close()
