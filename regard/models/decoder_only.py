"""A language model that reads a source (Liu et al. 2018, "Generating Wikipedia by Summarizing Long
Sequences", section 4.2.3).

    source, delimiter, target  ->  language model  ->  what follows each token of the target

Source and target are one sequence with a delimiter between them, `bos`, which any language model
reads from left to right. Only the tokens of the target are predicted. So every task from text to
text trains a language model, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.attention.cache import HEADROOM, extremes
from regard.data.batches import Sequences
from regard.errors import CheckpointError, ConfigError
from regard.models.check_config import SPECIAL_TOKENS, config_of
from regard.models.config import Size, TokenId
from regard.models.protocols import EncoderDecoder, Head, LanguageModel, Output
from regard.state import State


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
    """A language model over source, delimiter and target, an `EncoderDecoder`.

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
