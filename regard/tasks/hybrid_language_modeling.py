"""Causal and masked language modeling at once: GPT-BERT's pre-training (Charpentier & Samuel 2024).

    causal row    x_1    x_2      x_3     ->   x_2  x_3  x_4      each sees those before it
    masked row    x_1   [MASK]    x_3     ->   x_2   -    -       each sees the whole row

In both kinds of rows the position before a token predicts it ("masked next token prediction"), with
the same weights and head. A share s of the rows is masked, and of their tokens some are chosen and
replaced as BERT's are (`regard.data.pretraining`); special tokens and the first one are not.

    loss = mean of -log p(token) in causal rows  +  s / (1 - s) mean of -log p(chosen token)

The authors weigh the means by 1 - s and s, which is this times 1 - s. What comes out is a language
model: perplexity and generation are causal. Sentences also have a pseudo-log-likelihood, each token
masked in turn.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from regard.data.batches import IGNORE, Losses, RowBatch, Sequences, StreamBatch
from regard.data.lm_streams import ShuffledBlocks
from regard.data.pretraining import MaskVocabulary, masked
from regard.data.sampler import BatchSequence, MadeBatches
from regard.models.protocols import LanguageModel
from regard.recipe import Options
from regard.tasks import running_text
from regard.tasks.batching import device_of
from regard.tasks.language_modeling import TextGenerator
from regard.tasks.log_likelihoods import two_sided_log_likelihoods
from regard.tasks.sections import TokenizerSection
from regard.tasks.task import LogLikelihoods, of_training
from regard.text import Tokenizer


@dataclass(frozen=True, eq=False)
class HybridBatch(RowBatch):
    """Causal and masked rows.

    texts: (B, T), whose extra "bidirectional" (B,) says which rows are masked.
    targets: (B, T), the token after each; of masked rows those that were chosen, others `IGNORE`.
    """

    texts: Sequences
    targets: Tensor

    @cached_property
    def count(self) -> int:
        """Predicted tokens."""
        return int((self.targets != IGNORE).sum())

    def __len__(self) -> int:
        """The number of rows, B."""
        return len(self.texts)

    def targets_by_loss(self) -> dict[str, Tensor]:
        """The targets of causal rows, and those of masked ones: (B T,) each."""
        masked_rows = self.texts.extras["bidirectional"][:, None]
        rows = {"loss": masked_rows, "masked": ~masked_rows}
        return {n: self.targets.masked_fill(left, IGNORE).flatten() for n, left in rows.items()}


@dataclass(frozen=True, eq=False)
class HybridBlocks:
    """Blocks of a text, of which a share is masked, evenly among the rows; for an `EpochSampler`.

    Masks depend on the seed of the blocks, the epoch and the number of the batch alone.
    """

    blocks: ShuffledBlocks
    vocabulary: MaskVocabulary
    masked_share: float
    mlm_probability: float

    def epoch(self, number: int) -> BatchSequence[HybridBatch]:
        """The batches of epoch `number`, in order."""
        batches = self.blocks.epoch(number)

        def make(index: int) -> HybridBatch:
            random = np.random.Generator(np.random.PCG64([self.blocks.seed, number, index]))
            return self.batch(batches[index], index * self.blocks.batch_size, random)

        return MadeBatches(len(batches), make)

    def identity(self) -> dict[str, Any]:
        """What the batches depend on. Checkpoints hold these names."""
        options = {"masked_share": self.masked_share, "mlm_probability": self.mlm_probability}
        return {**self.blocks.identity(), **options}

    def batch(self, batch: StreamBatch, before: int, random: np.random.Generator) -> HybridBatch:
        """A batch with masks; before: the rows of the epoch before it."""
        ids, targets = batch.tokens.numpy(), batch.targets.numpy()
        lengths = (batch.targets != IGNORE).sum(1)
        numbers = before + np.arange(len(ids) + 1)
        masked_rows = np.diff(np.floor(numbers * self.masked_share)) > 0
        for row in np.flatnonzero(masked_rows):
            inside = slice(0, int(lengths[row]))
            text = np.append(ids[row, :1], targets[row, inside])
            maskable = np.isin(text, self.vocabulary.drawn)
            maskable[0] = False
            text, labels = masked(text, maskable, self.vocabulary, self.mlm_probability, random)
            ids[row, inside], targets[row, inside] = text[:-1], labels[1:]
        extras = {"bidirectional": torch.from_numpy(masked_rows)}
        return HybridBatch(Sequences(batch.tokens, lengths, extras=extras), batch.targets)


class HybridObjective(Options):
    """[objective]"""

    masked_share: float = Field(default=0.25, gt=0, lt=1)
    """The share of the rows that are masked; the others are causal."""
    mlm_probability: float = Field(default=0.15, gt=0, le=1)
    """The share of the tokens of a masked row that are chosen and predicted."""
    variable_length: ClassVar[bool] = False

    def losses(self, model: LanguageModel) -> tuple[running_text.AuxiliaryLoss, ...]:
        """None but both of the task."""
        return ()


class HybridTokenizer(TokenizerSection):
    """[tokenizer]: a tokenizer that is trained gets the special token [MASK]."""

    def completed(self, tokenizer: Tokenizer) -> Tokenizer:
        return tokenizer.with_roles({"mask": "[MASK]"})


class HybridRecipe(running_text.LanguageModelingRecipe):
    """A recipe's sections besides [model] and [training]."""

    new_tokenizer = HybridTokenizer(kind="byte-bpe")

    objective: HybridObjective = HybridObjective()  # type: ignore[assignment]
    tokenizer: HybridTokenizer | None = None
    """Where the model is started from a folder: that of the folder."""


