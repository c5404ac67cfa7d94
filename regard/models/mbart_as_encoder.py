"""mBART as an encoder for tasks: it reads a text twice, as BART does (Lewis et al. 2020).

    text -> encoder -----------------------+
    last token, all others -> decoder <----+ -> hidden states

The decoder starts with the last token of the text, which is that of its language.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from regard.data.batches import Sequences
from regard.models.bart_as_encoder import BartAsEncoder
from regard.models.config import Probability
from regard.models.mbart import MBart, MBartConfig
from regard.text.templates import Template


@dataclass(frozen=True)
class MBartAsEncoderConfig(MBartConfig):
    """As of mBART.

    head_dropout: before both layers of a head for classes.
    """

    head_dropout: Probability = 0.0

    @property
    def layers(self) -> int:
        """Layers whose hidden states it gives: the decoder's."""
        return self.decoder_layers


class MBartAsEncoder(BartAsEncoder):
    """mBART's encoder and decoder on one text, an `Encoder`."""

    Config: type = MBartAsEncoderConfig
    whole = MBart

    def shifted(self, batch: Sequences) -> Sequences:
        """What the decoder reads: the last token of each sequence, and all others, (B, T)."""
        last = (batch.lengths - 1).clamp(min=0)[:, None]
        start = batch.ids.gather(1, last)
        return Sequences(torch.cat([start, batch.ids], 1)[:, :-1], batch.lengths)

    @staticmethod
    def template(tokenizer: Any) -> Template:
        """A B </s>, where the tokenizer's file has no template; it also names the language."""
        return Template.around((), (), (tokenizer.required_ids("eos")[0],))
