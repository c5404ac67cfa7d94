"""Bidirectional language modeling: pre-training of ELMo (Peters et al. 2018, section 3.1).

    sum over t of  log p(w_t | w_1 ... w_{t-1})  +  log p(w_t | w_{t+1} ... w_n)

One sentence a line. Both directions carry their state from sentence to sentence, as in the authors'
program. What comes out is an encoder that other tasks start from, and gives vectors of words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, get_args

import torch
from pydantic import Field

from regard.data.batches import Losses
from regard.data.encoder_inputs import InputFormat
from regard.data.lm_streams import (
    BidirectionalBatch,
    BidirectionalStreams,
    BidirectionalText,
    SeparateSentences,
)
from regard.data.readers import RowReader, open_table
from regard.data.sampler import EpochSampler
from regard.data.token_arrays import chunks_of
from regard.decoding.steps import evaluating
from regard.errors import ConfigError, DataError
from regard.metrics import Perplexity, Protocol, Scores
from regard.models.elmo import Elmo
from regard.recipe import Options, RecipePath
from regard.tasks import batching, sections
from regard.tasks.embedder import EmbedsTexts, TextEncoder, batch_budget
from regard.tasks.embedding import Embedder, VectorPrediction
from regard.tasks.encoding import no_columns
from regard.tasks.running_text import check_text_length
from regard.tasks.task import of_training
from regard.text import Tokenizer

StateKind = Literal["carried", "zeros"]
DIRECTIONS = ("forward", "backward")
EVALUATED_STEPS = 256  # tokens of a stream at a time, where nothing is learned


class SentencesData(sections.DataSection):
    """[data]: one sentence a line, in batches of `batch_size` times `sequence_length` words."""

    running_text: ClassVar[bool] = True

    train: RecipePath
    """The file of the training data."""
    valid: RecipePath | sections.Share | sections.FoldOption
    """A file; or a share, the end of the training text; or a fold, consecutive lines of it."""
    test: RecipePath | None = None
    """The file that the trained model is scored on."""
    batch_size: int = Field(default=20, ge=1)
    """Parallel streams, each read in both directions."""
    sequence_length: int = Field(default=20, ge=1)
    """Words of a stream at a time."""
    restart_every: int = Field(default=5, ge=0)
    """Windows of `sequence_length` words after which the state of a stream starts from zeros again,
    so that the model learns to read a sentence alone, too; 0: never, as in the authors' program."""

    def read(self, source: Any, part: str) -> RowReader:
        """The lines of a file."""
        return open_table(source, format="lines")

    def texts(self) -> Iterator[str]:
        """The training text, from which a tokenizer learns."""
        return self.records("train").texts()


class StateSection(Options):
    """[evaluation]"""

    state: StateKind = "carried"
    """With carried the state goes from sentence to sentence, as in training. With zeros every
    sentence begins with zeros,
    so that its perplexity does not depend on what stands before it."""


class SentenceTokenizer(sections.TokenizerSection):
    """[tokenizer]: words, the most frequent of which are predicted."""

    def build(self, texts: Callable[[], Iterable[str]]) -> Tokenizer:
        """Read the tokenizer that `path` names, or learn one from `texts()`."""
        tokenizer = super().build(texts)
        if None in (tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id):
            raise ConfigError(
                "[tokenizer] must have tokens for unknown words and for the beginning and the end "
                "of a sentence. Train one of kind words, or name them in tokenizer_config.json."
            )
        return tokenizer


class BidirectionalRecipe(sections.NewTokenizerRecipe):
    """A recipe's sections besides [model] and [training]."""

    new_tokenizer: ClassVar[sections.TokenizerSection] = SentenceTokenizer(kind="words")

    data: SentencesData
    tokenizer: SentenceTokenizer | None = None
    """Where the model is started from a folder: that of the folder."""
    evaluation: StateSection = StateSection()


