"""Server-sent events: the text of a request while it is generated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from regard.plain_json import to_json_bytes
from regard.serving.engine import QueuedRequest, deadline_passed
from regard.serving.problems import problem_of
from regard.serving.work import Work

if TYPE_CHECKING:
    from regard.decoding.generated_text import GeneratedText

GRACE = 10.0  # seconds after the deadline in which the rest must be sent
Event = tuple[int, int, str, str | None]  # prompt, its sequence, what is new of its text, its end


class GrowingTexts:
    """The events of a request, which the engine's thread gives and the server sends.

    Args:
        call: runs a function in the thread of the server.
    """

    def __init__(self, call: Callable[..., None]):
        self._call = call
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()

    def listen(self, prompt: int, row: int, text: GeneratedText) -> None:
        """Add an event; the engine calls this when a text has grown."""
        piece, reason = text.ready(), text.reason
        if piece or reason is not None:
            self._call(self._events.put_nowait, (prompt, row, piece, reason))

    def end(self) -> None:
        """End the events; called in the thread of the server when the request has ended."""
        self._events.put_nowait(None)

    async def first(self) -> Event | None:
        """The first event; None where the request ended before it."""
        return await self._events.get()

    async def after(self, event: Event | None) -> AsyncIterator[Event]:
        """An event and those that follow."""
        while event is not None:
            yield event
            event = await self._events.get()


class EventStream(Response):
    """An answer in server-sent events, which ends when its client disconnects.

    Args:
        work: makes events of what is new.
        disconnected: returns when the client has disconnected.
        done: is called at the end in any case.
    """

    def __init__(
        self,
        work: Work,
        queued: QueuedRequest,
        texts: GrowingTexts,
        first: Event | None,
        disconnected: Callable[[], Any],
        done: Callable[[], None],
    ):
        headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
        super().__init__(b"", headers=headers, media_type="text/event-stream")
        del self.headers["content-length"]
        self._work, self._queued, self._texts, self._first = work, queued, texts, first
        self._disconnected, self._done = disconnected, done

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """See ASGI."""
        start = {"status": self.status_code, "headers": self.raw_headers}
        leaving = asyncio.ensure_future(self._disconnected())
        sending = asyncio.ensure_future(self._send(send))
        try:
            await send({"type": "http.response.start", **start})
            waited: set[asyncio.Future[Any]] = {leaving, sending}
            left = self._queued.seconds_left
            done, _ = await asyncio.wait(waited, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not done:  # the engine is busy, or the client does not read
                self._queued.error = deadline_passed()
                self._texts.end()
                await asyncio.wait(waited, timeout=GRACE, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            leaving.cancel()
            sending.cancel()
            self._done()

    async def _send(self, send: Any) -> None:
        await asyncio.sleep(0)  # the start goes first
        async for body in self._bodies():
            data = b"data: %b\n\n" % body
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _bodies(self) -> AsyncIterator[bytes]:
        assert self._work.chunk is not None and self._work.usage is not None
        async for event in self._texts.after(self._first):
            yield to_json_bytes(self._work.chunk(*event))
        if self._queued.error is not None:
            yield to_json_bytes(problem_of(self._queued.error).body())
            return
        if (usage := self._work.usage(self._queued.results)) is not None:
            yield to_json_bytes(usage)
        yield b"[DONE]"
