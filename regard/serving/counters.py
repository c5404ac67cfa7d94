"""What the server counts, as Prometheus reads it."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge


class RequestCounters:
    """The counters of a server; threads share them."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "regard_requests",
            "Answered requests, by path and status.",
            ["path", "status"],
            registry=registry,
        )
        self.seconds = Counter(
            "regard_request_seconds",
            "Time of requests from arrival to the end of the answer, by path.",
            ["path"],
            registry=registry,
        )
        self.items = Counter(
            "regard_items",
            "Texts, prompts and images that were computed, by path.",
            ["path"],
            registry=registry,
        )
        self.calls = Counter(
            "regard_calls",
            "Calls of models, for one or several requests, by path.",
            ["path"],
            registry=registry,
        )
        self.tokens = Counter(
            "regard_generated_tokens",
            "Tokens generated in continuous batches, by model.",
            ["model"],
            registry=registry,
        )

    def watch(self, tokens: Callable[[], float], requests: Callable[[], float]) -> None:
        """Show what waits in the queue, as these functions give it."""
        waiting = "of the requests that wait or are computed"
        gauge = Gauge("regard_waiting_tokens", f"Tokens {waiting}.", registry=self.registry)
        gauge.set_function(tokens)
        gauge = Gauge("regard_waiting_requests", f"Number {waiting}.", registry=self.registry)
        gauge.set_function(requests)
