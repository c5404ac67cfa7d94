"""What the processes of `test_distributed.py` do: `torchrun ... ranks_program.py main FOLDER`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))

from toy import Toy, averaged, options

import regard
from regard.training import Callback, Interrupted, OptimizerOptions, resume, train
from regard.training.distributed import connected, processes

KILLED = 40  # the batch in which a process dies: after 22 updates, of which 20 are saved
STOP = 17  # the update after which runs are stopped by a signal


class Exact(Toy):
    """In float64 and without dropout; a parameter without a dimension is trained, too."""

    def __init__(self):
        super().__init__(dropout=0.0)
        self.model.scale = nn.Parameter(torch.ones(()))
        self.model.double()

    def losses(self, batch, carry):
        logits, cells = self.model(batch.tokens, None if batch.fresh else carry)
        flat = self.model.scale * logits.flatten(0, 1)  # (B, T, V) -> (B T, V)
        loss = nn.functional.cross_entropy(flat, batch.targets.flatten(), reduction="sum")
        return {"loss": (loss, batch.count)}, cells.detach()


class Dying(Exact):
    """The second process kills itself at a batch."""

    batches = 0

    def losses(self, batch, carry):
        self.batches += 1
        if processes().rank == 1 and self.batches == KILLED:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().losses(batch, carry)


class Stop(Callback):
    """Sends this process a signal, as torchrun does when it is interrupted."""

    def on_update(self, update):
        if update.number == STOP:
            os.kill(os.getpid(), signal.SIGTERM)


def chosen(**changed):
    """Weight decay and clipping that has an effect."""
    return options(optimizer=OptimizerOptions("adamw", 0.02, weight_decay=0.1, clip=0.3), **changed)


def stopped(folder: Path) -> None:
    """Train until a signal comes."""
    try:
        train(Exact(), chosen(), folder, show="none", callbacks=[Stop()])
    except Interrupted as error:
        assert error.code == 128 + signal.SIGTERM
        return
    raise AssertionError("not stopped")


RECIPE = """
task = "classification"
seed = 3
[data]
train = "train.tsv"
valid = "valid.tsv"
batch_size = 4
[tokenizer]
kind = "words"
[model]
name = "bert"
layers = 2
d_model = 12
heads = 3
dropout = 0
attention_dropout = 0
head_dropout = 0
[training]
updates = 12
log_every = 1
[training.optimizer]
learning_rate = 1e-3
"""


def dying(folder: Path) -> None:
    """A training of which a process dies."""
    torch.set_num_threads(1)
    with connected():
        train(Dying(), chosen(), folder / "killed", show="none")


def main(folder: Path) -> None:
    """One start of the processes serves several trainings, as starting takes longer than they."""
    torch.set_num_threads(1)
    with connected():
        train(Exact(), chosen(), folder / "several", show="none")
        train(Exact(), averaged(), folder / "averaged", show="none")
        stopped(folder / "stopped")
        resume(Exact(), chosen(), folder / "resumed", show="none")
        os.chdir(folder)
        run = regard.train("recipe.toml", out="recipe", show="none")
        assert (run.result.update, processes().size) == (12, 2)


if __name__ == "__main__":
    {"main": main, "dying": dying}[sys.argv[1]](Path(sys.argv[2]))
