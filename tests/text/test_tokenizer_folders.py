"""Folders with drawn settings have the ids that `AutoTokenizer` gives them."""

from __future__ import annotations

import json
import warnings
from random import Random

import pytest
from drawn_folders import TEXTS, WORDPIECES, drawn, tokenizer_json
from hard_texts import HARD

from regard.errors import DataError
from regard.text import Tokenizer
from regard.text.compatibility import check_tokenizer


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


def test_the_class_decides_the_parts_of_a_file(tmp_path):
    folder = bert(tmp_path / "bert")
    assert Tokenizer.load(folder).words("A") == ["a"]
    assert Tokenizer.load(bert(folder, do_lower_case=False)).words("A") == ["A"]
    plain = bert(folder, tokenizer_class="PreTrainedTokenizerFast", do_lower_case=True)
    assert Tokenizer.load(plain).words("A") == ["A"]


def test_a_file_for_another_model_type_than_its_class_is_used_with_a_warning(tmp_path):
    folder = bert(tmp_path / "bert", tokenizer_class="GPT2Tokenizer")
    with pytest.warns(UserWarning, match="GPT2Tokenizer is for a model of type BPE, but the file"):
        assert Tokenizer.load(folder).words("A") == ["A"]


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
