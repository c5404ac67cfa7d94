"""Permutation language modeling: pre-training of XLNet from text (Yang et al. 2019, section 2.2).

    max E_z [ sum over the last targets t of z: log p(x_t | x before t in z) ]

A random order z of the positions of each segment, in which the targets come last; the memory of the
segments before is carried. What comes out is a language model in the order of the text, too, which
`generate` continues, and an encoder that other tasks start from.

A model predicts one token in K (partial prediction, Yang et al. 2019, section 2.3): those that come
last in the order. All others come before them and see each other; a target sees them and the
targets before it. Targets are spans: L consecutive ones out of a context of K L tokens (section
3.1).

Streams are read as by `ParallelStreams`. Half of the rows may read them backward, from the end to
the beginning (section 3.1, bidirectional data).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from regard.data.batches import Losses, RowBatch, Sequences, StreamBatch
from regard.data.sampler import BatchSequence, MadeBatches, permutation
from regard.data.token_arrays import TokenArray
from regard.errors import ConfigError, check_at_least
from regard.models.xlnet import Xlnet
from regard.tasks import running_text
from regard.tasks.batching import device_of
from regard.tasks.language_modeling import TextGenerator
from regard.tasks.log_likelihoods import two_sided_log_likelihoods
from regard.tasks.sections import Problems, TokenizerSection, differing
from regard.tasks.task import LogLikelihoods
from regard.text import Tokenizer


@dataclass(frozen=True)
class PermutationOptions:
    """How targets are chosen.

    every: K, of so many tokens one is a target.
    longest_span: L is from 1 to this, with a probability in proportion to 1 / L.
    both_directions: whether half of the rows read the text backward.
    """

    every: int = 6
    longest_span: int = 5
    both_directions: bool = True

    def span_probabilities(self) -> np.ndarray:
        """Of the lengths 1 to `longest_span`."""
        weights = 1 / np.arange(1, self.longest_span + 1)
        return weights / weights.sum()


@dataclass(frozen=True, eq=False)
class PermutationBatch(RowBatch):
    """Segments (B, T) whose extras are those that `Xlnet.streams` reads, and what is predicted.

    labels: (B, P), the ids at the targets.
    fresh: whether the streams start (again), so that the memory before must be dropped.
    """

    segments: Sequences
    labels: Tensor
    fresh: bool

    @cached_property
    def count(self) -> int:
        """Predicted tokens."""
        return self.labels.numel()

    def __len__(self) -> int:
        """The number of rows, B."""
        return len(self.segments)


def sample_targets(length: int, options: PermutationOptions, uniform: Iterator[float]) -> list[int]:
    """Positions of the targets among `length` tokens, in ascending order: one in K, rounded down.

    The text is cut into contexts of K L tokens, one behind the other from a random token on. In
    each of them a span of L tokens begins at a random one. The last L is what is left.

    uniform: numbers in [0, 1).
    """
    every, left = options.every, length // options.every
    borders = options.span_probabilities().cumsum()
    context = int(next(uniform) * (length - every * left + 1))
    targets: list[int] = []
    while left:
        span = min(1 + int((borders[:-1] <= next(uniform)).sum()), left)
        first = context + int(next(uniform) * ((every - 1) * span + 1))
        targets += range(first, first + span)
        context, left = context + every * span, left - span
    return targets


def sample_ranks(length: int, targets: list[int], uniform: Iterator[float]) -> np.ndarray:
    """The position of each token in the order, (length,): -1 before the targets, then 0, 1, ..."""
    ranks = np.full(length, -1)
    ranks[targets] = np.argsort(np.argsort([next(uniform) for _ in targets]))
    return ranks


def allowed_of(ranks: np.ndarray) -> np.ndarray:
    """Which token may attend to which, (..., T, T): a target to all before it, others to others."""
    return ranks[..., None, :] < np.maximum(ranks, 0)[..., :, None]


class PermutedStreams:
    """A text as parallel streams in segments of `sequence_length` tokens, each in an order of its
    own. For an `EpochSampler`.

    A segment begins `reuse` tokens behind the one before (None: behind its end). Their hidden
    states are what the next segment remembers, and so they do not depend on the tokens behind them,
    which it predicts again: the order of the first `reuse` tokens comes before that of the others.

    Each epoch begins at another of the first tokens of the streams. Targets and orders depend on
    `seed`, the epoch's number and that of the batch alone.

    Raises:
        ConfigError: a number is too small or too large, or the text too short.
    """

    def __init__(
        self,
        text: TokenArray,
        options: PermutationOptions,
        *,
        batch_size: int,
        sequence_length: int,
        reuse: int | None,
        seed: int,
    ):
        check_at_least(
            1, batch_size=batch_size, every=options.every, longest_span=options.longest_span
        )
        self.text, self.options, self.seed = text, options, seed
        self.batch_size, self.sequence_length = batch_size, sequence_length
        self.reuse = reuse or sequence_length
        if options.both_directions and batch_size % 2:
            raise ConfigError(
                "`batch_size` must be even where half of the rows read backward, but is "
                f"{batch_size}. Change it, or set `both_directions` to false."
            )
        if self.reuse > sequence_length:
            raise ConfigError(
                f"`reuse_len` of the model must be at most `sequence_length` ({sequence_length}), "
                f"but is {self.reuse}."
            )
        self.parts = [(0, sequence_length)]
        if self.reuse < sequence_length:
            self.parts = [(0, self.reuse), (self.reuse, sequence_length)]
        if self.reuse < options.every:
            raise ConfigError(
                f"`sequence_length`, or `reuse_len`, must be at least {options.every}, the tokens "
                f"out of which one is predicted, but is {self.reuse}."
            )
        self.streams = batch_size // 2 if options.both_directions else batch_size
        self.stream_length = len(text.ids) // self.streams
        if self.stream_length < sequence_length:
            raise ConfigError(
                f"The text has {len(text.ids):,} tokens, too few for {self.streams} parallel "
                f"streams of at least {sequence_length:,}: give more text, or set `batch_size` or "
                "`sequence_length` to less."
            )

    def epoch(self, number: int) -> BatchSequence[PermutationBatch]:
        """The batches of epoch `number`, in order."""
        rest = (self.stream_length - self.sequence_length) % self.reuse
        shift = int(permutation(rest + 1, self.seed, number)[0]) if number else 0
        count = 1 + (self.stream_length - self.sequence_length - shift) // self.reuse
        return MadeBatches(count, lambda index: self._batch(number, shift, index))

    def _batch(self, number: int, shift: int, index: int) -> PermutationBatch:
        """Batch number `index` of epoch `number`, whose first segments begin at `shift`."""
        ids = self._ids(shift + index * self.reuse)
        samples = [self._drawn(number, index, row) for row in range(len(ids))]
        targets = torch.from_numpy(np.stack([sample[0] for sample in samples]))  # (B, P)
        extras = {
            "allowed": torch.from_numpy(np.stack([sample[1] for sample in samples])),
            "targets": targets,
        }
        if self.options.both_directions:
            extras["backward"] = torch.arange(len(ids)) >= self.streams
        segments = replace(Sequences.full(torch.from_numpy(ids)), extras=extras)
        return PermutationBatch(segments, segments.ids.gather(1, targets), fresh=index == 0)

    def _ids(self, first: int) -> np.ndarray:
        """(B, T) from token `first` of each stream on, or before the end of those read backward."""
        steps = first + np.arange(self.sequence_length)
        starts = np.arange(self.streams)[:, None] * self.stream_length
        positions = starts + steps
        if self.options.both_directions:
            positions = np.concatenate([positions, starts + self.stream_length - 1 - steps])
        return self.text.ids[positions].astype(np.int64)

    def _drawn(self, number: int, index: int, row: int) -> tuple[np.ndarray, np.ndarray]:
        """The targets (P,) of a segment, and what its tokens see of each other (T, T)."""
        generator = np.random.PCG64([self.seed, number, index, row])
        uniform = iter(lambda: float(generator.random_raw() >> 11) * 2.0**-53, None)
        allowed = np.zeros((self.sequence_length, self.sequence_length), bool)
        targets: list[int] = []
        for first, end in self.parts:
            chosen = sample_targets(end - first, self.options, uniform)
            part = slice(first, end)
            allowed[part, part] = allowed_of(sample_ranks(end - first, chosen, uniform))
            allowed[part, :first] = True
            targets += [first + target for target in chosen]
        return np.array(targets), allowed

    def identity(self) -> dict[str, Any]:
        """What the batches depend on. Checkpoints hold these names."""
        return {
            "data": f"{self.text.checksum:08x}",
            "rows": self.batch_size,
            "steps": self.sequence_length,
            "reuse": self.reuse,
            **vars(self.options),
            "seed": self.seed,
        }


class PermutedTextData(running_text.TextData):
    """[data]: running text, in batches of `batch_size` segments of `sequence_length` tokens."""

    every: int = Field(default=6, ge=2)
    """One of so many tokens is predicted."""
    longest_span: int = Field(default=5, ge=1)
    """The most consecutive tokens that are predicted; shorter spans are more frequent."""
    both_directions: bool = True
    """Whether half of the rows read the text from its end to its beginning."""

    @property
    def options(self) -> PermutationOptions:
        """How targets are chosen."""
        return PermutationOptions(self.every, self.longest_span, self.both_directions)


class PermutationTokenizer(TokenizerSection):
    """[tokenizer]: a tokenizer that is trained gets the tokens <sep>, <cls> and <mask>."""

    def completed(self, tokenizer: Tokenizer) -> Tokenizer:
        tokenizer = tokenizer.with_roles({"sep": "<sep>", "cls": "<cls>", "mask": "<mask>"})
        return tokenizer.with_template(Xlnet.template(tokenizer))


class PermutationRecipe(running_text.LanguageModelingRecipe):
    """A recipe's sections besides [model] and [training]."""

    new_tokenizer = PermutationTokenizer(kind="unigram")

    data: PermutedTextData
    tokenizer: PermutationTokenizer | None = None
    """Where the model is started from a folder: that of the folder."""


