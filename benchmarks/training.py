"""Training: masked words with a BERT base, and fine-tuning MiniLM on MRPC.

Both sides train in bfloat16 with float32 masters, AdamW fused, gradients clipped, dropout 0.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks import pairs
from benchmarks.measure import Work
from benchmarks.options import Options
from benchmarks.workers import Condition

BASE = {"vocab_size": 30522, "d_model": 768, "d_ff": 3072, "heads": 12, "layers": 12}
TINY = {"vocab_size": 100, "d_model": 32, "d_ff": 64, "heads": 2, "layers": 2}
RATE, CLIP, DECAY = 1e-4, 1.0, 0.01
MASKED = 0.15
GOALS = {"transformers bfloat16": 1.5, "transformers bfloat16 compiled": 1.5}


def works(options: Options) -> Iterator[Work]:
    """Masked words; pairs of sentences; a pair classifier from MiniLM where its data is there."""
    yield _masked(options)
    yield from pairs.works(options)
    if options.file("glue", "MRPC") and options.encoder:
        yield _mrpc(options)


def _masked(options: Options) -> Work:
    sizes, rows, length, updates = (TINY, 4, 16, 1) if options.quick else (BASE, 16, 128, 2)
    given = {"sizes": sizes, "rows": rows, "length": length, "updates": updates}
    sides: dict[str, dict[str, Any]] = {
        "regard bfloat16": {"precision": "bfloat16"},
        "regard float32": {"precision": "float32"},
        "transformers bfloat16": {"precision": "bfloat16"},
        "transformers bfloat16 compiled": {"precision": "bfloat16", "compiled": True},
        "transformers float32": {"precision": "float32"},
    }
    if not options.full:
        del sides["transformers bfloat16 compiled"]
    conditions = []
    for name, settings in sides.items():
        ours = name.startswith("regard")
        kind = "OurMaskedWords" if ours else "TheirMaskedWords"
        needs = () if ours else ("transformers",)
        conditions.append(Condition(name, f"{__name__}:{kind}", given | settings, needs))
    done = updates * flops(sizes, rows, length) / 1e9
    least = {name: (f"{side['precision']} GFLOP/s", done) for name, side in sides.items()}
    return Work(
        f"masked words, BERT base, {rows} x {length}"
        if not options.quick
        else "masked words, tiny",
        "tokens/s",
        updates * rows * length,
        conditions,
        GOALS,
        {} if options.quick else least,
        judge=lambda results: {
            name: f"loss {loss:.2f} at the end" for name, loss in results.items()
        },
        note="an update: forward, backward, clipping, AdamW; 15 % of the words are predicted",
    )


def flops(sizes: dict[str, int], rows: int, length: int) -> float:
    """Of the matrix products of one update; behind the last layer's keys at masked words alone."""
    width, inner = sizes["d_model"], sizes["d_ff"]
    layers = sizes["layers"] - 1 + MASKED
    weights = layers * (4 * width**2 + 2 * width * inner) + (1 - MASKED) * 2 * width**2
    scores = layers * 2 * length * width  # queries with keys, weights with values
    head = MASKED * (width**2 + width * sizes["vocab_size"])
    return 6.0 * rows * length * (weights + scores + head)


@dataclass(frozen=True)
class Masked:
    """Rows of ids, and targets: the original ids at the masked positions, else IGNORE."""

    texts: Any
    targets: Any

    @cached_property
    def count(self) -> int:
        """Masked positions."""
        return int((self.targets >= 0).sum())

    def to(self, device: Any) -> Masked:
        """The CPU is where they are."""
        return self


def _batches(sizes: dict[str, int], rows: int, length: int, count: int = 8) -> list[Masked]:
    import torch

    from regard.data import IGNORE, Sequences

    draw = torch.Generator().manual_seed(1)
    found = []
    for _ in range(count):
        ids = torch.randint(4, sizes["vocab_size"], (rows, length), generator=draw)
        masked = torch.rand(ids.shape, generator=draw) < MASKED
        texts = Sequences(ids.masked_fill(masked, 3), torch.full((rows,), length))
        found.append(Masked(texts, ids.masked_fill(~masked, IGNORE)))
    return found


