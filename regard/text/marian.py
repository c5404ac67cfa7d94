"""Marian's tokenizers, as OPUS-MT's folders have them: two SentencePiece models and their ids.

    source.spm, target.spm     how a text is cut into pieces, on either side
    vocab.json                 the ids of the pieces of both; target_vocab.json: of targets alone

A text may begin with `>>xx<<`, which names the language to translate into: one token, which the
models do not see. A piece without an id is the unknown token. As in `transformers`, punctuation is
not normalized; texts for which that matters are normalized by Moses' script before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import tokenizers

from regard.text import sentencepiece, vocab_files
from regard.text.languages import LANGUAGE_CODE
from regard.text.piece_tokenizer import PieceTokenizer, check_vocabulary, vocabulary
from regard.text.templates import Template
from regard.text.token_settings import TokenSettings, read_settings

SOURCE, TARGET = sentencepiece.MARIAN
VOCAB, TARGET_VOCAB = "vocab.json", "target_vocab.json"
ROLES = {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}


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
        fast = _decoder(ids_of, roles)
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
        roles = _roles(settings)
        for name, table in ((VOCAB, vocab), (TARGET_VOCAB, target)):
            check_vocabulary(folder / name, table, ROLES, roles)
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


def _decoder(vocab: Mapping[str, int], roles: Mapping[str, str]) -> tokenizers.Tokenizer:
    """The vocabulary, with `</s>` after a text."""
    codes = [token for token in vocab if LANGUAGE_CODE.fullmatch(token)]
    return vocabulary(vocab, roles, codes, Template.around((), (), (vocab[roles["eos"]],)))


def _roles(settings: TokenSettings) -> dict[str, str]:
    named = {role: settings.roles.get(role, token) for role, token in ROLES.items()}
    return {role: token for role, token in named.items() if settings.named.get(role, 0) is not None}
