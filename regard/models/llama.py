"""Llama: "LLaMA: Open and Efficient Foundation Language Models" (Touvron et al. 2023).

    ids -> embed -> L x [norm, masked grouped-query attention; norm, gated feed-forward] -> norm

GPT-2 with four changes (section 2.2): RMSNorm, which neither subtracts the mean nor adds a bias;
rotary positions in the queries and keys of each layer; gated feed-forward layers; and, from Llama 2
on, heads of keys and values that several heads of queries share.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from regard.attention.cache import KeyValueCache
from regard.attention.multihead import GroupedQueryAttention, LayerCache
from regard.data.batches import ALL, Sequences, TokenSubset
from regard.errors import ConfigError
from regard.layers import task_heads
from regard.layers.feedforward import GatedFeedForward
from regard.layers.positions import RotaryAngles, RotaryPositions, RotaryScaling
from regard.layers.softmax import Softmax
from regard.models.config import Activation, Epsilon, InitScale, Probability, Size, TokenId
from regard.models.gpt2 import NoLMHead, OutputKind
from regard.models.protocols import CachedLanguageModel, Encoder, Output, States
from regard.ops import KeyMask, state_prototype
from regard.text.templates import Template

Factor = Annotated[float, Field(gt=0, le=1e12)]


@dataclass(frozen=True)
class LlamaConfig:
    """The defaults are the smallest model of the paper.

    key_value_heads: None: as many as `heads`.
    head_dim: None: `d_model` / `heads`.
    max_length: of the texts of pre-training; longer ones are accepted.
    rope_theta, rope_scaling, rope_factor: of the rotary positions, see `RotaryAngles`.
    rope_low_factor, rope_high_factor, rope_original_length: of their kind llama3.
    attention_bias, feed_bias: whether the projections of attention, and the feed-forward layers,
        add a vector.
    output, pad, bos, eos: as of `GPTConfig`.
    """

    vocab_size: Size
    d_model: Size = 4096
    d_ff: Size = 11008
    heads: Size = 32
    key_value_heads: Size | None = None
    head_dim: Size | None = None
    layers: Size = 32
    max_length: Size = 2048
    rope_theta: Factor = 10_000.0
    rope_scaling: RotaryScaling = "none"
    rope_factor: Factor = 1.0
    rope_low_factor: Factor = 1.0
    rope_high_factor: Factor = 4.0
    rope_original_length: Size = 8192
    activation: Activation = "swish"
    attention_bias: bool = False
    feed_bias: bool = False
    attention_dropout: Probability = 0.0
    head_dropout: Probability = 0.1
    norm_eps: Epsilon = 1e-6
    init_range: InitScale = 0.02  # standard deviation of the initial matrices
    output: OutputKind = "own"
    pad: TokenId | None = None
    bos: TokenId | None = None
    eos: TokenId | None = None

    def __post_init__(self) -> None:
        if self.rope_scaling == "llama3" and self.rope_low_factor > self.rope_high_factor:
            high, low = self.rope_high_factor, self.rope_low_factor
            raise ConfigError(
                f"`rope_low_factor` must be at most `rope_high_factor` ({high:g}), but is {low:g}."
            )

    @property
    def tied(self) -> bool:
        """Whether the output layer uses the matrix of the embedding."""
        return self.output == "tied"

    @property
    def shared_heads(self) -> int:
        """Heads of keys and values."""
        return self.key_value_heads or self.heads

    @property
    def angles(self) -> RotaryAngles:
        """Of the rotary positions."""
        return RotaryAngles(
            self.rope_theta,
            self.rope_scaling,
            self.rope_factor,
            self.rope_low_factor,
            self.rope_high_factor,
            self.rope_original_length,
        )


_SMOLLM2 = dict(rope_theta=100_000.0, norm_eps=1e-5, max_length=8192, output="tied")


class LlamaBlock(nn.Module):
    """x = x + attend(norm(x)); x = x + feed(norm(x))"""

    def __init__(self, config: LlamaConfig):
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.d_model, eps=config.norm_eps)
        self.attention = GroupedQueryAttention(
            config.d_model,
            config.heads,
            config.shared_heads,
            kind="decoder",
            head_dim=config.head_dim,
            dropout=config.attention_dropout,
            projection_bias=config.attention_bias,
        )
        self.feed_norm = nn.RMSNorm(config.d_model, eps=config.norm_eps)
        self.feed = GatedFeedForward(
            config.d_model, config.d_ff, activation=config.activation, bias=config.feed_bias
        )

    def forward(
        self, hidden: Tensor, mask: KeyMask, angles: Tensor, cache: LayerCache | None = None
    ) -> Tensor:
        normed = self.attention_norm(hidden)
        hidden = hidden + self.attention(normed, mask, angles=angles, cache=cache)
        return hidden + self.feed(self.feed_norm(hidden))


class Llama(nn.Module, CachedLanguageModel, Encoder):
    """Llama: "LLaMA: Open and Efficient Foundation Language Models" (Touvron et al. 2023).

    Llama, a `LanguageModel` and an `Encoder`.
    """

    Config: type = LlamaConfig
    SIZES: dict[str, dict[str, Any]] = {
        "135M": dict(d_model=576, d_ff=1536, heads=9, key_value_heads=3, layers=30) | _SMOLLM2,
        "360M": dict(d_model=960, d_ff=2560, heads=15, key_value_heads=5, layers=32) | _SMOLLM2,
        "7B": dict(d_model=4096, d_ff=11008, heads=32, layers=32),
        "13B": dict(d_model=5120, d_ff=13824, heads=40, layers=40),
        "33B": dict(d_model=6656, d_ff=17920, heads=52, layers=60),
        "65B": dict(d_model=8192, d_ff=22016, heads=64, layers=80),
    }
    unpadded = True
    reads_both_ways = True
    blocks: Sequence[LlamaBlock]
    head: Any

    def __init__(self, config: LlamaConfig):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        blocks = nn.ModuleList(LlamaBlock(config) for _ in range(config.layers))
        self.blocks = cast("Sequence[LlamaBlock]", blocks)
        self.positions = RotaryPositions(self.blocks[0].attention.head_dim, config.angles)
        self.norm = nn.RMSNorm(config.d_model, eps=config.norm_eps)
        task_heads.init_weights(self, config.init_range)
        self.head = NoLMHead()
        if config.output != "none":
            tied = self.embedding if config.tied else None
            self.head = Softmax(config.d_model, config.vocab_size, tied=tied, bias=False)
        if config.output == "own":
            nn.init.normal_(self.head.weight, std=config.init_range)

    # ---- an encoder

    @property
    def is_causal(self) -> bool:
        return True

    def states(self, batch: Sequences, tokens: TokenSubset = ALL) -> States:
        """The last layer includes the final norm."""
        hidden = self.embedding(batch.ids)
        yield hidden
        mask, angles = batch.causal_mask(), self.positions.of(batch)
        for block in self.blocks[:-1]:
            hidden = block(hidden, mask, angles)
            yield hidden
        yield self.norm(tokens.of(self.blocks[-1](hidden, mask, angles)))

    # ---- a language model

    def forward(self, ids: Tensor, state: KeyValueCache | None = None) -> Output:
        """Hidden states (B, T, D) that predict the token after each of the ids (B, T).

        With a state, the ids follow the tokens of the state, and the output has the next state.
        """
        if state is None:
            return Output(self.encode(Sequences.full(ids)))
        return Output(*self.continued(ids, state))

    def continued(self, ids: Tensor, state: KeyValueCache) -> tuple[Tensor, KeyValueCache]:
        """Hidden states (B, T, D) of the ids (B, T) that follow a state, and the next state."""
        state.consume()
        count = ids.size(1)
        cache = state.reserve(count)
        hidden = self.embedding(ids)
        mask, angles = cache.mask(count), self.positions.after(cache, count)
        for n, block in enumerate(self.blocks):
            hidden = block(hidden, mask, angles, cache.layer(n))
        return self.norm(hidden), cache.advance(count)

    def empty(self, sequences: int, dtype: torch.dtype | None = None) -> KeyValueCache:
        """A cache without any position."""
        # The norms are not quantized: they have the type in which the model computes.
        like = state_prototype(self.norm.weight, dtype)
        sizes = self.config.layers, self.config.shared_heads, self.positions.d_model
        return KeyValueCache.empty(sequences, *sizes, like=like)

    # ---- heads and texts

    def new_head(self, kind: str, outputs: int = 1) -> nn.Module:
        """A new head of a kind in `regard.models.encoder_with_heads.HEADS`.

        Raises:
            ConfigError: this family has no head of that kind.
        """
        width, dropout = self.config.d_model, self.config.head_dropout
        match kind:
            case "classes":
                pooling = task_heads.LastToken(skip=self.config.pad)
                head = task_heads.ClassificationHead(width, outputs, pooling=pooling, bias=False)
            case "multiple_choice":
                head = task_heads.ClassificationHead(
                    width, 1, pooling=task_heads.last_token, dropout=dropout
                )
            case _:
                head = task_heads.token_head(self, kind, outputs, dropout=dropout)
        return task_heads.init_weights(head, self.config.init_range)

    @staticmethod
    def template(tokenizer: Any) -> Template:
        """A, and A B, without special tokens, where the tokenizer's file has no template."""
        return Template.around((), (), ())
