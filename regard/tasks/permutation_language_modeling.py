"""Permutation language modeling: pre-training of XLNet from text (Yang et al. 2019, section 2.2).

    max E_z [ sum over the last targets t of z: log p(x_t | x before t in z) ]

A random order z of the positions of each segment, in which the targets come last; the memory of the
segments before is carried. What comes out is a language model in the order of the text, too, which
`generate` continues, and an encoder that other tasks start from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor

from regard.data.batches import StreamBatch
from regard.data.permutations import PermutationOptions, PermutedStreams
from regard.data.token_arrays import TokenArray
from regard.errors import ConfigError, TextError
from regard.models.xlnet import Xlnet
from regard.tasks import running_text
from regard.tasks.batching import device_of
from regard.tasks.inputs import checked_texts
from regard.tasks.language_modeling import TextGenerator
from regard.tasks.log_likelihoods import query_stream_log_likelihoods
from regard.tasks.sections import TokenizerSection, differing
from regard.text import Tokenizer


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
    def problems(cls, recipe: Any) -> Iterator[tuple[str, str]]:
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

    def losses(self, batch: Any, carry: Any) -> tuple[dict[str, tuple[Tensor, int]], Any]:
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
        rows, scored, end = [], [], len(self.line_end())
        for index, (before, ids) in enumerate(self.text_ids(checked_texts(texts))):
            if len(ids) == end:
                raise TextError(index, "is empty, or has no token.", "Leave it out.")
            rows.append([*before, *ids])
            scored.append(range(len(before), len(before) + len(ids) - end))
        return query_stream_log_likelihoods(self.module, rows, scored)

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
