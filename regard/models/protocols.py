"""The interfaces of models: all methods that tasks, decoders and pictures call on them.

A model returns hidden states; its head computes logits or a loss from them. Decoding uses these
methods. A language model has `empty` and `prefill`, an encoder-decoder has `read`
(`regard.decoding.steps` calls them); both have `step`, and every state has `select`:

    state = model.empty(sequences)              before any token
    state = model.prefill(tokens, state)        after the tokens (B, T); computes no logits
    state = model.read(source)                  after a source
    logits, state = model.step(tokens, state)   (B, T) -> (B, T, V), up to a constant per position
    state = state.select(rows)                  sequences reordered, repeated or dropped

A model inherits the interfaces that it implements. Methods that are not abstract have a default
here, which a model may override.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from regard.attention.cache import KeyValueCache
from regard.attention.capture import label
from regard.data.batches import ALL, Sequences, TokenSubset
from regard.errors import ConfigError
from regard.models.config import RECURRENT, TRANSFORMER, TrainingFamily
from regard.state import State
from regard.text.templates import Template

if TYPE_CHECKING:
    from regard.layers.pooling import LayerChoice
    from regard.layers.recurrent import RecurrentLayer


S = TypeVar("S", bound=State)  # what a generator carries from step to step
States = Iterator[Tensor]  # hidden states (B, T, D) of the embeddings, then of each layer


@dataclass(frozen=True)
class Output:
    """What `forward` of every model returns.

    hidden: (B, T, D), the input of the head.
    state: the state after these tokens; None: the model returns none.
    extras: named auxiliaries that an objective needs.
    """

    hidden: Tensor
    state: State | None = None
    extras: dict[str, Tensor] = field(default_factory=dict)


class Head(Protocol):
    """The output layer: from hidden states to logits over the vocabulary, or to a loss."""

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., V)"""
        ...

    def loss(
        self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0, count: int | None = None
    ) -> tuple[Tensor, int]:
        """The sum of the losses, in nats, and the number of targets that are not ignored.

        Args:
            hidden: (N, D).
            targets: (N,) token ids; -100 is ignored.
            smoothing: label smoothing, see `Softmax.loss`.
            count: the number of targets that are not ignored, where it is known: computing it would
                wait for the device.
        """
        ...


# Of each source its hypotheses, best first: tokens, score, log-probability, whether it has ended.
SearchResults = list[list[tuple[list[int], float, float, bool]]]


@dataclass(frozen=True, eq=False)
class SearchPlan:
    """The options of a beam search of A sources that a generator may run as one call.

    size: the running hypotheses of each source (the beam size).
    n_best: the finished hypotheses that are returned for each source.
    eos: the tokens that end a hypothesis.
    early_stopping: when the search for a source ends; see `regard.decoding.beam.Beam`.
    limits: (A,), the most tokens of a hypothesis.
    penalty: from a length to the divisor of the log-probability.
    bits: from the numbers of hypotheses and of tokens of the vocabulary to the bits that hold the
        index of a continuation.
    count: the continuations of a source that are ranked at each step.
    forbidden: tokens that are not generated.
    normalized: whether the probabilities of the remaining tokens are scaled to sum to 1.
    forced: whether a hypothesis at its limit is ended by a token with log-probability 0.
    """

    size: int
    n_best: int
    eos: tuple[int, ...]
    early_stopping: bool | str
    limits: Tensor
    penalty: Callable[[Any], Any]
    bits: Callable[[int, int], int]
    count: int
    forbidden: tuple[int, ...] = ()
    normalized: bool = False
    forced: bool = False

    @property
    def longest(self) -> int:
        """The largest of `limits`."""
        return int(self.limits.max())


LONGEST_ATTENDED = 8192  # 12 heads have attention matrices of 3 GB


