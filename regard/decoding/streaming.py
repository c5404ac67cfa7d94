"""Tokens as they are decided, for a reader who does not want to wait for the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from regard.data.batches import Sequences
from regard.decoding.hypothesis import Hypothesis
from regard.errors import ConfigError


class Streaming:
    """Iterates over (row, token) pairs; afterwards `results` holds what `generate` would give.

        for row, token in Streaming(model, prompts, options(top_k=40)):
            print(tokenizer.piece(token), end="", flush=True)

    `eos` is not among the tokens. With several samples, row b * samples + i is sample i of
    sentence b.

    Raises:
        ConfigError: the method changes its mind about tokens until the end, as a beam does.
    """

    def __init__(self, model: Any, source: Sequences | None, method: Any):
        if not hasattr(method, "walk"):
            raise ConfigError(
                f"{type(method).__name__} cannot be streamed: it decides on its tokens at the end. "
                "Decode greedily or by sampling."
            )
        self._collector = method.collector(model)
        self._steps = method.walk(model, source)
        self._eos = getattr(model.config, "eos", None)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for step in self._steps:
            self._collector.add(step)
            for decided in step:
                if decided.token is not None and decided.token != self._eos:
                    yield decided.row, decided.token

    @property
    def results(self) -> list[list[Hypothesis]]:
        """Per sentence its hypotheses; complete after the iteration."""
        return self._collector.results()