class OurMaskedWords:
    """`Bert` and its head for words in the library's own loop."""

    def __init__(
        self,
        sizes: dict[str, int],
        rows: int,
        length: int,
        updates: int,
        precision: Any,
        threads: int,
    ):
        from benchmarks.updates import Updates
        from regard.data import IGNORE
        from regard.models.bert import Bert, BertConfig
        from regard.models.encoder_with_heads import assembled
        from regard.training.options import OptimizerOptions, TrainingOptions

        class Task(Updates):
            def loss(self, batch: Masked, carry: None) -> Any:
                masked = batch.targets != IGNORE
                texts = batch.texts.unpadded()
                hidden = self.module.encoder.encode(texts, texts.layout.subset(masked))[0]
                return self.module.heads["masked_lm"].loss(hidden, batch.targets[masked]), None

        rule = OptimizerOptions(
            "adamw", RATE, (0.9, 0.999), eps=1e-8, weight_decay=DECAY, max_grad_norm=CLIP
        )
        options = TrainingOptions(
            max_steps=10**9, precision=precision, threads=threads, optimizer=rule
        )
        model = assembled(Bert(BertConfig(**sizes)), {"masked_lm": 1})
        self.task, self.updates = Task(model, _batches(sizes, rows, length), options), updates

    def turn(self) -> float:
        """The loss of the last update."""
        return self.task.run(self.updates)


class TheirMaskedWords:
    """`BertForMaskedLM` under autocast, with torch's fused AdamW."""

    def __init__(
        self,
        sizes: dict[str, int],
        rows: int,
        length: int,
        updates: int,
        precision: str,
        threads: int,
        compiled: bool = False,
    ):
        import torch
        import transformers

        torch.set_num_threads(threads)
        torch.manual_seed(1)
        config = transformers.BertConfig(
            vocab_size=sizes["vocab_size"],
            hidden_size=sizes["d_model"],
            intermediate_size=sizes["d_ff"],
            num_attention_heads=sizes["heads"],
            num_hidden_layers=sizes["layers"],
        )
        self.model = transformers.BertForMaskedLM(config).train()
        self.step = torch.compile(self.model) if compiled else self.model
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), RATE, weight_decay=DECAY, fused=True
        )
        self.batches, self.at = _batches(sizes, rows, length), 0
        self.updates, self.low_precision = updates, precision == "bfloat16"

    def turn(self) -> float:
        """The loss of the last update."""
        import torch

        loss = torch.zeros(())
        for _ in range(self.updates):
            batch = self.batches[self.at % len(self.batches)]
            self.at += 1
            with torch.autocast("cpu", torch.bfloat16, enabled=self.low_precision):
                loss = self.step(input_ids=batch.texts.ids, labels=batch.targets).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss.item()


# ------------------------------------------------------------------------------- fine-tuning


def _mrpc(options: Options) -> Work:
    rows = 64 if options.quick else 1024
    given = {"data": str(options.data), "encoder": str(options.encoder), "rows": rows}
    needs = ("transformers", "accelerate")
    conditions = [
        Condition("regard bfloat16", f"{__name__}:FineTuning", given | {"side": "library"}),
        Condition(
            "transformers' Trainer bfloat16",
            f"{__name__}:FineTuning",
            given | {"side": "trainer"},
            needs,
        ),
    ]
    return Work(
        "fine-tuning MiniLM on MRPC",
        "pairs/s",
        rows,
        conditions,
        {"transformers' Trainer bfloat16": 2.0},
        note=f"an epoch of {rows:,} pairs of real lengths, batches of 32, checkpoints of ours "
        "included; scores of whole runs: `python -m benchmarks.finetuning`, "
        "docs/reports/results.md",
    )


class FineTuning:
    """side: "library" or "trainer" of `benchmarks.finetuning`; each turn starts over."""

    def __init__(self, side: str, data: str, encoder: str, rows: int, threads: int):
        import importlib

        import torch

        from benchmarks.finetuning import rows as reading
        from benchmarks.finetuning.conditions import TASKS, Recipe

        torch.set_num_threads(threads)
        self.kind = importlib.import_module(f"benchmarks.finetuning.{side}").Side
        self.task, self.recipe = TASKS["mrpc"], replace(Recipe(), epochs=1)
        self.encoder = Path(encoder)
        self.rows = reading.training(self.task, Path(data), rows)

    def ready(self) -> None:
        """The model with its new head, and the encoded rows: this is not timed."""
        self.one = self.kind(self.task, self.recipe, 1, self.encoder)
        self.one.encode(self.rows)

    def turn(self) -> None:
        """An epoch."""
        self.one.train()
