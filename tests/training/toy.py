"""A task small enough to train in a second, with all that makes an exact resume hard.

An LSTM with dropout, a tied output, a state carried from batch to batch, and a validation that
draws random numbers. As a program it trains in child processes which are killed at random moments:
`python toy.py KILLS SEED FOLDER`.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import torch
from torch import nn

from regard.data.batches import StreamBatch
from regard.data.sampler import EpochSampler
from regard.state import Cells
from regard.training.callbacks import Trainable
from regard.training.optimizers import optimizer
from regard.training.options import (
    AveragingOptions,
    CheckpointOptions,
    OptimizerOptions,
    ScheduleOptions,
    TrainingOptions,
    ValidationOptions,
)
from regard.training.run import resume

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


class Toy(Trainable):
    goal = ("loss", "min")

    def __init__(self, seed: int = 1, dropout: float = 0.3, tick=lambda: None):
        torch.manual_seed(seed)
        self.module = Model(dropout)
        self.tick, self.data = tick, Windows()

    def train_batches(self):
        return EpochSampler(self.data)

    def counts(self, batch):
        return {"loss": batch.count}

    def losses(self, batch, carry):
        self.tick()
        logits, cells = self.module(batch.tokens, None if batch.fresh else carry)
        flat = logits.reshape(-1, V).float()  # (B, T, V) -> (B T, V)
        loss = nn.functional.cross_entropy(flat, batch.targets.reshape(-1), reduction="sum")
        return {"loss": (loss, batch.count)}, cells.detach()

    def validate(self):
        torch.rand(3)  # must not disturb the training
        batch = Windows(1).epoch(10_000)[0]
        loss, count = self.losses(batch, None)[0]["loss"]
        return {"loss": loss.item() / count}


def options(**changed) -> TrainingOptions:
    """33 steps with accumulation, uneven against the epoch, checkpoints and validations."""
    return TrainingOptions(
        **{
            "max_steps": 33,
            "gradient_accumulation_steps": 2,
            "threads": 1,
            "logging_steps": 4,
            "validation": ValidationOptions(eval_steps=6),
            "checkpoints": CheckpointOptions(5, 0, average=3, words_per_epoch=10**6),
            **changed,
        }
    )


def early_stopping(**changed) -> TrainingOptions:
    """A rate so high that the score soon gets worse: best weights and patience decide."""
    return options(
        **{
            "max_steps": 90,
            "validation": ValidationOptions(eval_steps=4, patience=4),
            "optimizer": OptimizerOptions("adamw", 0.2, weight_decay=0.1),
            "schedule": ScheduleOptions("cosine", warmup=3),
            "checkpoints": CheckpointOptions(save_steps=7, save_seconds=0, save_total_limit=1),
            **changed,
        }
    )


def averaged(**changed) -> TrainingOptions:
    """NT-ASGD with a rate so high that its trigger comes in the middle of the training."""
    return options(
        **{
            "max_steps": 60,
            "validation": ValidationOptions(eval_steps=4),
            "optimizer": OptimizerOptions("sgd", 5.0, max_grad_norm=0.25),
            "checkpoints": CheckpointOptions(save_steps=7, save_seconds=0, save_total_limit=1),
            "averaging": AveragingOptions(nonmono=2),
            "schedule": ScheduleOptions("constant"),
            **changed,
        }
    )


KINDS = {"average": options, "best": early_stopping, "averaged": averaged}


def child(kind: str, folder: str) -> tuple[int, int]:
    """Fork a process that goes on with the run; gives its id, and a pipe with a byte a batch."""
    here, there = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(here)
        try:
            task = Toy(tick=lambda: os.write(there, b"."))
            resume(task, KINDS[kind](), folder, progress=False)
            os._exit(0)
        except BaseException as error:
            print(error, file=sys.stderr, flush=True)
            os._exit(1)
    os.close(there)
    return pid, here


def kill_after_a_while(pid: int, pipe: int, chance: random.Random) -> None:
    """Kill a child at a random moment after a random number of batches."""
    for _ in range(chance.randint(0, 24)):
        os.read(pipe, 1)
    time.sleep(chance.choice([0, 0.001, 0.01]) * chance.random())
    os.kill(pid, signal.SIGKILL)


def kill_and_resume(kind: str, kills: int, seed: int, folder: Path) -> None:
    """Train runs to their end, one after the other, until `kills` have met a living process."""
    chance = random.Random(seed)
    for number in count():
        run = folder / str(number)
        run.mkdir(parents=True)
        done = False
        while not done:
            pid, pipe = child(kind, str(run))
            if kills > 0:
                kill_after_a_while(pid, pipe, chance)
            _, status = os.waitpid(pid, 0)
            os.close(pipe)
            killed = os.WIFSIGNALED(status)
            kills, done = kills - killed, not killed
        if status:
            raise SystemExit(os.waitstatus_to_exitcode(status))
        if kills <= 0:
            return


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.fsync = lambda file: None  # a kill is no power cut: what was written stays written
    optimizer(
        Toy().module, OptimizerOptions()
    )  # what torch imports late, it imports before the fork
    for kind in KINDS:  # in one process: its imports take longer than the trainings
        kill_and_resume(kind, int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3], kind))
