"""Folders (`regard.text.published`, `regard.text.vocab_files`): written and read, or damaged."""

from __future__ import annotations

import base64
import json
import warnings
from random import Random

import pytest
from drawn_folders import TEXTS, WORDPIECES, drawn, tokenizer_json
from hard_texts import HARD

from regard.checkpoints.model_folder import check_tokenizer
from regard.errors import DataError, RegardError
from regard.text import Tokenizer


def written(folder, files):
    folder.mkdir(exist_ok=True)
    for file in folder.iterdir():
        file.unlink()
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def opened(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return Tokenizer.load(folder)


def auto(folder):
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    return transformers.AutoTokenizer.from_pretrained(folder)


def assert_same(ours, theirs, about):
    for text in [*HARD[::4], *TEXTS]:
        wanted = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text).ids == wanted, (text, about)
    template = ours.template
    for texts in (["a b"], ["the", "a"]):
        own = ours.encode_many(texts)
        row = [i for ids in own for i in ids] if template is None else template.apply(own).ids
        assert row == theirs(*texts)["input_ids"], about
    assert len(ours.vocab()) == len(theirs), about


@pytest.mark.parametrize("seed", range(6))
def test_drawn_settings_give_the_ids_of_transformers(tmp_path, seed):
    """Or an error is raised: here only for ids that `transformers` would change."""
    draw, equal = Random(seed), 0
    for _ in range(15):
        _, files = drawn(draw)
        folder = written(tmp_path / "one", files)
        theirs = auto(folder)
        try:
            ours = opened(folder)
        except DataError as error:
            assert "must have the next free id" in str(error), files
            continue
        about = {k: v for k, v in files.items() if k not in ("tokenizer.json", "vocab.json")}
        assert_same(ours, theirs, about)
        ours.save(tmp_path / "saved")
        assert_same(opened(tmp_path / "saved"), theirs, about)
        equal += 1
    assert equal > 10


# ------------------------------------------------------------------------------ what is said


def bert(folder, lowercase=False, **config):
    content = tokenizer_json("bert", Random(1))
    content["normalizer"] |= {"lowercase": lowercase, "handle_chinese_chars": True}
    config = {"tokenizer_class": "BertTokenizer"} | config
    return written(folder, {"tokenizer.json": content, "tokenizer_config.json": config})


def test_tokens_beyond_the_models_vocabulary_are_left_out_with_a_warning(tmp_path):
    size = len(WORDPIECES)
    folder = bert(tmp_path / "bert", do_lower_case=False, additional_special_tokens=["<a>", "<b>"])
    assert Tokenizer.load(folder).encode("<a><b>").ids[-2:] == [size, size + 1]
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "vocab_size": size + 1}))
    with pytest.warns(UserWarning, match=r"'<b>' would be added .* has only \d+ ids"):
        tokenizer = Tokenizer.load(folder)
    assert tokenizer.vocab_size == size + 1 and tokenizer.encode("<a>").ids == [size]
    check_tokenizer(tokenizer, {"vocab_size": size + 1})


def test_added_tokens_missing_from_the_settings_raise_an_error(tmp_path):
    content = tokenizer_json("bert", Random(1))
    number = len(WORDPIECES)
    one = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
    content["added_tokens"] = [{"id": number, "content": "<a>", "special": True, **one}]
    config = {"tokenizer_class": "BertTokenizer", "added_tokens_decoder": {}}
    folder = written(tmp_path / "one", {"tokenizer.json": content, "tokenizer_config.json": config})
    with pytest.raises(DataError, match="'<a>' must have the id .* but has none"):
        Tokenizer.load(folder)
    content["added_tokens"][0]["id"] = number + 5
    written(folder, {"tokenizer.json": content})
    with pytest.raises(DataError, match=f"'<a>' must have the next free id, {number}, not"):
        Tokenizer.load(folder)


