"""Recipes on running text: text and documents as [data], the sections of language modeling.

The tokens of a text are in memory or in mapped files. Beside the cross-entropy a language model may
have further losses.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from regard.call_options import PerplexityFields, with_fields
from regard.data.batches import StreamBatch
from regard.data.corpus import (
    FACTS,
    Corpus,
    Documents,
    encode_corpus,
    is_corpus,
    open_corpus,
    read_documents,
)
from regard.data.in_memory import is_running_text
from regard.data.lm_streams import ParallelStreams, ShuffledBlocks, VariableStreams
from regard.data.readers import RowReader, open_table
from regard.data.sampler import EpochData
from regard.data.token_arrays import TokenArray, encode_texts
from regard.errors import ConfigError, DataError
from regard.models.protocols import LanguageModel, Output
from regard.recipe import Options, RecipePath
from regard.tasks import sections
from regard.tasks.stateful_perplexity import StateOptions
from regard.text import Tokenizer


class CorpusData(sections.DataSection):
    """[data] whose files may be corpora, which have tokens but no text."""

    running_text: ClassVar[bool] = True

    def files_of_examples(self) -> list[str]:
        """Of a corpus, the file with its checksums."""
        files = super().files_of_examples()
        return [str(Path(name) / FACTS) if is_corpus(name) else name for name in files]


def check_has_text(file: str | Path) -> None:
    """Raise a ConfigError if a file is a corpus, which has tokens but no text."""
    if is_corpus(file):
        raise ConfigError(
            f"{file} is a corpus: it has tokens, but no text. Name it alone as `train` of [data], "
            f'and its tokenizer: [tokenizer] path = "{file}".'
        )


class TextData(CorpusData):
    """[data]: running text, in batches of `batch_size` times `sequence_length` tokens."""

    train: RecipePath
    """The file of the training data."""
    valid: RecipePath | sections.Share | sections.FoldOption
    """A file; or a share, the end of the training text; or a fold, consecutive lines of it."""
    test: RecipePath | None = None
    """The file that the trained model is scored on."""
    format: Literal["lines", "text"] = "lines"
    """With lines every line ends in `</s>`, as in the Penn Treebank; with text line breaks are
    tokens."""
    batch_size: int = Field(default=20, ge=1)
    """Parallel streams, or blocks in a batch."""
    sequence_length: int = Field(default=20, ge=1)
    """Tokens of a stream at a time, or of a block."""

    def read(self, source: Any, part: str) -> RowReader:
        """The lines of a file, or its text as a whole.

        Raises:
            ConfigError: it is a corpus, which has tokens but no text.
        """
        check_has_text(source)
        return open_table(source, format=self.format)

    def tokens(self, part: str, tokenizer: Tokenizer, end: Sequence[int]) -> TokenArray:
        """The ids of "train" or "valid", in memory or of a corpus in mapped files.

        end: ids at the end of each line

        Raises:
            ConfigError: `train` is a corpus of another tokenizer.
        """
        if part == "train" and is_corpus(self.train):
            return open_corpus(self.train, tokenizer=tokenizer).tokens
        return encode_texts(self.records(part).texts(), tokenizer, after=end)

    def texts(self) -> Iterator[str]:
        """The training text, from which a tokenizer learns."""
        return self.records("train").texts()


def rows_of_text(text: Any, format: str) -> RowReader:
    """The rows of a text as [data] of this format has them.

    text: a reader, a file, a str, or lines, of which each ends in a line break.
    """
    if is_running_text(text):
        return open_table([text] if format == "text" else text.removesuffix("\n").split("\n"))
    return open_table(text, format=format)


class DocumentData(CorpusData):
    """[data]: texts in documents."""

    of_documents: ClassVar[bool] = True
    several_files: ClassVar[bool] = True

    train: Annotated[sections.Files, Field(min_length=1)]
    """The files of the training data."""
    valid: sections.Files | sections.Share = 0.05
    """Files, or a share of the training documents: the last ones; of a single document, its end."""
    test: sections.Files | None = None
    """The file that the trained model is scored on."""
    documents: Literal["rows", "blank-lines", "files"] | None = None
    """What a document is; None: rows of tables, and of other files what blank lines separate."""
    field: str | int | None = None
    """The column of a table that holds the text."""
    batch_size: int = Field(default=8, ge=1)
    """Texts of a batch."""

    def read(self, source: sections.Files, part: str) -> Documents:
        """The documents of some files.

        Raises:
            ConfigError: one is a corpus, which has tokens but no text.
        """
        for file in source:
            check_has_text(file)
        return read_documents(source, self.documents, field=self.field)

    def texts(self) -> Iterator[str]:
        """The training texts, from which a tokenizer learns."""
        return self.read(self.train, "train").texts()

    def corpora(
        self, tokenizer: Tokenizer, *, end: Sequence[int] = (), structure: bool = False
    ) -> tuple[Corpus, Corpus]:
        """The training and the validation texts; see `encode_corpus`."""
        corpus = self._corpus(self.train, "train", tokenizer, end, structure)
        if isinstance(self.valid, float):
            return corpus.split(self.valid)
        return corpus, self._corpus(self.valid, "valid", tokenizer, end, structure)

    def _corpus(
        self,
        files: sections.Files,
        part: str,
        tokenizer: Tokenizer,
        end: Sequence[int],
        structure: bool,
    ) -> Corpus:
        if len(files) != 1 or not is_corpus(files[0]):
            documents = self.read(files, part)
            return encode_corpus(documents, tokenizer, end=end, structure=structure)
        corpus = open_corpus(files[0], tokenizer=tokenizer)
        if structure and corpus.sentences is None:
            raise ConfigError(
                f"{files[0]} was built without structure, but sentences are asked for: build it "
                "again with --structure."
            )
        if end and corpus.tokens[0][-len(end) :].tolist() != [*end]:
            raise ConfigError(
                f"The documents of {files[0]} do not end with {tokenizer.token(end[0])!r}: build "
                "it again with this token, or name the files of text."
            )
        return corpus


Unit = Literal["word", "token", "character", "byte"]


@dataclass(frozen=True)
class AuxiliaryLoss:
    """A loss that is added to the mean cross-entropy of the next tokens.

    name: of the loss, in metrics.jsonl.
    total: from the model's output the sum over its items, times its weight: ().
    count: how many items a batch of B T tokens has, known before anything is computed.
    extra: the name of the auxiliary of `Output` that it reads; "" for none.
    """

    name: str
    total: Callable[[Output], Tensor]
    count: Callable[[StreamBatch], int] = lambda batch: batch.tokens.numel()
    extra: str = ""


def activation_regularization(alpha: float) -> AuxiliaryLoss:
    """alpha * mean(h^2) of the hidden states that the output reads (Merity et al. 2018, 4.6)."""
    return AuxiliaryLoss(
        "activation", lambda output: alpha * output.hidden.float().square().mean(-1).sum()
    )


def temporal_activation_regularization(beta: float) -> AuxiliaryLoss:
    """beta * mean((h_t - h_t+1)^2) of the hidden states before the output's dropout, in a batch."""

    def total(output: Output) -> Tensor:
        return beta * output.extras["undropped"].float().diff(dim=1).square().mean(-1).sum()

    def count(batch: StreamBatch) -> int:
        return batch.tokens[:, 1:].numel()  # differences, B (T - 1)

    return AuxiliaryLoss("temporal_activation", total, count, "undropped")


