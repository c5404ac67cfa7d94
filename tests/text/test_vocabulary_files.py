"""Malformed files are refused by file and line, others are read with their settings.

By `regard.text.vocab_files` and `regard.text.published`.
"""

from __future__ import annotations

import json
import pickle

import pytest
import transformers
from tokenizers import pre_tokenizers

from regard import text
from regard.errors import DataError
from regard.text import Tokenizer

BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##aff", "##able"]
BYTES = {char: i for i, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}


def bert(tmp_path, lines):
    path = tmp_path / "vocab.txt"
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogateescape") + b"\n")
    return path


def gpt2(tmp_path, vocab, merges):
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    if merges is not None:
        (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    return tmp_path


def settings(tmp_path, **stated):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(stated))
    return tmp_path


def test_bytes_are_merged_inside_of_words_alone(tmp_path):
    folder = gpt2(tmp_path, BYTES | {"aĠ": 256}, ["a Ġ"])
    ids = [BYTES[byte] for byte in "aĠb"]
    assert Tokenizer.load(folder).encode("a b").ids == ids
    Tokenizer.load(folder).save(folder)
    (folder / "vocab.json").unlink()
    settings(folder, tokenizer_class="GPT2Tokenizer")
    assert Tokenizer.load(folder).encode("a b").ids == ids


@pytest.mark.parametrize("asked", ["bos", "eos", "bos eos"])
def test_bos_and_eos_are_added_as_the_settings_say(tmp_path, asked):
    ends = BYTES | {"<b>": 256, "<e>": 257}
    folder = gpt2(tmp_path, ends, [])
    stated = {f"add_{role}_token": True for role in asked.split()}
    names = {"bos_token": "<b>", "eos_token": "<e>", "unk_token": "<e>"}
    settings(folder, tokenizer_class="GPT2Tokenizer", **names, **stated)
    ours = Tokenizer.load(folder)
    theirs = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(folder)
    template = ours.template
    for texts in (["ab"], ["ab", "c"]):
        row, wanted = template.apply(ours.encode_many(texts)), theirs(*texts)
        assert row.ids == wanted["input_ids"]
    ours.save(tmp_path / "saved")
    again = Tokenizer.load(tmp_path / "saved")
    assert again.template == template
    assert again.encode("ab").ids == ours.encode("ab").ids == [BYTES["a"], BYTES["b"]]
    settings(folder, **{**names, f"{asked.split()[0]}_token": None}, **stated)
    with pytest.raises(DataError, match=f"`add_{asked.split()[0]}_token` asks for a"):
        Tokenizer.load(folder)


def test_padding_and_truncation_sides_are_saved_again(tmp_path):
    transformers = pytest.importorskip("transformers")
    (tmp_path / "one").mkdir()
    folder = bert(tmp_path / "one", BERT).parent
    settings(folder, padding_side="left", truncation_side="left")
    Tokenizer.load(folder).save(tmp_path / "two")
    pickle.loads(pickle.dumps(Tokenizer.load(tmp_path / "two"))).save(tmp_path / "three")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "three")
    assert theirs.padding_side == theirs.truncation_side == "left"
    settings(folder, padding_side="middle")
    with pytest.raises(DataError, match="`padding_side` must be 'left' or 'right'"):
        Tokenizer.load(folder)


def test_saving_over_another_tokenizer_removes_its_files(tmp_path):
    tokenizer = Tokenizer.load(bert(tmp_path, BERT))
    for name, content in (
        ("special_tokens_map.json", {"pad_token": "[MASK]", "bos_token": "[CLS]"}),
        ("added_tokens.json", {"<drug>": 8}),
    ):
        (tmp_path / name).write_text(json.dumps(content))
    tokenizer.save(tmp_path)
    assert Tokenizer.load(tmp_path).roles == tokenizer.roles
    theirs = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.pad_token == "[PAD]" and "<drug>" not in theirs.get_vocab()


def test_roles_are_recognized_without_tokenizer_config(tmp_path):
    text.train("words", ["a b"], 20).save(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    again = Tokenizer.load(tmp_path)
    assert (again.kind, again.pad_id, again.eos_id) == ("words", 0, 2)
    for kind in ("bpe", "byte-bpe", "wordpiece", "characters"):
        text.train(kind, ["a b"], 300).save(tmp_path / kind)
        (tmp_path / kind / "tokenizer_config.json").unlink()
        assert Tokenizer.load(tmp_path / kind).kind == kind


def test_fields_beside_the_special_tokens_are_read_as_in_transformers(tmp_path):
    vocab = BYTES | {"<s>": len(BYTES), "</s>": len(BYTES) + 1}
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "</s>"}
    for name, content in {"vocab.json": json.dumps(vocab), "merges.txt": "#version: 0.2\n"}.items():
        (tmp_path / name).write_text(content)
    settings(tmp_path, tokenizer_class="GPT2Tokenizer", **names)
    (tmp_path / "special_tokens_map.json").write_text('{"add_bos_token": true}')
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = Tokenizer.load(tmp_path)
    assert ours.template.apply([ours.encode("ab").ids]).ids == theirs("ab")["input_ids"]
