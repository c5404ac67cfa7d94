"""Encodes many texts with the ids of words that were encoded before.

The tokenizer encodes a word without looking at what stands around it. For BERT's splitting a word
is a punctuation mark, or what stands between two of them or white space; for GPT-2's, a match of
its regular expression. One pass of `re` finds the words of a text and a dictionary has their ids;
the `tokenizers` library encodes new words. It also encodes, as a whole, a text with a word that is
not kept, such as a very long one, and a text with the name of an added token. The ids are those of
the library for the whole text.

Texts are taken in slices: the words of all texts at once would need several times their memory, and
no slice may add more words than the limit.
"""

from __future__ import annotations

import json
import os
import re
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import tokenizers
from tokenizers import models

# The library uses all CPUs and takes two to three times the processor time of the one thread here:
# on more CPUs it should be done earlier (computed from measurements on two).
MOST_CPUS = 4
MIN_CHARACTERS = 1 << 14  # of all texts; below this the library is called directly
SLICE = 1 << 18  # characters of texts that are encoded together, at least
MAX_WORD_LENGTH = 64  # characters; longer words are not kept
WARM_UP_WORDS = 1 << 14  # with more, slices of over a quarter new words are left to the library
MAX_WORDS = 1 << 17  # in about 20 MB; when full, it is emptied, but for words of the slice
OFF = ("", "off", "false", "f", "no", "n", "0")  # values of TOKENIZERS_PARALLELISM
MODELS = (models.BPE, models.WordLevel, models.WordPiece)

# White space and punctuation are those of ASCII. Others are parts of words: only the library knows
# where they separate.
BERT = re.compile(r"[!-/:-@\[-`{-~]|[^ \t\n\r!-/:-@\[-`{-~]+")
GPT2 = re.compile(
    r" ?[A-Za-z]++(?![^\x00-\x7f])"
    r"|'(?:[stmd]|re|ve|ll)"
    r"| ?[0-9]++(?![^\x00-\x7f])"
    r"| ?[^ \t-\rA-Za-z0-9\x80-\U0010ffff]++(?![^\x00-\x7f])"
    r"| ?[^ \t-\r]+"  # with a character beyond ASCII: up to the next white space
    r"|[ \t-\r]+(?![^ \t-\r])|[ \t-\r]+"
)
# In GPT-2's splitting, what such a space belongs to depends on the white space after the word.
OTHER_SPACE = re.compile(r"[^\S\x00-\x7f]")


class WordCache:
    """Encodes texts; keeps the ids of words.

    fast: the tokenizer.  pattern: finds the words of a text.  names: of its added tokens.
    """

    def __init__(self, fast: tokenizers.Tokenizer, pattern: re.Pattern[str], names: Sequence[str]):
        self.fast, self.pattern = fast, pattern
        self.names = re.compile("|".join(map(re.escape, names)) or "(?!)")
        self.kept: dict[str, bytes] = {}  # word -> its ids, four bytes each

    @classmethod
    def of(cls, fast: tokenizers.Tokenizer) -> WordCache | None:
        """The cache of a tokenizer; None: its words depend on what stands around them, or the
        library is faster.
        """
        pattern = word_pattern(fast)
        if pattern is None or _library_threads() > MOST_CPUS:
            return None
        return cls(fast, pattern, [token.content for token in _added_tokens(fast)])

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text."""
        return [ids for some in _slices(texts) for ids in self._encode(some)]

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        words = [self._words(text) for text in texts]
        self._learn([each for each in words if each is not None])
        found = [None if each is None else self._ids(each) for each in words]
        left = [text for text, ids in zip(texts, found, strict=True) if ids is None]
        rows = iter(self.fast.encode_batch_fast(left, add_special_tokens=False))
        return [next(rows).ids if ids is None else ids for ids in found]

    def _words(self, text: str) -> list[str] | None:
        """The words of a text; None: it has the name of an added token."""
        return None if self.names.search(text) else self.pattern.findall(text)

    def _learn(self, words: Sequence[Sequence[str]]) -> None:
        """Keep the new ones of the words of texts, unless they are too many to be worth it."""
        distinct = set().union(*words)
        new = list(filter(self._may_be_kept, distinct.difference(self.kept)))
        if len(self.kept) > WARM_UP_WORDS and len(new) > sum(map(len, words)) // 4:
            return
        if len(self.kept) + len(new) > MAX_WORDS:
            self.kept = {word: self.kept[word] for word in distinct & self.kept.keys()}
            new = new[: MAX_WORDS - len(self.kept)]
        rows = self.fast.encode_batch_fast(new, add_special_tokens=False)
        ids = (array("i", row.ids).tobytes() for row in rows)
        self.kept.update(zip(new, ids, strict=True))

    def _may_be_kept(self, word: str) -> bool:
        alone = self.pattern is BERT or word.isascii() or not OTHER_SPACE.search(word)
        return alone and len(word) <= MAX_WORD_LENGTH

    def _ids(self, words: list[str]) -> list[int] | None:
        """The ids of a text's words; None: one is not kept."""
        try:
            joined = b"".join(map(self.kept.__getitem__, words))
        except KeyError:
            return None
        return memoryview(joined).cast("i").tolist()


def word_pattern(fast: tokenizers.Tokenizer) -> re.Pattern[str] | None:
    """The expression that finds the words of a tokenizer; None: there is none."""
    model, normalizer, split = fast.model, fast.normalizer, _settings(fast.pre_tokenizer)
    if not isinstance(model, MODELS) or (isinstance(model, models.BPE) and model.dropout):
        return None  # with dropout the same word has other ids each time
    # Such a token may be found in what the normalizer makes of a text.
    if normalizer is not None and any(token.normalized for token in _added_tokens(fast)):
        return None
    if split["type"] == "BertPreTokenizer":
        # Other normalizers, such as NFC, may combine a punctuation mark with a following combining
        # character, across the border of words.
        return BERT if _settings(normalizer)["type"] in (None, "BertNormalizer") else None
    plain = split["type"] == "ByteLevel" and split["use_regex"] and not split["add_prefix_space"]
    return GPT2 if plain and normalizer is None else None


def _settings(part: Any) -> dict[str, Any]:
    """What tokenizer.json has of a normalizer or pre-tokenizer."""
    return {"type": None} if part is None else json.loads(part.__getstate__())


def _added_tokens(fast: tokenizers.Tokenizer) -> list[tokenizers.AddedToken]:
    return list(fast.get_added_tokens_decoder().values())


def _slices(texts: Sequence[str]) -> Iterator[list[str]]:
    """The texts in order, in lists of `SLICE` characters, and the rest."""
    some: list[str] = []
    characters = 0
    for text in texts:
        some.append(text)
        characters += len(text)
        if characters >= SLICE:
            yield some
            some, characters = [], 0
    yield some


def _library_threads() -> int:
    """On how many threads the library encodes texts."""
    if os.environ.get("TOKENIZERS_PARALLELISM", "true").lower() in OFF:
        return 1
    if re.fullmatch(r"\+?0*[1-9][0-9]*", threads := os.environ.get("RAYON_NUM_THREADS", "")):
        return int(threads)
    has = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if has else os.cpu_count() or 1
