"""Tokenizers of two files: a SentencePiece model says how a text is cut, a vocabulary has the ids.

A piece without an id is the unknown token. Special tokens in a text are these, which the model does
not see. Marian's and M2M-100's tokenizers are such ones.

Marian's tokenizers, as OPUS-MT's folders have them: two SentencePiece models and their ids.

    source.spm, target.spm     how a text is cut into pieces, on either side
    vocab.json                 the ids of the pieces of both; target_vocab.json: of targets alone

A text may begin with `>>xx<<`, which names the language to translate into: one token, which the
models do not see. As in `transformers`, punctuation is
not normalized; texts for which that matters are normalized by Moses' script before.

M2M-100's tokenizers: a SentencePiece model, a vocabulary, and a token for each language.

    sentencepiece.bpe.model     how a text is cut into pieces
    vocab.json                  the ids of the pieces

The tokens of the languages, `__en__` and so on, are in no file: their ids follow the vocabulary.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models

from regard.errors import DataError, RegardError
from regard.file_writing import write_text
from regard.text import sentencepiece, vocab_files
from regard.text.languages import LANGUAGE_CODE
from regard.text.preprocessing import processor_of
from regard.text.sentencepiece import SPACE
from regard.text.templates import Encoding, Template
from regard.text.tokenizer import Tokenizer, text_list
from regard.text.vocab_files import ADDITIONAL, TokenSettings, read_settings


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
            tokens.extend(encoding.tokens)
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
        pieces = map(self.pieces.token, range(self.pieces.vocab_size))
        return [self.ids_of.get(piece, self.unknown) for piece in pieces]

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


# ------------------------------------------------------------------------------------------- Marian


SOURCE, TARGET = sentencepiece.MARIAN
VOCAB, TARGET_VOCAB = "vocab.json", "target_vocab.json"
MARIAN_ROLES = {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}


class MarianTokenizer(PieceTokenizer):
    """Marian's tokenizer of sources or of targets.

    files: name -> content of the model files.  ids_of: token -> id.
    model_file: SOURCE or TARGET, the file that cuts these texts.
    roles: special tokens by role.  max_length, targets: see `Tokenizer`.
    """

    def __init__(
        self,
        files: Mapping[str, bytes],
        ids_of: Mapping[str, int],
        model_file: str,
        roles: Mapping[str, str],
        max_length: int | None = None,
        targets: MarianTokenizer | None = None,
    ):
        self.cuts = model_file
        fast = _marian_vocabulary(ids_of, roles)
        super().__init__(files, ids_of, fast, "marian", roles, max_length, targets)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> MarianTokenizer:
        """Read a folder: the tokenizer of sources, with that of targets.

        Raises:
            DataError: a file is missing or malformed, or has what is not supported: a special token
                is not in a vocabulary, or ids are not contiguous.
        """
        folder = Path(path)
        settings = read_settings(folder / VOCAB)
        separate = bool((settings.config.model_extra or {}).get("separate_vocabs"))
        vocab = vocab_files.read_vocab_json(folder / VOCAB)
        target = vocab_files.read_vocab_json(folder / TARGET_VOCAB) if separate else vocab
        roles = _marian_roles(settings)
        for name, table in ((VOCAB, vocab), (TARGET_VOCAB, target)):
            check_vocabulary(folder / name, table, MARIAN_ROLES, roles)
        files = {name: (folder / name).read_bytes() for name in (SOURCE, TARGET)}
        for name in files:
            sentencepiece.read(folder / name)  # so that errors name the file
        targets = cls(files, target, TARGET, roles, settings.max_length)
        return cls(files, vocab, SOURCE, roles, settings.max_length, targets)

    @property
    def model_file(self) -> str:
        return self.cuts

    def code_at(self, text: str, start: int, end: int) -> re.Match[str] | None:
        """`>>xx<<`, the language to translate into."""
        return LANGUAGE_CODE.match(text, start, end)

    # ---- files

    def save(self, folder: str | PathLike[str], max_length: int | None = None) -> None:
        """Write the files that were read, and tokenizer_config.json; see `Tokenizer`."""
        target = self._of_targets()
        separate = target != self.ids_of
        config = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": separate}
        tables = {VOCAB: self.ids_of} | ({TARGET_VOCAB: target} if separate else {})
        self.write_files(Path(folder), config, tables, max_length)

    def fingerprint(self) -> str:
        return self.digest(self.ids_of, self._of_targets())

    def _of_targets(self) -> Mapping[str, int]:
        return self.targets.ids_of if isinstance(self.targets, PieceTokenizer) else self.ids_of

    def __reduce__(self) -> tuple[Any, ...]:
        options = self.files, self.ids_of, self.cuts, self.roles, self.max_length, self.targets
        return MarianTokenizer, options


def _marian_vocabulary(vocab: Mapping[str, int], roles: Mapping[str, str]) -> tokenizers.Tokenizer:
    """The vocabulary, with `</s>` after a text."""
    codes = [token for token in vocab if LANGUAGE_CODE.fullmatch(token)]
    return vocabulary(vocab, roles, codes, Template.around((), (), (vocab[roles["eos"]],)))


def _marian_roles(settings: TokenSettings) -> dict[str, str]:
    named = {role: settings.roles.get(role, token) for role, token in MARIAN_ROLES.items()}
    return {role: token for role, token in named.items() if settings.named.get(role, 0) is not None}


# ------------------------------------------------------------------------------------------ M2M-100


M2M_100_MODEL = sentencepiece.M2M_100
M2M_100_ROLES = {"bos": "<s>", "eos": "</s>", "sep": "</s>", "pad": "<pad>", "unk": "<unk>"}
# In the order of their ids.
LANGUAGES = (
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl "
    "gu ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml "
    "mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl "
    "tn tr uk ur uz vi wo xh yi yo zh zu"
).split()
LANGUAGE_TOKENS = [f"__{language}__" for language in LANGUAGES]


class M2M100Tokenizer(PieceTokenizer):
    """Cuts by a SentencePiece model and looks pieces up in a vocabulary; see `PieceTokenizer`.

    vocab: token -> id, without the languages.  source: the language of a text, such as "en".
    listed: the tokens of languages where texts may contain them: all, or none.
    """

    model_file = M2M_100_MODEL

    def __init__(
        self,
        files: Mapping[str, bytes],
        vocab: Mapping[str, int],
        roles: Mapping[str, str],
        source: str,
        max_length: int | None,
        listed: Sequence[str],
    ):
        self.vocab_file, self.source, self.listed = vocab, source, list(listed)
        ids = {**vocab, **{token: len(vocab) + n for n, token in enumerate(LANGUAGE_TOKENS)}}
        template = Template.around((ids[f"__{source}__"],), (), (ids[roles["eos"]],))
        fast = vocabulary(ids, roles, LANGUAGE_TOKENS, template)
        super().__init__(files, ids, fast, "m2m-100", roles, max_length)

    def read_as_special(self) -> Sequence[str]:
        return [*self.roles.values(), *self.listed]

    @classmethod
    def load(cls, path: str | PathLike[str]) -> M2M100Tokenizer:
        """Read a folder.

        Raises:
            DataError: a file is missing or malformed, or names a language that there is not.
        """
        folder = Path(path)
        settings = read_settings(folder / VOCAB)
        others = settings.config.model_extra or {}
        codes, source = others.get("language_codes") or "m2m100", others.get("src_lang") or "en"
        for name, value, allowed in (
            ("language_codes", codes, ["m2m100"]),
            ("src_lang", source, LANGUAGES),
        ):
            if value not in allowed:
                problem = f"`{name}` must be one of {', '.join(allowed)}, but is {value!r}."
                raise DataError(settings.path, None, problem)
        vocab = vocab_files.read_vocab_json(folder / VOCAB)
        named = {role: settings.roles.get(role, token) for role, token in M2M_100_ROLES.items()}
        check_vocabulary(folder / VOCAB, vocab, M2M_100_ROLES, named)
        files = {M2M_100_MODEL: (folder / M2M_100_MODEL).read_bytes()}
        sentencepiece.parsed(folder / M2M_100_MODEL, files[M2M_100_MODEL], sentencepiece.CUTTING)
        listed = [token.content for token in settings.extra if token.content in LANGUAGE_TOKENS]
        if listed not in ([], LANGUAGE_TOKENS):  # their program would give them other ids in texts
            problem = f"`{ADDITIONAL}` must name all languages or none."
            raise DataError(settings.path, None, problem)
        return cls(files, vocab, named, source, settings.max_length, listed)

    def save(self, folder: str | PathLike[str], max_length: int | None = None) -> None:
        """Write the files that were read, and tokenizer_config.json; see `Tokenizer`."""
        config: dict[str, Any] = {"tokenizer_class": "M2M100Tokenizer", "src_lang": self.source}
        config |= {ADDITIONAL: self.listed} if self.listed else {}
        self.write_files(Path(folder), config, {VOCAB: self.vocab_file}, max_length)

    def fingerprint(self) -> str:
        others = {"language_codes": "m2m100", "src_lang": self.source, ADDITIONAL: self.listed}
        return self.digest(self.vocab_file, others)

    def __reduce__(self) -> tuple[Any, ...]:
        options = self.roles, self.source, self.max_length, self.listed
        return M2M100Tokenizer, (self.files, self.vocab_file, *options)
