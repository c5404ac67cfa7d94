"""Symbols that carry a mark: "e</w>" ends a word, "##e" continues one.

The trainer of the `tokenizers` library numbers marked symbols in the order of a hash table that
differs from process to process, and breaks ties by these numbers: the same texts give another
vocabulary each time. So each marked symbol becomes one private character here, the library
trains on those as on any other character, and the pieces are spelled out afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

PRIVATE = 0xF0000  # planes 15 and 16 are for private use: 131,072 code points


class Marks:
    """A bijection between symbols, marked or plain, and single characters.

    before, after: a piece whose first symbol is marked is written with `before` in front, one
    whose last symbol is marked with `after` behind
    """

    def __init__(self, before: str = "", after: str = ""):
        self.before, self.after = before, after
        self.coded: dict[tuple[str, bool], str] = {}
        self.symbols: dict[str, tuple[str, bool]] = {}

    def code(self, char: str, marked: bool) -> str:
        """The character that stands for this symbol, the same one each time."""
        if not marked and ord(char) < PRIVATE:
            return char
        known = self.coded.get((char, marked))
        if known is None:
            known = chr(PRIVATE + len(self.coded))
            self.coded[char, marked] = known
            self.symbols[known] = (char, marked)
        return known

    def spell(self, coded: str) -> str:
        """A learned piece as the vocabulary writes it."""
        symbols = [self.symbols.get(char, (char, False)) for char in coded]
        text = "".join(char for char, _ in symbols)
        return self.before * symbols[0][1] + text + self.after * symbols[-1][1]


def end_marks(marks: Marks, word: str) -> str:
    """low -> l o w</w>, each symbol as one character."""
    body = word[:-1] if word.isascii() else "".join(marks.code(c, False) for c in word[:-1])
    return body + marks.code(word[-1], True)


def continuation_marks(marks: Marks, word: str) -> str:
    """low -> l ##o ##w, each symbol as one character."""
    return marks.code(word[0], False) + "".join(marks.code(c, True) for c in word[1:])


def learn_merges(
    words: Iterable[list[str]],
    marks: Marks,
    code_word: Callable[[Marks, str], str],
    trainer: trainers.BpeTrainer,
) -> tuple[list[str], list[tuple[str, str]]]:
    """Run the library's trainer over lists of words: pieces by id, and coded merges in order.

    Every character seen gets both its forms, marked and plain, so that no word made of known
    characters is ever unknown.
    """
    alphabet: set[str] = set()
    # Words repeat, so a bounded cache answers nearly always.
    coded = lru_cache(1 << 16)(lambda word: code_word(marks, word))

    def stream() -> Iterator[str]:
        for some in words:
            alphabet.update(*some)
            yield " ".join(map(coded, some))
        # One-symbol words: they add to the alphabet and to no pair.
        known = sorted(alphabet)
        yield " ".join(marks.code(char, marked) for char in known for marked in (False, True))

    fast = Tokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.CharDelimiterSplit(" ")
    fast.train_from_iterator(stream(), trainer)
    model = json.loads(fast.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return pieces, [(left, right) for left, right in model["merges"]]
