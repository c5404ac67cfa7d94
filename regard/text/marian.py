"""Marian's tokenizers, as OPUS-MT's folders have them: two SentencePiece models and their ids.

    source.spm, target.spm     how a text is cut into pieces, on either side
    vocab.json                 the ids of the pieces of both; target_vocab.json: of targets alone

A text may begin with `>>xx<<`, which names the language to translate into: one token, which the
models do not see. A piece without an id is the unknown token. As in `transformers`, punctuation is
not normalized; texts for which that matters are normalized by Moses' script before.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models

from regard.errors import DataError, RegardError
from regard.file_writing import write_text
from regard.text import sentencepiece, vocab_files
from regard.text.encoding import Encoding
from regard.text.languages import LANGUAGE_CODE
from regard.text.post_processors import processor_of
from regard.text.templates import Template
from regard.text.token_settings import TokenSettings, read_settings
from regard.text.tokenizer import Tokenizer
from regard.text.unigram import SPACE

SOURCE, TARGET = sentencepiece.MARIAN
VOCAB, TARGET_VOCAB = "vocab.json", "target_vocab.json"
ROLES = {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}


class MarianTokenizer(Tokenizer):
    """Cuts by a SentencePiece model and looks pieces up in a vocabulary.

    files: name -> content of the model files.  vocabs: of sources and of targets, token -> id.
    roles: special tokens by role.  max_length: see `Tokenizer`.
    side: "source" or "target", whose texts are encoded and whose vocabulary this is. Ids are
        decoded as those of targets.

    Raises:
        DataError: a special token is not in a vocabulary, or ids are not contiguous.
    """

    def __init__(
        self,
        files: Mapping[str, bytes],
        vocabs: tuple[dict[str, int], dict[str, int]],
        roles: Mapping[str, str],
        max_length: int | None = None,
        side: str = "source",
    ):
        self.files, self.vocabs, self.side = files, vocabs, side
        self.ids_of = vocabs[side == "target"]
        super().__init__(_decoder(self.ids_of, roles), "marian", roles, max_length=max_length)
        self.unknown = self.ids_of[roles["unk"]]
        self.special = re.compile("|".join(map(re.escape, roles.values())))

    @classmethod
    def load(cls, path: str | Path, **options: Any) -> MarianTokenizer:
        """Read a folder.

        Raises:
            DataError: a file is missing or malformed, or has what is not supported.
        """
        folder = Path(path)
        if options:
            raise DataError(folder, None, f"takes no options, but is given {', '.join(options)}.")
        settings = read_settings(folder / VOCAB)
        separate = bool((settings.config.model_extra or {}).get("separate_vocabs"))
        vocab = vocab_files.read_vocab_json(folder / VOCAB)
        target = vocab_files.read_vocab_json(folder / TARGET_VOCAB) if separate else vocab
        roles = _roles(settings)
        for name, table in ((VOCAB, vocab), (TARGET_VOCAB, target)):
            _check(folder / name, table, roles)
        files = {name: (folder / name).read_bytes() for name in (SOURCE, TARGET)}
        for name in files:
            sentencepiece.read(folder / name)  # so that errors name the file
        return cls(files, (vocab, target), roles, settings.max_length)

    @property
    def for_targets(self) -> MarianTokenizer:
        """See `Tokenizer`."""
        return MarianTokenizer(self.files, self.vocabs, self.roles, self.max_length, "target")

    @cached_property
    def pieces(self) -> Tokenizer:
        """Cuts texts of this side into pieces."""
        content = self.files[SOURCE if self.side == "source" else TARGET]
        model = sentencepiece.parsed(Path(SOURCE), content)
        fast = sentencepiece.pipeline(model)
        return Tokenizer(fast, "sentencepiece", model.roles, reads_special_tokens=False)

    # ---- text -> ids

    def encode(self, text: str) -> Encoding:
        """See `Tokenizer`. Special tokens in the text are these."""
        if not isinstance(text, str):
            return self.pieces.encode(text)  # which raises the error
        tokens: list[str] = []
        spans: list[tuple[int, int]] = []

        def add(start: int, end: int) -> None:
            """The pieces of a part between special tokens."""
            if code := LANGUAGE_CODE.match(text, start, end):
                tokens.append(code.group())
                spans.append(code.span())
                start = code.end()
            found = self.pieces.encode(text[start:end])
            tokens.extend(found.tokens)
            spans.extend((first + start, last + start) for first, last in found.offsets)

        start = 0
        for special in self.special.finditer(text):
            add(start, special.start())
            tokens.append(special.group())
            spans.append(special.span())
            start = special.end()
        add(start, len(text))
        return Encoding([self.ids_of.get(token, self.unknown) for token in tokens], tokens, spans)

    def encode_many(self, texts: Iterable[str]) -> list[list[int]]:
        """See `Tokenizer`."""
        if isinstance(texts, str):
            return super().encode_many(texts)
        texts = list(texts)
        unknown = self.pieces.unk_id
        return [
            self.encode(text).ids
            if unknown in ids or text.startswith(">>") or self.special.search(text)
            else [self._table[i] for i in ids]
            for text, ids in zip(texts, self.pieces.encode_many(texts), strict=True)
        ]

    def decode_many(self, sequences: Iterable[Iterable[int]]) -> list[str]:
        """See `Tokenizer`."""
        if self.vocabs[1] is not self.ids_of:
            return self.for_targets.decode_many(sequences)
        return [text.strip() for text in super().decode_many(sequences)]

    @cached_property
    def _table(self) -> list[int]:
        """The id of each piece of the model."""
        count = self.pieces.vocab_size
        return [self.ids_of.get(self.pieces.token(i), self.unknown) for i in range(count)]

    # ---- files

    def save(self, folder: str | Path, max_length: int | None = None) -> None:
        """Write the files that were read, and tokenizer_config.json; see `Tokenizer`."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        separate = self.vocabs[0] is not self.vocabs[1]
        config: dict[str, Any] = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": separate}
        limits = [limit for limit in (max_length, self.max_length) if limit is not None]
        if limits:
            config["model_max_length"] = min(limits)
        config |= {f"{role}_token": token for role, token in self.roles.items()}
        contents = {"tokenizer_config.json": config, VOCAB: self.vocabs[0]}
        contents |= {TARGET_VOCAB: self.vocabs[1]} if separate else {}
        for name, content in contents.items():
            write_text(folder / name, json.dumps(content, indent=2, ensure_ascii=False))
        for name, data in self.files.items():
            (folder / name).write_bytes(data)
        for name in ("tokenizer.json", "special_tokens_map.json", "added_tokens.json"):
            (folder / name).unlink(missing_ok=True)

    def fingerprint(self) -> str:
        """See `Tokenizer`."""
        parts = [*self.files.values(), json.dumps([*self.vocabs, self.roles]).encode()]
        return hashlib.sha256(b"".join(hashlib.sha256(one).digest() for one in parts)).hexdigest()

    def __reduce__(self) -> tuple[Any, ...]:
        return MarianTokenizer, (self.files, self.vocabs, self.roles, self.max_length, self.side)

    def _extended(self, tokens: Sequence[str]) -> tokenizers.Tokenizer:
        raise RegardError(
            f"{', '.join(map(repr, tokens))} cannot be added: Marian's tokenizer has no place for "
            "further special tokens."
        )


