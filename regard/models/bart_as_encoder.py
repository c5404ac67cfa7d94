"""BART and mBART as encoders of a text: the decoder reads the text that the encoder has read."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import torch
from torch import nn

from regard.attention.capture import label
from regard.attention.pruning import Prunable
from regard.data.batches import Sequences
from regard.data.layout import ALL, TokenSubset
from regard.layers.task_heads import (
    ClassificationHead,
    DenseActivation,
    LastTokenWithId,
    PoolingFunction,
    every_token,
)
from regard.models.bart import INIT_RANGE, Bart, BartConfig, MBart, MBartConfig
from regard.models.config import Probability
from regard.models.parts import TASK_HEADS, init_weights, no_head
from regard.models.protocols import Encoder, Output, States
from regard.text.templates import Template


@dataclass(frozen=True)
class BartAsEncoderConfig(BartConfig):
    """As of BART.

    head_dropout: before both layers of a head for classes.
    """

    head_dropout: Probability = 0.0

    @property
    def layers(self) -> int:
        """Layers whose hidden states it gives: the decoder's."""
        return self.decoder_layers


class BartAsEncoder(nn.Module, Encoder, Prunable):
    """BART's encoder and decoder on one text, an `Encoder`.

    whole: the class of the model with both.
    """

    Config: type = BartAsEncoderConfig
    whole: type[Bart] = Bart

    def __init__(self, config: BartAsEncoderConfig):
        super().__init__()
        self.config = config
        self.bart = self.whole(config)

    @classmethod
    def of(cls, model: Bart) -> Self:
        """With the weights of a whole model; the bias of its output is left out."""
        encoder = cls(cls.Config(**{**asdict(model.config), "output_bias": False}))
        weights = {k: v for k, v in model.state_dict().items() if k != "head.bias"}
        encoder.bart.load_state_dict(weights)
        return encoder

    @property
    def embedding(self) -> nn.Embedding:  # type: ignore[override]
        """That of the model."""
        return self.bart.embedding

    @property
    def repeated_blocks(self) -> list[nn.Module]:
        return self.bart.repeated_blocks

    @property
    def sharded_parts(self) -> list[nn.Module]:
        """Those of the model."""
        return self.bart.sharded_parts

    def forward(self, batch: Sequences) -> Output:
        """Hidden states of the decoder's last layer, (B, T, D)."""
        return Output(self.encode(batch))

    def states(self, batch: Sequences, tokens: TokenSubset = ALL) -> States:
        """The encoder's embeddings of a padded batch, then the hidden states of the decoder's
        layers. The decoder's embeddings are left out: they belong to shifted tokens. See `Encoder`.
        """
        yield self.bart.embed_source(batch)
        last, states = (
            self.config.decoder_layers,
            self.bart.target_states(batch, self.shifted(batch)),
        )
        for n, hidden in enumerate(states):
            if n > 0:
                yield tokens.of(self.bart.finish_decoder(hidden)) if n == last else hidden

    def shifted(self, batch: Sequences) -> Sequences:
        """What the decoder reads: the start token, and all tokens but the last, (B, T)."""
        start = batch.ids.new_full((len(batch), 1), self.config.bos)
        return Sequences(torch.cat([start, batch.ids], 1)[:, :-1], batch.lengths)

    def label_texts(self, rows: Sequence[Sequence[int]], label_of: Callable[[int], str]) -> bool:
        """See `Encoder`: the decoder reads each text from its second position on."""
        batch = Sequences.of([list(ids) for ids in rows], self.config.pad)
        starts = self.shifted(batch).ids[:, :1].tolist()
        read_again = [[*start, *ids] for start, ids in zip(starts, rows, strict=True)]
        return label(*([list(map(label_of, ids)) for ids in side] for side in (rows, read_again)))

    def new_head(self, kind: str, outputs: int = 1) -> nn.Module:
        """See `Encoder`.

        Raises:
            ConfigError: this family has no head of that kind.
        """
        width, dropout = self.config.d_model, self.config.head_dropout
        match kind:
            case "classes" | "multiple_choice":
                inner = DenseActivation(width, "tanh", dropout)
                pooling: PoolingFunction = LastTokenWithId(self.config.eos)
                head = ClassificationHead(
                    width, outputs, pooling=pooling, inner=inner, dropout=dropout
                )
            case "tags":
                head = ClassificationHead(width, outputs, pooling=every_token, dropout=dropout)
            case "span":
                head = ClassificationHead(width, 2, pooling=every_token)
            case _:
                raise no_head(self, kind, TASK_HEADS)
        return init_weights(head, INIT_RANGE)

    @staticmethod
    def template(tokenizer: Any) -> Template:
        """<s> A </s></s> B </s>, where the tokenizer's file has no template."""
        return Template.roberta(*tokenizer.required_ids("cls", "sep"))


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