class HybridLanguageModel(TextGenerator):
    """A language model that reads masked texts in both directions, too, and its tokenizer."""

    name = "hybrid-language-modeling"
    Recipe: ClassVar = HybridRecipe  # type: ignore[assignment]
    module: Any
    masked_share: float  # in training alone

    @classmethod
    def trains(cls, model: type) -> bool:
        """Whether the rows of a batch can say in which directions the model reads them."""
        return issubclass(model, LanguageModel) and model.reads_both_ways

    @classmethod
    def from_recipe(  # type: ignore[override]
        cls, recipe: HybridRecipe, model: LanguageModel, tokenizer: Tokenizer
    ) -> HybridLanguageModel:
        """The task with its data, ready to be trained.

        Raises:
            ConfigError: as of `TextGenerator`, or the tokenizer has no mask.
        """
        task: Any = super().from_recipe(recipe, model, tokenizer)
        share, data = recipe.objective.masked_share, of_training(task.data)
        vocabulary = MaskVocabulary.of(tokenizer, whole_words=False)
        blocks = HybridBlocks(data.batches, vocabulary, share, recipe.objective.mlm_probability)
        task.data, task.masked_share = replace(data, batches=blocks), share
        return task  # type: ignore[no-any-return]

    def counts(self, batch: Any) -> dict[str, int]:
        """Predicted tokens of causal rows, and those of masked ones."""
        if isinstance(batch, StreamBatch):
            return super().counts(batch)
        return {n: int((x != IGNORE).sum()) for n, x in batch.targets_by_loss().items()}

    def losses(self, batch: Any, carry: Any) -> tuple[Losses, Any]:
        """The sums of the cross-entropies of the tokens that causal rows predict, and of those of
        masked rows, times their weight; of a window of a text the former alone.
        """
        if isinstance(batch, StreamBatch):
            return super().losses(batch, carry)
        counts, batch = self.counts(batch), batch.to(device_of(self.module))
        hidden = self.module.encode(batch.texts).flatten(0, 1)
        weights = {"loss": 1.0, "masked": self.masked_share / (1 - self.masked_share)}
        losses = {}
        for name, targets in batch.targets_by_loss().items():
            total, count = self.module.head.loss(hidden, targets, count=counts[name])
            losses[name] = weights[name] * total, count
        return losses, None

    @property
    def likelihoods_by_kind(self) -> dict[str, LogLikelihoods]:
        """Also the pseudo ones, where a token precedes a text, at which the first is predicted."""
        pseudo: Any = partial(two_sided_log_likelihoods, self, states_of=self._states_of_masked)
        return {**super().likelihoods_by_kind, **({"pseudo": pseudo} if self._before() else {})}

    def _states_of_masked(self, texts: Sequences, at: Tensor) -> Tensor:
        """The states (B, D) before a position of each text, (B, 1), which is masked."""
        rows = torch.arange(len(texts), device=at.device)
        (mask,) = self.tokenizer.required_ids("mask")
        ids = texts.ids.scatter(1, at, mask)
        extras = {"bidirectional": torch.ones_like(rows, dtype=torch.bool)}
        hidden = self.module.encode(replace(texts, ids=ids, extras=extras))
        return hidden[rows, at[:, 0] - 1]
