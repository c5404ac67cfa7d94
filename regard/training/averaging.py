"""Checkpoint averaging (Vaswani et al. 2017, section 6.1): the mean of several sets of weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from regard.checkpoints.store import read_table, verify_folder
from regard.errors import CheckpointError
from regard.training.checkpointing import AVERAGED, FROZEN


def average(checkpoints: Sequence[Path]) -> dict[str, Tensor]:
    """The uniform mean of the weights in these checkpoint folders, added up in float64.

    Each folder is verified first. Integer buffers are taken from the last one.

    Raises:
        CheckpointError: a folder is damaged, or the folders hold different names or shapes.
    """
    total: dict[str, Tensor] = {}
    for folder in checkpoints:
        verify_folder(folder)
        weights = _weights_in(folder)
        if total and _shapes(weights) != _shapes(total):
            raise CheckpointError(f"{folder} holds other tensors than {checkpoints[0]}.")
        for name, tensor in weights.items():
            if tensor.is_floating_point():
                tensor = total.get(name, 0) + tensor.to(torch.float64)
            total[name] = tensor
    if not total:
        raise CheckpointError("there must be at least one checkpoint to average.")
    return {
        name: (total[name] / len(checkpoints)).to(tensor.dtype)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in weights.items()
    }


def _weights_in(folder: Path) -> dict[str, Tensor]:
    """The weights of a checkpoint, those that are frozen too; where it has a mean, that one."""
    tables = {name: read_table(folder, name) for name in ("weights", FROZEN, AVERAGED)}
    if not tables["weights"]:
        raise CheckpointError(f"{folder} holds no weights.")
    return tables["weights"] | tables[FROZEN] | tables[AVERAGED]


def _shapes(tensors: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}
