"""The interfaces of models: what tasks, decoders and pictures may ask of them, and nothing else.

A model returns hidden states; its head turns them into scores or a loss. Decoding needs a few
verbs and no model's name. A language model has `empty` and `prefill`, an encoder-decoder `read`
(`regard.decoding.start` is written with them); both have `step`, and every state has `select`:

    state = model.empty(sequences)              before any token
    state = model.prefill(tokens, state)        after the tokens (R, T); computes no scores
    state = model.read(source)                  after a source
    scores, state = model.step(tokens, state)   (R, T) -> (R, T, V), up to a constant per position
    state = state.select(rows)                  sequences reordered, repeated or dropped

A model inherits the interfaces that it has. What one offers beyond its abstract methods has a plain
form here, which a model replaces where it can do better.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from regard.data.batches import Sequences
from regard.data.layout import ALL, TokenSubset
from regard.errors import ConfigError
from regard.ops import TopKTokens
from regard.state import State
from regard.text.templates import Template

if TYPE_CHECKING:
    from regard.layers.recurrent import RecurrentLayer
    from regard.layers.scalar_mix import LayerChoice

S = TypeVar("S", bound=State)  # what a generator carries from step to step
States = Iterator[Tensor]  # hidden states (B, T, D) of the embeddings, then of each layer


@dataclass(frozen=True)
class Output:
    """What every model's `forward` returns.

    hidden: (B, T, D), what the head reads.
    state: after these tokens, where the model gives one.
    extras: named auxiliaries that an objective needs.
    """

    hidden: Tensor
    state: State | None = None
    extras: dict[str, Tensor] = field(default_factory=dict)


class Head(Protocol):
    """From hidden states to tokens."""

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., V)"""
        ...

    def loss(
        self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0, count: int | None = None
    ) -> tuple[Tensor, int]:
        """Sum of the losses over (N, D) hidden states, and how many targets counted.

        Args:
            count: of the targets, where that is known, so that no device has to be waited for.
        """
        ...


# Of each source the best first: its tokens, score, log-probability, and whether it has an end.
SearchResults = list[list[tuple[list[int], float, float, bool]]]


@dataclass(frozen=True, eq=False)
class SearchPlan:
    """A beam search of A sources, as a generator may make it without a look between the steps.

    size: running hypotheses of each source.  wanted: finished ones.  ends: tokens that end one.
    stopping: when a source is finished, as `generation_config.json` names it.
    limits: (A,), most tokens.  penalty: of a length, what its score is divided by.
    bits: of hypotheses and vocabulary, how many hold the index of a continuation.
    count: continuations of a source that are ranked.  never: forbidden tokens.
    normalized: the others have the probability 1 together.
    forced: at the limit every hypothesis gets an end, which counts 0.
    """

    size: int
    wanted: int
    ends: tuple[int, ...]
    stopping: str
    limits: Tensor
    penalty: Callable[[Any], Any]
    bits: Callable[[int, int], int]
    count: int
    never: tuple[int, ...] = ()
    normalized: bool = False
    forced: bool = False

    @property
    def most(self) -> int:
        """Tokens of the longest."""
        return int(self.limits.max())


class Model(ABC):
    """What every model has.

    continues: whether the source of a generation is a prompt to be continued, so that it counts for
        `max_length` and for repetitions, and not something to be answered.
    tokens_per_pass: tokens of a batch, padding included, that its encoder computes in one pass on a
        CPU.
    unpadded: whether it reads batches without padding.
    """

    __call__: Callable[..., Any]  # `forward`, as of every `nn.Module`
    config: Any  # with vocab_size, d_model, pad and max_length (None: any length)
    training: bool = False  # as of every `nn.Module`
    continues: bool = False
    tokens_per_pass: int = 1024
    unpadded: bool = False
    SIZES: dict[str, Any] = {}  # noqa: RUF012  # name of a published size -> its options
    # size -> quantity -> the printed figure, where it stands and why ours differs
    PUBLISHED: dict[str, Any] = {}  # noqa: RUF012

    def train(self, mode: bool = True) -> Self:
        """As of every `nn.Module`."""
        self.training = mode
        return self

    def eval(self) -> Self:
        """As of every `nn.Module`."""
        return self.train(False)

    @property
    def repeated_blocks(self) -> list[nn.Module]:
        """The blocks that can be compiled, or computed again for the backward pass; [] for none."""
        return []

    @property
    def sharded_parts(self) -> list[nn.Module]:
        """The parts that are gathered one after the other where several processes divide the model:
        only their own `forward` reads their parameters. The rest is gathered for the whole pass.
        """
        return self.repeated_blocks

    @property
    def layer_groups(self) -> list[nn.Module]:
        """Its layers from the input up, for learning rates that differ and gradual unfreezing; what
        is in none of them, such as the embedding, comes before, and heads after. [] for none.
        """
        return self.repeated_blocks