def test_clean_up_and_max_length_follow_the_settings(tmp_path):
    content = tokenizer_json("bert", Random(1)) | {"decoder": {"type": "WordPiece", "prefix": "##",
                                                               "cleanup": False}}  # fmt: skip
    folder = tmp_path / "one"
    for cleans in (True, False):
        config = {"clean_up_tokenization_spaces": cleans, "model_max_length": 7}
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
        written(folder, {"tokenizer.json": content, "tokenizer_config.json": config})
        ours, theirs = Tokenizer.load(folder), auto(folder)
        ids = ours.encode("a , b . c ' s d n't ? !").ids
        assert ours.decode(ids) == theirs.decode(ids)
        ours.save(tmp_path / "saved", max_length=64)
        again = Tokenizer.load(tmp_path / "saved")
        assert (again.clean_up_spaces, again.max_length) == (cleans, 7)
    (folder / "tokenizer_config.json").write_text(f'{{"model_max_length": {10**30}}}')
    assert Tokenizer.load(folder).max_length is None  # "no limit", which needs 100 bits


def test_files_of_marian_that_do_not_fit_are_an_error_unless_there_is_a_tokenizer_json(tmp_path):
    for name in ("source.spm", "target.spm"):
        (tmp_path / name).write_bytes(b"\x0a")
    (tmp_path / "config.json").write_text('{"model_type": "marian"}')
    (tmp_path / "vocab.json").write_text('{"</s>": 0, "a": 1, "<pad>": 2}')
    with pytest.raises(DataError, match=r"vocab.json: the unk token '<unk>' is missing"):
        Tokenizer.load(tmp_path)
    vocab = (tmp_path / "vocab.json").rename(tmp_path / "other.json")
    with pytest.raises(DataError, match="vocab.json is missing"):
        Tokenizer.load(tmp_path)
    vocab.rename(tmp_path / "vocab.json")
    content = json.dumps(tokenizer_json("marian", Random(1)))
    (tmp_path / "tokenizer.json").write_text(content)
    assert Tokenizer.load(tmp_path).kind == "unigram"  # once it was converted


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


def template(single):
    a, b = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    parts = [a if part == "A" else b if part == "B" else
             {"SpecialToken": {"id": part, "type_id": 0}} for part in single]  # fmt: skip
    return {"type": "TemplateProcessing", "single": parts, "pair": [a, b],
            "special_tokens": {}}  # fmt: skip


def vocabulary(**pieces):
    return {"model": {**WORDS, "vocab": pieces | {"<unk>": 2}}}


AT_LOAD = {
    "a regular expression that is none": {"pre_tokenizer": split("(")},
    "a table that is empty": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}},
    "an unknown type": {"normalizer": {"type": "NoSuchNormalizer"}},
    "an id of 32 bits": vocabulary(a=2**32 - 1),
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
    "a template without a text": {"post_processor": template([])},
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
def test_a_rule_that_fails_on_a_text_is_an_error(tmp_path, name):
    tokenizer = Tokenizer.load(folder_with(tmp_path, AT_USE[name]))
    text = "x" * 60
    with pytest.raises(RegardError, match="a text cannot be encoded by this tokenizer.json"):
        tokenizer.encode(text)
    with pytest.raises(RegardError, match="a text cannot be encoded by this tokenizer.json"):
        tokenizer.encode_many(["", text, "a"])
    assert tokenizer.encode("").ids == []


def test_padding_and_truncation_of_a_file_are_not_applied(tmp_path):
    cut = {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0}
    padded = {"strategy": {"Fixed": 2**40}, "direction": "Left", "pad_to_multiple_of": 0}
    padded |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "a"}
    change = {"truncation": cut, "padding": padded, "pre_tokenizer": split(" ")}
    tokenizer = Tokenizer.load(folder_with(tmp_path, change))
    assert tokenizer.encode("b a").ids == [1, 2, 0]


def test_a_token_is_not_added_to_ids_that_are_not_contiguous(tmp_path):
    vocab = {"a": 0, "b": 3, "<unk>": 2}
    tokenizer = Tokenizer.load(folder_with(tmp_path, {"model": {**WORDS, "vocab": vocab}}))
    with pytest.raises(RegardError, match="'<new>' cannot be added: the ids .* are not contiguous"):
        tokenizer.with_special_tokens(["<new>"])
