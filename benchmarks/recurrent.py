"""An LSTM language model, 2 layers of 650 (Zaremba et al. 2014, medium): training and decoding.

The peer is what PyTorch's own example of word-level language modelling does: `nn.LSTM`, a linear
layer, cross-entropy, the gradient clipped, the rate times the gradient taken from the weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.measure import Work
from benchmarks.options import Options
from benchmarks.workers import Condition

MEDIUM = {"vocab_size": 10_000, "d_model": 650, "layers": 2}
TINY = {"vocab_size": 50, "d_model": 16, "layers": 2}
RATE, CLIP, DROPOUT = 1.0, 0.25, 0.5
GOALS = {"PyTorch float32": 1.3, "PyTorch bfloat16": 1.3}
TRAINERS = {
    "regard bfloat16": ("OurTraining", {"precision": "bfloat16"}),
    "regard float32": ("OurTraining", {"precision": "float32"}),
    "PyTorch float32": ("TheirTraining", {"precision": "float32"}),
    "PyTorch bfloat16": ("TheirTraining", {"precision": "bfloat16"}),
}
DECODERS = {
    "regard int8": ("OurDecoding", {"weights": "int8"}),
    "regard bfloat16": ("OurDecoding", {"weights": "bfloat16"}),
    "regard float32": ("OurDecoding", {"weights": "float32"}),
    "PyTorch float32": ("TheirDecoding", {"quantized": False}),
    "PyTorch dynamic int8": ("TheirDecoding", {"quantized": True}),
}


def works(options: Options) -> Iterator[Work]:
    """Training with 20 streams of 35 steps; then 128 words, one sequence."""
    sizes, rows, steps, updates = (TINY, 4, 5, 1) if options.quick else (MEDIUM, 20, 35, 4)
    given = {"sizes": sizes, "rows": rows, "steps": steps, "updates": updates}
    conditions = [
        Condition(name, f"{__name__}:{kind}", given | settings)
        for name, (kind, settings) in TRAINERS.items()
    ]
    tokens = updates * rows * steps
    # Each layer reads what is below and what was before; then the output.
    weights = sizes["layers"] * 8 * sizes["d_model"] ** 2 + sizes["vocab_size"] * sizes["d_model"]
    least = {
        name: (f"{settings['precision']} GFLOP/s", 6 * weights * tokens / 1e9)
        for name, (_, settings) in TRAINERS.items()
    }
    yield Work(
        f"LSTM language model 2 x {sizes['d_model']}, training",
        "tokens/s",
        tokens,
        conditions,
        GOALS,
        {} if options.quick else least,
        judge=lambda results: {
            name: f"loss {loss:.2f} at the end" for name, loss in results.items()
        },
        note=f"{rows} streams of {steps} steps, {sizes['vocab_size']:,} words, dropout {DROPOUT}",
    )
    new = 8 if options.quick else 128
    yield Work(
        f"LSTM language model 2 x {sizes['d_model']}, one sequence",
        "tokens/s",
        new,
        [
            Condition(name, f"{__name__}:{kind}", {"sizes": sizes, "new": new} | settings)
            for name, (kind, settings) in DECODERS.items()
        ],
        note=f"{new} words, greedy",
    )


def _streams(sizes: dict[str, int], rows: int, steps: int, count: int = 8) -> list[Any]:
    import torch

    from regard.data import StreamBatch

    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(3, sizes["vocab_size"], (rows, count * steps + 1), generator=draw)
    return [
        StreamBatch(ids[:, at : at + steps], ids[:, at + 1 : at + 1 + steps], at == 0)
        for at in range(0, count * steps, steps)
    ]


class OurTraining:
    """The library's model in its own loop, plain SGD."""

    def __init__(
        self,
        sizes: dict[str, int],
        rows: int,
        steps: int,
        updates: int,
        precision: Any,
        threads: int,
    ):
        from benchmarks.updates import Updates
        from regard.models.recurrent import RecurrentConfig, RecurrentLanguageModel
        from regard.training.options import OptimizerOptions, TrainingOptions

        class Task(Updates):
            def loss(self, batch: Any, carry: Any) -> Any:
                output = self.module(batch.tokens, None if batch.fresh else carry)
                hidden = output.hidden.flatten(0, 1)
                loss = self.module.head.loss(hidden, batch.targets.flatten())
                return loss, output.state.detach()

        rule = OptimizerOptions("sgd", RATE, max_grad_norm=CLIP)
        options = TrainingOptions(
            max_steps=10**9, precision=precision, threads=threads, optimizer=rule
        )
        model = RecurrentLanguageModel(RecurrentConfig(**sizes, dropout=DROPOUT, init_range=0.05))
        self.task, self.updates = Task(model, _streams(sizes, rows, steps), options), updates

    def turn(self) -> float:
        """The loss of the last update."""
        return self.task.run(self.updates)