class Generator(Model, Generic[S]):
    """What can be decoded: a model with one of the two shapes below, or a faster form of one.

    `config` has bos and eos, too. Where it `continues` a text, decoding starts with `empty` and
    `prefill`; else with `read`. See `regard.decoding.start`.

    extras: the names of the auxiliaries of its `Output` in training, for objectives that need them.
    """

    head: Any  # a `Head`
    extras: tuple[str, ...] = ()

    @abstractmethod
    def step(self, tokens: Tensor, state: S) -> tuple[Tensor, S]:
        """Scores (R, T, V) of what follows each of the tokens (R, T), and the state after them.

        Raises:
            RegardError: the state was used before.
        """

    def topk(self, tokens: Tensor, state: S, count: int) -> tuple[TopKTokens, S] | None:
        """The `count` most probable tokens after each of the tokens (R, 1), and the next state.

        None, and nothing is done, where they are found in no other way than through all scores.
        """
        return None

    def search(self, tokens: Tensor, state: S, plan: SearchPlan) -> SearchResults | None:
        """A whole search from the first tokens (A, 1) on; None where the generator makes none."""
        return None

    def empty(self, sequences: int, dtype: torch.dtype | None = None) -> S:
        """The state of so many sequences before any token.

        Args:
            dtype: of its tensors; None: that in which the model computes.
        """
        raise TypeError(
            f"{type(self).__name__} does not continue a text: its state needs a source."
        )

    def prefill(self, tokens: Tensor, state: S, lengths: Tensor | None = None) -> S:
        """The state after the tokens (R, T), or the first `lengths` (R,) of them; no scores are
        computed.

        Raises:
            RegardError: the state was used before.
        """
        raise TypeError(f"{type(self).__name__} does not continue a text: it has no prompts.")

    @property
    def first_token(self) -> int:
        """What an empty prompt begins with: `bos`, or the token that ends the text before.

        Raises:
            ConfigError: the vocabulary has neither.
        """
        return self.config.bos

    def read(self, source: Sequences) -> S:
        """The state after a source, before the first target token, which is `config.bos`."""
        raise TypeError(f"{type(self).__name__} continues a text and reads no source.")


def first_token_of(candidates: Sequence[int | None], vocab_size: int) -> int:
    """What an empty prompt begins with: the first candidate that is not None.

    Raises:
        ConfigError: there is none, or it is no id of the vocabulary.
    """
    found = next((one for one in candidates if one is not None), None)
    if found is None or found >= vocab_size:
        raise ConfigError(
            "An empty prompt needs a token that begins or ends a text (bos or eos), but this "
            "model's vocabulary has none. Give a prompt of at least one word."
        )
    return found


class LanguageModel(Generator[S]):
    """Predicts each token from those before it.

    trained_in_order: whether it is also trained so; a permutation model learns from other orders.
    """

    continues = True
    trained_in_order: bool = True

    @property
    def reads_backward(self) -> bool:
        """Whether it predicts what comes before, so that its texts are turned around."""
        return False

    @property
    def target_length(self) -> int | None:
        """Tokens of a text that evaluation reads at a time, where what a token sees depends on it;
        None: a token sees the same however many are read at a time.
        """
        return None

    def with_memory(
        self, memory_length: int | None = None, max_distance: int | None = None
    ) -> Self:
        """The same weights, reading a text with another memory.

        Args:
            memory_length: positions before a segment that it reads.
            max_distance: distances above this one are set to it.

        Raises:
            ConfigError: the model has no memory of a length that can be chosen.
        """
        raise ConfigError(
            f"{type(self).__name__} has no memory whose length can be chosen, and no distances: "
            "`memory_length` and `max_distance` are for the evaluation of a Transformer-XL."
        )

    @abstractmethod
    def forward(self, ids: Tensor, state: S | None = None) -> Output:
        """Hidden states (B, T, D) for predicting what follows each of the ids (B, T).

        Where a state is given, the ids come behind it, and the next state comes back.
        """

    @abstractmethod
    def empty(self, sequences: int, dtype: torch.dtype | None = None) -> S:
        """See `Generator`."""

    @abstractmethod
    def prefill(self, tokens: Tensor, state: S, lengths: Tensor | None = None) -> S:
        """See `Generator`."""


class Recurrent(Model):
    """A model of recurrent layers on each other, whose cells pictures show.

    In evaluation the first layer reads `embedded`, every other one the hidden states below it, and
    the head those of the last.
    """

    head: Any  # a `Head`

    @property
    @abstractmethod
    def recurrent_layers(self) -> Sequence[RecurrentLayer]:
        """Its layers, from the input up."""

    @abstractmethod
    def embedded(self, ids: Tensor) -> Tensor:
        """What the first layer reads: (B, T) -> (B, T, d_in)."""


