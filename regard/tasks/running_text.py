"""[data] of language modeling: running text, whose tokens are in memory or in mapped files."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from regard.data.corpus import FACTS, Documents, build_corpus, is_corpus, open_corpus
from regard.data.in_memory import is_path, is_running_text
from regard.data.readers import RowReader, VerbatimLines, read
from regard.data.token_arrays import TokenArray, encode_texts
from regard.errors import ConfigError
from regard.recipe import RecipePath
from regard.tasks.sections import DataSection, FoldOption, Share
from regard.text import Tokenizer


class TextData(DataSection):
    """[data]: running text, in batches of `batch_size` times `sequence_length` tokens."""

    running_text: ClassVar[bool] = True

    train: RecipePath
    """The file of the training data."""
    valid: RecipePath | Share | FoldOption
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
    token_cache: RecipePath | None = None
    """A folder in which the tokens are stored in files, for text larger than memory."""

    def read(self, source: Any, part: str) -> RowReader:
        """The lines of a file, or its text as a whole.

        Raises:
            ConfigError: it is a corpus, which has tokens but no text.
        """
        if is_corpus(source):
            raise ConfigError(
                f"{source} is a corpus: it has tokens, but no text. Name its tokenizer "
                f'([tokenizer] path = "{source}"), and a file as `valid` of [data].'
            )
        return read(source, format=self.format)

    def files_of_examples(self) -> list[str]:
        """Of a corpus, the file with its checksums."""
        return [
            str(Path(name) / FACTS) if is_corpus(name) else name
            for name in super().files_of_examples()
        ]

    def tokens(self, part: str, tokenizer: Tokenizer, end: Sequence[int]) -> TokenArray:
        """The ids of "train" or "valid", in memory or in mapped files.

        end: ids at the end of each line

        Raises:
            ConfigError: `train` is a corpus of another tokenizer.
        """
        if part == "train" and is_corpus(self.train):
            return open_corpus(self.train, tokenizer=tokenizer).tokens
        rows = self.records(part)
        if self.token_cache is None:
            return encode_texts(rows.texts(), tokenizer, after=end)
        source = self.train if self.splits_train else getattr(self, part)
        options: dict[str, Any] = {"part": part, "format": self.format}
        if self.splits_train:
            options |= self.model_dump(mode="json", include={"valid", "split_seed"})
        key = json.dumps([tokenizer.fingerprint(), str(source), list(end), options])
        name = f"{part}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
        documents = Documents((rows,), "rows", (str(source),))
        folder = self.token_cache / name
        return build_corpus(documents, tokenizer, folder, end=end, options=options).tokens

    def texts(self) -> Iterator[str]:
        """The training text, from which a tokenizer learns."""
        return self.records("train").texts()


def rows_of_text(text: Any, format: str) -> RowReader:
    """The rows of a text as [data] of this format has them.

    text: a reader, a file, a str, or lines, of which each ends in a line break.
    """
    if isinstance(text, RowReader):
        return text
    if is_running_text(text):
        return read([text] if format == "text" else text.removesuffix("\n").split("\n"))
    if is_path(text):
        return read(text, format=format)
    return VerbatimLines(text) if format == "text" else read(text)


def lost_text(tokenizer: Tokenizer, texts: Iterable[str]) -> str:
    """What encoding and decoding loses of texts, with the first example; "" where nothing is lost.

    Unknown tokens do not count here: perplexities report them.
    """
    unknown = "" if tokenizer.unk_id is None else tokenizer.token(tokenizer.unk_id)
    for text in texts:
        ids = tokenizer.encode(text).ids
        decoded = tokenizer.decode(ids)
        if tokenizer.unk_id in ids and unknown:
            same = re.findall(r"\s+", decoded.replace(unknown, "x")) == re.findall(r"\s+", text)
        else:
            same = decoded.removeprefix(" ") == text.removeprefix(" ")  # a space may come first
        if not same:
            pairs = enumerate(zip(decoded, text, strict=False))
            first = next((i for i, (a, b) in pairs if a != b), min(len(decoded), len(text)))
            part = slice(max(0, first - 20), first + 30)
            return (
                f"the tokenizer ({tokenizer.kind}) does not keep the text: "
                f"{text[part]!r} comes back as {decoded[part]!r}. The model "
                "never learns what is lost, such as line breaks, indentation or capitals. A "
                "tokenizer of kind byte-bpe keeps all of a text"
            )
    return ""
