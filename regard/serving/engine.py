"""One thread that computes. Requests wait in its queue; those that are alike share a call.

A request has items (texts, prompts, images). Each turn computes some items of waiting requests that
ask for the same of the same model, in one call of the library, which sorts them by length. The
requests take turns: one with many items does not keep the others waiting. Between two turns every
prompt that is being continued gets a token: see `regard.serving.models`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from regard.errors import TextError
from regard.serving.problems import Problem

if TYPE_CHECKING:
    from regard.serving.models import RequestCounters, ServedBatch
    from regard.serving.work import Work


TURN_TOKENS = 4096  # of the items of a call, estimated
TURN_BESIDE = 1024  # of a call while texts are generated, which wait meanwhile
TURN_ITEMS = 1024


class Engine:
    """The queue and the thread that computes.

    Args:
        most_tokens: of all requests that wait or are computed, estimated.
        counters: what is computed is counted in them.
    """

    def __init__(self, most_tokens: int, counters: RequestCounters):
        self.most_tokens, self.counters = most_tokens, counters
        self.waiting_tokens = 0
        counters.watch(lambda: self.waiting_tokens, lambda: self.waiting_requests)
        self._queue: list[Work] = []
        self._abandoned: list[Work] = []  # whose continuations are still in a batch
        self._change = threading.Condition()
        self._stopped = False

    # ---- from the threads of requests

    def submit(self, queued: Work) -> Future[list[Any]]:
        """Take a request into the queue; the future of its results.

        Raises:
            Problem: 413 for more tokens than the queue ever takes, 429 where it is full.
        """
        cost = queued.cost
        if cost > self.most_tokens:
            raise Problem(
                413,
                f"This request asks for about {cost:,} tokens (of its texts and of what may be "
                f"generated), but the server takes at most {self.most_tokens:,} at a time. Send "
                "fewer texts, or set `max_tokens`.",
                "too_many_tokens",
            )
        with self._change:
            if self.waiting_tokens + cost > self.most_tokens:
                raise Problem(
                    429,
                    f"The queue is full: about {self.waiting_tokens:,} of {self.most_tokens:,} "
                    f"tokens wait. Try again in a moment.",
                    "queue_full",
                    headers={"Retry-After": "1"},
                )
            self.waiting_tokens += cost
            self._queue.append(queued)
            queued.future.set_running_or_notify_cancel()  # whoever waits cannot cancel it
            self._change.notify()
        return queued.future

    def cancel(self, queued: Work) -> None:
        """Remove a request for which nobody waits any more."""
        with self._change:
            queued.abandoned = True
            self._remove(queued)
            if queued.generation is not None:
                self._abandoned.append(queued)
                self._change.notify()

    def _remove(self, queued: Work) -> None:
        if queued in self._queue:
            self._queue.remove(queued)
            self.waiting_tokens -= queued.cost

    @property
    def waiting_requests(self) -> int:
        """How many requests wait or are computed."""
        return len(self._queue)

    def stop(self) -> None:
        """End `run` after the current call; waiting requests get an error."""
        with self._change:
            self._stopped = True
            self._change.notify()

    # ---- in the engine's thread

    def run(self) -> None:
        """Compute what waits, until `stop`."""
        while not self._stopped:
            with self._change:
                while not self._queue and not self._abandoned and not self._stopped:
                    self._change.wait()
            self._turn()
        for queued in list(self._queue):
            self._end(queued, Problem(503, "The server stops.", "stopping"))

    def _turn(self) -> None:
        """Compute some items of waiting requests, and a token of every sequence."""
        with self._change:
            late = [queued for queued in self._queue if queued.deadline < time.monotonic()]
            abandoned, self._abandoned = self._abandoned, []
            chosen = [] if late else self._chosen()
            generating = [queued for queued in self._queue if queued.generation is not None]
        for queued in abandoned:
            queued.leave_batch()
        for queued in late:
            self._end(queued, deadline_passed())
        if chosen:
            self._compute(chosen)
        if not late:
            self._generate(generating)

    def _chosen(self) -> list[tuple[Work, int]]:
        """Requests that are computed together next, and how many items of each.

        Those with the key of the one that has waited longest; each gets a part of the budget.
        """
        ready = [queued for queued in self._queue if queued.generation is None]
        if not ready:
            return []
        alike = [one for one in ready if one.key == ready[0].key and one.next_cost <= TURN_TOKENS]
        if ready[0] not in alike:  # a long item is computed alone
            alike = ready[:1]
        chosen, budget = [], float(TURN_TOKENS if len(ready) == len(self._queue) else TURN_BESIDE)
        for number, queued in enumerate(alike):
            if budget <= 0:
                break
            start, count = (
                len(queued.results),
                queued.next_items(budget / (len(alike) - number), TURN_ITEMS),
            )
            budget -= sum(queued.costs[start : start + count])
            chosen.append((queued, count))
        for queued, _ in chosen:
            self._move_behind(queued)
        return chosen

    def _move_behind(self, queued: Work) -> None:
        """Let the others have the next turn."""
        if queued in self._queue:  # somebody still waits for it
            self._queue.remove(queued)
            self._queue.append(queued)

    def _generate(self, generating: Sequence[Work]) -> None:
        """A token of every sequence of these requests."""
        generations = [queued.generation for queued in generating if queued.generation is not None]
        self._join(generating)
        for batch in dict.fromkeys(generation.batch for generation in generations):
            try:
                batch.advance()
            except Exception as error:
                batch.fail(error)
        for queued in generating:
            if queued.generation is None or queued.abandoned:
                continue
            if queued.generation.error is not None:
                self._end(queued, queued.generation.error)
            elif queued.generation.complete:
                queued.items, queued.generation = queued.generation.results(), None
                queued.costs = [1] * len(queued.items)  # texts are made of the tokens

    def _join(self, generating: Sequence[Work]) -> None:
        """Prompts join their batches, one of each request in turn. For one that needs more room
        than there is those behind it wait, or it would wait for ever.
        """
        full: set[ServedBatch] = set()
        waiting = deque(generating)
        while waiting:
            queued = waiting.popleft()
            generation = queued.generation
            if generation is None or not generation.waits or generation.batch in full:
                continue
            if not generation.join():
                full.add(generation.batch)
                continue
            with self._change:
                self._move_behind(queued)
            waiting.append(queued)

    def _compute(self, chosen: Sequence[tuple[Work, int]]) -> None:
        parts = [list(queued.items[len(queued.results) :][:count]) for queued, count in chosen]
        first = chosen[0][0]
        try:
            results = list(first.run([item for part in parts for item in part]))
        except Exception as error:
            self._fail(chosen, parts, error)
            return
        start = 0
        for (queued, _), part in zip(chosen, parts, strict=True):
            queued.results += results[start : start + len(part)]
            start += len(part)
        path = first.path
        self.counters.items.labels(path).inc(start)
        self.counters.calls.labels(path).inc()
        for queued, _ in chosen:
            if len(queued.results) == len(queued.items):
                self._end(queued)

    def _fail(
        self,
        chosen: Sequence[tuple[Work, int]],
        parts: Sequence[list[Any]],
        error: Exception,
    ) -> None:
        """End the request that an error is about, and compute the others again."""
        if len(chosen) == 1:
            queued = chosen[0][0]
            moves = isinstance(error, TextError) and queued.results
            self._end(queued, error.moved(len(queued.results)) if moves else error)  # type: ignore
            return
        for part in chosen:
            self._compute([part])

    def _end(self, queued: Work, error: BaseException | None = None) -> None:
        with self._change:
            self._remove(queued)
        queued.leave_batch()
        if queued.abandoned:
            return
        if error is None:
            queued.future.set_result(queued.results)
        else:
            queued.future.set_exception(error)


def deadline_passed() -> Problem:
    """The answer to a request whose deadline has passed."""
    problem = "This request was not answered within the server's time limit."
    return Problem(504, problem, "deadline")
