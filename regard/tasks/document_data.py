"""[data] of pre-training tasks that read documents."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from regard.data.corpus import (
    FACTS,
    Corpus,
    Documents,
    encode_corpus,
    is_corpus,
    open_corpus,
    read_documents,
)
from regard.errors import ConfigError
from regard.tasks.sections import DataSection, Files, Share
from regard.text import Tokenizer


class DocumentData(DataSection):
    """[data]: texts in documents."""

    running_text: ClassVar[bool] = True
    of_documents: ClassVar[bool] = True
    several_files: ClassVar[bool] = True

    train: Annotated[Files, Field(min_length=1)]
    """The files of the training data."""
    valid: Files | Share = 0.05
    """Files, or a share of the training documents: the last ones; of a single document, its end."""
    test: Files | None = None
    """The file that the trained model is scored on."""
    documents: Literal["rows", "blank-lines", "files"] | None = None
    """What a document is; None: rows of tables, and of other files what blank lines separate."""
    field: str | int | None = None
    """The column of a table that holds the text."""
    batch_size: int = Field(default=8, ge=1)
    """Texts of a batch."""

    def read(self, source: Files, part: str) -> Documents:
        """The documents of some files.

        Raises:
            ConfigError: one is a corpus, which has tokens but no text.
        """
        for file in filter(is_corpus, source):
            raise ConfigError(
                f"{file} is a corpus: it has tokens, but no text. Name it alone, and its tokenizer "
                f'([tokenizer] path = "{file}").'
            )
        return read_documents(source, self.documents, field=self.field)

    def files_of_examples(self) -> list[str]:
        """Of a corpus, the file with its checksums."""
        files = super().files_of_examples()
        return [str(Path(name) / FACTS) if is_corpus(name) else name for name in files]

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
        self, files: Files, part: str, tokenizer: Tokenizer, end: Sequence[int], structure: bool
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
