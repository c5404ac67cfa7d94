"""The parts of an incrementally decoded text are what decoding all tokens together gives."""

from __future__ import annotations

from functools import cache

import pytest
import tokenizers
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from regard import text
from regard.decoding.streaming import IncrementalDetokenizer
from regard.text import Tokenizer

LINES = [
    "the cat sat on the mat, and the dog's log: isn't it \"low\"?",
    "Ein Mann fährt mit dem Fahrrad über die Straße. Ja! [wirklich]",
    "日本語の文 中文字符 👩\u200d👩\u200d👧 \ufffd",
    "low lower lowest new newer newest wide wider widest",
] * 4


def in_bytes() -> Tokenizer:
    """As Llama's: unknown characters are bytes, spaces are written, the first one is none."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "▁the", "▁cat", "s", "日", "a", "b", ".", "\ufffd"]
    fast = tokenizers.Tokenizer(
        models.BPE({piece: i for i, piece in enumerate(pieces)}, [], byte_fallback=True)
    )
    strip = decoders.Strip(content=" ", left=1, right=0)
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), strip]
    fast.decoder = decoders.Sequence(parts)
    fast.add_special_tokens(["<unk>", "<s>", "</s>"])
    return Tokenizer(fast, "bpe", {"unk": "<unk>", "bos": "<s>", "eos": "</s>"})


def marked() -> Tokenizer:
    """As SentencePiece's: a space stands at the beginning of a word."""
    pieces = ["<unk>", "</s>", "▁", "▁the", "▁cat", "s", "日", "a", "."]
    fast = tokenizers.Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], 0, False))
    fast.pre_tokenizer = pre_tokenizers.Metaspace()
    fast.decoder = decoders.Metaspace()
    return Tokenizer(fast, "unigram", {"unk": "<unk>", "eos": "</s>"})


def cleaned() -> Tokenizer:
    """As BERT's under `clean_up_tokenization_spaces`: words lose the spaces before them."""
    pieces = ["[PAD]", "[UNK]", "do", "it", "n", "m", "##t", "t", "s", "ve", "re", "'", ".", "a"]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    fast = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    fast.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    fast.decoder = decoders.WordPiece(cleanup=False)
    roles = {"unk": "[UNK]", "pad": "[PAD]"}
    return Tokenizer(fast, "wordpiece", roles, clean_up_spaces=True)


OTHERS = {"bytes": in_bytes, "marked": marked, "cleaned": cleaned}


@cache
def tokenizer_of(kind: str) -> Tokenizer:
    return OTHERS[kind]() if kind in OTHERS else text.train(kind, LINES, 400)


def assert_parts_join(tokenizer: Tokenizer, before: list[int], tokens: list[int]) -> list[str]:
    spelling = IncrementalDetokenizer(tokenizer, before)
    parts = [spelling.add(token) for token in tokens]
    parts.append(spelling.rest())
    assert tokenizer.decode(before) + "".join(parts) == tokenizer.decode(before + tokens)
    return parts


@pytest.mark.parametrize("kind", [*text.KINDS, *OTHERS])
@given(st.data())
@settings(max_examples=60, deadline=None)
def test_the_joined_parts_are_the_decoded_text(kind, data):
    tokenizer = tokenizer_of(kind)
    before = tokenizer.encode(data.draw(st.sampled_from(["", "the cat", "a 日", *LINES]))).ids
    some = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), min_size=1, max_size=9))
    tokens = data.draw(st.lists(st.sampled_from(some), max_size=90))  # some come again and again
    # What is said of a prompt stays: a byte behind its last ones may turn them into no character.
    assume(tokenizer.decode(before + tokens).startswith(tokenizer.decode(before)))
    assert_parts_join(tokenizer, before, tokens)


@pytest.mark.parametrize("kind", [*text.KINDS, *OTHERS])
@given(st.data())
@settings(max_examples=20, deadline=None)
def test_an_encoded_text_is_detokenized_to_itself(kind, data):
    tokenizer = tokenizer_of(kind)
    lines = data.draw(st.lists(st.sampled_from(LINES), max_size=4))
    assert_parts_join(tokenizer, [], tokenizer.encode(" ".join(lines)).ids)


@pytest.mark.parametrize("kind", text.KINDS)
def test_text_is_returned_as_soon_as_it_is_certain(kind):
    tokenizer = tokenizer_of(kind)
    ids = tokenizer.encode("the cat sat, the cat").ids
    parts = assert_parts_join(tokenizer, ids[:1], ids[1:])
    assert all(parts[:-1]) and parts[-1] == ""


def test_characters_of_several_tokens_are_returned_whole():
    tokenizer = tokenizer_of("byte-bpe")
    ids = tokenizer.encode("𝔘").ids
    assert len(ids) == 4
    assert assert_parts_join(tokenizer, [], ids) == ["", "", "", "𝔘", ""]
    assert assert_parts_join(tokenizer, [], ids[:3]) == ["", "", "", "\ufffd"]
    assert assert_parts_join(tokenizer, [], [*ids[:2], *ids]) == ["", "", "\ufffd", "", "", "𝔘", ""]
