"""Evaluation with a memory against recomputing the context of every token.

    python -m benchmarks segments        beside the other works, each side in a process of its own
    python -m benchmarks.segments        both sides in turn, the speed-up and how it grows

A Transformer-XL reads segments of 128 tokens behind a memory of L positions, whose keys and values
it keeps. A Transformer of the same size without a memory computes, for every token, the L tokens
before it again, as Al-Rfou et al. 2019 evaluate; its cost is that of a sample of positions.

Dai et al. 2019 (table 9) print how many times faster theirs was on one GPU: 363 at 800 tokens, 773
at 1,800, 1,409 at 2,800 and 1,874 at 3,800.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.measure import Work
from benchmarks.options import Options
from benchmarks.workers import Condition

# Layers as wide as those of the paper's model of 12 layers for enwik8, half as many.
SIZES = {"vocab_size": 1000, "d_model": 512, "d_ff": 2048, "heads": 8, "layers": 6}
TINY = {"vocab_size": 50, "d_model": 16, "d_ff": 32, "heads": 2, "layers": 2}
CONTEXTS = (512, 800, 1800, 2800, 3800)
PRINTED = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}
SEGMENT, SEGMENTS = 128, 4  # tokens read at a time, and how often in one turn
SAMPLE = 4  # positions whose context is recomputed in one turn
OURS, THEIRS = "regard Transformer-XL", "regard Transformer, window recomputed"


def works(options: Options) -> Iterator[Work]:
    """One for each length of the context."""
    sizes, contexts = (TINY, (16, 48)) if options.quick else (SIZES, CONTEXTS)
    for context in contexts:
        given = {"sizes": sizes, "context": context}
        printed = PRINTED.get(context)
        yield Work(
            f"perplexity with a context of {context:,} tokens",
            "tokens/s",
            SEGMENT * SEGMENTS,
            [
                Condition(OURS, f"{__name__}:Memory", given),
                Condition(THEIRS, f"{__name__}:Window", given),
            ],
            amounts={THEIRS: SAMPLE},
            note=f"{sizes['layers']} layers of {sizes['d_model']}, segments of {SEGMENT} tokens"
            + (f"; {printed:,} times faster on a GPU (Dai et al. 2019)" if printed else ""),
        )


def _ids(sizes: dict[str, int], count: int) -> Any:
    import torch

    draw = torch.Generator().manual_seed(1)
    return torch.randint(0, sizes["vocab_size"], (1, count), generator=draw)


class Memory:
    """Segments behind a memory that is full, one text from turn to turn."""

    def __init__(self, sizes: dict[str, int], context: int, threads: int):
        import torch

        from regard.models.transformer_xl import TransformerXL, TransformerXLConfig

        torch.set_num_threads(threads)
        torch.manual_seed(1)
        self.model = TransformerXL(TransformerXLConfig(**sizes, memory_length=context)).eval()
        self.ids = _ids(sizes, SEGMENT * SEGMENTS + 1)
        with torch.no_grad():
            before = _ids(sizes, context)
            self.state = self.model.prefill(before, self.model.empty(1))

    def turn(self) -> float:
        """Minus the log-likelihood of the segments, in nats."""
        import torch

        total = 0.0
        with torch.no_grad():
            for start in range(0, SEGMENT * SEGMENTS, SEGMENT):
                output = self.model(self.ids[:, start : start + SEGMENT], self.state)
                targets = self.ids[0, start + 1 : start + SEGMENT + 1]
                total += float(self.model.head.loss(output.hidden[0], targets)[0])
                self.state = output.state
        return total


class Window:
    """The context of every token from its beginning."""

    def __init__(self, sizes: dict[str, int], context: int, threads: int):
        import torch

        from regard.models.adaptive_transformer import (
            AdaptiveTransformer,
            AdaptiveTransformerConfig,
        )

        torch.set_num_threads(threads)
        torch.manual_seed(1)
        config = AdaptiveTransformerConfig(**sizes, max_length=context, divisor=1)
        self.model = AdaptiveTransformer(config).eval()
        self.context, self.ids = context, _ids(sizes, context + SAMPLE)

    def turn(self) -> float:
        """Minus the log-likelihood of the sampled tokens, in nats."""
        import torch

        total = 0.0
        with torch.no_grad():
            for start in range(SAMPLE):
                window = self.ids[:, start : start + self.context]
                hidden = self.model(window).hidden[0, -1:]
                target = self.ids[0, start + self.context, None]
                total += float(self.model.head.loss(hidden, target)[0])
        return total


def growth(rounds: int, threads: int, *, quick: bool = False) -> list[dict[str, Any]]:
    """For each context the seconds per token of both sides, the speed-up, and its growth."""
    sizes, contexts = (TINY, (16, 48)) if quick else (SIZES, CONTEXTS)
    rows: list[dict[str, Any]] = []
    for context in contexts:
        sides = {
            Memory(sizes, context, threads): SEGMENT * SEGMENTS,
            Window(sizes, context, threads): SAMPLE,
        }
        for side in sides:
            _seconds(side), _seconds(side)  # the first turns allocate
        seconds = [
            [_seconds(side) / tokens for side, tokens in sides.items()] for _ in range(rounds)
        ]
        ours, theirs = (median(side) for side in zip(*seconds, strict=True))
        times = median(slow / fast for fast, slow in seconds)
        first = rows[0]["times"] if rows else times
        rows.append({
            "context": context, "memory": ours, "window": theirs, "times": times,
            "growth": times / first, "printed": PRINTED.get(context),
        })  # fmt: skip
    return rows


def _seconds(side: Memory | Window) -> float:
    start = perf_counter()
    side.turn()
    return perf_counter() - start


def main() -> None:
    """Measure and print a line for each context."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.segments")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="tiny shapes: does it run?")
    given = parser.parse_args()
    print("context  ms/token with memory  ms/token recomputed  times faster  growth  printed (GPU)")
    for row in growth(given.rounds, given.threads, quick=given.quick):
        print(
            f"{row['context']:7,}  {1000 * row['memory']:20.3f}  {1000 * row['window']:19.1f}  "
            f"{row['times']:12,.0f}  {row['growth']:6.2f}  {row['printed'] or '-':>13}"
        )


if __name__ == "__main__":
    main()