def _their_model(sizes: dict[str, int]) -> Any:
    """Embedding, nn.LSTM and output, as torch has them."""
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            width, words = sizes["d_model"], sizes["vocab_size"]
            self.dropout, self.embedding = nn.Dropout(DROPOUT), nn.Embedding(words, width)
            self.lstm = nn.LSTM(width, width, sizes["layers"], dropout=DROPOUT)
            self.output = nn.Linear(width, words)

        def forward(self, ids: Any, state: Any) -> Any:
            hidden, state = self.lstm(self.dropout(self.embedding(ids)), state)
            return self.output(self.dropout(hidden)), state

    torch.manual_seed(1)
    model = Model()
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.05, 0.05)
    return model


class TheirTraining:
    """PyTorch's example, time before rows as it has it; bfloat16: under autocast."""

    def __init__(
        self,
        sizes: dict[str, int],
        rows: int,
        steps: int,
        updates: int,
        precision: str,
        threads: int,
    ):
        import torch

        torch.set_num_threads(threads)
        self.model = _their_model(sizes).train()
        self.batches = [
            (batch.tokens.T.contiguous(), batch.targets.T.flatten())
            for batch in _streams(sizes, rows, steps)
        ]
        self.updates, self.at, self.low_precision = updates, 0, precision == "bfloat16"
        self.state: Any = None

    def turn(self) -> float:
        """The loss of the last update."""
        import torch

        loss = torch.zeros(())
        for _ in range(self.updates):
            ids, targets = self.batches[self.at % len(self.batches)]
            self.at += 1
            state = self.state and tuple(part.detach() for part in self.state)
            self.model.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=self.low_precision):
                scores, self.state = self.model(ids, state)
                loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1).float(), targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
            with torch.no_grad():
                for parameter in self.model.parameters():
                    parameter.add_(parameter.grad, alpha=-RATE)
        return loss.item()


class OurDecoding:
    """Greedy search with the library's model."""

    def __init__(self, sizes: dict[str, int], new: int, weights: str, threads: int):
        import torch

        from regard import ops
        from regard.decoding import Greedy, MinTokens
        from regard.models.conversions import prepare
        from regard.models.recurrent import RecurrentConfig, RecurrentLanguageModel

        ops.load_kernels()
        torch.set_num_threads(threads)
        torch.manual_seed(1)
        self.model = RecurrentLanguageModel(RecurrentConfig(**sizes, init_range=0.05)).eval()
        if weights != "float32":
            prepare(self.model, weights)  # type: ignore[arg-type]
        self.method = Greedy(max_tokens=new, filters=(MinTokens(new),))

    def turn(self) -> list[int]:
        """The words."""
        import torch

        from regard.decoding import generate

        with torch.no_grad():
            return generate(self.model, None, self.method)[0][0].tokens


class TheirDecoding:
    """A loop over `nn.LSTM`; quantized: torch's dynamic quantization."""

    def __init__(self, sizes: dict[str, int], new: int, quantized: bool, threads: int):
        import torch
        from torch import nn

        torch.set_num_threads(threads)
        self.model, self.new = _their_model(sizes).eval(), new
        if quantized:
            self.model = torch.ao.quantization.quantize_dynamic(self.model, {nn.LSTM, nn.Linear})

    def turn(self) -> list[int]:
        """The words."""
        import torch

        word, state, found = torch.tensor([[2]]), None, []
        with torch.inference_mode():
            for _ in range(self.new):
                scores, state = self.model(word, state)
                word = scores.argmax(-1)
                found.append(word.item())
        return found
