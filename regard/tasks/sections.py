"""Sections of a recipe that several tasks share, and what they are turned into: those of all tasks,
of tasks that generate texts, and of tasks on encoders.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    field_validator,
    model_validator,
)

from regard import decoding
from regard.call_options import DecodingFields, with_fields
from regard.data.readers import Column, RowReader, columns_in_header, open_table
from regard.data.splits import Fold, consecutive_folds, last_split, random_folds, random_split
from regard.errors import ConfigError
from regard.recipe import Options, Recipe, RecipePath
from regard.suggest import nearest
from regard.text import KINDS, Tokenizer
from regard.text.preprocessing import UnicodeForm
from regard.text.training import train


def _fold(value: Any) -> Fold:
    if isinstance(value, Fold):
        return value
    fields = value if isinstance(value, Mapping) else {}
    fold, of = fields.get("fold"), fields.get("of")
    if {*fields} != {"fold", "of"} or type(fold) is not int or type(of) is not int:
        raise ValueError("must be a fold such as {fold = 1, of = 5}")
    if not 1 <= fold <= of or of < 2:
        raise ValueError("must be a fold {fold = F, of = K}, K at least 2 and F from 1 to K")
    return Fold(fold, of)


def _one_or_several(value: Any) -> Any:
    if isinstance(value, str | Path):
        return (value,)
    return tuple(value) if isinstance(value, list) else value  # a recipe's check is strict


Problems = Iterator[tuple[str, str]]  # the dotted name of each wrong option, and what is wrong
Files = Annotated[tuple[RecipePath, ...], BeforeValidator(_one_or_several)]
"""Files that are read one after the other, or side by side; a single one without a list, too."""

# Of `valid`: a part of the training data.
Share = Annotated[float, Field(gt=0, lt=1)]
FoldOption = Annotated[Fold, PlainValidator(_fold), PlainSerializer(asdict)]


class DataSection(Options):
    """[data]: what the sections of all tasks have in common.

    `valid` may be a share of the training data, such as 0.1: so much of them is validation data. Or
    it is one of several folds of them: {fold = 1, of = 5}.

    running_text: whether a part is a text, not a table of examples.
    several_files: whether a part is a list of files.
    of_documents: whether running text has documents, so that data in memory are one in each row.
    """

    running_text: ClassVar[bool] = False
    of_documents: ClassVar[bool] = False
    several_files: ClassVar[bool] = False

    train: Any
    """The file of the training data."""
    valid: Any = None
    test: Any = None
    """The file that the trained model is scored on."""
    split_seed: int = Field(default=1, ge=0)
    """The seed of the draw of `valid` as a share or a fold, whatever the seed of the training."""

    @property
    def splits_train(self) -> bool:
        """Whether the validation data are a part of the training data."""
        return isinstance(self.valid, float | Fold)

    def problems(self) -> Problems:
        """Options without effect: (dotted name, problem)."""
        if self.running_text or not self.splits_train:
            why = "only affects a random split of the training data (`valid` as a share or a fold)"
            yield from differing(self, "data", ("split_seed",), why)

    def with_named_columns(self) -> Self:
        """The options with the columns that the header of the training file names."""
        return self

    @abstractmethod
    def read(self, source: Any, part: str) -> Any:
        """All examples of a file, or of several: a reader.

        part: "train", "valid" or "test", for which the file is named.
        """

    def records(self, part: str) -> Any:
        """The examples of "train", "valid" or "test": a reader."""
        if part == "test" or not self.splits_train:
            return self.read(getattr(self, part), part)
        chosen = self.validation_rows
        return self.read(self.train, "train").only(chosen if part == "valid" else ~chosen)

    @cached_property
    def validation_rows(self) -> np.ndarray:
        """Which of the training examples are validation data, (N,) bool; they are read for it."""
        return self.split(self.read(self.train, "train"))

    def split(self, examples: Any) -> np.ndarray:
        """Which of the training examples are validation data, (N,) bool."""
        count, seed = sum(1 for _ in examples.numbered()), self.split_seed
        if isinstance(self.valid, Fold):
            of, consecutive = self.valid.of, self.running_text
            folds = consecutive_folds(count, of) if consecutive else random_folds(count, of, seed)
            return self.valid.mask(folds)
        if self.running_text:
            return last_split(count, self.valid)
        return random_split(count, self.valid, seed)

    def split_by(
        self,
        names: Sequence[str],
        by_share: Callable[[Sequence[str], float, int], np.ndarray],
        by_folds: Callable[[Sequence[str], int, int], np.ndarray],
    ) -> np.ndarray:
        """Which rows are validation data, by their classes or groups, (N,) bool.

        names: of the class or the group of each row.
        """
        if isinstance(self.valid, Fold):
            return self.valid.mask(by_folds(names, self.valid.of, self.split_seed))
        share: Any = self.valid
        return by_share(names, share, self.split_seed)

    def parts(self) -> list[str]:
        """The parts that are read from files of their own."""
        parts = {part: getattr(self, part) for part in ("train", "valid", "test")}
        return [
            part
            for part, files in parts.items()
            if files and not (part == "valid" and self.splits_train)
        ]

    def files(self) -> list[str]:
        """All files that a training reads: those of examples, and others that options name."""
        return self.files_of_examples()

    def files_of_examples(self) -> list[str]:
        """The files of all parts."""
        named = (getattr(self, part) for part in self.parts())
        return [
            str(path) for files in named for path in (files if self.several_files else (files,))
        ]


class TableOptions(Options):
    """Options of [data] of tasks that read tables."""

    format: str | None = None
    """The format of a table: tsv, csv, jsonl or parquet, where the ending does not say it."""
    header: bool | None = None
    """Whether the first line of a table holds the names of the columns; without it, that of a CSV
    file does, and that of a TSV file where `columns` are names."""
    delimiter: str | None = None
    """The character between the fields of CSV files, such as ";"; without it a comma."""

    def table(self, source: Any, columns: Mapping[str, Column] | Sequence[Column]) -> RowReader:
        """These columns of a table, as of `open_table`."""
        options: dict[str, Any] = self.model_dump(include={*TABLE_OPTIONS})
        return open_table(source, columns, **options)


def with_columns_of_header(data: Any) -> Any:
    """The options of a table with the `columns` that its header names, where none are given.

    Raises:
        ConfigError: the names do not tell which columns they are.
    """
    if "columns" in data.model_fields_set:
        return data
    columns = columns_in_header(data.train, data.format, data.delimiter, data.header)
    return data.model_copy(update={"columns": columns}) if columns else data


TABLE_OPTIONS = tuple(TableOptions.model_fields)


class TokenizerSection(Options):
    """[tokenizer]: learned from the training text, or read from `path`, which then says all."""

    kind: str = "bpe"
    """The kind of the tokenizer; `regard list tokenizers` has all."""
    vocab_size: int = Field(default=8000, ge=1, le=1 << 24)
    """The number of tokens, special tokens included."""
    path: RecipePath | None = None
    """The folder of a tokenizer that is used as it is; not set: one is trained."""
    lowercase: bool = False
    """Texts are lower-cased before they are split."""
    unicode_form: UnicodeForm = "none"
    """Texts are normalized to this form of Unicode."""
    special_tokens: tuple[str, ...] = ()
    """Further special tokens, such as languages ">>de<<" and ">>fr<<" that sources begin with."""

    @field_validator("kind")
    @classmethod
    def _known(cls, kind: str) -> str:
        if kind not in KINDS:
            raise ValueError(f"is {kind!r}, which is no kind of tokenizer. {nearest(kind, KINDS)}")
        return kind

    def build(self, texts: Callable[[], Iterable[str]]) -> Tokenizer:
        """Read the tokenizer that `path` names, or learn one from `texts()`."""
        if self.path is not None:
            return Tokenizer.load(self.path)
        handling: dict[str, Any] = self.model_dump(include={"lowercase", "unicode_form"})
        tokenizer = train(self.kind, texts(), self.vocab_size, **handling)
        if self.special_tokens:
            tokenizer = tokenizer.with_special_tokens(self.special_tokens)
        return self.completed(tokenizer)

    def completed(self, tokenizer: Tokenizer) -> Tokenizer:
        """A tokenizer that was trained, with the special tokens that the task needs."""
        return tokenizer


class DecodingSection(with_fields(Options, DecodingFields)):  # type: ignore[misc]
    """[decoding]: the method is the one that the options belong to, greedy search without any."""

    def build(self, default_limit: int | decoding.RelativeLimit) -> Any:
        """The decoding method; `default_limit` where the recipe sets no limit."""
        named = self.model_dump(exclude_none=True)
        if not named.keys() & {"max_tokens", "max_length_a"}:
            named["max_tokens"] = default_limit
        return decoding.options(**named)

    def problems(self) -> Problems:
        """What no decoding method takes."""
        try:
            self.build(self.min_tokens or 1)
        except ConfigError as error:
            yield "decoding", f"cannot be used: {error}"


def differing(section: Options, where: str, names: Sequence[str], why: str) -> Problems:
    """Those of the options that differ from their default although they are without effect."""
    for name in names:
        if getattr(section, name) != type(section).model_fields[name].default:
            yield f"{where}.{name}", f"{why}, so it is without effect here. Leave it out."


class NewTokenizerRecipe(Recipe):
    """The recipes of tasks whose models have a default tokenizer, which training learns.

    new_tokenizer: what is learned where neither [tokenizer] nor a folder says it.
    """

    new_tokenizer: ClassVar[TokenizerSection] = TokenizerSection()

    tokenizer: TokenizerSection | None = None
    """Where the model is started from a folder: that of the folder."""

    @model_validator(mode="after")
    def _with_tokenizer(self) -> Self:
        if self.tokenizer is None and not starts_from_folder(self):
            object.__setattr__(self, "tokenizer", self.new_tokenizer)
        return self


class DecodingRecipe(NewTokenizerRecipe):
    """What the recipes of tasks that generate texts have in common."""

    decoding: DecodingSection = DecodingSection()


def starts_from_folder(recipe: Recipe) -> bool:
    """Whether [model] names a folder whose weights the training starts from."""
    section = dict(recipe).get("model")
    return isinstance(section, Options) and "path" in type(section).model_fields


# ---- of tasks on encoders

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


def word_vector_problems(recipe: Any) -> Problems:
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
