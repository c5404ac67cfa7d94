"""The character map of a SentencePiece model: which characters are replaced by which.

A precompiled map is a trie over UTF-8 bytes and a pool of replacements. The longest prefix of the
rest of a text that is a key is replaced; a character that begins no key is kept (Kudo and
Richardson 2018, "SentencePiece", section 3.2). The trie is a double array, in the format of the
library Darts-clone: a unit holds the label of the byte that leads to it, the offset of its children
and whether a key ends at it.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator

from regard.errors import RegardError

LABEL = 1 << 31 | 0xFF
HAS_KEY = 1 << 8


class CharacterMap:
    """Replaces characters as SentencePiece does.

    compiled: `precompiled_charsmap` of the model; empty: nothing is replaced.

    Raises:
        RegardError: it is damaged.
    """

    def __init__(self, compiled: bytes):
        self.units, self.replacements = array("I"), b""
        if not compiled:
            return
        size = struct.unpack_from("<I", compiled)[0] if len(compiled) >= 4 else 0
        if not 0 < size <= len(compiled) - 4 or size % 4 or not compiled.endswith(b"\0"):
            raise RegardError("its character map is damaged")
        self.units.frombytes(compiled[4 : 4 + size])
        if sys.byteorder == "big":
            self.units.byteswap()
        self.replacements = compiled[4 + size :]

    def longest(self, text: bytes, start: int = 0) -> tuple[int, str] | None:
        """The longest key at `start`: its length in bytes and what replaces it."""
        if not self.units:
            return None
        found, node = None, self._children(0)
        for position in range(start, len(text)):
            node ^= text[position]
            if node >= len(self.units) or self.units[node] & LABEL != text[position]:
                break
            unit, node = self.units[node], self._children(node)
            if unit & HAS_KEY and node < len(self.units):
                found = position + 1 - start, self._replacement(self.units[node] & ~(1 << 31))
        return found

    def _children(self, node: int) -> int:
        """The index that, combined with a byte, is the child of a node."""
        unit = self.units[node]
        return node ^ (unit >> 10) << ((unit & 1 << 9) >> 6)

    def _replacement(self, start: int) -> str:
        end = self.replacements.index(b"\0", start)
        return self.replacements[start:end].decode(errors="replace")

    def is_key(self, text: str) -> bool:
        """Whether all of the text is one key."""
        data = text.encode()
        found = self.longest(data)
        return found is not None and found[0] == len(data)

    def pieces(self, text: str) -> Iterator[tuple[str, int, int]]:
        """What replaces each part of a text, with the part's first character and the one behind."""
        data, position, start = text.encode(), 0, 0
        while start < len(text):
            length, replacement = self.longest(data, position) or (0, text[start])
            length = length or len(text[start].encode())
            end = start + len(data[position : position + length].decode())
            yield replacement, start, end
            position, start = position + length, end
