"""Tokenizers of two files: one says how a text is cut, such as a SentencePiece model, a vocabulary
has the ids.

A piece without an id is the unknown token. Special tokens in a text are these, which the model does
not see. Marian's, M2M-100's and fairseq's tokenizers are such ones.
"""

import hashlib
import json
import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models

from regard.errors import DataError, RegardError
from regard.file_writing import write_text
from regard.text import sentencepiece
from regard.text.encoding import Encoding
from regard.text.templates import Template
from regard.text.tokenizer import Tokenizer, text_list
from regard.text.tokenizers_calls import processor_of
from regard.text.unigram import SPACE


class PieceTokenizer(Tokenizer):
    """Cuts by a SentencePiece model and looks pieces up in a vocabulary.

    files: name -> content of the model files.  ids_of: token -> id.
    fast: holds this vocabulary; see `vocabulary`.  kind, roles, max_length: see `Tokenizer`.
    """

    def __init__(
        self,
        files: Mapping[str, bytes],
        ids_of: Mapping[str, int],
        fast: tokenizers.Tokenizer,
        kind: str,
        roles: Mapping[str, str],
        max_length: int | None = None,
        targets: Tokenizer | None = None,
    ):
        super().__init__(fast, kind, roles, max_length=max_length, targets=targets)
        self.files, self.ids_of = files, ids_of
        self.unknown = ids_of[roles["unk"]]
        self.special = re.compile("|".join(map(re.escape, self.read_as_special())))

    def read_as_special(self) -> Sequence[str]:
        """The special tokens that a text may contain."""
        return [*self.roles.values()]

    @property
    @abstractmethod
    def model_file(self) -> str:
        """The model that cuts these texts."""

    @cached_property
    def pieces(self) -> Tokenizer:
        """Cuts texts into pieces."""
        name = self.model_file
        model = sentencepiece.parsed(Path(name), self.files[name], sentencepiece.CUTTING)
        fast = sentencepiece.pipeline(model)
        return Tokenizer(fast, model.tokenizer_kind, model.roles, reads_special_tokens=False)

    def name_of(self, piece: str) -> str:
        """The name of a piece in the vocabulary; here itself."""
        return piece

    def code_at(self, text: str, start: int, end: int) -> re.Match[str] | None:
        """A token at the beginning of a part of a text; here none."""
        return None

    # ---- text -> ids

    def encode(self, text: str) -> Encoding:
        """See `Tokenizer`. Special tokens in the text are these."""
        if not isinstance(text, str):
            return self.pieces.encode(text)  # which raises the error
        tokens: list[str] = []
        spans: list[tuple[int, int]] = []

        def add(start: int, end: int) -> None:
            """The pieces of a part between special tokens."""
            if code := self.code_at(text, start, end):
                tokens.append(code.group())
                spans.append(code.span())
                start = code.end()
            encoding = self.pieces.encode(text[start:end])
            tokens.extend(map(self.name_of, encoding.tokens))
            spans.extend((first + start, last + start) for first, last in encoding.offsets)

        start = 0
        for special in self.special.finditer(text):
            add(start, special.start())
            tokens.append(special.group())
            spans.append(special.span())
            start = special.end()
        add(start, len(text))
        return Encoding([self.ids_of.get(token, self.unknown) for token in tokens], tokens, spans)

    def encode_many(self, texts: Iterable[str]) -> list[list[int]]:
        texts = text_list(texts)
        unknown = self.pieces.unk_id
        return [
            self.encode(text).ids
            if unknown in ids or self.code_at(text, 0, len(text)) or self.special.search(text)
            else [self._table[i] for i in ids]
            for text, ids in zip(texts, self.pieces.encode_many(texts), strict=True)
        ]

    def decode_many(self, sequences: Iterable[Iterable[int]]) -> list[str]:
        return [text.strip() for text in super().decode_many(sequences)]

    @cached_property
    def _table(self) -> list[int]:
        """The id of each piece of the model."""
        count = self.pieces.vocab_size
        names = (self.name_of(self.pieces.token(i)) for i in range(count))
        return [self.ids_of.get(name, self.unknown) for name in names]

    def _extended(self, tokens: Sequence[str]) -> tokenizers.Tokenizer:
        raise RegardError(
            f"{', '.join(map(repr, tokens))} cannot be added: the vocabulary of this tokenizer is "
            "that of its model, without further special tokens."
        )

    def write_files(
        self,
        folder: Path,
        config: dict[str, Any],
        tables: Mapping[str, Any],
        max_length: int | None,
    ) -> None:
        """Write the files that were read, the tables by name, and tokenizer_config.json."""
        folder.mkdir(parents=True, exist_ok=True)
        limits = [limit for limit in (max_length, self.max_length) if limit is not None]
        config |= {"model_max_length": min(limits)} if limits else {}
        config |= {f"{role}_token": token for role, token in self.roles.items()}
        for name, content in {"tokenizer_config.json": config, **tables}.items():
            write_text(folder / name, json.dumps(content, indent=2, ensure_ascii=False))
        for name, data in self.files.items():
            (folder / name).write_bytes(data)
        for name in ("tokenizer.json", "special_tokens_map.json", "added_tokens.json"):
            (folder / name).unlink(missing_ok=True)

    def digest(self, *tables: Mapping[str, Any]) -> str:
        """The checksum of the model files and of these tables."""
        parts = [*self.files.values(), json.dumps([*tables, self.roles]).encode()]
        return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def vocabulary(
    vocab: Mapping[str, int], roles: Mapping[str, str], special: Sequence[str], template: Template
) -> tokenizers.Tokenizer:
    """A `tokenizers.Tokenizer` that holds a vocabulary, decodes ids and has the template."""
    fast = tokenizers.Tokenizer(models.WordLevel(dict(vocab), unk_token=roles["unk"]))
    fast.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.Fuse()])
    fast.add_special_tokens([*roles.values(), *special])
    fast.post_processor = processor_of(template, fast.id_to_token)
    return fast


def check_vocabulary(
    path: Path, vocab: Mapping[str, int], needed: Iterable[str], roles: Mapping[str, str]
) -> None:
    """Check that a vocabulary has its special tokens, and the ids 0, 1, 2 and so on.

    Raises:
        DataError: it has not.
    """
    if missing := [role for role in needed if role not in roles]:
        raise DataError(path, None, f"there is no {missing[0]} token, which these models need.")
    for role, token in roles.items():
        if token not in vocab:
            raise DataError(path, None, f"the {role} token {token!r} is missing.")
    if sorted(vocab.values()) != list(range(len(vocab))):
        raise DataError(path, None, "the ids must be 0, 1, 2 and so on, each once.")
