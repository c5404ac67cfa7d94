"""The Transformer's published layouts: Marian (post-norm) and Pegasus (pre-norm).

Both put all sines of a position before all cosines; the paper and we put the sine and the cosine of
one frequency side by side. So every tensor with a dimension of width `d_model` is reordered along
it: embeddings, the layers that read hidden states, those that write them, and norms. The dimensions
inside heads keep their order.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.checkpoints.formats.config_table import Field, unsupported
from regard.checkpoints.formats.encoder_decoder_layout import (
    FIELDS,
    EncoderDecoderFields,
    EncoderDecoderLayout,
    Order,
    last_norms,
    scale_embedding,
    token_fields,
)
from regard.checkpoints.names import interleave
from regard.errors import CheckpointError
from regard.models.config import Size
from regard.models.transformer import PreNormTransformer, Transformer

POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
TARGET_SIZE = "decoder_vocab_size"
ROUNDING = 0.02  # of sines in half precision
HALVES = Order(reads=interleave(1), writes=interleave(0))  # of a matrix (out, in)


@dataclass(frozen=True)
class SinusoidalLayout(EncoderDecoderLayout):
    """A layout whose files may hold the tables of sines and cosines."""

    def read(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> nn.Module:
        _check_positions(tensors)
        return super().read(config, tensors)


def _check_positions(tensors: Mapping[str, Tensor]) -> None:
    """Tables of positions in a file must be the sines and cosines that our model computes.

    Raises:
        CheckpointError: one is another table, such as one that was trained.
    """
    for name in POSITIONS:
        table = tensors.get(name)
        if table is None or table.dim() != 2:
            continue
        positions, width = torch.arange(table.size(0)), table.size(1)
        rates = 10000.0 ** (-torch.arange(0, width, 2) / width)  # (D / 2,)
        angles = positions[:, None] * rates
        wanted = torch.cat([angles.sin(), angles.cos()], 1)  # (N, D / 2) twice -> (N, D)
        if wanted.shape != table.shape or not torch.allclose(table.float(), wanted, atol=ROUNDING):
            raise CheckpointError(f"{name} must be the sines and cosines of the positions.")


class MarianFields(EncoderDecoderFields):
    """Sources and targets may have vocabularies of their own; `vocab_size` is that of sources."""

    shared: ClassVar[Field] = Field("share_encoder_decoder_embeddings", True, bool)

    def read(self, config: Mapping[str, Any]) -> dict[str, Any]:
        values = super().read(config)
        source, size = values["vocab_size"], config.get(TARGET_SIZE)
        if self.shared.read(config):
            if size not in (None, source):
                raise unsupported(TARGET_SIZE, repr(source), size)
            return values
        target = source if size is None else Field(TARGET_SIZE, None, Size).read(config)
        if values["pad"] >= source:
            raise unsupported("pad_token_id", f"an id below `vocab_size` ({source})", values["pad"])
        return {**values, "vocab_size": target, "source_vocab_size": source}

    def has_vocabularies(self, config: Any) -> bool:
        return bool(config.tied or config.source_vocab_size is not None)

    def write(self, config: Any) -> dict[str, Any]:
        table = {**super().write(config), self.shared.theirs: config.source_vocab_size is None}
        if config.source_vocab_size is None:
            return table
        return {**table, "vocab_size": config.source_vocab_size, TARGET_SIZE: config.vocab_size}


MARIAN = SinusoidalLayout(
    Transformer,
    "marian",
    "Marian",
    "MarianMTModel",
    HALVES.blocks(),
    MarianFields(
        FIELDS | scale_embedding(False) | token_fields(58101, pad=58100, start=58100, eos=0)
    ),
    order=HALVES,
    computed=POSITIONS,
)
PEGASUS = SinusoidalLayout(
    PreNormTransformer,
    "pegasus",
    "Pegasus",
    "PegasusForConditionalGeneration",
    [*HALVES.blocks(), *last_norms(HALVES)],
    EncoderDecoderFields(
        FIELDS | scale_embedding(False) | token_fields(50265, pad=0, start=0, eos=1)
    ),
    order=HALVES,
    computed=POSITIONS,
)
