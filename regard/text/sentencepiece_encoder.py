"""Encodes texts exactly as SentencePiece does, in plain Python.

The `tokenizers` library is much faster with the same vocabulary, but gives some texts other ids: it
drops combining marks after a character that the character map replaces, encodes names of control
pieces in a text as special tokens, and rounds scores differently, which decides between equally
probable segmentations.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from functools import cache
from unicodedata import category

import numpy as np
import tokenizers

from regard.text.character_map import CharacterMap
from regard.text.encoding import Encoding
from regard.text.unigram import BYTE_NAME, SPACE, Edge, model_of, unknown_joined


class SentencePieceEncoder:
    """Encodes a text exactly as SentencePiece does, from the parts of a `tokenizers.Tokenizer`.

    fast: as `sentencepiece.pipeline` makes it, or the same read from a file.
    reads_special_tokens: whether names of special tokens in a text are encoded as special tokens;
        SentencePiece encodes them as plain text.
    """

    def __init__(self, fast: tokenizers.Tokenizer, reads_special_tokens: bool = False):
        self.reads_special_tokens = reads_special_tokens
        saved = json.loads(fast.to_str())
        steps = {step["type"]: step for step in saved["normalizer"]["normalizers"]}
        compiled = steps.get("Precompiled", {}).get("precompiled_charsmap", "")
        self.character_map = CharacterMap(base64.b64decode(compiled))
        self.normalize = fast.normalizer.normalize_str
        self.dummy_prefix = "Prepend" in steps
        self.merge_spaces = fast.normalizer.normalize_str("a  a").count(SPACE + SPACE) == 0
        self.byte_fallback: bool = saved["model"]["byte_fallback"]
        self.unknown_id: int = saved["model"]["unk_id"]
        self.ids = {name: index for index, (name, _) in enumerate(saved["model"]["vocab"])}
        added = {token["content"]: token["special"] for token in saved["added_tokens"]}
        self.user_defined = [name for name, special in added.items() if not special]
        names = [re.escape(name) for name in sorted(added, key=len, reverse=True)]
        self.names = re.compile("|".join([*names, *([BYTE_NAME] if self.byte_fallback else [])]))
        self.model = model_of(saved, np.float32)
        spaced = any(SPACE in name[1:] for name in self.model.scores)
        self.repeated = re.compile(REPEATED.format("." if spaced else "[^ ]"), re.DOTALL)

    def may_differ(self, text: str) -> bool:
        """Whether the `tokenizers` library may give a text other ids than SentencePiece."""
        if self.names.search(text) is not None:
            return not self.reads_special_tokens
        if self.repeated.search(text) is not None:
            return True
        if text.isascii():
            return False
        if any(self._joined(text, match.start()) for match in NOT_ASCII.finditer(text)):
            return True
        return self.names.search(self.normalize(text)) is not None  # "＜s＞" becomes "<s>"

    def _joined(self, text: str, index: int) -> bool:
        """Whether a character joins the one before it, and a key of the map begins at either.

        The `tokenizers` library looks up only the joined characters as a whole, or each alone.
        """
        if not joins(text[index]):
            return False
        pair = text[max(index - 1, 0) : index + 1]
        return any(self.character_map.longest_key(part.encode()) for part in (pair, text[index]))

    def encode(self, text: str) -> Encoding:
        """The ids, tokens and offsets of a text."""
        normalized, spans = self.normalized(text)
        ids: list[int] = []
        tokens: list[str] = []
        offsets: list[tuple[int, int]] = []
        for edge in self._path(normalized):
            known, start = edge.known or self.byte_fallback, spans[edge.start][0]
            names = [edge.subword]
            if not edge.known and self.byte_fallback:
                names = [f"<0x{byte:02X}>" for byte in edge.subword.encode()]
            ids += [self.ids[name] if known else self.unknown_id for name in names]
            tokens += names
            offsets += [(start, spans[edge.end - 1][1])] * len(names)
        return Encoding(ids, tokens, offsets)

    def _path(self, text: str) -> list[Edge]:
        path = self.model.best(text)
        return path if self.byte_fallback else unknown_joined(path)

    def normalized(self, text: str) -> tuple[str, list[tuple[int, int]]]:
        """The normalized text, and for each of its characters the span of `text` it stands for."""
        chars: list[tuple[str, tuple[int, int]]] = []
        for new, start, end in self._pieces(text):
            for char in new:
                extra = char == " " and (not chars or chars[-1][0] == " ")
                if extra and self.merge_spaces:
                    chars[-1:] = [(" ", (start, end))] if chars else []
                else:
                    chars.append((char, (start, end)))
        if self.dummy_prefix and chars:
            chars.insert(0, (" ", chars[0][1]))  # as `tokenizers` counts it
        while self.merge_spaces and chars and chars[-1][0] in (" ", SPACE):
            chars.pop()
        return "".join(char for char, _ in chars).replace(" ", SPACE), [span for _, span in chars]

    def _pieces(self, text: str) -> Iterator[tuple[str, int, int]]:
        """The replacement of each part of the text, and the part's span.

        User-defined pieces are kept as they are.
        """
        pattern = "|".join(map(re.escape, sorted(self.user_defined, key=len, reverse=True)))
        for match in re.finditer(
            f"({pattern or '(?!)'})|(?:(?!{pattern or '(?!)'}).)+", text, re.DOTALL
        ):
            if match.group(1):
                yield match.group(), *match.span()
                continue
            for new, start, end in self.character_map.pieces(match.group()):
                yield new, start + match.start(), end + match.start()


NOT_ASCII = re.compile(r"[^\x00-\x7f]")
# Of repeated parts there are equally probable segmentations with the same subwords in another order
# (-- + - and - + --, a + n + ana and ana + n + a), between which the rounding of
# SentencePiece decides. If no cut is in both, the text has a part twice and the first character of
# it once more, or a long part twice. {0}: a character of a subword.
REPEATED = r"(({0}){0}{{0,2}}?)\1\2|({0}{{4,16}}?)\3"


@cache
def joins(char: str) -> bool:
    """Whether a character may join the one before it: marks, joiners, parts of Hangul syllables."""
    syllables = ("\u1100", "\u11ff"), ("\ua960", "\ua97f"), ("\ud7b0", "\ud7ff")
    return (
        category(char) in ("Mn", "Mc", "Me", "Cf", "Sk")
        or char in "\u0e33\u0eb3"
        or any(first <= char <= last for first, last in syllables)
    )
