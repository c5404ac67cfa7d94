"""Which words of a text were replaced by others, ELECTRA's objective (Clark et al. 2020).

    prediction = load("electra").predict("the chef ate the meal", return_proba=True)
    prediction.replaced         the words that are probably not the original ones
    prediction.words, prediction.probabilities      of every word, that it was replaced

In training a generator fills masks, and the discriminator reads what it drew (equation 3):

    sum over the chosen tokens of -log p_G(x_t)  +  50 sum over all tokens of the binary
    cross-entropy of p_D(replaced) with [x'_t != x_t], each a mean over its own tokens
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data.batches import IGNORE, Losses, Sequences
from regard.data.pretraining import MaskedBatch, MaskedTexts
from regard.data.sampler import EpochSampler
from regard.decoding.steps import evaluating
from regard.models.electra import Electra, GeneratorAndDiscriminator, generator_config
from regard.recipe import Options, Recipe
from regard.tasks.batching import TooLong, device_of, watched, without_padding
from regard.tasks.encoder_training import headed
from regard.tasks.encoding import EncoderTask
from regard.tasks.inputs import as_list, checked_text
from regard.tasks.masked_language_modeling import MaskedLanguageModel, MaskedRecipe
from regard.tasks.sections import Problems, starts_from_folder
from regard.tasks.task import Prediction, Predicts, Task, of_training
from regard.text import Tokenizer
from regard.text.word_spans import WordSpans


class ReplacedTokensObjective(Options):
    """[objective]"""

    weight: float = Field(default=50.0, gt=0)
    """The weight of the discriminator's loss; that of the generator has 1."""
    generator_size: float = Field(default=0.25, gt=0, le=1)
    """The generator's width, feed-forward width and heads, as a share of the model's; its layers
    are as many."""


class ReplacedTokensRecipe(MaskedRecipe):
    """A recipe's sections besides [model] and [training]."""

    objective: ReplacedTokensObjective = ReplacedTokensObjective()


@dataclass(frozen=True)
class ReplacedTokens(Prediction):
    """The words that were probably replaced, and for every word and every token the probability.

    The probability of a word is the largest of its tokens. Words behind the tokens that the model
    reads are left out.
    """

    replaced: tuple[str, ...]
    words: tuple[str, ...]
    probabilities: tuple[float, ...]
    tokens: tuple[str, ...]
    token_probabilities: tuple[float, ...]

    @property
    def result(self) -> list[str]:
        """The words that were probably replaced."""
        return list(self.replaced)

    def __str__(self) -> str:
        pairs = zip(self.words, self.probabilities, strict=True)
        return " ".join(f"{word}/{probability:.2f}" for word, probability in pairs)


@dataclass(frozen=True)
class Corrupted:
    """A batch as the discriminator reads it, and the generator's loss.

    texts: with drawn tokens at the chosen ones.  replaced: (B, T) bool, where they are others.
    nats: the sum of -log p_G(token) over the chosen tokens.
    """

    texts: Sequences
    replaced: Tensor
    nats: Tensor


