"""Sections of recipes of tasks on encoders: their data, their tokenizer, their word vectors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from itertools import islice
from typing import Any, ClassVar, Literal

from pydantic import Field

from regard.recipe import RecipePath
from regard.tasks.sections import (
    DataSection,
    FoldOption,
    NewTokenizerRecipe,
    Share,
    TokenizerSection,
    differing,
    starts_from_folder,
)
from regard.text import Tokenizer

SAMPLES = 12  # rows that the report of a run shows


class RowsData(DataSection):
    """[data] of tasks that read texts of any length, in windows."""

    train: RecipePath
    """The file of the training data."""
    valid: RecipePath | Share | FoldOption | None = None
    """A file, or a share or a fold of the training data."""
    test: RecipePath | None = None
    """The file that the trained model is scored on."""
    max_length: int = Field(default=128, ge=4)
    """Tokens of one example, special tokens included; never more than the model reads."""
    batch_size: int = Field(default=32, ge=1)
    """The number of examples in a batch."""
    max_tokens_per_batch: int = Field(default=16384, ge=1)
    """Tokens in a batch, padding included; a batch of long examples has fewer than `batch_size`."""
    word_vectors: RecipePath | None = None
    """A file of GloVe or word2vec: the initial vectors of the words that it has."""
    freeze_word_vectors: bool = False
    """The vectors of all words stay as they are initialized."""

    def files(self) -> list[str]:
        return [*super().files(), *([str(self.word_vectors)] if self.word_vectors else [])]

    @abstractmethod
    def texts(self) -> Iterator[str]:
        """The training texts, from which a tokenizer learns."""

    def samples(self, count: int = SAMPLES) -> list[Any]:
        """The first validation examples, or training examples where there are none."""
        return list(islice(self.records("train" if self.valid is None else "valid"), count))


class EncoderData(RowsData):
    """[data] of tasks that read texts within the limit of the model."""

    too_long: Literal["error", "truncate", "skip"] = "truncate"
    """What happens to examples beyond `max_length`; truncated and skipped ones are counted."""


class MarkingTokenizer(TokenizerSection):
    """[tokenizer]: a tokenizer that is trained gets the special tokens [CLS] and [SEP]."""

    def completed(self, tokenizer: Tokenizer) -> Tokenizer:
        if tokenizer.cls_id is not None:
            return tokenizer
        return tokenizer.with_roles({"cls": "[CLS]", "sep": "[SEP]"})


class EncoderRecipe(NewTokenizerRecipe):
    """A recipe's sections besides [model] and [training]."""

    new_tokenizer: ClassVar[TokenizerSection] = MarkingTokenizer()

    data: RowsData
    tokenizer: MarkingTokenizer | None = None
    """Where the model is started from a folder: that of the folder."""


def word_vector_problems(recipe: Any) -> Iterator[tuple[str, str]]:
    """Options of word vectors that cannot have an effect."""
    data = recipe.data
    if data.word_vectors is None:
        why = "is for `word_vectors`"
        yield from differing(data, "data", ("freeze_word_vectors",), why)
    elif starts_from_folder(recipe) and not (
        recipe.model.features and recipe.model.features.d_words
    ):
        yield (
            "data.word_vectors",
            "would replace what the model of a folder has learned. Leave it out, or set `d_words` "
            "in [model.features]: then the vectors stand beside the features.",
        )
