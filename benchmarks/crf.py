"""A conditional random field over tags: loss, gradient and best tags, beside pytorch-crf.

The same scores, transitions and lengths on both sides; both give the same loss and the same tags.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import Work
from benchmarks.options import Options
from benchmarks.workers import Condition

TAGS = (9, 45)  # of CoNLL-2003's entities, and of the Penn Treebank's parts of speech
TRAINERS = {"regard": "Ours", "pytorch-crf": "Theirs"}
TURNS = 10  # passes in a turn


def works(options: Options) -> Iterator[Work]:
    """32 sentences of up to 50 words."""
    rows, words = (4, 6) if options.quick else (32, 50)
    for tags in TAGS:
        for verb, unit in (("loss", "loss and gradient"), ("best", "best tags")):
            settings = {"tags": tags, "rows": rows, "words": words, "verb": verb}
            yield Work(
                f"CRF of {tags} tags, {unit}",
                "sentences/s",
                TURNS * rows,
                [
                    Condition(
                        name, f"{__name__}:{kind}", settings, ("torchcrf",) * (kind == "Theirs")
                    )
                    for name, kind in TRAINERS.items()
                ],
                {"pytorch-crf": 1.0},
                judge=lambda results: {name: f"{one:.6g}" for name, one in results.items()},
                note=f"{rows} sentences of {words // 2} to {words} words",
            )


class Ours:
    """The library's layer."""

    def __init__(self, tags: int, rows: int, words: int, verb: str, threads: int):
        from regard.layers.chart import CRF

        torch.set_num_threads(threads)
        self.verb = verb
        self.scores, self.tags, self.keep = _drawn(tags, rows, words)
        self.crf = CRF(tags)
        _fill(self.crf.transitions, self.crf.start, self.crf.end)

    def turn(self) -> float:
        """The last loss, or a number that changes with every tag."""
        return [getattr(self, self.verb)() for _ in range(TURNS)][-1]

    def loss(self) -> float:
        """A forward and a backward pass."""
        self.scores.grad = None
        self.crf.zero_grad()
        value = self.crf.loss(self.scores, self.tags, self.keep)
        value.backward()
        return float(value.detach())

    def best(self) -> float:
        """The search alone."""
        with torch.no_grad():
            found = self.crf.best(self.scores, self.keep)
        return _number([row[keep] for row, keep in zip(found, self.keep, strict=True)])


class Theirs:
    """Kemal Kurniawan's package, the usual one."""

    def __init__(self, tags: int, rows: int, words: int, verb: str, threads: int):
        from torchcrf import CRF

        torch.set_num_threads(threads)
        self.verb = verb
        self.scores, self.tags, self.keep = _drawn(tags, rows, words)
        self.crf = CRF(tags, batch_first=True)
        _fill(self.crf.transitions, self.crf.start_transitions, self.crf.end_transitions)

    def turn(self) -> float:
        """See `Ours`."""
        return [getattr(self, self.verb)() for _ in range(TURNS)][-1]

    def loss(self) -> float:
        """See `Ours`."""
        self.scores.grad = None
        self.crf.zero_grad()
        value = -self.crf(self.scores, self.tags, self.keep, reduction="sum")
        value.backward()
        return float(value.detach())

    def best(self) -> float:
        """See `Ours`."""
        with torch.no_grad():
            return _number(list(map(torch.tensor, self.crf.decode(self.scores, self.keep))))


def _drawn(tags: int, rows: int, words: int) -> tuple[Tensor, Tensor, Tensor]:
    """Scores (B, W, O), tags (B, W) and which words there are, the first sentence the longest."""
    made = torch.Generator().manual_seed(1)
    lengths = torch.randint(words // 2, words + 1, (rows, 1), generator=made)
    lengths[0] = words
    scores = torch.randn(rows, words, tags, generator=made).requires_grad_()
    return (
        scores,
        torch.randint(tags, (rows, words), generator=made),
        torch.arange(words) < lengths,
    )


@torch.no_grad()
def _fill(*parameters: Any) -> None:
    made = torch.Generator().manual_seed(2)
    for parameter in parameters:
        parameter.normal_(generator=made)


def _number(rows: list[Tensor]) -> float:
    flat = torch.cat(rows).double()
    return float((flat * torch.arange(1, len(flat) + 1)).sum())