class PermutationLanguageModel(TextGenerator):
    """XLNet and its tokenizer, in pre-training; afterwards as any language model."""

    name = "permutation-language-modeling"
    new_model = "xlnet"
    Recipe: ClassVar = PermutationRecipe  # type: ignore[assignment]
    module: Any  # an `Xlnet`
    valid_batches: PermutedStreams

    @classmethod
    def trains(cls, model: type) -> bool:
        """Whether the model has a query stream."""
        return issubclass(model, Xlnet)

    @classmethod
    def problems(cls, recipe: Any) -> Problems:
        """Options without effect, or without what they need."""
        yield from super().problems(recipe)
        why = "is for models that are trained from the first word to the last"
        yield from differing(
            recipe.objective, "objective", list(running_text.LMObjective.model_fields), why
        )

    @classmethod
    def from_recipe(  # type: ignore[override]
        cls, recipe: PermutationRecipe, model: Xlnet, tokenizer: Tokenizer
    ) -> PermutationLanguageModel:
        """The task with its data, ready to be trained.

        Raises:
            ConfigError: sizes do not fit each other, or the memory has no limit.
            DataError: a text cannot be read.
        """
        data = recipe.data
        task = cls.without_data(recipe, model, tokenizer, data.sequence_length)
        end = task.line_end()
        train, valid = (data.tokens(part, tokenizer, end) for part in ("train", "valid"))
        batches = task.segments(train, recipe)
        task.valid_batches = task.segments(valid, recipe, validation=True)
        notes = memory_notes(model.config)
        task.data = running_text.TrainingText(train, valid, batches, data.batch_size, notes)
        return task

    def segments(
        self, text: TokenArray, recipe: PermutationRecipe, *, validation: bool = False
    ) -> PermutedStreams:
        """A text in segments; the validation text in as many streams as it has segments."""
        data, rows = recipe.data, recipe.data.batch_size
        if validation:
            fitting = len(text.ids) // data.sequence_length
            rows = min(rows, (2 if data.both_directions else 1) * max(1, fitting))
        return PermutedStreams(
            text,
            data.options,
            batch_size=rows,
            sequence_length=data.sequence_length,
            reuse=self.module.config.reuse_len,
            seed=0 if validation else recipe.seed,
        )

    @staticmethod
    def example(recipe: Any, words: int) -> Any:
        """A batch as the recipe asks for: for estimates."""
        data: PermutedTextData = recipe.data
        rows, length = data.batch_size, data.sequence_length
        text = TokenArray.of([[1] * (rows * length)])
        options = PermutationOptions(data.every, data.longest_span, False)
        streams = PermutedStreams(
            text, options, batch_size=rows, sequence_length=length, reuse=None, seed=0
        )
        return streams.epoch(0)[0]

    def counts(self, batch: Any) -> dict[str, int]:
        """Predicted tokens."""
        return {"loss": batch.count}

    def losses(self, batch: Any, carry: Any) -> tuple[Losses, Any]:
        """The sum of the cross-entropies of the targets in nats, and the memory after the batch.

        batch: segments with targets; in evaluation windows of a text, read in its order.
        carry: the memory after the batch before; None at the start of the text.
        """
        if isinstance(batch, StreamBatch):
            return super().losses(batch, carry)
        batch = batch.to(device_of(self.module))
        output = self.module.encode_segment(batch.segments, None if batch.fresh else carry)
        hidden, labels = output.hidden.flatten(0, 1), batch.labels.flatten()
        return {"loss": self.module.head.loss(hidden, labels, count=batch.count)}, output.state

    def pseudo_log_likelihoods(self, texts: Sequence[str]) -> list[float]:
        """The pseudo-log-likelihood of each text, alone, in nats: each token from all others, with
        the end of a line before and behind them; see `regard.tasks.log_likelihoods`. In the order
        of the text: `log_likelihoods`.

        Raises:
            TextError: a text has no token.
        """
        return two_sided_log_likelihoods(self, texts, self._last_in_order)

    def _last_in_order(self, texts: Sequences, at: Tensor) -> Tensor:
        """The states (B, D) of the query stream at a position of each text, (B, 1), which is the
        last in the order, so that no other token sees it.
        """
        hidden = torch.arange(texts.width, device=at.device) == at  # (B, T)
        allowed = ~hidden[:, None].expand(-1, texts.width, -1)  # (B, T, T)
        extras = {"allowed": allowed, "targets": at}
        *_, (_, query) = self.module.streams(replace(texts, extras=extras))
        return query[:, 0]

    @property
    def likelihoods_by_kind(self) -> dict[str, LogLikelihoods]:
        """Also the pseudo ones."""
        return {**super().likelihoods_by_kind, "pseudo": self.pseudo_log_likelihoods}

    def validate(self) -> dict[str, float]:
        """Cross-entropy in nats per target, always of the same targets in the same orders."""
        total, count = self._total_loss(self.valid_batches.epoch(0))
        return {"loss": total / count}


def memory_notes(config: Any) -> list[str]:
    """What of the memory is not used in training.

    Raises:
        ConfigError: it would grow without end.
    """
    if not config.memory_in_training:
        return [
            "the hidden states of a segment are not remembered in the next one: set "
            "`memory_in_training` of [model] to true"
        ]
    if config.memory_length is None:
        raise ConfigError(
            "[model] `memory_length` must be a number in training, where the memory of all "
            "segments before would not fit."
        )
    return []