class Model(ABC):
    """What every model has.

    continues: whether generation continues a prompt, whose tokens then count for `max_length` and
        for repetitions; False: it generates a target from a source.
    family: how it is trained where a recipe is silent.
    tokens_per_pass: the tokens of a batch, padding included, for one pass of an encoder on a CPU.
    unpadded: whether it reads unpadded batches, (1, N).
    longest: the most tokens of a text of a model without `config.max_length` whose attention
        matrices grow with their square; None: they do not.
    """

    __call__: Callable[..., Any]  # `forward`, as of every `nn.Module`
    Config: type  # the class of its configuration
    config: Any  # with vocab_size, d_model, pad and max_length (None: any length)
    training: bool = False  # as of every `nn.Module`
    family: TrainingFamily = TRANSFORMER
    continues: bool = False
    tokens_per_pass: int = 1024
    unpadded: bool = False
    longest: int | None = None
    SIZES: dict[str, Any] = {}  # noqa: RUF012  # name of a published size -> its options
    # size -> quantity -> the printed figure, where it stands and why ours differs

    def train(self, mode: bool = True) -> Self:
        self.training = mode
        return self

    def eval(self) -> Self:
        return self.train(False)

    @property
    def text_limit(self) -> int | None:
        """The most tokens of a text that it reads at a time; None: any number."""
        limit: int | None = self.config.max_length
        return self.longest if limit is None else limit

    @property
    def repeated_blocks(self) -> list[nn.Module]:
        """The blocks that are compiled or checkpointed (recomputed in the backward pass) one by
        one: those of `blocks`, where a model has this list.
        """
        return [*getattr(self, "blocks", ())]

    @property
    def sharded_parts(self) -> list[nn.Module]:
        """The modules that FSDP shards one by one: only their own `forward` reads their parameters.
        The other parameters are gathered for the whole pass.
        """
        return self.repeated_blocks

    @property
    def layer_groups(self) -> list[nn.Module]:
        """The layers from the input up, for discriminative learning rates and gradual unfreezing.
        Other parts, such as the embedding, come before them, and heads after. [] for none.
        """
        return self.repeated_blocks


class Generator(Model, Generic[S]):
    """A model that can be decoded: a `LanguageModel`, an `EncoderDecoder`, or a wrapper of one.

    `config` also has bos and eos. If it `continues` a text, decoding starts with `empty` and
    `prefill`, else with `read`. See `regard.decoding.steps`.

    extras: the names of `Output.extras` in training.
    slides: whether it goes on beyond `config.max_length`, and forgets the first tokens.
    """

    head: Any  # a `Head`
    extras: tuple[str, ...] = ()
    slides: bool = False

    @abstractmethod
    def step(self, tokens: Tensor, state: S) -> tuple[Tensor, S]:
        """Logits (B, T, V) of the token after each of the tokens (B, T), up to a constant for each
        position, and the state after these tokens.

        Raises:
            RegardError: the state was used before.
        """

    def check_extra(self, name: str, option: str) -> None:
        """Raise a ConfigError if the output does not have what an option of [objective] reads."""
        if name not in self.extras:
            raise ConfigError(
                f"[objective] `{option}` reads `{name}` of the model's output, which "
                f"{type(self).__name__} does not give. Leave it out."
            )

    def search(self, tokens: Tensor, state: S, plan: SearchPlan) -> SearchResults | None:
        """A whole beam search from the first tokens (A, 1); None where the generator has none."""
        return None

    def empty(self, sequences: int, dtype: torch.dtype | None = None) -> S:
        """The state of `sequences` sequences before any token.

        Args:
            dtype: of its tensors; None: the dtype in which the model computes.

        Raises:
            TypeError: the model does not continue texts.
        """
        raise TypeError(f"{type(self).__name__} continues no text: its state needs a source.")

    def prefill(self, tokens: Tensor, state: S, lengths: Tensor | None = None) -> S:
        """The state after the tokens (B, T), or after the first `lengths` (B,) of them; computes no
        logits.

        Raises:
            RegardError: the state was used before.
            TypeError: the model does not continue texts.
        """
        raise TypeError(f"{type(self).__name__} does not continue a text: it has no prompts.")

    @property
    def first_token(self) -> int:
        """The token that stands for an empty prompt: `bos`, or the token that ends a text.

        Raises:
            ConfigError: the vocabulary has neither.
        """
        return self.config.bos

    def read(self, source: Sequences) -> S:
        """The state after a source, before the first target token, which is `config.bos`.

        Raises:
            TypeError: the model reads no source.
        """
        raise TypeError(f"{type(self).__name__} continues a text and reads no source.")