@dataclass(frozen=True)
class SentenceStreams:
    """The training and the validation text, and how they are batched."""

    train: BidirectionalStreams
    valid: BidirectionalText


class BidirectionalLanguageModel(EmbedsTexts):
    """An ELMo and its tokenizer.

    state: how the perplexity of a text is measured, as in [evaluation].
    """

    name = "bidirectional-language-modeling"
    new_model = "elmo"
    commands = ("predict", "embed", "evaluate", "look")
    prediction_type = VectorPrediction
    decodes = False
    input_format: InputFormat
    Recipe = BidirectionalRecipe
    goal = ("loss", "min")
    module: Elmo

    def __init__(self, module: Elmo, tokenizer: Tokenizer, *, state: StateKind = "carried"):
        _check_state(state)
        self.module, self.state = module, state
        self.tokenizer = module.input_tokenizer(tokenizer)
        template = self.tokenizer.template or module.template(self.tokenizer)
        self.tokenizer = self.tokenizer.with_template(template)
        self.input_format = InputFormat(self.tokenizer, template, None, module.config.pad)
        self.data: SentenceStreams | None = None

    # ---- from a recipe

    @classmethod
    def trains(cls, model: type) -> bool:
        """Whether the model reads in both directions, each predicting the next word."""
        return issubclass(model, Elmo)

    @classmethod
    def from_recipe(cls, recipe: BidirectionalRecipe, model: Elmo, tokenizer: Tokenizer) -> Self:
        """The task with its data, ready to be trained.

        Raises:
            DataError: a text has no words, or too few for its streams.
        """
        data = recipe.data
        task = cls(model, tokenizer, **cls.options_in(recipe))
        model.head.logits(torch.zeros(1, model.config.d_model // 2))  # raises an error without one
        train, valid = (task.text(data.records(part)) for part in ("train", "valid"))
        check_text_length(data.train, train.count, data.batch_size)
        streams = BidirectionalStreams(
            train,
            batch_size=data.batch_size,
            sequence_length=data.sequence_length,
            restart_every=data.restart_every,
        )
        task.data = SentenceStreams(streams, valid)
        return task

    def text(self, rows: RowReader | Iterable[str]) -> BidirectionalText:
        """The sentences of a text, one a line; empty lines are left out.

        Raises:
            DataError: there is none.
        """
        reader = open_table(rows)
        chunks = chunks_of(reader.texts(), len)
        text = self._of(ids for chunk in chunks for ids in self.tokenizer.encode_many(chunk))
        if not text.count:
            raise DataError(reader.name, None, "has no words.", "Write one sentence a line.")
        return text

    def _of(self, sentences: Iterable[Sequence[int]]) -> BidirectionalText:
        config, tokenizer = self.module.config, self.tokenizer
        unknown = config.eos if tokenizer.unk_id is None else tokenizer.unk_id
        return BidirectionalText.of(
            sentences, config.bos, config.eos, tokenizer.vocab_size, unknown
        )

    @staticmethod
    def example(recipe: BidirectionalRecipe, words: int) -> BidirectionalBatch:
        """A batch as the recipe asks for, whatever the length of a line: for estimates."""
        rows, length = recipe.data.batch_size, recipe.data.sequence_length
        text = BidirectionalText.of([[3] * length] * rows, 1, 2, 4, 3)
        streams = BidirectionalStreams(text, batch_size=rows, sequence_length=length)
        return streams[0]

    # ---- training

    def train_batches(self) -> EpochSampler:
        """Windows of parallel streams of the text, epoch after epoch."""
        return EpochSampler(of_training(self.data).train)

    def counts(self, batch: BidirectionalBatch) -> dict[str, int]:
        """Predicted words of each direction."""
        return dict.fromkeys(DIRECTIONS, batch.count)

    def losses(self, batch: BidirectionalBatch, carry: Any) -> tuple[Losses, Any]:
        """Of each direction the sum of the cross-entropies in nats; and the state of both.

        carry: the state after the batch before; None at the start of the text.
        """
        count, tokens = batch.count, self.module.complete(batch.tokens, self.tokenizer)
        device = batching.device_of(self.module)
        batch = batch.to(device)
        state = None if batch.fresh else carry
        if state is not None and batch.restarts is not None:
            state = state.cleared(batch.restarts)
        output = self.module(tokens.to(device), state)
        sides = zip(output.hidden.chunk(2), batch.targets.chunk(2), strict=True)
        losses = {
            name: self.module.head.loss(hidden.flatten(0, 1), targets.flatten(), count=count)
            for name, (hidden, targets) in zip(DIRECTIONS, sides, strict=True)
        }
        return losses, output.state.detach()

    def validate(self) -> dict[str, float]:
        """The mean cross-entropy of both directions in nats, and the perplexity of each."""
        data = of_training(self.data)
        rows = min(data.train.batch_size, data.valid.count)
        nats = self._nats(self._batches(data.valid, self.state, rows))
        means = {name: total / data.valid.count for name, total in nats.items()}
        perplexities = {
            f"{name}_perplexity": math.exp(mean) if mean < 709 else math.inf
            for name, mean in means.items()
        }
        return {"loss": sum(means.values()) / 2, **perplexities}

    def _batches(
        self, text: BidirectionalText, state: StateKind, rows: int
    ) -> Sequence[BidirectionalBatch]:
        if state == "zeros":
            return SeparateSentences(text, max_tokens=batch_budget(self.module))
        return BidirectionalStreams(text, batch_size=rows, sequence_length=EVALUATED_STEPS)

    @torch.no_grad()
    def _nats(self, batches: Sequence[BidirectionalBatch]) -> dict[str, float]:
        """The sum of the losses of each direction."""
        totals, carry = dict.fromkeys(DIRECTIONS, 0.0), None
        with evaluating(self.module):
            for batch in batching.watched(batches):
                losses, carry = self.losses(batch, carry)
                for name, (loss, _) in losses.items():
                    totals[name] += float(loss)
        return totals

    # ---- use

    predict = Embedder.predict
    _predictions = Embedder._predictions

    def evaluate(
        self, rows: RowReader | Iterable[str], *, state: StateKind | None = None
    ) -> Scores:
        """The perplexity of a text, one sentence a line, in either direction.

        Every word is predicted, and the end of a sentence (backward: its beginning).

        Args:
            state: see `StateSection`; None: as the model's recipe says.

        Raises:
            ConfigError: there is no such state.
            DataError: the text has no words.
            RegardError: the likelihood of the text is not finite.
        """
        state = self.state if state is None else state
        _check_state(state)
        text = self.text(rows)
        nats = self._nats(self._batches(text, state, 1))
        unknown = int((text.predicted == self.tokenizer.unk_id).sum())
        tokenization = f"{self.tokenizer.kind}-{self.tokenizer.vocab_size}"
        scores = []
        for name, total in nats.items():
            protocol = Protocol("token", tokenization, state=f"|state:{state}", direction=name)
            scores.append(Perplexity(total, text.count, protocol, unknown))
            batching.check_likelihood(total, scores[-1].value)
        return Scores(scores)

    def rows_to_evaluate(
        self, files: Sequence[Any], columns: Sequence[int | str] = (), delimiter: str | None = None
    ) -> RowReader:
        """The lines of a file."""
        no_columns(columns, delimiter)
        return open_table(files[0], format="lines")

    def text_encoder(self) -> TextEncoder:
        """The model as an encoder of texts."""
        return TextEncoder(self.encoder, self.input_format)

    def over_limit(self, texts: Sequence[Any]) -> dict[int, int]:
        """Empty: texts of any length are read."""
        return {}


def _check_state(state: str) -> None:
    if state not in get_args(StateKind):
        raise ConfigError(f"`state` must be carried or zeros, but is {state!r:.80}.")
