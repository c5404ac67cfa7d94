"""Which earlier positions the hidden state of a position depends on, segment by segment (Dai et al.
2019, figures 1 and 2).

    vanilla = reachable_positions(gpt2, length=24, segment=6)
    recurrent = reachable_positions(transformer_xl, length=24, segment=6, carried=True)
    recurrent.save("reach.png")

A model without memory starts each segment from nothing. With one, what a position depends on grows
by the length of the memory with every layer.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from regard.decoding.steps import evaluating
from regard.models.protocols import LanguageModel
from regard.visual.charts import Heatmap
from regard.visual.picture import as_labels

NOISE = 1e-9  # changes of hidden states below this share of their size are rounding


def reachable_positions(
    model: LanguageModel, length: int, segment: int, *, carried: bool = False, title: str = ""
) -> Heatmap:
    """How much the last hidden state of each position (a row) changes with the token at each
    position (a column), in shares of the largest change of the row.

    Args:
        length: positions of the text, T.
        segment: positions that the model reads at a time.
        carried: whether the state of one segment goes on to the next.
    """
    changes = change_of_hidden(model, length, segment, carried)
    shares = changes / changes.amax(1, keepdim=True).clamp(min=1e-300)
    labels = as_labels(None, length, "positions")
    matrix = tuple(map(tuple, shares.tolist()))
    return Heatmap(matrix, labels, labels, title, row_axis="positions", column_axis="tokens")


def change_of_hidden(model: LanguageModel, length: int, segment: int, carried: bool) -> Tensor:
    """(T, T) in float64: of each position, how far its last hidden state moves when the token of
    each position is another one; 0 where it does not depend on it.

    Memories pass no gradient from segment to segment, so tokens are exchanged instead.
    """
    exact: LanguageModel = copy.deepcopy(model)
    assert isinstance(exact, nn.Module)
    exact.double().cpu()
    ids = torch.arange(length) % (exact.config.vocab_size - 1)
    changed = ids.repeat(length + 1, 1)  # (T + 1, T): the text, then with another token at each
    changed[1:].diagonal().add_(1)
    with torch.no_grad(), evaluating(exact):
        hidden = torch.cat(list(_segments(exact, changed, segment, carried)), 1)
    distance = (hidden[1:] - hidden[:1]).norm(dim=-1)  # (changed token, position)
    distance[distance < NOISE * hidden[0].norm(dim=-1)] = 0
    return distance.t()


def _segments(model: LanguageModel, ids: Tensor, segment: int, carried: bool) -> list[Tensor]:
    """The hidden states (B, t, D) of each segment of the ids (B, T)."""
    state = model.empty(len(ids), torch.float64) if carried else None
    found = []
    for part in ids.split(segment, 1):
        output = model(part, state)
        state = output.state if carried else None
        found.append(output.hidden)
    return found
