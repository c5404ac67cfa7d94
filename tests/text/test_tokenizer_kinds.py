"""Six kinds (`regard.text.training`, `regard.text.preprocessing`): trained, saved, decoded."""

from __future__ import annotations

import copy
import json
import pickle
import re
import subprocess
import sys
from functools import cache

import pytest
from hard_texts import HARD, SPECIAL_TEXTS, texts
from hypothesis import given, settings

from regard import text
from regard.decoding.streaming import IncrementalDetokenizer

LINES = [
    "the cat sat on the mat, and the dog sat on the log.",
    "Ein Mann fährt mit dem Fahrrad über die Straße.",
    "une élève naïve mange une crêpe à côté d'un café",
    "日本語の文 中文字符 👩\u200d👩\u200d👧",
    "low lower lowest new newer newest wide wider widest",
] * 4
SUBWORDS = ["bpe", "byte-bpe", "wordpiece", "wordpiece-likelihood"]


@cache
def trained(kind, vocab_size=400, **options):
    return text.train(kind, LINES, vocab_size, **options)


@pytest.mark.parametrize("kind", text.KINDS)
def test_special_tokens_have_the_first_ids(kind):
    tokenizer = trained(kind)
    assert tokenizer.kind == kind and tokenizer.vocab_size <= 400
    ids = tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id
    assert ids == (0, 1, 2, 3)
    assert sorted(tokenizer.vocab().values()) == list(range(tokenizer.vocab_size))
    assert [tokenizer.token(i) for i in range(4)] == ["<pad>", "<s>", "</s>", "<unk>"]
    assert all(tokenizer.id(tokenizer.token(i)) == i for i in range(tokenizer.vocab_size))


@pytest.mark.parametrize("kind", text.KINDS)
def test_encode_many_equals_encode(kind):
    tokenizer = trained(kind)
    assert tokenizer.encode_many(HARD) == [tokenizer.encode(line).ids for line in HARD]
    assert tokenizer.encode_many([]) == [] and tokenizer.encode_many([""]) == [[]]
    assert tokenizer.encode_many(line for line in LINES) == tokenizer.encode_many(LINES)


@pytest.mark.parametrize("kind", text.KINDS)
def test_saved_tokenizers_give_the_same_ids_loaded_and_in_transformers(kind, tmp_path):
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    tokenizer = trained(kind)
    tokenizer.save(tmp_path)
    again = text.Tokenizer.load(tmp_path)
    assert (again.kind, again.roles) == (kind, tokenizer.roles)
    assert again.fingerprint() == tokenizer.fingerprint()
    assert text.Tokenizer.load(tmp_path / "tokenizer.json").fingerprint() == again.fingerprint()
    for opened in (
        PreTrainedTokenizerFast.from_pretrained(tmp_path),
        AutoTokenizer.from_pretrained(tmp_path),
    ):
        for line in HARD + SPECIAL_TEXTS:
            assert opened(line)["input_ids"] == again.encode(line).ids == tokenizer.encode(line).ids
        assert (opened.pad_token_id, opened.eos_token_id) == (0, 2)
        ids = [1, *tokenizer.encode(LINES[0]).ids, 2]
        assert opened.decode(ids, skip_special_tokens=True) == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", text.KINDS)
def test_pickled_copies_encode_alike(kind):
    """Pickled to a worker or copied, it still reads special tokens as it did."""
    tokenizer = trained(kind)
    for other in (pickle.loads(pickle.dumps(tokenizer)), copy.deepcopy(tokenizer)):
        assert other.fingerprint() == tokenizer.fingerprint()
        for line in SPECIAL_TEXTS:
            assert other.encode(line) == tokenizer.encode(line)


# ---- nothing is lost, where nothing need be


@settings(max_examples=150, deadline=None)
@given(line=texts)
def test_byte_bpe_is_lossless(line):
    for tokenizer in (trained("byte-bpe"), trained("byte-bpe", 260)):
        assert tokenizer.decode(tokenizer.encode(line).ids) == line


@settings(max_examples=80, deadline=None)
@given(line=texts)
def test_characters_are_lossless_when_known(line):
    tokenizer = text.train("characters", [line or "a"], 1000)
    assert tokenizer.decode(tokenizer.encode(line).ids) == line


