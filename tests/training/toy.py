"""A task small enough to train in a second, with all that makes an exact resume hard.

An LSTM with dropout, a tied output, a state carried from batch to batch, and a validation that
draws random numbers. As a program it trains in child processes which are killed at random moments:
`python toy.py KIND KILLS SEED FOLDER`.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from regard.data.batches import StreamBatch
from regard.data.cursor import Cursor
from regard.state import Cells
from regard.training import (
    CheckpointOptions,
    OptimizerOptions,
    ScheduleOptions,
    TrainingOptions,
    ValidationOptions,
    resume,
)

V, D, B, T = 13, 8, 4, 5  # vocabulary, width, rows, window


class Model(nn.Module):
    def __init__(self, dropout: float = 0.3):
        super().__init__()
        self.embedding = nn.Embedding(V, D)
        self.lstm = nn.LSTM(D, D, num_layers=2, batch_first=True, dropout=dropout)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(D)
        self.head = nn.Linear(D, V)
        self.head.weight = self.embedding.weight

    def forward(self, tokens, cells=None):
        state = None
        if cells is not None:  # (B, L, D) -> (L, B, D)
            state = tuple(t.transpose(0, 1).contiguous() for t in (cells.hidden, cells.cell))
        out, (hidden, cell) = self.lstm(self.embedding(tokens), state)
        logits = self.head(self.norm(self.dropout(out)))
        return logits, Cells(hidden.transpose(0, 1), cell.transpose(0, 1))


@dataclass
class Windows:
    """Each epoch walks through its own random text; the order depends on the epoch alone."""

    windows: int = 7

    def epoch(self, number: int):
        generator = torch.Generator().manual_seed(number)
        text = torch.randint(V, (B, self.windows * T + 1), generator=generator).sort(1).values
        return [
            StreamBatch(text[:, i * T : i * T + T], text[:, i * T + 1 : i * T + T + 1], i == 0)
            for i in range(self.windows)
        ]

    def identity(self):
        return {"windows": self.windows}


class Toy:
    goal = ("loss", "min")

    def __init__(self, seed: int = 1, dropout: float = 0.3, pause: float = 0.0, windows: int = 7):
        torch.manual_seed(seed)
        self.model = Model(dropout)
        self.pause, self.data = pause, Windows(windows)

    def train_batches(self):
        return Cursor(self.data)

    def counts(self, batch):
        return {"loss": batch.count}

    def losses(self, batch, carry):
        time.sleep(self.pause)
        logits, cells = self.model(batch.tokens, None if batch.fresh else carry)
        flat = logits.reshape(-1, V).float()  # (B, T, V) -> (B T, V)
        loss = nn.functional.cross_entropy(flat, batch.targets.reshape(-1), reduction="sum")
        return {"loss": (loss, batch.count)}, cells.detach()

    def validate(self):
        torch.rand(3)  # must not disturb the training
        batch = Windows(1).epoch(10_000)[0]
        loss, count = self.losses(batch, None)[0]["loss"]
        return {"loss": loss.item() / count}


def options(**changed) -> TrainingOptions:
    """33 updates with accumulation, uneven against the epoch, checkpoints and validations."""
    return TrainingOptions(
        **{
            "updates": 33,
            "accumulate": 2,
            "threads": 1,
            "log_every": 4,
            "validation": ValidationOptions(every=6),
            "checkpoints": CheckpointOptions(every=5, seconds=0, average=3),
            **changed,
        }
    )


def early_stopping(**changed) -> TrainingOptions:
    """A rate so high that the score soon gets worse: best weights and patience decide."""
    return options(
        **{
            "updates": 90,
            "validation": ValidationOptions(every=4, patience=4),
            "optimizer": OptimizerOptions("adamw", 0.2, weight_decay=0.1),
            "schedule": ScheduleOptions("cosine", warmup=3),
            "checkpoints": CheckpointOptions(every=7, seconds=0, keep=1),
            **changed,
        }
    )


KINDS = {"average": options, "best": early_stopping}


def child(kind: str, folder: str, pause: float = 0.001) -> int:
    """Fork a process that goes on with the run in `folder`; gives its id."""
    pid = os.fork()
    if pid == 0:
        try:
            resume(Toy(pause=pause), KINDS[kind](), folder, show="none")
            os._exit(0)
        except KeyboardInterrupt as stop:
            os._exit(getattr(stop, "code", 99))
        except BaseException as error:
            print(error, file=sys.stderr, flush=True)
            os._exit(1)
    return pid


def kill_and_resume(kind: str, kills: int, seed: int, folder: str) -> None:
    """Kill at random moments; count only those that met a living process, then let it end."""
    chance = random.Random(seed)
    Path(folder).mkdir(parents=True)
    killed = 0
    while killed < kills:
        pid = child(kind, folder)
        time.sleep(chance.uniform(0.0, 0.12))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status):
            raise SystemExit(f"ended with {status} after {killed} kills: nothing left to kill")
        killed += 1
    _, status = os.waitpid(child(kind, folder), 0)
    raise SystemExit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    torch.set_num_threads(1)
    kill_and_resume(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
