"""Training a Transformer base on pairs of sentences, beside `MarianMTModel` with the same weights.

Both sides read the same batches of 32 sentences; or ours sorts by length within a budget of tokens,
as it usually does, and theirs takes 32 sentences as they come.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from typing import Any

from benchmarks.measure import Work
from benchmarks.options import Options
from benchmarks.workers import Condition

PAD, BOS, EOS = 0, 1, 2
RATE = 1e-5
BASE = {"vocab_size": 58_101, "d_model": 512, "d_ff": 2048, "heads": 8}
TINY = {"vocab_size": 60, "d_model": 32, "d_ff": 64, "heads": 2}
SIDES: dict[str, tuple[str, dict[str, Any]]] = {
    "regard bfloat16, sorted": ("Ours", {"precision": "bfloat16", "sort": True}),
    "regard bfloat16": ("Ours", {"precision": "bfloat16", "sort": False}),
    "regard float32": ("Ours", {"precision": "float32", "sort": False}),
    "transformers bfloat16": ("Theirs", {"precision": "bfloat16"}),
    "transformers float32": ("Theirs", {"precision": "float32"}),
}


def works(options: Options) -> Iterator[Work]:
    """64 sentences of Multi30k's lengths a turn."""
    sizes, count = (TINY, 8) if options.quick else (BASE, 64)
    tokens = sum(map(len, sentences(count, sizes["vocab_size"]))) + count
    given = {"sizes": sizes, "count": count}
    conditions = [
        Condition(
            name,
            f"{__name__}:{kind}",
            given | settings,
            ("transformers",) if kind == "Theirs" else (),
        )
        for name, (kind, settings) in SIDES.items()
    ]
    yield Work(
        f"translation, training, {'tiny' if options.quick else 'Transformer base, 58,101 words'}",
        "target tokens/s",
        tokens,
        conditions,
        judge=lambda results: {
            name: f"loss {loss:.2f} at the end" for name, loss in results.items()
        },
        note=f"{count} pairs of Multi30k's lengths; an update for each batch, AdamW",
    )


def sentences(count: int, vocab_size: int) -> list[list[int]]:
    """Random words, of the lengths that Multi30k has: 13 on average, from 4 to about 30."""
    draw = random.Random(1)
    lengths = [max(4, round(draw.lognormvariate(2.5, 0.35))) for _ in range(count)]
    return [[draw.randrange(3, vocab_size) for _ in range(n)] for n in lengths]


@cache
def _model(**sizes: int) -> Any:
    import torch

    from regard.models.transformer import Transformer, TransformerConfig

    torch.manual_seed(1)
    return Transformer(TransformerConfig(**sizes, dropout=0.1))  # type: ignore[arg-type]


def _batch(texts: list[list[int]]) -> Any:
    from regard.data import PairBatch, Sequences

    sources = Sequences.of([[*text, EOS] for text in texts], PAD)
    return PairBatch(sources, Sequences.of([[BOS, *text, EOS] for text in texts], PAD))


def _labels(batch: Any) -> Any:
    from regard.data import IGNORE

    return batch.target.ids[:, 1:].masked_fill(~batch.target.keep[:, 1:], IGNORE)


class Ours:
    """The library's model in its own loop."""

    def __init__(self, sizes: dict[str, int], count: int, precision: Any, sort: bool, threads: int):
        from benchmarks.updates import Updates
        from regard.data import TokenArray, sorted_batches
        from regard.tasks.text_to_text import text_to_text_loss
        from regard.training.options import OptimizerOptions, TrainingOptions

        class Task(Updates):
            def loss(self, batch: Any, carry: None) -> Any:
                return text_to_text_loss(self.module, batch), None

        texts = sentences(count, sizes["vocab_size"])
        sources = TokenArray.of([[*text, EOS] for text in texts])
        targets = TokenArray.of([[BOS, *text, EOS] for text in texts])
        batches = list(sorted_batches((sources, targets), (PAD, PAD), max_tokens=1024))
        if not sort:
            batches = [_batch(texts[i : i + 32]) for i in range(0, count, 32)]
        rule = OptimizerOptions("adamw", RATE, (0.9, 0.999), eps=1e-8, max_grad_norm=1.0)
        options = TrainingOptions(
            max_steps=10**9, precision=precision, threads=threads, optimizer=rule
        )
        self.task, self.updates = Task(_model(**sizes), batches, options), len(batches)

    def turn(self) -> float:
        """The loss of the last update."""
        return self.task.run(self.updates)


class Theirs:
    """`MarianMTModel` with the same weights, autocast, torch's fused AdamW."""

    def __init__(self, sizes: dict[str, int], count: int, precision: str, threads: int):
        import torch
        import transformers

        from regard.checkpoints.formats import to_published

        torch.set_num_threads(threads)
        config, weights = to_published(_model(**sizes)) or ({}, {})
        self.model = transformers.MarianMTModel(transformers.MarianConfig(**config)).train()
        self.model.load_state_dict(weights, strict=False)
        texts = sentences(count, sizes["vocab_size"])
        self.batches = [_batch(texts[i : i + 32]) for i in range(0, count, 32)]
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=RATE, fused=True)
        self.low_precision = precision == "bfloat16"

    def turn(self) -> float:
        """The loss of the last update."""
        import torch

        loss = torch.zeros(())
        for batch in self.batches:
            with torch.autocast("cpu", torch.bfloat16, enabled=self.low_precision):
                loss = self.model(
                    input_ids=batch.source.ids,
                    attention_mask=batch.source.keep.long(),
                    decoder_input_ids=batch.target.ids[:, :-1],
                    labels=_labels(batch),
                ).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss.item()
