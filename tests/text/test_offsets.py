"""Offsets point at the characters that a token stands for, whatever was done to the text."""

from __future__ import annotations

import unicodedata
from functools import cache

import pytest
from hard_texts import HARD, texts
from hypothesis import HealthCheck, given, settings

from regard import text as text_
from regard.text.published import bytes_of_characters

PROPERTY = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
LINES = [*HARD, "the quick brown fox jumps over the lazy dog", "naïve café naïve café"] * 3


@cache
def trained(kind, **options):
    return text_.train(kind, LINES, 1500, **options)


def assert_bytes_covered(tokenizer, text):
    """Each byte knows its character; a token covers the characters of its bytes."""
    owner = [i for i, char in enumerate(text) for _ in char.encode()]
    byte_of, at = bytes_of_characters(), 0
    encoding = tokenizer.encode(text)
    for piece, (start, end) in zip(encoding.tokens, encoding.offsets, strict=True):
        size = len(bytes(byte_of[char] for char in piece))
        assert (start, end) == (owner[at], owner[at + size - 1] + 1), (text, piece)
        at += size
    assert at == len(owner)  # nothing of the text is left over


def assert_tokens_at_offsets(tokenizer, text, prefix="", suffix=""):
    """Without normalization a token is the text at its offsets."""
    encoding = tokenizer.encode(text)
    for piece, (start, end) in zip(encoding.tokens, encoding.offsets, strict=True):
        if piece != "<unk>":
            assert piece.removesuffix(suffix).removeprefix(prefix) == text[start:end]
    ends = [end for _, end in encoding.offsets]
    assert all(start >= end for (start, _), end in zip(encoding.offsets[1:], ends))  # noqa: B905


def normalized(text, lowercase):
    """BERT's normalization as (character, its position in the text), one character at a time."""
    kept = []
    for at, char in enumerate(text):
        category = unicodedata.category(char)
        if char in "\t\n\r" or category == "Zs":
            kept.append((" ", at))
        elif char in "\0\ufffd" or category in ("Cc", "Cf", "Co", "Cs"):
            continue
        else:
            parts = unicodedata.normalize("NFD", char) if lowercase else char
            parts = [p for p in parts if not (lowercase and unicodedata.category(p) == "Mn")]
            kept += [(c, at) for p in parts for c in (p.lower() if lowercase else p)]
    return kept


def is_alone(char):
    """Punctuation and Chinese characters are words of their own."""
    code = ord(char)
    ascii_mark = 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126
    blocks = [(0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2CEAF), (0xF900, 0xFAFF)]
    blocks += [(0x2F800, 0x2FA1F)]
    chinese = any(low <= code <= high for low, high in blocks)
    return ascii_mark or unicodedata.category(char).startswith("P") or chinese


def naive_wordpiece(text, pieces, lowercase, longest=100):
    """(token, start, end) by BERT's algorithm, each character with its position."""
    words, word = [], []
    for char, at in [*normalized(text, lowercase), (" ", len(text))]:
        if char.isspace() or is_alone(char):
            words += [word] if word else []
            words += [] if char.isspace() else [[(char, at)]]
            word = []
        else:
            word.append((char, at))
    found = []
    for word in words:
        start, matches = 0, []
        while start < len(word) and len(word) <= longest:
            prefix = "##" if start else ""
            spans = [(prefix + "".join(c for c, _ in word[start:end]), end)
                     for end in range(len(word), start, -1)]  # fmt: skip
            match = next(((piece, end) for piece, end in spans if piece in pieces), None)
            if match is None:
                break
            matches.append((match[0], word[start][1], word[match[1] - 1][1] + 1))
            start = match[1]
        whole = [("[UNK]", word[0][1], word[-1][1] + 1)]
        found += matches if start == len(word) else whole
    return found


@PROPERTY
@given(text=texts)
def test_byte_level_offsets_cover_the_text(text):
    assert_bytes_covered(trained("byte-bpe"), text)


@pytest.mark.parametrize("kind", ["bpe", "words", "characters"])
@PROPERTY
@given(text=texts)
def test_offsets_of_kinds_without_normalization_give_the_tokens(kind, text):
    if kind == "bpe":  # a literal </w> cannot be told from the mark
        assert_tokens_at_offsets(trained(kind), text.replace("</w>", ""), suffix="</w>")
    else:
        assert_tokens_at_offsets(trained(kind), text)


BERT = [("bert-base-cased-vocab.txt", False), ("bert-base-uncased-vocab.txt", True)]


@cache
def bert(path):
    tokenizer = text_.Tokenizer.load(path)
    return tokenizer, frozenset(tokenizer.vocab())


@pytest.mark.parametrize("name,lowercase", BERT)
@PROPERTY
@given(text=texts)
def test_offsets_of_normalized_wordpiece_are_of_the_original_text(shared, name, lowercase, text):
    if "[" in text or any(unicodedata.category(char) == "Cn" for char in text):
        return  # special tokens are read; unassigned characters differ between Unicode tables
    tokenizer, pieces = bert(shared(f"vocab/{name}"))
    encoding = tokenizer.encode(text)
    got = [(p, *o) for p, o in zip(encoding.tokens, encoding.offsets, strict=True)]
    assert got == naive_wordpiece(text, pieces, lowercase)


def test_offsets_equal_those_worked_by_hand():
    """Offsets a reader can check."""
    lower = trained("words", lowercase=True, strip_accents=True)
    encoding = lower.encode("  Naïve\tCAFÉ ")
    assert encoding.tokens == ["naive", "cafe"] and encoding.offsets == [(2, 7), (8, 12)]
    decomposed = lower.encode("nai\u0308ve cafe\u0301")
    assert decomposed.offsets == [(0, 6), (7, 11)]  # a dropped mark at the end is nobody's
    bytes_ = text_.train("byte-bpe", ["a"], 260).encode("a 👍")
    assert bytes_.offsets == [(0, 1), (1, 2), (2, 3), (2, 3), (2, 3), (2, 3)]
