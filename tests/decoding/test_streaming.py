"""Texts as they are generated: parts that join to the whole, and stops wherever they lie."""

from __future__ import annotations

import time
from functools import cache

import pytest
import tokenizers
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from regard import text
from regard.decoding.streaming import GeneratedText, IncrementalDetokenizer
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


@pytest.mark.parametrize("kind", text.KINDS)
def test_text_is_returned_as_soon_as_it_is_certain(kind):
    tokenizer = tokenizer_of(kind)
    ids = tokenizer.encode("the cat sat, the cat").ids
    parts = assert_parts_join(tokenizer, ids[:1], ids[1:])
    assert all(parts[:-1]) and parts[-1] == ""


def test_long_stops_cost_no_more_than_short_ones():
    """Their time is the engine's, for which all requests wait."""
    ids = BYTES.encode("the cat sat " * 300).ids
    stops = [f"{number}" * 500_000 for number in range(14)]
    stops += ["the cat sat " * 50_000, "the cat sat " * 40_000 + "!"]
    generated, began, written = GeneratedText(BYTES, [], stops), time.process_time(), ""
    for token in ids[:1500]:
        generated.add(token)
        written += generated.ready()
    assert written == "" and time.process_time() - began < 5
    generated.end()
    assert generated.ready() == BYTES.decode(ids[:1500])


BYTES = text.train("byte-bpe", ["naïve café 日本語 😀 the cat sat " * 3], 290)
STOPPED = st.text(alphabet="ab é日😀", max_size=12)


@given(STOPPED, st.lists(st.text(alphabet="ab é日😀", min_size=1, max_size=3), max_size=3))
def test_a_stop_ends_a_text_before_it_wherever_it_lies(line, stops):
    ids = BYTES.encode(line).ids
    whole = "".join(
        [*map((detokenizer := IncrementalDetokenizer(BYTES, [])).add, ids), detokenizer.rest()]
    )
    generated, pieces = GeneratedText(BYTES, [], stops), []
    for token in ids:
        generated.add(token)
        pieces.append(generated.ready())
        assert not any(stop in "".join(pieces) for stop in stops)
    generated.end()
    pieces.append(generated.ready())
    found = [at for stop in stops if (at := whole.find(stop)) >= 0]
    assert "".join(pieces) == generated.text
    assert generated.reason == ("stop" if found else "length")
    if not found:
        assert generated.text == whole
    else:  # before a stop that no other one precedes completely
        assert any(whole.startswith(generated.text + stop) for stop in stops)
        assert not any(stop in generated.text for stop in stops)
    assert len(generated.parts) == len(generated.tokens) or not ids
