"""AWD-LSTM, 3 layers of 1,150 (Merity et al. 2018): training, beside fastai's model.

Both have the five dropouts and both penalties on activations; the loss is the mean over the words
plus these, the gradient is clipped, the weights move by the rate times the gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.measure import Work
from benchmarks.options import Options
from benchmarks.recurrent import CLIP, _streams
from benchmarks.workers import Condition

PTB = {"vocab_size": 10_000, "d_model": 400, "d_hidden": 1150, "layers": 3}
TINY = {"vocab_size": 50, "d_model": 16, "d_hidden": 24, "layers": 2}
RATE, ALPHA, BETA = 1.0, 2.0, 1.0
DROPOUTS = {"embedding": 0.1, "input": 0.4, "weight": 0.5, "hidden": 0.3, "output": 0.4}
GOALS = {"fastai float32": 1.3, "fastai bfloat16": 1.3}
TRAINERS = {
    "regard bfloat16": ("Ours", {"precision": "bfloat16"}),
    "regard float32": ("Ours", {"precision": "float32"}),
    "fastai float32": ("Theirs", {"precision": "float32"}),
    "fastai bfloat16": ("Theirs", {"precision": "bfloat16"}),
}


def works(options: Options) -> Iterator[Work]:
    """Training with 20 streams of 70 steps."""
    sizes, rows, steps = (TINY, 4, 5) if options.quick else (PTB, 20, 70)
    given = {"sizes": sizes, "rows": rows, "steps": steps}
    conditions = [
        Condition(
            name,
            f"{__name__}:{kind}",
            given | settings,
            ("fastai",) if kind == "Theirs" else (),
        )
        for name, (kind, settings) in TRAINERS.items()
    ]
    yield Work(
        f"AWD-LSTM {sizes['layers']} x {sizes['d_hidden']}, training",
        "tokens/s",
        rows * steps,
        conditions,
        GOALS,
        judge=lambda results: {
            name: f"loss {loss:.2f} at the end" for name, loss in results.items()
        },
        note=f"an update of {rows} streams of {steps} steps, {sizes['vocab_size']:,} words",
    )


class Ours:
    """The library's model and objective in its own loop, plain SGD."""

    def __init__(self, sizes: dict[str, int], rows: int, steps: int, precision: Any, threads: int):
        from benchmarks.updates import Updates
        from regard.models.recurrent import AwdLstm, AwdLstmConfig
        from regard.tasks.running_text import LMObjective
        from regard.training.options import OptimizerOptions, TrainingOptions

        objective = LMObjective(
            activation_regularization=ALPHA, temporal_activation_regularization=BETA
        )

        class Task(Updates):
            def loss(self, batch: Any, carry: Any) -> Any:
                output = self.module(batch.tokens, None if batch.fresh else carry)
                hidden = output.hidden.flatten(0, 1)
                total, count = self.module.head.loss(hidden, batch.targets.flatten())
                for one in objective.losses(self.module):
                    total = total + one.total(output) * count / one.count(batch)
                return (total, count), output.state.detach()

        rule = OptimizerOptions("sgd", RATE, max_grad_norm=CLIP)
        chosen = TrainingOptions(
            max_steps=10**9, precision=precision, threads=threads, optimizer=rule
        )
        dropouts = {f"{name}_dropout": p for name, p in DROPOUTS.items()}
        model = AwdLstm(AwdLstmConfig(**sizes, **dropouts))
        self.task = Task(model, _streams(sizes, rows, steps), chosen)

    def turn(self) -> float:
        """The loss of an update."""
        return self.task.run(1)


class Theirs:
    """fastai's model with its own regularizers' formulas; no callback costs it time. bfloat16:
    under autocast.
    """

    def __init__(self, sizes: dict[str, int], rows: int, steps: int, precision: str, threads: int):
        import torch
        from fastai.text.models.awdlstm import AWD_LSTM, awd_lstm_lm_config
        from fastai.text.models.core import get_language_model

        torch.set_num_threads(threads)
        torch.manual_seed(1)
        names = {"embedding": "embed"}
        dropouts = {f"{names.get(name, name)}_p": p for name, p in DROPOUTS.items()}
        own = {"emb_sz": sizes["d_model"], "n_hid": sizes["d_hidden"], "n_layers": sizes["layers"]}
        config = awd_lstm_lm_config | own | dropouts
        self.model = get_language_model(AWD_LSTM, sizes["vocab_size"], config).train()
        self.batches, self.at = _streams(sizes, rows, steps), 0
        self.low_precision = precision == "bfloat16"
        self.model.reset()

    def turn(self) -> float:
        """The loss of an update."""
        import torch

        batch = self.batches[self.at % len(self.batches)]
        self.at += 1
        self.model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low_precision):
            scores, raw, dropped = self.model(batch.tokens)
        targets, scores = batch.targets.flatten(), scores.flatten(0, 1).float()
        loss = torch.nn.functional.cross_entropy(scores, targets)
        loss = loss + ALPHA * dropped.float().pow(2).mean()
        loss = loss + BETA * (raw[:, 1:] - raw[:, :-1]).float().pow(2).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(parameter.grad, alpha=-RATE)
        return loss.item()
