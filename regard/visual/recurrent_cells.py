"""The cells of recurrent models while they read a text (Karpathy et al. 2015, section 4.2).

    task = regard.load("runs/shakespeare-char-lstm")
    cell_activation(task.module, task.tokenizer, "To be, or not to be", layer=2, number=17).show()

A cell shows tanh(c), which its output gate reads, or in a layer without cells the hidden state, so
that every value lies in [-1, 1]. A text begins with a state of zeros and is read one token at a
time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.data.batches import Sequences
from regard.decoding.steps import evaluating
from regard.errors import ConfigError
from regard.models.elmo import Direction, Elmo
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.features import Features
from regard.models.protocols import LanguageModel, Recurrent
from regard.models.wrappers import unwrapped
from regard.text import Tokenizer
from regard.visual.cell_text import CellText

CHUNK = 256  # tokens whose activations are computed together
Activations = list[Tensor]  # of each layer, (B, T, D)


def cell_activation(
    model: nn.Module, tokenizer: Tokenizer, text: str, *, layer: int, number: int
) -> CellText:
    """A text coloured by one cell.

    Args:
        model: one with recurrent layers. Of an ELMo the layers of the backward direction come after
            those of the forward one.
        layer, number: from 1.

    Raises:
        ConfigError: the model has no recurrent layers, or not this one, or not this cell of it; the
            text has no token, or more than the model reads.
    """
    reader, encoding = reader_of(model), encoded(model, tokenizer, text)
    reader.check(layer, number)
    ids = torch.tensor([encoding.ids], device=next(model.parameters()).device)
    parts = [found[layer - 1][0, :, number - 1] for found in reader.activations(ids, tokenizer)]
    values = torch.cat(parts).float().cpu()
    title = f"{reader.name(layer)}, cell {number}"
    return CellText.of(text, encoding.offsets, values.tolist(), title)


def encoded(model: nn.Module, tokenizer: Tokenizer, text: str) -> Any:
    """The tokens of a text that a model can read.

    Raises:
        ConfigError: there are none, or more than the model's limit.
    """
    found = tokenizer.encode(text)
    limit = recurrent_part(model).config.max_length
    if not found.ids:
        raise ConfigError("The text has no token: there is nothing to read.")
    if limit is not None and len(found.ids) > limit:
        raise ConfigError(
            f"The text has {len(found.ids):,} tokens, but this model reads at most {limit:,} "
            "(`max_length`). Shorten it."
        )
    return found


def recurrent_part(model: nn.Module) -> Recurrent | Elmo:
    """The part of a model that has recurrent layers.

    Raises:
        ConfigError: there is none.
    """
    part: object = unwrapped(model)
    while isinstance(part, EncoderWithHeads | Features):
        part = part.encoder
    if not isinstance(part, Recurrent | Elmo):
        raise ConfigError(
            f"{type(part).__name__} has no recurrent cells that carry a state from token to "
            "token. The models `recurrent`, `awd-lstm` and `elmo` have."
        )
    return part


@dataclass(frozen=True)
class CellReader(ABC):
    """The recurrent layers of a model. widths: their numbers of cells."""

    model: Any
    widths: tuple[int, ...]

    def name(self, layer: int) -> str:
        """What a picture calls a layer, from 1."""
        return f"layer {layer}"

    def check(self, layer: int, number: int) -> None:
        """Check that there is such a cell; both count from 1.

        Raises:
            ConfigError: there is none.
        """
        if not 1 <= layer <= len(self.widths):
            raise ConfigError(f"`layer` must be from 1 to {len(self.widths)}, but is {layer}.")
        width = self.widths[layer - 1]
        if not 1 <= number <= width:
            raise ConfigError(
                f"`number` of a cell of layer {layer} must be from 1 to {width}, but is {number}."
            )

    @abstractmethod
    def activations(self, ids: Tensor, tokenizer: Tokenizer) -> Iterator[Activations]:
        """The activations of all cells, some tokens of the ids (B, T) after others."""


class StackReader(CellReader):
    """Layers on each other."""

    @torch.no_grad()
    def activations(self, ids: Tensor, tokenizer: Tokenizer) -> Iterator[Activations]:
        """See `CellReader`. A model that reads texts from their end does so here, and what it gives
        stands in the order of the text.
        """
        backward = isinstance(self.model, LanguageModel) and self.model.reads_backward
        parts = (ids.flip(1) if backward else ids).split(CHUNK, 1)
        found = self._chunks(parts)
        if not backward:
            yield from found
            return
        for chunk in reversed(list(found)):
            yield [activations.flip(1) for activations in chunk]

    def _chunks(self, parts: Sequence[Tensor]) -> Iterator[Activations]:
        layers, states = self.model.recurrent_layers, None
        for part in parts:
            with evaluating(self.model):
                x = self.model.embedded(part)
                states = states or [layer.empty(len(part), x) for layer in layers]
                found = []
                for n, layer in enumerate(layers):
                    steps = list(layer.steps(x, *states[n]))
                    states[n] = steps[-1]
                    x = torch.stack([hidden for hidden, _ in steps], 1)  # T x (B, D) -> (B, T, D)
                    cells = torch.stack([cell for _, cell in steps], 1).tanh()
                    found.append(cells if layer.has_cell else x)
            yield found


class ElmoReader(CellReader):
    """Two directions, each on its own."""

    def name(self, layer: int) -> str:
        each = len(self.widths) // 2
        direction = "forward" if layer <= each else "backward"
        return f"layer {(layer - 1) % each + 1}, {direction}"

    @torch.no_grad()
    def activations(self, ids: Tensor, tokenizer: Tokenizer) -> Iterator[Activations]:
        """See `CellReader`; at each word the cells after both directions have read it."""
        tokenizer = self.model.input_tokenizer(tokenizer)
        with evaluating(self.model):
            forward = self._direction(ids.split(CHUNK, 1), tokenizer, "forward")
            backward = self._direction(ids.flip(1).split(CHUNK, 1), tokenizer, "backward")
        cells = torch.cat([forward, backward.flip(1)], 2).tanh()
        yield list(cells.unbind(2))  # (B, T, 2L, D) -> 2L x (B, T, D)

    def _direction(self, parts: Sequence[Tensor], tokenizer: Tokenizer, name: Direction) -> Tensor:
        """The cells (B, T, L, D) of one direction after each word of the parts (B, T / parts)."""
        state, found = self.model.empty(len(parts[0])).forward, []  # zeros, as of both directions
        for part in parts:
            batch = Sequences.of(part.tolist(), self.model.config.pad or 0)
            batch = self.model.complete(batch, tokenizer).to(part.device)
            cells, state = self.model.cells(batch, name, state)
            found.append(cells)
        return torch.cat(found, 1)


def reader_of(model: nn.Module) -> CellReader:
    """What reads the cells of a model.

    Raises:
        ConfigError: it has none.
    """
    part = recurrent_part(model)
    if isinstance(part, Elmo):
        return ElmoReader(part, (part.config.d_cell,) * (2 * part.config.layers))
    return StackReader(part, tuple(layer.d_model for layer in part.recurrent_layers))
