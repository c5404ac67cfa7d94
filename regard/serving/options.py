"""Where a server listens, and what it takes."""

from __future__ import annotations

from dataclasses import dataclass

from regard.errors import ConfigError
from regard.serving.guards import is_loopback

LONGEST_TIMEOUT = 7 * 24 * 3600.0


@dataclass(frozen=True)
class ServerOptions:
    """How a server is started.

    key: that requests must have; "": none.
    max_queued_tokens: of all requests that wait or are computed, estimated.
    timeout: seconds in which a request must be answered.
    prefix_bytes: of cached keys and values of prompt prefixes, for each model; 0: none.

    Raises:
        ConfigError: the server would listen to other machines without a key, or the timeout is no
            number of seconds.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    key: str = ""
    max_queued_tokens: int = 1_000_000
    timeout: float = 600.0
    prefix_bytes: int = 2**28

    @property
    def loopback(self) -> bool:
        """Whether only programs of this machine reach it."""
        return is_loopback(self.host)

    def __post_init__(self) -> None:
        if not 0 < self.timeout <= LONGEST_TIMEOUT:
            raise ConfigError(
                f"--timeout must be seconds, at most {LONGEST_TIMEOUT:,.0f}, but is {self.timeout}."
            )
        if not self.loopback and not self.key:
            raise ConfigError(
                f"--host {self.host} lets other machines ask, so a key is needed: put one into a "
                "file and give --api-key-file FILE, or set REGARD_API_KEY."
            )
