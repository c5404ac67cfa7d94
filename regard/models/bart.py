"""BART (Lewis et al. 2020) and mBART (Liu et al. 2020), as encoder-decoders and as encoders."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from regard.attention.capture import label
from regard.attention.pruning import Prunable
from regard.data.batches import ALL, Sequences, TokenSubset
from regard.layers.positions import LearnedPositions
from regard.layers.task_heads import LastTokenWithId, dense_head, init_weights, token_head
from regard.models import transformer
from regard.models.config import Activation, Probability, Size, TokenId
from regard.models.protocols import Encoder, Output, States
from regard.text.templates import Template

# --------------------------------------------------------------------------------- encoder-decoders
#
# BART (Lewis et al. 2020) and mBART (Liu et al. 2020): the Transformer with learned positions.


OFFSET = 2  # rows of the tables of positions before that of the first position
INIT_RANGE = 0.02

_BASE: dict[str, Any] = dict(d_model=768, d_ff=3072, heads=12, encoder_layers=6, decoder_layers=6)
_LARGE: dict[str, Any] = dict(
    d_model=1024, d_ff=4096, heads=16, encoder_layers=12, decoder_layers=12
)


@dataclass(frozen=True)
class BartConfig(transformer.TransformerConfig):
    """The defaults are the base model; see `TransformerConfig`."""

    d_model: Size = 768
    d_ff: Size = 3072
    heads: Size = 12
    activation: Activation = "gelu"
    positions: Literal["learned"] = "learned"
    pad: TokenId = 1
    bos: TokenId = 2
    eos: TokenId = 2
    scale_embedding: bool = False


class Bart(transformer.Transformer):
    """BART: "Denoising Sequence-to-Sequence Pre-training" (Lewis et al. 2020).

    BART, an `EncoderDecoder`.
    """

    Config = BartConfig
    SIZES = {"base": _BASE, "large": _LARGE}  # noqa: RUF012

    def __init__(self, config: BartConfig):
        super().__init__(config)
        nn.init.normal_(self.embedding.weight, std=INIT_RANGE)
        self.positions, self.decoder_positions = (
            LearnedPositions(config.max_length, config.d_model, OFFSET) for _ in range(2)
        )
        for table in (self.positions, self.decoder_positions):
            nn.init.normal_(table.vectors.weight, std=INIT_RANGE)
        self.embedding_norm = nn.LayerNorm(config.d_model)
        self.decoder_embedding_norm = nn.LayerNorm(config.d_model)

    def embed_source(self, source: Sequences) -> Tensor:
        """norm(token + position), (B, S, D) or (1, N, D)."""
        words = self.words_of_source(source.ids)
        summed = words * self.scale + self.positions.of(source)
        return self.dropout(self.embedding_norm(summed))

    def embed_target(self, ids: Tensor, positions: Tensor) -> Tensor:
        """norm(token + position), (B, T, D) or (1, N, D)."""
        summed = self.embedding(ids) * self.scale + positions
        return self.dropout(self.decoder_embedding_norm(summed))


@dataclass(frozen=True)
class MBartConfig(BartConfig):
    """The defaults are the sizes of all published models."""

    d_model: Size = 1024
    d_ff: Size = 4096
    heads: Size = 16
    encoder_layers: Size = 12
    decoder_layers: Size = 12


class MBart(Bart, transformer.PreNormTransformer):
    """mBART, an `EncoderDecoder`: BART with layer norms before its parts, and after the last."""

    Config = MBartConfig
    SIZES = {}  # noqa: RUF012


# ------------------------------------------------------------------------------- BART as an encoder
#
# BART and mBART as encoders of a text: the decoder reads the text that the encoder has read.


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
                options: Any = dict(inner_dropout=dropout, dropout=dropout)
                pooling = LastTokenWithId(self.config.eos)
                head = dense_head(width, outputs, "tanh", pooling=pooling, **options)
            case _:
                head = token_head(self, kind, outputs, dropout=dropout)
        return init_weights(head, INIT_RANGE)

    @staticmethod
    def template(tokenizer: Any) -> Template:
        """<s> A </s></s> B </s>, where the tokenizer's file has no template."""
        return Template.roberta(*tokenizer.required_ids("cls", "sep"))


@dataclass(frozen=True)
class MBartAsEncoderConfig(MBartConfig, BartAsEncoderConfig):
    """The options of mBART, and the dropout of heads of `BartAsEncoderConfig`."""


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