# What attention loses where positions are compressed, from which the compression learns (Rae et al.
# 2019, section 3.2). The weights of the prediction get no gradient from it, so that it has no
# weight to be chosen.
RECONSTRUCTION = AuxiliaryLoss(
    "reconstruction", lambda output: output.extras["reconstruction"], extra="reconstruction"
)


class LMObjective(Options):
    """[objective]"""

    activation_regularization: float = Field(default=0.0, ge=0)
    """alpha: the mean square of the hidden states, after dropout, times this is added."""
    temporal_activation_regularization: float = Field(default=0.0, ge=0)
    """beta: the mean square of their differences from step to step, before dropout, times this."""

    variable_length: bool = False
    """Backpropagation through batches that differ in length around `sequence_length`, the learning
    rate of each in proportion to it (Merity et al. 2018, section 4.1)."""

    def losses(self, model: LanguageModel) -> tuple[AuxiliaryLoss, ...]:
        """The losses whose weight is above 0, and that of a compression which learns.

        Raises:
            ConfigError: the model does not give what one of them reads.
        """
        losses = []
        if alpha := self.activation_regularization:
            losses.append(activation_regularization(alpha))
        if beta := self.temporal_activation_regularization:
            losses.append(temporal_activation_regularization(beta))
            model.check_extra("undropped", "temporal_activation_regularization")
        reconstructs = RECONSTRUCTION.extra in model.extras
        return (*losses, *([RECONSTRUCTION] if reconstructs else ()))


