"""The five dropouts of AWD-LSTM (Merity et al. 2018, section 4), before and after, on one pass.

task = regard.load("runs/ptb-awd-lstm")
dropouts(task.module, task.tokenizer, ["I love cats", "I love dogs"]).save("dropouts.png")
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.data.batches import Sequences
from regard.models.recurrent import AwdLstm
from regard.visual.charts import Heatmap
from regard.visual.picture import Illustration, Note, Picture, PictureColumn, PictureRow

GATES = ("i", "f", "g", "o")  # in the rows of a recurrent matrix


@dataclass(frozen=True)
class Recorded:
    """What went into a dropout and what came out."""

    before: Tensor
    after: Tensor


def dropouts(
    model: AwdLstm, tokenizer: Any, texts: Sequence[str], *, seed: int = 1, width: int = 8
) -> Illustration:
    """Each dropout in the pass of a batch of texts: the tensor that it reads and what it leaves.

    Args:
        tokenizer: that of the model.
        texts: the rows of the batch, of a few words each.
        seed: of the masks; the generators stay as they are.
        width: the first dimensions that are drawn, and rows of the recurrent matrix.
    """
    rows = [tokenizer.encode(text).ids for text in texts]
    batch = Sequences.of(rows, model.config.pad)
    found = recorded(model, batch.ids, seed)
    words = [[tokenizer.label(i) for i in row] for row in rows]
    parts: list[Picture] = [_embedding(found["embedding"], rows, words, width)]
    for name, said in _ACTIVATIONS.items():
        parts.append(_activation(name, said, found[name], words, width))
        if name == "input":
            parts.append(_weight(found["weight"], model, width))
    numbers = {
        f"{name} {side}": getattr(one, side) for name, one in found.items() for side in _SIDES
    }
    return Illustration(tuple(parts), "The five dropouts of AWD-LSTM", numbers=numbers)


_SIDES = ("before", "after")
_ACTIVATIONS = {
    "input": "2  Input dropout: one mask for all steps of a row",
    "hidden": "4  Hidden dropout, after the first layer: one mask for all steps of a sequence",
    "output": "5  Output dropout, after the last layer: one mask for all steps of a sequence",
}


def recorded(model: AwdLstm, ids: Tensor, seed: int) -> dict[str, Recorded]:
    """What each dropout did in a training pass over ids (B, T); of the layers, in the first."""
    found: dict[str, Recorded] = {}
    parts: dict[str, nn.Module] = {
        "embedding": model.embedding_dropout,
        "input": model.input_dropout,
        "weight": model.layers[0].weight_dropout,  # type: ignore[dict-item]
        "hidden": model.hidden_dropout,
        "output": model.output_dropout,
    }

    def keep(name: str) -> Any:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...], after: Tensor) -> None:
            found.setdefault(name, Recorded(inputs[0].detach().clone(), after.detach().clone()))

        return hook

    handles = [part.register_forward_hook(keep(name)) for name, part in parts.items()]
    try:
        with _training(model), torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(seed)
            model(ids)
    finally:
        for handle in handles:
            handle.remove()
    return found


@contextmanager
def _training(model: nn.Module) -> Iterator[None]:
    before = model.training
    model.train()
    try:
        yield
    finally:
        model.train(before)


def _embedding(
    one: Recorded, rows: list[list[int]], words: list[list[str]], width: int
) -> PictureColumn:
    """The vectors of the different words of the batch."""
    first = {
        number: (row, at)
        for row, ids in reversed(list(enumerate(rows)))
        for at, number in reversed(list(enumerate(ids)))
    }
    positions = [first[number] for number in dict.fromkeys(i for ids in rows for i in ids)]
    labels = [words[row][at] for row, at in positions]
    index = torch.tensor(positions)
    pair = Recorded(*(getattr(one, side)[index[:, 0], index[:, 1], :width] for side in _SIDES))
    title = "1  Embedding dropout: whole words, wherever they occur"
    return _pair(title, pair, labels)


def _activation(
    name: str, title: str, one: Recorded, words: list[list[str]], width: int
) -> PictureColumn:
    """The hidden states of all words, row after row of the batch."""
    labels = [word for row in words for word in row]
    pair = Recorded(
        *(
            torch.cat([getattr(one, side)[n, : len(row), :width] for n, row in enumerate(words)])
            for side in _SIDES
        )
    )
    return _pair(title, pair, labels)


def _weight(one: Recorded, model: AwdLstm, width: int) -> PictureColumn:
    """The first rows of each gate in the recurrent matrix of the first layer."""
    each, size = max(1, width // 4), model.config.d_hidden
    each = min(each, size)
    index = torch.cat([torch.arange(each) + gate * size for gate in range(4)])
    labels = [f"{gate}{n + 1}" for gate in GATES for n in range(each)]
    pair = Recorded(*(getattr(one, side)[index, :width] for side in _SIDES))
    return _pair("3  Weight dropout: the recurrent matrix, once for a pass", pair, labels)


def _pair(title: str, pair: Recorded, rows: Sequence[str]) -> PictureColumn:
    """Both sides under one scale of colours; + 0.0 makes a zero of what is minus zero."""
    peak = float(torch.cat([pair.before, pair.after]).abs().max()) or 1.0
    columns = [f"d{n + 1}" for n in range(pair.before.size(1))]
    sides = [
        replace(Heatmap.of(getattr(pair, side) + 0.0, rows, columns, side, peak), side=300.0)
        for side in _SIDES
    ]
    return PictureColumn((Note((title,)), PictureRow(tuple(sides))))
