"""Paragraphs and sentences of a text.

A paragraph is a line that is not blank. A sentence ends at `. ! ? …`, with what closes a quotation
after it, before white space and a word that does not begin with a small letter, unless the full
stop belongs to an abbreviation or an initial. At `。！？` it also ends without white space.

Sentences tile the text: each begins with the white space before its first word. Tokenizers begin a
token at white space, so that encoding one sentence after the other gives the tokens of the text; if
one begins without it, the text is encoded and its tokens are divided (`divided_ids`).

`TokenSentences` finds where sentences start among the tokens of a text, for models that are given
tokens alone. The rules are the same, as far as tokens tell: spaces are lost, and in many
vocabularies capitals, too, so that an abbreviation that the rules do not know ends a sentence.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from regard.text.tokenizer import Tokenizer

_CLOSING = "\"'”’»)\\]"
_STOP, _WIDE = ".!?…؟۔।", "。！？"  # noqa: RUF001
# It begins with the characters that it looks for: then `re` finds the next one fast.
_END = re.compile(
    rf"[{_STOP}{_WIDE}](?:(?<=[{_WIDE}])[{_WIDE}]*[{_CLOSING}」』）]*"  # noqa: RUF001
    rf"|(?<=[{_STOP}])(?<![{_STOP}]{{2}})[{_STOP}]*[{_CLOSING}]*(?=\s))"
)
_NEXT = re.compile(r"\s*[\"'“‘«(\[¿¡「『（]*(\w*)")  # noqa: RUF001
_WORD = re.compile(r"[^\s(\[\"“‘«]*")

# Before a name: a sentence does not end here.
_TITLES = frozenset(
    "mr mrs ms mx dr prof st sts gen col maj capt cmdr lt sgt rev hon pres gov sen rep fr mme mlle "
    "messrs vs cf e.g i.e viz al approx ca bros dept est".split()
)
# Before a number.
_NUMBERED = frozenset(
    "no nos nr vol vols fig figs eq eqs sec secs ch chap p pp art par ref refs jan feb mar apr jun "
    "jul aug sep sept oct nov dec".split()
)
# A sentence may end here: it does if the next word often starts one.
_EITHER = frozenset("etc inc ltd co corp llc jr sr ave blvd rd mt ft a.m p.m u.s u.k u.n".split())
_STARTERS = frozenset(
    "a after all an and another as at because before both but by during each even every for from "
    "he her here his how however i if in it its many most my no not of on one our she since so "
    "some such that the their then there these they this those though through to under until we "
    "what when where which while who why with yet you your".split()
)


def sentence_starts(text: str) -> list[tuple[int, bool]]:
    """Where each sentence starts, and whether a paragraph starts with it; the first is at 0.

    A text without a word is one sentence. Blank lines belong to what follows, at the end of the
    text to what is before.
    """
    starts: list[tuple[int, bool]] = []
    start = blank = 0  # of the line; of the blank lines before it
    for line in text.split("\n"):
        end = start + len(line)
        if line and not line.isspace():
            starts.append((blank, True))
            for sign in _END.finditer(text, start, end):
                if sign.end() < end and _ends_sentence(text, sign, end):
                    starts.append((sign.end(), False))
            blank = end
        start = end + 1
    return starts or [(0, True)]


def sentence_ids(tokenizer: Any, text: str, starts: Sequence[int]) -> list[list[int]]:
    """The ids of each sentence of a text, of which `starts` says where it starts; together they are
    those of the text.
    """
    if begin_at_space(text, starts):
        bounds = pairwise([*starts, len(text)])
        ids: list[list[int]] = tokenizer.encode_many([text[start:end] for start, end in bounds])
        return ids
    return divided_ids(tokenizer, text, starts)


def begin_at_space(text: str, starts: Sequence[int]) -> bool:
    """Whether all sentences of a text but the first begin with white space."""
    return all(text[start].isspace() for start in starts[1:])


def divided_ids(tokenizer: Any, text: str, starts: Sequence[int]) -> list[list[int]]:
    """The ids of a text, divided among its sentences: a token belongs to the one in which it
    starts.
    """
    encoding = tokenizer.encode(text)
    begins = np.maximum.accumulate([start for start, _ in encoding.offsets] or [0])
    cuts = [0, *np.searchsorted(begins, starts[1:]).tolist(), len(encoding.ids)]
    return [encoding.ids[start:end] for start, end in pairwise(cuts)]


def _ends_sentence(text: str, end: re.Match[str], line_end: int) -> bool:
    """Whether a sentence ends at a full stop or another sign that `_END` has found."""
    after = _NEXT.match(text, end.end(), line_end)
    word = after[1] if after else ""
    if after and after.end() == line_end and not after[0].strip():
        return False  # white space at the end of the line
    if word[:1].islower():
        return False
    if not end[0].startswith(".") or end[0].startswith(".."):
        return True
    backward = text[max(0, end.start() - 20) : end.start()][::-1]
    before = _WORD.match(backward)[0][::-1]  # type: ignore[index]  # it matches any text
    return stop_ends_sentence(before, word)


def stop_ends_sentence(before: str, after: str) -> bool:
    """Whether a full stop between two words ends a sentence, whatever capital the second has.

    A single capital before it is an initial.
    """
    small = before.lower()
    if small in _TITLES:
        return False
    if small in _NUMBERED and after[:1].isdigit():
        return False
    initial = len(before) == 1 and before.isupper()
    dotted = "." in before and before.replace(".", "").isalpha()
    if initial or dotted or small in _EITHER:
        return after.lower() in _STARTERS
    return True


# ------------------------------------------------------------------------------------------- tokens


_AFTER = frozenset(f"{_STOP}{_WIDE})]”’»」』）")  # signs without a space before them  # noqa: RUF001
_BEFORE = frozenset("([“‘«「『（")  # and without one after them  # noqa: RUF001
# 3.5 and e.g, of which each sign is a token
_DOTTED = re.compile(r".*(?:\d\.\d.*|\b[^\W\d]\.[^\W\d])")
_BEGINS = ("▁", "Ġ")  # before the first token of a word


class TokenSentences:
    """Finds sentences in ids of a tokenizer: those of the text that its tokens make."""

    def __init__(self, tokenizer: Tokenizer):
        names = tokenizer.vocab()
        self.words = [""] * tokenizer.vocab_size  # what each token adds to a word
        self.continues = [False] * tokenizer.vocab_size
        marked = any(name.startswith(_BEGINS) for name in names)
        for name, number in names.items():
            plain = name.removesuffix("</w>")
            self.continues[number] = plain.startswith("##") or (
                marked and not plain.startswith(_BEGINS)
            )
            self.words[number] = plain.removeprefix("##").lstrip("".join(_BEGINS))
        ordinary = (word for i, word in enumerate(self.words) if i not in tokenizer.special_ids)
        if not any(word[:1].isupper() for word in ordinary):  # else no sentence would begin
            self.words = [word.upper() for word in self.words]

    def starts(self, ids: Sequence[int]) -> list[int]:
        """Where each sentence starts in the ids of a text: the first at 0, if it has a token."""
        text, begins, quotes = "", list[int](), 0
        for number in ids:
            word = self.words[number]
            closes = word != "" and _AFTER.issuperset(word) or (word == '"' and quotes % 2 == 1)
            opened = text[-1:] in _BEFORE or (text[-1:] == '"' and quotes % 2 == 1)
            dotted = text.endswith(".") and _DOTTED.fullmatch(text[-3:] + word)
            if text and not (self.continues[number] or closes or opened or dotted):
                text += " "
            begins.append(len(text))
            text += word
            quotes += word == '"'
        starts = {bisect_left(begins, start) for start, _ in sentence_starts(text)}
        return sorted(starts)[: len(ids)]
