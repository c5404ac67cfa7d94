"""Where sentences start among the tokens of a text, for models that are given tokens alone.

The rules are those of `regard.text.sentences`, as far as tokens tell: spaces are lost, and in many
vocabularies capitals, too, so that an abbreviation that the rules do not know ends a sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from regard.text.sentences import stop_ends_sentence

if TYPE_CHECKING:
    from regard.text.tokenizer import Tokenizer

_STOPS = ".!?…؟۔।。！？"  # noqa: RUF001
_CLOSING = frozenset(")]”’»」』）")  # noqa: RUF001
_BEGINS = ("▁", "Ġ")  # before the first token of a word


class TokenSentences:
    """Finds sentences in ids of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer):
        names = tokenizer.vocab()
        self.words = [""] * tokenizer.vocab_size  # what each token adds to a word
        self.continues = [False] * tokenizer.vocab_size
        marked = any(name.startswith(_BEGINS) for name in names)
        for name, number in names.items():
            plain = name.removesuffix("</w>")
            if plain.startswith("##"):
                self.continues[number] = True
            elif marked:
                self.continues[number] = not plain.startswith(_BEGINS)
            self.words[number] = plain.removeprefix("##").lstrip("".join(_BEGINS))
        self.stops = {i for i, word in enumerate(self.words) if word[-1:] in _STOPS and word}
        ordinary = (word for i, word in enumerate(self.words) if i not in tokenizer.special_ids)
        self.has_capitals = any(word[:1].isupper() for word in ordinary)

    def starts(self, ids: Sequence[int]) -> list[int]:
        """Where each sentence starts in the ids of a text: the first at 0, if it has a token."""
        starts, quotes, seen = [0][: len(ids)], 0, 0
        for position, number in enumerate(ids):
            if number not in self.stops or position < seen:
                continue
            quotes += sum(self.words[i] == '"' for i in ids[seen:position])
            seen = position + 1
            while seen < len(ids) and self._closes(ids[seen], quotes):
                quotes += self.words[ids[seen]] == '"'
                seen += 1
            if seen < len(ids) and self._ends(ids, position, seen):
                starts.append(seen)
                quotes = 0
        return starts

    def _closes(self, number: int, quotes: int) -> bool:
        """Whether a token behind a stop belongs to the sentence before it."""
        word = self.words[number]
        signs = word != "" and all(sign in _STOPS or sign in _CLOSING for sign in word)
        return signs or (word == '"' and quotes % 2 == 1)

    def _ends(self, ids: Sequence[int], stop: int, following: int) -> bool:
        """Whether a sentence ends at a stop; the next one would start at `following`."""
        after = self._word_from(ids, following)
        if self.has_capitals and after[:1].islower():
            return False
        sign = self.words[ids[stop]]
        if not sign.endswith(".") or sign.endswith("..") or following > stop + 1:
            return True
        before = self._word_until(ids, stop).removesuffix(".")
        if before[-1:].isdigit() and after[:1].isdigit():  # 3.5
            return False
        return stop_ends_sentence(before.upper(), after)  # e . g . are initials, too

    def _word_from(self, ids: Sequence[int], start: int) -> str:
        """The word, or the sign, that starts there."""
        end = start + 1
        while end < len(ids) and self.continues[ids[end]]:
            end += 1
        return "".join(self.words[i] for i in ids[start:end])

    def _word_until(self, ids: Sequence[int], last: int) -> str:
        """The word before a stop, with the stop."""
        first = last
        if self.words[ids[last]] == "." and first and not self.continues[ids[first]]:
            first -= 1
        while first and self.continues[ids[first]]:
            first -= 1
        return "".join(self.words[i] for i in ids[first : last + 1])