@settings(max_examples=80, deadline=None)
@given(line=texts)
def test_bpe_and_words_lose_only_white_space(line):
    # White space as the library knows it: Python's \s has the separators 0x1c to 0x1f besides.
    words = re.findall(r"(?:[^\s]|[\x1c-\x1f])+", line)
    if "</w>" in line:
        return  # cannot be distinguished from the end-of-word symbol
    for kind in ("bpe", "words"):
        tokenizer = text.train(kind, [line or "a"], 1000)
        assert tokenizer.decode(tokenizer.encode(line).ids) == " ".join(words), kind


def test_special_tokens_in_a_text_are_plain_unless_read_as_such():
    line = "x</s>y [MASK]"
    plain = text.train("byte-bpe", LINES, 300)
    assert plain.decode(plain.encode(line).ids) == line and 2 not in plain.encode(line).ids
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    reads = text.train("wordpiece", LINES, 300, names, read_special_tokens=True)
    assert reads.encode("the [MASK] sat").ids[1] == reads.mask_id == 4
    assert text.train("wordpiece", LINES, 300, names).encode("[MASK]").tokens != ["[MASK]"]


def test_unk_in_the_training_texts_leaves_no_gap_in_the_ids():
    """The Penn Treebank writes <unk> in its text: it is the unknown word and nothing else."""
    tokenizer = text.train("words", ["a <unk> <unk> <unk> b b"], 10)
    assert tokenizer.encode("<unk> a b zebra").ids == [3, 5, 4, 3]
    assert tokenizer.vocab_size == 6


# ---- options


@pytest.mark.parametrize("kind", [*SUBWORDS, "words", "characters"])
def test_what_occurs_as_often_as_the_least_frequency_is_a_token(kind):
    lines, whole = ["xyz"] * 3, {"words": "xyz", "characters": "x"}.get(kind, "xy")
    usual = 1 if kind in ("words", "characters") else 2
    for options, least in (({"min_frequency": 3}, 3), ({"min_frequency": 4}, 4), ({}, usual)):
        for count in (least - 1, least):
            tokens = text.train(kind, ["q", *lines[:1] * count], 300, **options).vocab()
            known = any(whole in token.replace("##", "") for token in tokens)
            assert known == (count == least)


PROGRAM = """
import sys
from regard import text
lines = [f"word{i % 37} x{i % 11}y other{i % 5}, été" for i in range(300)]
print({kind: text.train(kind, lines, 300).fingerprint() for kind in text.KINDS})
assert "torch" not in sys.modules
"""


def test_training_gives_the_same_tokenizer_in_every_process():
    """The library alone numbers "e</w>" and "##e" by a hash table that differs per process."""
    runs = [
        subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    assert runs[0].stdout == runs[1].stdout and "byte-bpe" in runs[0].stdout


def test_the_fingerprint_depends_only_on_what_changes_ids(tmp_path):
    base = trained("bpe").fingerprint()
    assert re.fullmatch("[0-9a-f]{64}", base)
    assert trained("bpe", 180).fingerprint() != base
    assert trained("bpe", lowercase=True).fingerprint() != base
    assert trained("bpe", read_special_tokens=True).fingerprint() != base
    trained("bpe").save(tmp_path)
    file = tmp_path / "tokenizer.json"
    cut_at_2 = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    padded = json.loads(file.read_text()) | {"truncation": cut_at_2}
    file.write_text(json.dumps(padded))
    cut = text.Tokenizer.load(tmp_path)
    assert cut.fingerprint() == base
    assert len(cut.encode(LINES[0])) > 2  # a truncation in the file does not cut our texts


# ---- refusals


def test_ids_of_a_model_that_has_more_than_its_tokenizer_give_no_text(tmp_path):
    """As in `transformers`: T5's published models have 28 rows more than pieces."""
    from transformers import AutoTokenizer

    tokenizer = trained("words")
    size, (known, other) = tokenizer.vocab_size, tokenizer.encode("the cat").ids
    ids = [known, size, other, size + 27]
    assert tokenizer.decode(ids) == tokenizer.decode([known, other]) == "the cat"
    assert [tokenizer.label(i) for i in ids[:3]] == ["the", f"<{size}>", "cat"]
    stream = IncrementalDetokenizer(tokenizer, [])
    assert "".join([*map(stream.add, ids), stream.rest()]) == "the cat"
    tokenizer.save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.decode(ids) == theirs.decode([known, other])
