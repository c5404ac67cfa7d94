"""Malformed tokenizer files raise a `RegardError`, whatever they hold."""

from __future__ import annotations

import base64

import pytest
from test_tokenizer_folders import written

from regard.errors import DataError, RegardError
from regard.text import Tokenizer, explain, train

HALF = "ab\ud800c"
WORDS = {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "<unk>": 2}, "unk_token": "<unk>"}
PLAIN = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": None,
    "model": WORDS,
}
FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
GARBAGE = base64.b64encode(b"\x08\x00\x00\x00abcdefgh" * 3).decode()


def split(regex):
    pattern = {"Regex": regex}
    return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}


def replace(pattern, content):
    return {"type": "Replace", "pattern": pattern, "content": content}


def template(single, special_tokens=None, pair=None):
    a, b = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    parts = [a if part == "A" else b if part == "B" else
             {"SpecialToken": {"id": part, "type_id": 0}} for part in single]  # fmt: skip
    return {"type": "TemplateProcessing", "single": parts, "pair": pair or [a, b],
            "special_tokens": special_tokens or {}}  # fmt: skip


def vocabulary(**pieces):
    return {"model": {**WORDS, "vocab": pieces | {"<unk>": 2}}}


AT_LOAD = {
    "a regular expression that is none": {"pre_tokenizer": split("(")},
    "a table that is empty": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}},
    "an unknown type": {"normalizer": {"type": "NoSuchNormalizer"}},
    "an id of 32 bits": vocabulary(a=2**32 - 1),
    "an id of 41 bits": vocabulary(a=2**40),
    "an id that two tokens share": vocabulary(a=1, b=1),
    "a negative id": vocabulary(a=-1),
    "an id that is no number": vocabulary(a="1"),
    "an added token with a huge id": {"added_tokens": [
        {"id": 2**31, "content": "[E]", "special": True, **FLAGS},
    ]},
    "an added token with another id": {"added_tokens": [
        {"id": 9, "content": "[E]", "special": True, **FLAGS},
    ]},
    "an added token in a hole": {
        "model": {**WORDS, "vocab": {"a": 0, "<unk>": 2}},
        "added_tokens": [{"id": 1, "content": "[E]", "special": True, **FLAGS}],
    },
    "merges of absent tokens": {
        "model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["x", "y"]]},
    },
    "a unigram without tokens": {"model": {"type": "Unigram", "vocab": [], "unk_id": 0}},
    "a template of an absent token": {"post_processor": template(["[CLS]", "A"])},
    "a template of the second text": {"post_processor": template(["B"])},
    "a template of a text twice": {"post_processor": template(["A", "A"])},
    "a template without a text": {"post_processor": template([])},
    "a template with an absent id": {"post_processor": template(
        ["x", "A"], {"x": {"id": "x", "ids": [77], "tokens": ["x"]}}
    )},
}  # fmt: skip
AT_USE = {
    "a regular expression that gives up": {"pre_tokenizer": split("(x+x+)+y")},
    "a replacement that gives up": {"normalizer": replace({"Regex": "(x+x+)+y"}, "")},
    "a table that points outside itself": {
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": GARBAGE},
    },
    "parts of no length": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    "no unknown token": {"model": {**WORDS, "vocab": {"a": 0, "b": 1}}},
    "no unknown token of BPE": {
        "model": {"type": "BPE", "vocab": {"a": 0}, "merges": [], "unk_token": "<unk>"},
    },
    "no unknown token of a unigram": {
        "model": {"type": "Unigram", "vocab": [["a", -1.0]], "unk_id": None},
    },
}  # fmt: skip


def folder_with(tmp_path, change):
    return written(tmp_path / "hostile", {"tokenizer.json": PLAIN | change})


@pytest.mark.parametrize("name", AT_LOAD)
def test_unusable_files_raise_an_error_when_loaded(tmp_path, name):
    folder = folder_with(tmp_path, AT_LOAD[name])
    with pytest.raises(DataError) as error:
        Tokenizer.load(folder)
    assert error.value.path == str(folder / "tokenizer.json")