def _decoder(vocab: Mapping[str, int], roles: Mapping[str, str]) -> tokenizers.Tokenizer:
    """A `tokenizers.Tokenizer` that holds the vocabulary, decodes ids and has the template."""
    fast = tokenizers.Tokenizer(models.WordLevel(dict(vocab), unk_token=roles["unk"]))
    fast.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.Fuse()])
    codes = [token for token in vocab if LANGUAGE_CODE.fullmatch(token)]
    fast.add_special_tokens([*roles.values(), *codes])
    end = (vocab[roles["eos"]],)
    fast.post_processor = processor_of(Template.around((), (), end), fast.id_to_token)
    return fast


def _roles(settings: TokenSettings) -> dict[str, str]:
    named = {role: settings.roles.get(role, token) for role, token in ROLES.items()}
    return {role: token for role, token in named.items() if settings.named.get(role, 0) is not None}


def _check(path: Path, vocab: Mapping[str, int], roles: Mapping[str, str]) -> None:
    if missing := [token for token in ROLES if token not in roles]:
        raise DataError(path, None, f"there is no {missing[0]} token, which Marian's models need.")
    for role, token in roles.items():
        if token not in vocab:
            raise DataError(path, None, f"the {role} token {token!r} is missing.")
    if sorted(vocab.values()) != list(range(len(vocab))):
        raise DataError(path, None, "the ids must be 0, 1, 2 and so on, each once.")
