"""GPT: "Improving Language Understanding by Generative Pre-Training" (Radford et al. 2018).

    ids -> embed + positions -> L x [masked self-attention, feed-forward] -> hidden -> softmax

The decoder of the Transformer without cross-attention, with learned positions and gelu; a layer
norm follows each sub-layer. It predicts the next piece of a text. It is an encoder too: the hidden
state of the last piece sums up all before it, and heads on top answer about the text (section 3.2).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from regard.attention.heads import Pruned, cut_heads
from regard.attention.multihead import Remember, SelfAttention
from regard.data.batches import Sequences
from regard.errors import ConfigError
from regard.layers.dropout import Dropout
from regard.layers.feedforward import FeedForward, activation_of
from regard.layers.heads import Answers, everywhere, last
from regard.layers.output import Softmax
from regard.masks import causal
from regard.models.beginnings import read_once
from regard.models.bert import begin, no_head
from regard.models.blocks import Blocks
from regard.models.config import Activation, Epsilon, InitScale, Probability, Size, TokenId
from regard.models.protocols import Encoder, LanguageModel, Output
from regard.ops import KeyMask, autocast_dtype
from regard.positions import LearnedPositions
from regard.state import SPARE, KeyValueCache, extremes
from regard.text.templates import Template

Words = Literal["tied", "own", "none"]


@dataclass(frozen=True)
class GPTConfig:
    """The defaults are the model of the paper. The inner layer is four times as wide as the model.

    output: whether the words are predicted with the embedding itself (tied), with a matrix of its
        own, or not at all, in a model that is an encoder alone.
    choice_dropout, choice_activation: of the head that compares answers.
    pad, bos, eos: None where the vocabulary has no such piece.
    pruned: heads that were taken away, as `regard.prune_heads` leaves them.
    """

    vocab_size: Size
    d_model: Size = 768
    heads: Size = 12
    layers: Size = 12
    max_length: Size = 512
    activation: Activation = "gelu-tanh"
    dropout: Probability = 0.1  # behind each sub-layer
    embedding_dropout: Probability = 0.1
    attention_dropout: Probability = 0.1
    choice_dropout: Probability = 0.1
    choice_activation: Activation | None = None
    norm_eps: Epsilon = 1e-5
    init_range: InitScale = 0.02  # matrices start normal with this deviation
    output: Words = "tied"
    pad: TokenId | None = None
    bos: TokenId | None = None
    eos: TokenId | None = None
    pruned: Pruned = ()

    @property
    def tied(self) -> bool:
        """Whether the embedding is the output too."""
        return self.output == "tied"


SIZES = {"base": dict(d_model=768, heads=12, layers=12, max_length=512)}

_PARAMETERS = (
    "Radford et al. 2019, section 2.3 with table 2, rounded; with the 40,478 pieces they are "
    "116,534,784"
)
PUBLISHED = {"base": {"parameters": (117e6, _PARAMETERS)}}


class GPTBlock(nn.Module):
    """x = norm(x + attend(x)); x = norm(x + feed(x))"""

    def __init__(self, config: Any, layer: int):
        super().__init__()
        width = config.d_model
        self.attention = SelfAttention(
            width, config.heads, kind="decoder", dropout=config.attention_dropout
        )
        self.attention_norm = nn.LayerNorm(width, eps=config.norm_eps)
        self.feed = FeedForward(width, 4 * width, activation=config.activation)
        self.feed_norm = nn.LayerNorm(width, eps=config.norm_eps)
        self.dropout = Dropout(config.dropout)

    def forward(self, hidden: Tensor, allowed: KeyMask, remember: Remember | None = None) -> Tensor:
        attended = self.attention(hidden, allowed, remember)
        hidden = self.attention_norm(hidden + self.dropout(attended))
        return self.feed_norm(hidden + self.dropout(self.feed(hidden)))


class GPT(nn.Module, LanguageModel, Encoder):
    """GPT, a `LanguageModel` and an `Encoder`."""

    Config: type = GPTConfig
    SIZES = SIZES
    PUBLISHED: dict[str, Any] = PUBLISHED
    unpadded = True
    block: Any = GPTBlock

    def __init__(self, config: Any):
        super().__init__()
        self.config = config
        width, words = config.d_model, config.vocab_size
        self.embedding = nn.Embedding(words, width)
        self.positions = LearnedPositions(config.max_length, width)
        self.dropout = Dropout(config.embedding_dropout)
        blocks = [self.block(config, layer) for layer in range(config.layers)]
        self.blocks: Any = Blocks(blocks)
        begin(self, config.init_range)
        cut_heads(self, config.pruned)
        tied = self.embedding if config.output == "tied" else None
        self.head: Any = NoWords()
        if config.output != "none":
            self.head = Softmax(width, words, tied=tied, bias=False)
        if config.output == "own":
            nn.init.normal_(self.head.weight, std=config.init_range)

    # ---- a language model

    def forward(self, ids: Tensor, state: KeyValueCache | None = None) -> Output:
        """Hidden states (B, T, D) for predicting what follows each of the ids (B, T).

        Where a state is given, the ids come behind it and the next state comes back.
        """
        if state is None:
            return Output(self.encode(Sequences(ids, ids.new_full(ids.shape[:1], ids.size(1)))))
        count = ids.size(1)
        cache = state.reserve(count)
        hidden = self.blocks.decode(self._embedded(ids, cache), cache)
        return Output(self.finish(hidden), cache.advance(count))

    def fill(self, ids: Tensor, state: KeyValueCache) -> KeyValueCache:
        """The state behind the ids (B, T), whose hidden states nobody wants."""
        count = ids.size(1)
        cache = state.reserve(count)
        self.blocks.fill(self._embedded(ids, cache), cache)
        return cache.advance(count)

    def start(self, source: Sequences | None) -> tuple[KeyValueCache, Tensor]:
        """The state before the last token of each prompt, and that token: (B, 1).

        Prompts may have different lengths; None is one row without a prompt. What has no prompt
        begins with `bos`, or with `eos`, which ends the text before.

        Raises:
            ConfigError: a prompt is empty and the vocabulary has neither of the two.
        """
        config = self.config
        if source is None:
            source = Sequences.of([[]], config.pad).to(self.positions.vectors.weight.device)
        cache = self.empty(len(source))
        read = (source.lengths - 1).clamp(min=0)
        shortest, longest = extremes(source.lengths)
        if longest > 1:
            expecting = cache.expecting(longest + SPARE)  # else the first new token copies all
            cache = self.fill(source.ids[:, : longest - 1], expecting).cut(read)
        # One column more, so that a batch of empty prompts has a last token too.
        ids = nn.functional.pad(source.ids, (0, 1), value=config.pad or 0)
        first = ids.gather(1, read[:, None])
        if len(source) == 0 or shortest:
            return cache, first
        return cache, first.masked_fill(source.lengths[:, None] == 0, self._first())

    def step(self, tokens: Tensor, state: KeyValueCache) -> tuple[Tensor, KeyValueCache]:
        """Scores (R, T, V) of what follows each of the tokens (R, T)."""
        output = self(tokens, state)
        return self.head.logits(output.hidden), output.state

    # ---- an encoder

    def encode(self, texts: Sequences) -> Tensor:
        """Hidden states of the last layer, (B, T, D). Where rows begin alike, that is read once."""
        found = read_once(self, texts)
        return (
            found
            if found is not None
            else self.finish(self.blocks.read(self.embed(texts), texts.lengths))
        )

    def layers(self, texts: Sequences) -> Iterator[Tensor]:
        """Hidden states (B, T, D) of the embeddings and then of each layer: L + 1 of them.

        Padding stands on the right, where no token looks.
        """
        hidden = self.embed(texts)
        yield hidden
        count = texts.ids.size(1)
        allowed = causal().resolve(count, count, device=texts.ids.device)
        for block in self.blocks[:-1]:
            hidden = block(hidden, allowed)
            yield hidden
        yield self.finish(self.blocks[-1](hidden, allowed))

    def embed(self, texts: Sequences) -> Tensor:
        """Token + position, (B, T, D). A segment is a piece, whose embedding is added too."""
        summed = self.embedding(texts.ids) + self.positions(texts.ids.size(1))
        if texts.segments is not None:
            summed = summed + self.embedding(texts.segments)
        return self.dropout(summed)

    def finish(self, hidden: Tensor) -> Tensor:
        """What stands behind the last block: here nothing."""
        return hidden

    def new_head(self, kind: str, outputs: int = 1) -> nn.Module:
        """A new head of one of the kinds in `regard.models.headed.HEADS`.

        Raises:
            ConfigError: this family has no head of that kind.
        """
        config, width = self.config, self.config.d_model
        made: nn.Module
        match kind:
            case "classes":
                made = Answers(width, outputs, place=last, bias=False)
            case "tags":
                made = Answers(width, outputs, place=everywhere, dropout=self.tags_dropout)
            case "span":
                made = Answers(width, 2, place=everywhere)
            case "multiple_choice":
                made = Compared(width, config.choice_activation, config.choice_dropout)
            case _:
                raise no_head(self, kind)
        return begin(made, config.init_range)

    @property
    def tags_dropout(self) -> float:
        """Of the head that tags words; the published GPT has none."""
        return self.config.dropout

    @staticmethod
    def template(tokenizer: Any) -> Template:
        """start A extract, and start A delimiter B extract (section 3.3).

        They are the pieces in the roles bos, sep and cls. A tokenizer that has not all of them, as
        the published ones, puts nothing around texts, as its own library does.
        """
        marks = (tokenizer.bos_id, tokenizer.sep_id, tokenizer.cls_id)
        if None in marks:
            return Template.around((), (), ())
        return Template.around(*((mark,) for mark in marks))

    # ---- parts

    def empty(self, rows: int) -> KeyValueCache:
        """The state before any token."""
        config, weight = self.config, self.positions.vectors.weight
        like = weight.new_empty(0, dtype=autocast_dtype(weight))
        return self.blocks.cache(rows, config.heads, config.d_model // config.heads, like)

    def _embedded(self, ids: Tensor, cache: KeyValueCache) -> Tensor:
        """Token + position behind the cache, (B, T, D)."""
        return self.dropout(self.embedding(ids) + self._places(cache, ids.size(1)))

    def _places(self, cache: KeyValueCache, count: int) -> Tensor:
        """Vectors of the positions behind the cache: (T, D), or (B, T, D) where they differ."""
        if cache.even:
            return self.positions(count, cache.longest)
        return self.positions.at(cache.positions(count), cache.longest + count)

    def _first(self) -> int:
        bos, eos = self.config.bos, self.config.eos
        found = eos if bos is None else bos
        if found is None or found >= self.config.vocab_size:
            raise ConfigError(
                "An empty prompt begins with the piece that begins or ends a text (bos or eos), "
                "but this model's vocabulary has none. Give at least a word."
            )
        return found


class Compared(Answers):
    """How well a row answers, at its last token: a(W drop(h) + b), to be compared with others."""

    def __init__(self, d_model: int, activation: str | None, dropout: float):
        super().__init__(d_model, 1, place=last, dropout=dropout)
        self.activation = activation_of(activation or "linear")

    def scores(self, read: Tensor) -> Tensor:
        """(..., D) -> (..., 1)"""
        return self.activation(super().scores(read))


class NoWords(nn.Module):
    """In the place of an output over words, where there is none."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Refuses."""
        raise ConfigError(
            "This model has no output over words: its weights came without one, and they are not "
            "tied to the embedding. It can encode texts, but not continue them."
        )

    def loss(
        self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0, count: int | None = None
    ) -> tuple[Tensor, int]:
        """Refuses."""
        raise AssertionError(self.logits(hidden))