class ReplacedTokenDetector(EncoderTask):
    """Tells for each token whether it replaces another."""

    name = "replaced-tokens"
    new_model = "electra"
    prediction_type = ReplacedTokens
    predict: Predicts[str, list[str], ReplacedTokens]
    commands = ("predict", "embed", "look")
    head = "replaced"
    Recipe: ClassVar[type[Recipe] | None] = ReplacedTokensRecipe
    goal = ("loss", "min")
    score_options = ("objective.weight",)
    items: ClassVar[str] = "tokens"
    objective = ReplacedTokensObjective()
    masked: MaskedLanguageModel | None = None

    # ---- training

    @classmethod
    def trains(cls, model: type) -> bool:
        """Whether the model is one of those that are trained with a generator."""
        return issubclass(model, Electra)

    @classmethod
    def problems(cls, recipe: Any) -> Problems:
        """Options without effect, or without what they need."""
        if recipe.data.sentence_pairs:
            yield "data.sentence_pairs", "has no loss in this task, whose texts are single."
        if recipe.teacher is not None:
            yield "teacher", "has no loss in this task. Leave the section out."
        if recipe.data.test:
            yield "data.test", "has no scores in this task. Leave it out."
        if starts_from_folder(recipe):
            for name in ("lora", "features"):
                if dict(recipe.model)[name] is not None:
                    yield f"model.{name}", "would freeze the generator too. Leave it out."

    @classmethod
    def from_recipe(
        cls, recipe: ReplacedTokensRecipe, model: nn.Module, tokenizer: Tokenizer
    ) -> Self:
        """The task with its data, ready to be trained, and a generator with random weights.

        Raises:
            ConfigError: the model has no head for this, the tokenizer no mask, or the generator
                cannot have its size.
            DataError: a file cannot be read.
        """
        task = cls.without_data(recipe, model, tokenizer)
        generator: Any = task.module.generator
        task.masked = MaskedLanguageModel.from_recipe(recipe, generator, tokenizer)
        return task

    @classmethod
    def without_data(
        cls, recipe: ReplacedTokensRecipe, model: nn.Module, tokenizer: Tokenizer
    ) -> Self:
        """The task before its data are read, its model with a generator."""
        objective, discriminator = recipe.objective, headed(model).with_head(cls.head, 1)
        config = generator_config(discriminator.config, objective.generator_size)
        both = GeneratorAndDiscriminator(discriminator, config)
        task = cls(both, tokenizer, **cls.options_in(recipe))
        task.objective = objective
        return task

    @classmethod
    def example(cls, recipe: Any, words: int) -> MaskedBatch:
        """A batch as the recipe asks for, whatever the length of a text: for estimates."""
        return MaskedLanguageModel.example(recipe, words)

    def train_batches(self) -> EpochSampler:
        """Masked texts of the corpus, in another order in each epoch."""
        return EpochSampler(self._masked("train"))

    def companions(self) -> dict[str, Task]:
        """In training, the generator."""
        return {} if self.masked is None else {"generator": self.masked}

    def counts(self, batch: Any) -> dict[str, int]:
        """Chosen tokens, and all tokens."""
        return {"loss": batch.count, "discriminator": int(batch.texts.lengths.sum())}

    def losses(self, batch: Any, carry: None = None) -> tuple[Losses, None]:
        """The sum of the generator's cross-entropies, and that of the discriminator's times its
        weight.
        """
        counts = self.counts(batch)
        corrupted = self.corrupted(batch)
        total = self.objective.weight * self._judged(corrupted)[1]
        return {
            "loss": (corrupted.nats, counts["loss"]),
            "discriminator": (total, counts["discriminator"]),
        }, None

    def corrupted(self, batch: MaskedBatch, random: torch.Generator | None = None) -> Corrupted:
        """Put what the generator draws at the chosen tokens, all of which it reads as [MASK].

        random: None: torch's own generator.
        """
        model: Any = self.module
        count, moved = batch.count, self.completed(batch)
        chosen, ids = moved.labels != IGNORE, moved.texts.ids  # (B, T)
        original = torch.where(chosen, moved.labels, ids)
        masked = replace(moved.texts, ids=ids.masked_fill(chosen, self.tokenizer.mask_id))
        texts = without_padding(model.generator.encoder, masked)
        hidden = model.generator.encoder.encode(texts).flatten(0, 1)  # (B T, D) or (N, D)
        labels = moved.labels.flatten()
        labels = labels if texts.layout is None else labels[texts.layout.slots]
        index = torch.nonzero_static(labels != IGNORE, size=count)[:, 0]
        states, targets = hidden.index_select(0, index), labels[index]
        nats, _ = model.generator.heads["masked_lm"].loss(states, targets, count=count)
        drawn = original.masked_scatter(chosen, model.draw(states.detach(), random))
        return Corrupted(replace(moved.texts, ids=drawn), drawn != original, nats)

    def _judged(self, corrupted: Corrupted) -> tuple[Tensor, Tensor]:
        """The discriminator's logits, (B, T), and the sum of its losses in nats."""
        texts = without_padding(self.module.encoder, corrupted.texts)
        hidden = self.module.encoder.encode(texts)  # (B, T, D) or (1, N, D)
        logits = texts.pad(self.module.scores_from(self.head, hidden))[..., 0].float()  # (B, T)
        targets = corrupted.replaced.to(logits.dtype)
        nats = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
        return logits, nats.masked_fill(~corrupted.texts.keep, 0.0).sum()

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Both losses in nats and their weighted sum, and how many tokens the discriminator judges
        right: always of the same masks and the same random numbers.
        """
        random = torch.Generator(device_of(self.module)).manual_seed(0)
        sums = Counter[str]()
        with evaluating(self.module):
            for batch in watched(self._masked("valid").epoch(0)):
                corrupted = self.corrupted(batch, random)
                logits, nats = self._judged(corrupted)
                keep, judged = corrupted.texts.keep, logits > 0
                counted: dict[str, Any] = {
                    "chosen": batch.count,
                    "generator nats": corrupted.nats.item(),
                    "tokens": int(keep.sum()),
                    "nats": nats.item(),
                    "right": int(((judged == corrupted.replaced) & keep).sum()),
                }
                sums.update(counted)
        generator, judge = sums["generator nats"] / sums["chosen"], sums["nats"] / sums["tokens"]
        return {
            "loss": generator + self.objective.weight * judge,
            "generator": generator,
            "discriminator": judge,
            "accuracy": sums["right"] / sums["tokens"],
        }

    samples = Task.samples  # they would be tokens, not texts
    attention_inputs = Task.attention_inputs

    def _masked(self, part: str) -> MaskedTexts:
        return of_training(of_training(self.masked).masked_texts)[part]

    # ---- predictions

    def _predictions(
        self, texts: Sequence[str], *, too_long: TooLong = "error"
    ) -> list[ReplacedTokens]:
        """For each text the probability of each word and token that it was replaced."""
        texts = as_list(texts)
        predictions: list[Any] = [None] * len(texts)
        inputs = self.encoder_inputs(self.checked(texts))
        for batch, scores in self.passes(self.encoded(texts, too_long)):
            probabilities = scores[:, :, 0].sigmoid()
            for row, number in enumerate(batch.numbers.tolist()):
                encoder_input = self.input_format.truncate(inputs[number])
                start, count = encoder_input.starts[0], encoder_input.counts[0]
                # Of a truncated text the first tokens were read, or on the other side the last.
                left = self.tokenizer.sides.get("truncation_side") == "left"
                encoding = self.tokenizer.encode(texts[number])
                span = slice(-count, None) if left else slice(count)
                predictions[number] = _prediction(
                    texts[number],
                    encoding.tokens[span],
                    encoding.offsets[span],
                    probabilities[row, start:][:count].tolist(),
                )
        return predictions

    def checked(self, texts: Any) -> list[Any]:
        """Texts, each as a tuple."""
        return [(checked_text(text, index),) for index, text in enumerate(as_list(texts))]


def _prediction(
    text: str, tokens: list[str], offsets: list[tuple[int, int]], values: list[float]
) -> ReplacedTokens:
    """Of the probabilities of the tokens that were read."""
    split_text = WordSpans.of(text)
    words: list[tuple[str, float]] = []
    for word, (start, stop) in zip(split_text.words, split_text.spans, strict=True):
        inside = [
            probability
            for probability, (first, last) in zip(values, offsets, strict=True)
            if first < stop and start < last
        ]
        if inside:
            words.append((word, max(inside)))
    return ReplacedTokens(
        tuple(word for word, probability in words if probability >= 0.5),
        tuple(word for word, _ in words),
        tuple(probability for _, probability in words),
        tuple(tokens),
        tuple(values),
    )
