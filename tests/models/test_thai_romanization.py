"""The example that loads a published attention LSTM with a wiring of its own: its decoder written
out in float64, on weights drawn in the form of its files.
"""

from __future__ import annotations

import pytest
import thai_romanization as example
import torch
from torch import Tensor, nn

from regard.data.batches import Sequences
from regard.tasks.pair_tasks import Translator

SOURCE = ["<PAD>", "<UNK>", "<start>", "<end>", *"กขคง 1"]  # as the published file has them
TARGET = ["<PAD>", "<start>", "<end>", *"kgn 1-"]
WIDTH, LETTER = 6, 4


def onnx_order(gates: Tensor) -> Tensor:
    """The gates i, f, g, o of torch as ONNX stacks them: i, o, f, g."""
    i, f, g, o = gates.chunk(4)
    return torch.cat([i, o, f, g])


def onnx_lstm(layer: nn.LSTM, directions: list[str]) -> dict[str, Tensor]:
    """An LSTM's W, R and B (directions, ...)."""
    weights = dict(layer.named_parameters())
    parts: dict[str, list[Tensor]] = {"W": [], "R": [], "B": []}
    for end in directions:
        inputs, state, b, c = (onnx_order(weights[f"{name}_l0{end}"]) for name in NAMES)
        for name, tensor in (("W", inputs), ("R", state), ("B", torch.cat([b, c]))):
            parts[name].append(tensor)
    return {name: torch.stack(tensors).detach() for name, tensors in parts.items()}


NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


class Published:
    """The program's layers, and its loop for one text."""

    def __init__(self, seed: int):
        torch.manual_seed(seed)
        self.read = nn.LSTM(LETTER, WIDTH // 2, bidirectional=True)
        self.write = nn.LSTM(WIDTH + LETTER, WIDTH)
        self.source, self.target = (
            torch.randn(len(SOURCE), LETTER),
            torch.randn(len(TARGET), LETTER),
        )
        self.score, self.output = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, len(TARGET))

    def task(self) -> Translator:
        encoder = {"character_embedding.weight": self.source}
        decoder = {"character_embedding.weight": self.target}
        decoder |= {
            f"attn.attn.{name}": one.detach() for name, one in self.score.named_parameters()
        }
        decoder |= {f"linear.{name}": one.detach() for name, one in self.output.named_parameters()}
        encoder |= onnx_lstm(self.read, ["", "_reverse"])
        decoder |= onnx_lstm(self.write, [""])
        return example.romanization(encoder, decoder, SOURCE, TARGET)

    def decode(self, text: str, target: list[int]) -> tuple[Tensor, Tensor]:
        """Log-probabilities (T, letters of the target) behind each letter of the target, and
        attention (T, S), in float64.
        """
        layers = [layer.double() for layer in (self.read, self.write, self.score, self.output)]
        read, write, score, output = layers
        ids = [SOURCE.index(one) if one in SOURCE else 1 for one in text] + [3]
        memory, (ends, _) = read(self.source.double()[ids])
        query, rows, maps = torch.cat([ends[0], ends[1]]), [], []
        for letter in target:
            maps.append((score(memory) @ query).softmax(0))
            step = torch.cat([maps[-1] @ memory, self.target.double()[letter]])
            query = write(step[None])[0][0]  # without a state: from zeros
            rows.append(output(query).log_softmax(-1))
        return torch.stack(rows).detach(), torch.stack(maps).detach()


@pytest.mark.parametrize("seed", range(3))
def test_converted_weights_give_the_log_probabilities_of_the_program(seed):
    task = Published(seed).task()
    letters = torch.tensor([task.tokenizer.id(one) for one in TARGET])
    for text, target in (
        ("กข", [1, 3, 4]),
        ("คz1 ง", [1, 8, 8, 6, 5]),
        ("", [1]),
        ("ก" * 30, [1, 7]),
    ):
        source = Sequences.full(torch.tensor([[*task.tokenizer.encode(text).ids, 3]]))
        given = letters[target][None]
        with torch.no_grad():
            logits = task.module.head.logits(task.module(source, Sequences.full(given)).hidden)[0]
        found = logits.log_softmax(-1)
        assert found[:, [4, 5, 6, 7]].max() < -1000  # letters of the source are not written
        wanted, _ = Published(seed).decode(text, target)
        torch.testing.assert_close(found[:, letters].double(), wanted, atol=1e-5, rtol=0)