class EncoderDecoder(Generator[S]):
    """Predicts each target token from a source and the target tokens before it.

    output_scale: what the decoder's states are multiplied by before the output reads them.
    reads_regions: whether a source is the regions of an image (`regard.data.regions`), not tokens.
    joins_source: whether a target is read behind its source in one sequence, so that attention goes
        over both.
    """

    output_scale: float = 1.0
    reads_regions: bool = False
    joins_source: bool = False

    @abstractmethod
    def forward(self, source: Sequences, target: Sequences) -> Output:
        """Hidden states for predicting what follows each token of the target: (B, T, D), or
        (1, N, D) where source and target are unpadded.
        """

    @abstractmethod
    def read(self, source: Sequences) -> S:
        """See `Generator`."""

    def source_encoder(self) -> Encoder:
        """Its encoder alone, with the same weights.

        Raises:
            ConfigError: it gives no states of its own for the tokens of a source.
        """
        raise ConfigError(
            f"{type(self).__name__} gives no vectors of texts: only encoders of Transformers do, "
            "such as those of T5, BART, Marian and M2M-100."
        )


class CrossAttentionModel(EncoderDecoder[S]):
    """An encoder-decoder whose decoder reads a source by cross-attention alone."""

    @abstractmethod
    def encode(self, source: Sequences) -> Tensor:
        """The encoder's states, (B, S, D), or (1, N, D) of an unpadded batch."""

    @abstractmethod
    def source_encoder(self) -> Encoder:
        """See `EncoderDecoder`."""

    @abstractmethod
    def initial_state(self, memory: Tensor, lengths: Tensor, dtype: torch.dtype | None = None) -> S:
        """The state before the first target token, from the encoder's states (B, S, D).

        Args:
            dtype: of keys and values; None: that in which the model computes.
        """

    def read(self, source: Sequences) -> S:
        """See `Generator`."""
        return self.initial_state(self.encode(source), source.lengths)


class Encoder(Model):
    """Gives a hidden state for each token of a text, for any task that puts a head on top.

    embedding: the vectors of tokens; of an encoder of characters, those of characters.
    pooled: the kinds of head whose inner layer comes out of pre-training.
    segment_types: how many texts of a row it distinguishes by their segments.
    is_causal: whether a hidden state depends on no later token and the model's head predicts the
        next token from it. Tasks then put a question after its context instead of before each
        choice, and offer `aux_lm_weight`. XLNet with attention in both directions is a language
        model that is not causal as an encoder.
    adds_special_tokens: whether tasks put special tokens around texts if the tokenizer has none
        (GPT's fine-tuning).
    """

    embedding: Any  # ids (...,) -> (..., D)
    pooled: tuple[str, ...] = ()

    @property
    def is_causal(self) -> bool:
        """See above."""
        return False

    @property
    def adds_special_tokens(self) -> bool:
        """See above."""
        return self.is_causal

    @property
    def segment_types(self) -> int:
        """See above."""
        return 1

    @abstractmethod
    def states(self, batch: Sequences, tokens: TokenSubset = ALL) -> States:
        """Hidden states of the embeddings, then of each layer: L + 1 times (B, T, D), or (1, N, D)
        of an unpadded batch.

        Args:
            tokens: those whose hidden states the last layer computes.
        """

    @property
    def word_tables(self) -> list[nn.Embedding]:
        """The tables of vectors of the vocabulary, which files of word vectors can initialize; []
        for none.
        """
        return [self.embedding] if isinstance(self.embedding, nn.Embedding) else []

    def input_tokenizer(self, tokenizer: Any) -> Any:
        """The tokenizer as this encoder reads its ids: itself, or for an encoder that reads
        characters one that gives every unknown word an id of its own
        (`regard.text.open_vocabulary`).
        """
        return tokenizer

    def complete(self, batch: Sequences, tokenizer: Any) -> Sequences:
        """A padded batch of token ids with all that this encoder reads: named extras such as the
        characters of each word.

        Args:
            tokenizer: what `input_tokenizer` gave, of which the ids are.
        """
        return batch

    def static(self, batch: Sequences) -> Tensor:
        """The vectors of a padded batch that do not depend on what surrounds a token, (B, T, D)."""
        vectors: Tensor = self.embedding(batch.ids)
        return vectors

    def encode(self, batch: Sequences, tokens: TokenSubset = ALL) -> Tensor:
        """What heads read, (B, T, D), or (1, N, D) of an unpadded batch: the hidden states of the
        last layer; of ELMo the mix of all.
        """
        for hidden in self.states(batch, tokens):  # noqa: B007
            pass
        return hidden

    def chosen(self, batch: Sequences, choice: LayerChoice) -> Tensor:
        """`choice` of the hidden states of a batch, for its N tokens end to end: (N, D)."""
        hidden = choice(self.states(batch))  # (B, T, D), or (1, N and padding, D) where unpadded
        if batch.layout is None:
            return hidden[batch.keep]
        return hidden[0, : len(batch.layout.tokens)]

    @abstractmethod
    def new_head(self, kind: str, outputs: int = 1) -> nn.Module:
        """A new head of one of the kinds in `regard.models.encoder_with_heads.HEADS`.

        Raises:
            ConfigError: this family has no head of that kind.
        """

    @abstractmethod
    def template(self, tokenizer: Any) -> Template:
        """The template of its input, where the tokenizer's file does not say it."""