class LanguageModel(Generator[S]):
    """Predicts each token from those before it.

    trained_in_order: whether it is trained on tokens in their order; XLNet is on permutations.
    first_roles: of the special tokens that can stand for an empty prompt, the preferred one first.
    reads_both_ways: whether rows of a batch may be read in both directions; see
        `Sequences.causal_mask`.
    """

    continues = True
    reads_both_ways: bool = False
    trained_in_order: bool = True
    first_roles: tuple[str, ...] = ("eos", "bos")

    @property
    def first_token(self) -> int:
        """The token that stands for an empty prompt: it ends the text before, or begins one.

        Raises:
            ConfigError: the vocabulary has none.
        """
        ids = (getattr(self.config, role) for role in self.first_roles)
        token: int | None = next((number for number in ids if number is not None), None)
        if token is None or token >= self.config.vocab_size:
            raise ConfigError(
                "An empty prompt needs a token that begins or ends a text (bos or eos), but this "
                "model's vocabulary has none. Give a prompt of at least one word."
            )
        return token

    @property
    def reads_backward(self) -> bool:
        """Whether it predicts the token before each token, from reversed texts."""
        return False

    @property
    def target_length(self) -> int | None:
        """The length of a segment in evaluation, where the context of a token depends on it; None:
        it does not.
        """
        return None

    def with_memory(
        self, memory_length: int | None = None, max_distance: int | None = None
    ) -> Self:
        """The same weights, reading a text with another memory.

        Args:
            memory_length: M, the positions before a segment that it attends to.
            max_distance: larger distances are replaced by it.

        Raises:
            ConfigError: the model has no memory of a length that can be chosen.
        """
        raise ConfigError(
            f"{type(self).__name__} has no memory whose length can be chosen, and no distances: "
            "`memory_length` and `max_distance` are for the evaluation of a Transformer-XL."
        )

    @abstractmethod
    def forward(self, ids: Tensor, state: S | None = None) -> Output:
        """Hidden states (B, T, D) that predict the token after each of the ids (B, T).

        With a state, the ids follow the tokens of the state, and the output has the next state.
        """

    @abstractmethod
    def empty(self, sequences: int, dtype: torch.dtype | None = None) -> S:
        """The state before the first token of so many sequences."""

    @abstractmethod
    def prefill(self, tokens: Tensor, state: S, lengths: Tensor | None = None) -> S:
        """The state after the prompts (B, T)."""


class CountedModel(LanguageModel[S]):
    """A language model that counts its training text, and learns nothing by gradients."""

    @abstractmethod
    def counted(self, text: Tensor) -> Self:
        """A model of the same configuration that has counted this text alone, (N,) ids."""


class Recurrent(Model):
    """A model with a stack of recurrent layers, whose cells can be drawn.

    In evaluation the first layer reads `embedded`, each other layer the hidden states of the layer
    below, and the head those of the last layer.
    """

    family = RECURRENT
    head: Any  # a `Head`

    @property
    @abstractmethod
    def recurrent_layers(self) -> Sequence[RecurrentLayer]:
        """Its layers, from the input up."""

    @abstractmethod
    def embedded(self, ids: Tensor) -> Tensor:
        """The input of the first layer: (B, T) -> (B, T, d_in)."""


