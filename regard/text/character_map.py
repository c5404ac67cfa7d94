"""The character map of a SentencePiece model: strings of characters and their replacements.

A precompiled map is a trie over the UTF-8 bytes of the keys, and a pool of replacements. From left
to right, the longest key at each position is replaced; a character at which no key begins is kept
(Kudo and Richardson 2018, "SentencePiece", section 3.2). The trie is a double array, in the format
of the library Darts-clone: a unit holds the label of the byte that leads to it, the offset of its
children and whether a key ends at it.
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

    compiled: `precompiled_charsmap` of the model; if it is empty, nothing is replaced.

    Raises:
        RegardError: the map is damaged.
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

    def longest_key(self, text: bytes, start: int = 0) -> tuple[int, str] | None:
        """The longest key in UTF-8 bytes at the index `start`: its length and its replacement.

        It is None if no key begins there. The length is in bytes.
        """
        if not self.units:
            return None
        longest, node = None, self._children(0)
        for position in range(start, len(text)):
            node ^= text[position]
            if node >= len(self.units) or self.units[node] & LABEL != text[position]:
                break
            unit, node = self.units[node], self._children(node)
            if unit & HAS_KEY and node < len(self.units):
                longest = position + 1 - start, self._replacement(self.units[node] & ~(1 << 31))
        return longest

    def _children(self, node: int) -> int:
        """The base of the children of a node: base XOR byte is the index of the child."""
        unit = self.units[node]
        return node ^ (unit >> 10) << ((unit & 1 << 9) >> 6)

    def _replacement(self, start: int) -> str:
        end = self.replacements.index(b"\0", start)
        return self.replacements[start:end].decode(errors="replace")

    def pieces(self, text: str) -> Iterator[tuple[str, int, int]]:
        """For each part of a text its replacement, and the span [start, end) of its characters."""
        data, position, start = text.encode(), 0, 0
        while start < len(text):
            length, replacement = self.longest_key(data, position) or (0, text[start])
            length = length or len(text[start].encode())
            end = start + len(data[position : position + length].decode())
            yield replacement, start, end
            position, start = position + length, end