class PerplexitySection(with_fields(StateOptions, PerplexityFields)):  # type: ignore[misc]
    """[evaluation]"""

    unit: Unit = "token"
    """What perplexity is per: word, token, or character (then bits per character)."""


class LanguageModelingRecipe(sections.DecodingRecipe):
    """A recipe's sections besides [model] and [training]."""

    new_tokenizer: ClassVar[sections.TokenizerSection] = sections.TokenizerSection(kind="byte-bpe")

    data: TextData
    objective: LMObjective = LMObjective()
    evaluation: PerplexitySection = PerplexitySection()


@dataclass(frozen=True)
class TrainingText:
    """Encoded training and validation text, and how it is batched.

    notes: what the user should know of the tokenizer and of the model's context.
    valid_units: the words of the validation text, where perplexity is per word.
    """

    train: TokenArray
    valid: TokenArray
    batches: EpochData
    batch_size: int
    notes: list[str]
    valid_units: int = 0


def training_batches(
    text: TokenArray, recipe: LanguageModelingRecipe, limit: int | None
) -> EpochData:
    """The training batches for a model with this context; None: with a state.

    Raises:
        ConfigError: batches of variable length for a model with a context.
    """
    data, variable = recipe.data, recipe.objective.variable_length
    size = {"batch_size": data.batch_size, "sequence_length": data.sequence_length}
    if limit is None:
        if variable:
            return VariableStreams(text, **size, seed=recipe.seed)
        return ParallelStreams(text, **size)
    if variable:
        raise ConfigError(
            "[objective] `variable_length` is for models that carry a state, but this one has a "
            f"context of {limit:,} tokens. Leave it out."
        )
    return ShuffledBlocks(text, **size, seed=recipe.seed)


def text_notes(recipe: LanguageModelingRecipe, limit: int | None) -> list[str]:
    """What a user should know before the training; limit: the model's context."""
    steps = recipe.data.sequence_length
    if limit is None or limit <= steps or sections.starts_from_folder(recipe):
        return []
    return [
        f"the model's context is {limit:,} tokens, but blocks have {steps:,} (`sequence_length` of "
        "[data]): it learns nothing about longer texts. Set `max_length` of [model] to "
        f"{steps}"
    ]


def check_text_length(path: Any, predicted: int, streams: int) -> None:
    """Raise DataError for a text too short for `streams` streams, or for one block."""
    if predicted >= streams:
        return
    if streams == 1:
        raise DataError(path, None, "has one token at most: there is nothing to predict.")
    raise DataError(
        path,
        None,
        f"has {predicted + 1} tokens, too few for {streams} parallel streams.",
        f"Give more text, or set `batch_size` of [data] to at most {max(1, predicted)}.",
    )