class EncoderDecoder(Generator[S]):
    """Predicts each target token from a source and the target tokens before it.

    output_scale: the factor of the decoder's hidden states before the output layer.
    reads_regions: whether a source is the regions of an image (`regard.data.images`), not tokens.
    joins_source: whether source and target are one sequence, so that attention spans both.
    """

    output_scale: float = 1.0
    reads_regions: bool = False
    joins_source: bool = False

    @property
    def source_vocab_size(self) -> int:
        """The vocabulary of sources: that of targets, unless the model has one of their own."""
        size: int = self.config.vocab_size
        return size

    @abstractmethod
    def forward(self, source: Sequences, target: Sequences) -> Output:
        """Hidden states that predict the token after each token of the target: (B, T, D), or
        (1, N, D) where source and target are unpadded.
        """

    @abstractmethod
    def read(self, source: Sequences) -> S:
        """The state before the first target token."""

    def source_encoder(self) -> Encoder:
        """Its encoder alone, with the same weights.

        Raises:
            ConfigError: it has no encoder that gives a state for each token of a source.
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
        """Its encoder alone, with the same weights."""

    @abstractmethod
    def initial_state(self, memory: Tensor, lengths: Tensor, dtype: torch.dtype | None = None) -> S:
        """The state before the first target token, from the encoder's states (B, S, D).

        Args:
            dtype: of keys and values; None: that in which the model computes.
        """

    def read(self, source: Sequences) -> S:
        return self.initial_state(self.encode(source), source.lengths)


class Encoder(Model):
    """A model that gives a hidden state for each token of a text; tasks put a head on top.

    embedding: the embedding of tokens, or of characters where the encoder reads these.
    pooled: the kinds of head whose inner layer is pre-trained.
    segment_types: the number of segment ids (token types) that it distinguishes.
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
            tokens: the tokens that the last layer computes.
        """

    @property
    def word_tables(self) -> list[nn.Embedding]:
        """The embeddings of words that files of word vectors can initialize; [] for none."""
        return [self.embedding] if isinstance(self.embedding, nn.Embedding) else []

    def input_tokenizer(self, tokenizer: Any) -> Any:
        """The tokenizer of this encoder's inputs: itself, or, where the encoder reads characters,
        one that gives every unknown word an id of its own (`regard.text.tokenizer`).
        """
        return tokenizer

    def complete(self, batch: Sequences, tokenizer: Any) -> Sequences:
        """A padded batch of token ids with the extras that this encoder reads, such as the
        characters of each word.

        Args:
            tokenizer: the result of `input_tokenizer`, which encoded the ids.
        """
        return batch

    def label_texts(self, rows: Sequence[Sequence[int]], label_of: Callable[[int], str]) -> bool:
        """Tell attention capture what the next pass reads: see `regard.attention.capture.label`.

        Args:
            rows: the ids of each text.
            label_of: the text of an id.

        Returns:
            Whether there is a listener.
        """
        return label([list(map(label_of, ids)) for ids in rows])

    def static(self, batch: Sequences) -> Tensor:
        """The context-independent vectors of the tokens of a padded batch, (B, T, D)."""
        vectors: Tensor = self.embedding(batch.ids)
        return vectors

    def encode(self, batch: Sequences, tokens: TokenSubset = ALL) -> Tensor:
        """The input of heads, (B, T, D), or (1, N, D) of an unpadded batch: the hidden states of
        the last layer; of ELMo the scalar mix of all layers.
        """
        for hidden in self.states(batch, tokens):  # noqa: B007
            pass
        return hidden

    def chosen(self, batch: Sequences, choice: LayerChoice) -> Tensor:
        """The features (N, D') that `choice` makes of the hidden states, for all N tokens of a
        batch without padding.
        """
        hidden = choice(self.states(batch))  # (B, T, D), or (1, N and padding, D) where unpadded
        if batch.layout is None:
            return hidden[batch.keep]
        return hidden[0, : len(batch.layout.tokens)]

    @abstractmethod
    def new_head(self, kind: str, outputs: int = 1) -> nn.Module:
        """A new head of a kind in `regard.models.encoder_with_heads.HEADS`.

        Raises:
            ConfigError: this family has no head of that kind.
        """

    @abstractmethod
    def template(self, tokenizer: Any) -> Template:
        """The special tokens of its input, where the tokenizer's file has no template."""


class CachedLanguageModel(LanguageModel[KeyValueCache]):
    """A `LanguageModel` that computes new tokens with cached keys and values of those before."""

    config: Any
    head: Any
    first_roles = ("bos", "eos")

    @abstractmethod
    def continued(self, ids: Tensor, state: KeyValueCache) -> tuple[Tensor, KeyValueCache]:
        """Hidden states (B, T, D) of the ids (B, T) that follow the cached tokens, and the next
        cache.
        """

    def prefill(
        self, tokens: Tensor, state: KeyValueCache, lengths: Tensor | None = None
    ) -> KeyValueCache:
        """The state after the tokens (B, T), or after the first `lengths` (B,) of them."""
        state = self.continued(tokens, state)[1]
        return state if lengths is None else state.truncate(lengths)

    def step(self, tokens: Tensor, state: KeyValueCache) -> tuple[Tensor, KeyValueCache]:
        """Logits (B, T, V) of the token after each of the tokens (B, T), and the next cache."""
        hidden, state = self.continued(tokens, state)
        return self.head.logits(hidden), state
