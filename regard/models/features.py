"""Features of a frozen encoder under a bidirectional LSTM (Devlin et al. 2019, section 5.3).

    ids -> frozen encoder -> a choice of its layers -> [words; choice] -> biLSTM -> hidden

Nothing of the encoder is learned. Its layers are chosen and combined as in
`regard.layers.scalar_mix`, or mixed with weights that are learned ("mix", Peters et al. 2018,
eq. 1). Where `d_words` asks for them, learned vectors of the tokens stand beside the features, as
ELMo's paper puts the two together ([x_k; ELMo_k], section 3.3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from regard.data.batches import Sequences
from regard.data.layout import ALL, TokenSubset
from regard.errors import CheckpointError, ConfigError
from regard.layers.dropout import Dropout
from regard.layers.recurrent import LSTM, BidirectionalStack
from regard.layers.scalar_mix import LayerChoice, ScalarMix, choice_of
from regard.layers.task_heads import mean_of_tokens
from regard.models.check_config import config_of
from regard.models.config import (
    RECURRENT,
    CombineFeatures,
    Count,
    FeatureLayers,
    Probability,
    Size,
    TokenId,
)
from regard.models.parts import HEAD_INIT, init_weights, linear_head
from regard.models.protocols import Encoder, Output, States


@dataclass(frozen=True)
class FeaturesConfig:
    """The defaults are those of the paper's experiment.

    encoder: the name of its model.  base_model: its configuration.
    feature_layers, combine: see `regard.layers.scalar_mix.choice_of`; None: the last four layers.
        A "mix" has learned weights of all layers.
    d_model: of the biLSTM, both directions together.  lstm_layers: its layers.
    d_words: of a learned vector for each token of the vocabulary, and one for all words outside of
        it; 0: none.
    dropout: of the features, between the layers of the biLSTM, and at the head.
    """

    vocab_size: Size
    encoder: str = "bert"
    base_model: Mapping[str, Any] = field(default_factory=dict)
    feature_layers: FeatureLayers = None
    combine: CombineFeatures = "concat"
    d_model: Size = 768
    lstm_layers: Size = 2
    d_words: Count = 0
    dropout: Probability = 0.5
    pad: TokenId | None = 0

    @property
    def max_length(self) -> int | None:
        """That of the encoder."""
        return self.inner().max_length

    @property
    def layers(self) -> int:
        """Those of the encoder."""
        return self.inner().layers

    def inner(self) -> Any:
        """The configuration of the encoder.

        Raises:
            CheckpointError: `base_model` is none, or `encoder` names no encoder.
        """
        from regard.models import encoder_class

        values = {**self.base_model, "vocab_size": self.vocab_size, "pad": self.pad}
        try:
            kind = encoder_class(self.encoder)
        except ConfigError as error:
            raise CheckpointError(f"config.json: `encoder`: {error}") from None
        return config_of(kind.Config, values, "config.json", section="base_model")


def _choice_of(config: FeaturesConfig, layers: int) -> LayerChoice:
    """What the biLSTM reads of an encoder of so many layers.

    Raises:
        ConfigError: a learned mix is to read some layers alone.
    """
    if config.combine != "mix":
        numbers = (-4, -3, -2, -1) if config.feature_layers is None else config.feature_layers
        return choice_of(numbers, config.combine)
    if config.feature_layers is not None:
        raise ConfigError('combine = "mix" learns weights of all layers. Leave `layers` out.')
    return ScalarMix(layers)


class NoVectors(nn.Module):
    """Instead of vectors of words, where there are none beside the features."""

    def forward(self, ids: Tensor) -> Tensor:
        """(B, T) -> (B, T, 0)"""
        return torch.zeros(*ids.shape, 0, device=ids.device)


class Features(nn.Module, Encoder):
    """A biLSTM over the features of a frozen encoder, an `Encoder` itself.

    Its `layers` are the features, which the biLSTM reads, and then what the biLSTM gives.
    """

    Config = FeaturesConfig
    family = RECURRENT

    def __init__(self, config: FeaturesConfig):
        super().__init__()
        from regard.models import model_class

        self.config, inner = config, config.inner()
        self.encoder: Any = model_class(config.encoder)(inner).requires_grad_(False).eval()
        self.longest = self.encoder.longest
        self.choice: LayerChoice = _choice_of(config, inner.layers)
        width = self.choice.width(inner.d_model) + config.d_words
        self.words: nn.Module = NoVectors()
        if config.d_words:
            self.words = nn.Embedding(config.vocab_size + 1, config.d_words)
        self.dropout = Dropout(config.dropout)
        self.recurrent = BidirectionalStack(
            LSTM, width, config.d_model, config.lstm_layers, dropout=config.dropout
        )

    @property
    def embedding(self) -> Any:  # type: ignore[override]
        """That of the encoder."""
        return self.encoder.embedding

    @property
    def word_tables(self) -> list[nn.Embedding]:
        """See `Encoder`: that beside the features, where there is one."""
        return [self.words] if isinstance(self.words, nn.Embedding) else []

    @classmethod
    def over(cls, encoder: Encoder, name: str, options: Mapping[str, Any]) -> Features:
        """The features of an encoder with its weights; `name` is that of its model.

        Args:
            options: those of `FeaturesConfig` that are not of the encoder.
        """
        base_model = asdict(encoder.config)
        own_options = {key: base_model.pop(key) for key in ("vocab_size", "pad")}
        features = cls(
            FeaturesConfig(encoder=name, base_model=base_model, **own_options, **options)
        )
        features.encoder.load_state_dict(cast(nn.Module, encoder).state_dict())
        return features

    def train(self, mode: bool = True) -> Features:
        """Train or evaluate the biLSTM; the encoder stays in evaluation mode, without dropout."""
        super().train(mode)
        self.encoder.eval()
        return self

    def label_texts(self, rows: Sequence[Sequence[int]], label_of: Callable[[int], str]) -> bool:
        labelled: bool = self.encoder.label_texts(rows, label_of)
        return labelled

    def forward(self, batch: Sequences) -> Output:
        """Hidden states (B, T, D) of all tokens."""
        return Output(self.encode(batch))

    def states(self, batch: Sequences, tokens: TokenSubset = ALL) -> States:
        """The features, and what the biLSTM gives."""
        feature = self.choice(self.encoder.states(batch))
        ids = batch.ids.clamp(max=self.config.vocab_size)  # all unknown words share one vector
        feature = torch.cat([self.words(ids).to(feature.dtype), feature], -1)
        yield feature
        yield tokens.of(self.recurrent(self.dropout(feature), batch.lengths)[0])

    def input_tokenizer(self, tokenizer: Any) -> Any:
        """That of the encoder."""
        return self.encoder.input_tokenizer(tokenizer)

    def complete(self, batch: Sequences, tokenizer: Any) -> Sequences:
        """As the encoder reads it."""
        return self.encoder.complete(batch, tokenizer)

    def static(self, batch: Sequences) -> Tensor:
        """That of the encoder."""
        return self.encoder.static(batch)

    def new_head(self, kind: str, outputs: int = 1) -> nn.Module:
        """A new head of a kind in `regard.models.encoder_with_heads.HEADS`.

        Raises:
            ConfigError: this family has no head of that kind.
        """
        return init_weights(linear_head(self, kind, outputs, pooling=mean_of_tokens), HEAD_INIT)

    def template(self, tokenizer: Any) -> Any:
        """That of the encoder."""
        return self.encoder.template(tokenizer)
