"""Models around another model of the registry, whose options are their `base_model`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.attention.cache import HEADROOM, extremes
from regard.data.batches import ALL, Sequences, TokenSubset
from regard.errors import CheckpointError, ConfigError
from regard.layers.dropout import Dropout
from regard.layers.pooling import LayerChoice, ScalarMix, choice_of
from regard.layers.recurrent import LSTM, BidirectionalStack
from regard.layers.task_heads import HEAD_INIT, init_weights, linear_head, mean_of_tokens
from regard.models.check_config import SPECIAL_TOKENS, config_of
from regard.models.config import (
    RECURRENT,
    CombineFeatures,
    Count,
    FeatureLayers,
    Probability,
    Size,
    TokenId,
)
from regard.models.protocols import Encoder, EncoderDecoder, Head, LanguageModel, Output, States
from regard.state import State

# --------------------------------------------------------------------- features of a frozen encoder
#
#     ids -> frozen encoder -> a choice of its layers -> [words; choice] -> biLSTM -> hidden
#
# Nothing of the encoder is learned. Its layers are chosen and combined as in
# `regard.layers.pooling`, or mixed with weights that are learned ("mix", Peters et al. 2018,
# eq. 1). Where `d_words` asks for them, learned vectors of the tokens stand beside the features, as
# ELMo's paper puts the two together ([x_k; ELMo_k], section 3.3).


@dataclass(frozen=True)
class FeaturesConfig:
    """The defaults are those of the paper's experiment.

    encoder: the name of its model.  base_model: its configuration.
    feature_layers, combine: see `regard.layers.pooling.choice_of`; None: the last four layers.
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
    """Features of a frozen encoder under a bidirectional LSTM (Devlin et al. 2019, section 5.3).

    A biLSTM over the features of a frozen encoder, an `Encoder` itself.

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


# -------------------------------------------------------------- encoder-decoders of language models
#
# A language model that reads a source (Liu et al. 2018, "Generating Wikipedia by Summarizing Long
# Sequences", section 4.2.3).
#
#     source, delimiter, target  ->  language model  ->  what follows each token of the target
#
# Source and target are one sequence with a delimiter between them, `bos`, which any language model
# reads from left to right. Only the tokens of the target are predicted. So every task from text to
# text trains a language model, too.


@dataclass(frozen=True)
class DecoderOnlyConfig:
    """decoder: the name of the language model.  base_model: its configuration.

    bos: the delimiter between source and target.
    """

    vocab_size: Size
    decoder: str = "gpt2"
    base_model: Mapping[str, Any] = field(default_factory=dict)
    pad: TokenId = 0
    bos: TokenId = 1
    eos: TokenId = 2

    @property
    def max_length(self) -> int | None:
        """Of a source, and of a target: half of the context each."""
        context = self.inner().max_length
        return None if context is None else max(1, context // 2)

    @property
    def d_model(self) -> int:
        """That of the language model."""
        return self.inner().d_model

    def inner(self) -> Any:
        """The configuration of the language model.

        Raises:
            CheckpointError: `base_model` is none, or has a field of this configuration; `decoder`
                names no language model.
        """
        kind = _language_model(self.decoder)
        options = asdict(self)
        shared = {name: options[name] for name in ("vocab_size", *SPECIAL_TOKENS)}
        names = {option.name for option in fields(kind.Config)}
        shared = {name: value for name, value in shared.items() if name in names}
        if twice := [name for name in shared if name in self.base_model]:
            raise CheckpointError(
                f"config.json: `base_model.{twice[0]}` would have no effect: it is that of the "
                f"whole model, {shared[twice[0]]}. Leave it out."
            )
        return config_of(
            kind.Config, {**self.base_model, **shared}, "config.json", section="base_model"
        )


class DecoderOnly(nn.Module, EncoderDecoder[State]):
    """A language model that reads a source (Liu et al. 2018, "Generating Wikipedia by Summarizing
    Long Sequences", section 4.2.3).

    A language model over source, delimiter and target, an `EncoderDecoder`.

    Raises:
        CheckpointError: the language model reads backward.
    """

    Config = DecoderOnlyConfig
    joins_source = True

    def __init__(self, config: DecoderOnlyConfig):
        super().__init__()
        self.config = config
        self.decoder: Any = _language_model(config.decoder)(config.inner())
        self.family = self.decoder.family
        if self.decoder.longest is not None:
            self.longest = max(1, self.decoder.longest // 2)
        if self.decoder.reads_backward:
            raise CheckpointError(
                "config.json: `base_model.backward` would have no effect: source and target are "
                "read from left to right. Leave it out."
            )

    @classmethod
    def of(cls, model: LanguageModel, name: str) -> DecoderOnly:
        """With the weights of a language model; `name` is that of its class in the registry.

        Raises:
            ConfigError: it has no token that ends a text.
        """
        base_model = asdict(model.config)
        special = {role: base_model.pop(role, None) for role in SPECIAL_TOKENS}
        if special["eos"] is None:
            raise ConfigError(
                f"{type(model).__name__} cannot generate targets: its vocabulary has no token that "
                "ends a text (eos)."
            )
        tokens = {role: number for role, number in special.items() if number is not None}
        tokens = {"pad": 0, "bos": special["eos"], **tokens}
        encoder_decoder = cls(
            DecoderOnlyConfig(base_model.pop("vocab_size"), name, base_model, **tokens)
        )
        encoder_decoder.decoder.load_state_dict(cast(nn.Module, model).state_dict())
        return encoder_decoder

    @property
    def head(self) -> Head:  # type: ignore[override]
        """That of the language model."""
        return self.decoder.head

    @property
    def repeated_blocks(self) -> list[nn.Module]:
        return self.decoder.repeated_blocks

    @property
    def sharded_parts(self) -> list[nn.Module]:
        """Those of the language model."""
        return self.decoder.sharded_parts

    def forward(self, source: Sequences, target: Sequences) -> Output:
        rows = torch.arange(len(source), device=source.lengths.device)[:, None]
        at = source.lengths[:, None] + target.positions  # (B, T)
        hidden = self.decoder(self.joined(source, target)).hidden  # (B, S + T, D)
        return Output(hidden[rows, at])

    def joined(self, source: Sequences, target: Sequences) -> Tensor:
        """Each target directly after its source: (B, S) and (B, T) -> (B, S + T)."""
        width, longest = source.ids.size(1) + target.ids.size(1), target.ids.size(1)
        offset = torch.arange(width, device=source.ids.device) - source.lengths[:, None]
        if not longest:
            return source.ids
        of_target = target.ids.gather(1, offset.clamp(0, longest - 1))
        return torch.where(offset < 0, F.pad(source.ids, (0, longest)), of_target)

    def read(self, source: Sequences) -> State:
        # In training a target sees all of its text at once, whatever a memory holds.
        state = self.decoder.empty(len(source)).keeping_all()
        longest = extremes(source.lengths)[1]
        if not longest:
            return state
        state = state.expect_tokens(longest + HEADROOM)
        return self.decoder.prefill(source.ids[:, :longest], state, source.lengths)

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        return self.decoder.step(tokens, state)


def _language_model(name: str) -> Any:
    """The class of this name.

    Raises:
        CheckpointError: it is no language model that reads from left to right.
    """
    from regard.models import model_class

    try:
        kind = model_class(name)
    except ConfigError as error:
        raise CheckpointError(f"config.json: `decoder`: {error}") from None
    if not issubclass(kind, LanguageModel):
        raise CheckpointError(f"config.json: `decoder` must be a language model, but is {name!r}.")
    return kind
