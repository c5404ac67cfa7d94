"""Ids for words outside of a vocabulary, for models that read their characters.

    tokenizer = OpenVocabulary.of(tokenizer)
    ids = tokenizer.encode("the zebra").ids      "zebra" has an id of vocab_size or above
    tokenizer.token(ids[1])                      "zebra"

A vocabulary has one id for all words that it lacks, and their characters are lost. Here each of
them gets an id of its own when it is first met. These ids mean something to this object alone, and
to those made from it (by `with_template` and the like); they are not written to files.
"""

from collections.abc import Iterable, Mapping, Sequence
from threading import Lock
from typing import Any

import tokenizers

from regard.errors import RegardError
from regard.text.encoding import Encoding
from regard.text.tokenizer import Tokenizer, id_lists, is_id, text_list


class UnknownWords:
    """The unknown words that were met, in that order; each takes about 150 bytes."""

    def __init__(self, words: Iterable[str] = ()):
        self.words = list(words)
        self._numbers = {word: number for number, word in enumerate(self.words)}
        self._adding = Lock()

    def number(self, word: str) -> int:
        """That of a word; a new word gets the next one."""
        with self._adding:
            if word not in self._numbers:
                self._numbers[word] = len(self.words)
                self.words.append(word)
            return self._numbers[word]


class OpenVocabulary(Tokenizer):
    """A tokenizer whose unknown tokens have ids of their own, from `vocab_size` on.

    Args:
        words: the unknown words that were met before; shared, and added to.
        others: those of `Tokenizer`.
    """

    def __init__(
        self,
        fast: tokenizers.Tokenizer,
        kind: str,
        roles: Mapping[str, str],
        *others: Any,
        words: UnknownWords,
    ):
        super().__init__(fast, kind, roles, *others)
        self.unknown_words = words

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Tokenizer:
        """The same tokenizer with an open vocabulary; itself where no token is unknown to it, and
        where it is of a class of its own, as Marian's.
        """
        if type(tokenizer) is not Tokenizer or tokenizer.unk_id is None:
            return tokenizer
        fast = tokenizers.Tokenizer.from_str(tokenizer.to_str())
        others = tokenizer._options()
        return cls(fast, tokenizer.kind, tokenizer.roles, *others, words=UnknownWords())

    def closed(self, id: int) -> int:
        """See `Tokenizer`: that of the unknown token for a word that the vocabulary lacks."""
        return id if id < self.vocab_size else self._unknown

    @property
    def _unknown(self) -> int:
        assert self.unk_id is not None
        return self.unk_id

    def encode(self, text: str) -> Encoding:
        encoding = super().encode(text)
        if self.unk_id not in encoding.ids:
            return encoding
        ids, tokens, unknown = list(encoding.ids), list(encoding.tokens), self.token(self._unknown)
        for n, (start, end) in enumerate(encoding.offsets):
            if ids[n] == self.unk_id and text[start:end] != unknown:
                tokens[n] = text[start:end]
                ids[n] = self.vocab_size + self.unknown_words.number(tokens[n])
        return Encoding(ids, tokens, encoding.offsets)

    def encode_many(self, texts: Iterable[str]) -> list[list[int]]:
        texts = text_list(texts)
        rows = super().encode_many(texts)
        return [
            self.encode(text).ids if self.unk_id in ids else ids
            for text, ids in zip(texts, rows, strict=True)
        ]

    def token(self, id: int) -> str:
        words, size = self.unknown_words.words, self.vocab_size
        if is_id(id, size + len(words)) and id >= size:
            return words[int(id) - size]
        return super().token(id)

    def label(self, id: int) -> str:
        """See `Tokenizer`; a word outside of the vocabulary as it is."""
        return self.token(id) if id >= self.vocab_size else super().label(id)

    def decode_many(self, sequences: Iterable[Iterable[int]]) -> list[str]:
        """See `Tokenizer`; a word outside of the vocabulary stands between spaces.

        Raises:
            RegardError: an id was never given, or is no whole number.
        """
        return [self._decoded(ids) for ids in id_lists(sequences)]

    def _decoded(self, ids: Sequence[int]) -> str:
        parts: list[list[int]] = [[]]
        words: list[str] = []
        for id in ids:
            if 0 <= id - self.vocab_size < len(self.unknown_words.words):
                words.append(self.token(id))
                parts.append([])
            elif id >= self.vocab_size:
                raise RegardError(f"ids must lie in [0, {self.vocab_size}), but one is {id}.")
            else:
                parts[-1].append(id)
        first, *others = super().decode_many(parts)
        joined = [first, *(text for pair in zip(words, others, strict=True) for text in pair)]
        return " ".join(part.strip() if words else part for part in joined if part)

    def __reduce__(self) -> tuple[Any, ...]:
        words = self.unknown_words.words
        return _rebuild, (self.to_str(), self.kind, self.roles, self._options(), words)

    def _like(
        self, fast: tokenizers.Tokenizer, roles: Mapping[str, str], targets: Tokenizer | None
    ) -> Tokenizer:
        options = (*self._options()[:-1], targets)
        tokenizer = OpenVocabulary(fast, self.kind, roles, *options, words=self.unknown_words)
        if tokenizer.vocab_size != self.vocab_size:  # ids from there on would be of other words
            tokenizer.unknown_words = UnknownWords()
        return tokenizer


def _rebuild(saved: str, kind: str, roles: dict, options: tuple, words: list[str]) -> Tokenizer:
    fast = tokenizers.Tokenizer.from_str(saved)
    return OpenVocabulary(fast, kind, roles, *options, words=UnknownWords(words))