@pytest.mark.parametrize("name", AT_USE)
def test_a_rule_that_fails_on_a_text_names_the_text(tmp_path, name):
    tokenizer = Tokenizer.load(folder_with(tmp_path, AT_USE[name]))
    text = "x" * 60
    with pytest.raises(RegardError, match="the text cannot be encoded: .* It is 'xxx"):
        tokenizer.encode(text)
    with pytest.raises(RegardError, match="text 1 cannot be encoded"):
        tokenizer.encode_many(["", text, "a"])
    assert tokenizer.encode("").ids == []


def test_padding_and_truncation_of_a_file_are_not_applied(tmp_path):
    cut = {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0}
    padded = {"strategy": {"Fixed": 2**40}, "direction": "Left", "pad_to_multiple_of": 0}
    padded |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "a"}
    change = {"truncation": cut, "padding": padded, "pre_tokenizer": split(" ")}
    tokenizer = Tokenizer.load(folder_with(tmp_path, change))
    assert tokenizer.encode("b a").ids == [1, 2, 0]
    assert tokenizer.sides == {"padding_side": "left", "truncation_side": "right"}


def test_a_token_is_not_added_to_ids_that_are_not_contiguous(tmp_path):
    vocab = {"a": 0, "b": 3, "<unk>": 2}
    tokenizer = Tokenizer.load(folder_with(tmp_path, {"model": {**WORDS, "vocab": vocab}}))
    with pytest.raises(RegardError, match="'<new>' cannot be added: the ids .* are not contiguous"):
        tokenizer.with_special_tokens(["<new>"])


# ------------------------------------------------------------------------------ mutations


# ------------------------------------------------------------------------------ half characters

KINDS = ["bpe", "byte-bpe", "wordpiece", "wordpiece-likelihood", "words", "characters"]


@pytest.mark.parametrize("kind", KINDS)
def test_lone_surrogates_raise_errors_in_every_function_that_takes_text(kind):
    tokenizer = train(kind, ["ab c the", "the cat"], 300)
    surrogate = r"lone surrogate U\+D800"
    for work, where in (
        (lambda: tokenizer.encode(HALF), "the text"),
        (lambda: tokenizer.encode_many(["a", HALF]), "text 1"),
        (lambda: tokenizer.words(HALF), "the text"),
        (lambda: tokenizer.with_special_tokens([HALF]), "special token"),
        (lambda: tokenizer.with_roles({"sep": HALF}), "special token"),
        (lambda: train(kind, ["a", HALF], 300), "text 1"),
        (lambda: explain.encoding(tokenizer, HALF), "the text"),
    ):
        with pytest.raises(RegardError, match=f"{where}.*{surrogate}"):
            work()
    for work in (explain.training, explain.likelihood):
        with pytest.raises(RegardError, match=f"the word .*{surrogate}"):
            work({"ab": 2, HALF: 3}, 2)
    with pytest.raises(RegardError, match="is not in the vocabulary"):
        tokenizer.id(HALF)


@pytest.mark.parametrize("given", [None, 3, b"ab", ["a"], ("a", "b"), 1.5])
def test_values_that_are_no_text_or_id_raise_errors(given):
    tokenizer = train("bpe", ["ab c the"], 300)
    with pytest.raises(RegardError, match="must be a str"):
        tokenizer.encode(given)
    with pytest.raises(RegardError, match="text 1 cannot be encoded: it must be a str"):
        tokenizer.encode_many(["a", given])  # the library would read a tuple as a pair of texts
    for work in (lambda: tokenizer.words(given), lambda: tokenizer.id(given)):
        with pytest.raises(RegardError):
            work()
    if given != 3:
        for work in (lambda: tokenizer.decode([given]), lambda: tokenizer.token(given)):
            with pytest.raises(RegardError, match="(`id`|ids) (must|cannot)"):
                work()
