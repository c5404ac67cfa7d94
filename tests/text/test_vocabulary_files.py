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
from regard.text.templates import Template

BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##aff", "##able"]
BYTES = {char: i for i, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}


def assert_located_error(path, line, message):
    with pytest.raises(DataError, match=message) as refusal:
        Tokenizer.load(path)
    assert refusal.value.line == line
    assert refusal.value.path.startswith(str(path if path.is_file() else path.parent))


def bert(tmp_path, lines):
    path = tmp_path / "vocab.txt"
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogateescape") + b"\n")
    return path


def gpt2(tmp_path, vocab, merges):
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    if merges is not None:
        (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    return tmp_path


def test_a_bert_vocabulary_encodes_by_longest_match(tmp_path):
    path = bert(tmp_path, BERT)
    tokenizer = Tokenizer.load(path)
    assert tokenizer.encode("Unaffable").tokens == ["un", "##aff", "##able"]
    windows = path.with_name("windows.txt")
    windows.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert Tokenizer.load(windows).fingerprint() == tokenizer.fingerprint()


def test_cased_vocabularies_are_recognized_by_capitals_or_stated(tmp_path):
    path = bert(tmp_path, [*BERT, "The"])
    assert Tokenizer.load(path).encode("The").tokens == ["The"]
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    assert Tokenizer.load(tmp_path).encode("The").tokens == ["[UNK]"]


def settings(tmp_path, **stated):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(stated))
    return tmp_path


def test_accents_and_chinese_characters_follow_the_settings(tmp_path):
    bert(tmp_path, [*BERT, "é", "e", "中", "##中"])
    for stated, pieces in (
        ({}, ["e", "中", "中"]),
        ({"strip_accents": False}, ["é", "中", "中"]),
        ({"strip_accents": True, "do_lower_case": False}, ["e", "中", "中"]),
        ({"tokenize_chinese_chars": False}, ["e", "中", "##中"]),
    ):
        assert Tokenizer.load(settings(tmp_path, **stated)).encode("é 中中").tokens == pieces


def test_special_tokens_have_the_names_in_the_settings(tmp_path):
    names = dict(unk="<unk>", cls="<cls>", sep="<end>", pad="<none>", mask="[X]")
    folder = bert(tmp_path, [*names.values(), "C", "##O"]).parent
    stated = {f"{role}_token": name for role, name in names.items()} | {"bos_token": "<absent>"}
    (folder / "special_tokens_map.json").write_text(json.dumps(stated))
    settings(folder, cls_token={"content": "<cls>", "lstrip": False})
    tokenizer = Tokenizer.load(folder)
    assert [getattr(tokenizer, f"{role}_id") for role in names] == [0, 1, 2, 3, 4]
    assert tokenizer.encode("CO N [X]").ids == [5, 6, 0, 4]
    assert tokenizer.bos_id == 7 == tokenizer.vocab_size - 1  # as `transformers` numbers it
    (folder / "config.json").write_text('{"vocab_size": 7}')
    with pytest.warns(UserWarning, match="'<absent>' would be added .* has only 7 ids"):
        assert Tokenizer.load(folder).bos_id is None
    template = tokenizer.template
    assert template == Template.bert(1, 2)
    (folder / "special_tokens_map.json").unlink()
    settings(folder, cls_token=7)
    with pytest.raises(DataError, match="`cls_token` must be a string, but is 7"):
        Tokenizer.load(folder)


def test_add_prefix_space_follows_the_settings(tmp_path):
    folder = gpt2(tmp_path, BYTES | {"Ġa": 256}, ["Ġ a"])
    assert Tokenizer.load(folder).encode("a").tokens == ["a"]
    assert Tokenizer.load(settings(folder, add_prefix_space=True)).encode("a").tokens == ["Ġa"]


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


def test_roberta_mask_includes_the_space_before_it_unless_the_settings_differ(tmp_path):
    pieces = {"<s>": 256, "</s>": 257, "<pad>": 258, "<unk>": 259, "<mask>": 260}
    folder = gpt2(tmp_path, BYTES | pieces, [])
    assert Tokenizer.load(folder).encode("a <mask>").ids == [BYTES["a"], 260]
    settings(folder, mask_token={"content": "<mask>", "lstrip": False})
    assert Tokenizer.load(folder).encode("a <mask>").ids == [BYTES["a"], BYTES["Ġ"], 260]


def test_added_tokens_of_files_extend_the_vocabulary(tmp_path):
    path = bert(tmp_path, BERT)
    (tmp_path / "added_tokens.json").write_text('{"<drug>": 9, "ace2": 8}')
    assert Tokenizer.load(path).encode("un<drug> ACE2").ids == [5, 9, 8]
    (tmp_path / "added_tokens.json").write_text('{"<drug>": 9}')
    with pytest.raises(DataError, match="'<drug>' must have the next free id, 8, not 9"):
        Tokenizer.load(path)


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


def test_missing_files_raise_errors_that_name_them(tmp_path):
    (tmp_path / "vocab.txt.gz").touch()
    assert_located_error(
        tmp_path / "vocab.txt", None, "no such file.* Its folder holds vocab.txt.gz"
    )
    assert_located_error(tmp_path / "no" / "vocab.txt", None, "no such file")
    with pytest.raises(DataError, match="the folder must have tokenizer.json.* has vocab.txt.gz"):
        Tokenizer.load(tmp_path)
    assert_located_error(tmp_path / "vocab.txt.gz", None, "not a known kind")
    (tmp_path / "spiece.model").touch()
    assert_located_error(tmp_path / "spiece.model", None, "is not a SentencePiece model")


def test_malformed_vocab_txt_raises_located_errors(tmp_path):
    assert_located_error(
        bert(tmp_path, [*BERT, "un"]), 9, "must be a token that is on no line before, but is 'un'"
    )
    assert_located_error(bert(tmp_path, [*BERT[:6], "", *BERT[6:]]), 7, "must be a token")
    assert_located_error(bert(tmp_path, [*BERT, "\udcff"]), 9, "byte 0xff is not UTF-8")
    assert_located_error(bert(tmp_path, BERT[3:]), None, r"the token \[UNK\] is missing")
    assert_located_error(bert(tmp_path, []), 1, "must be a token")


def test_malformed_merges_raise_located_errors(tmp_path):
    vocab = BYTES | {"th": 256, "the": 257}
    assert Tokenizer.load(gpt2(tmp_path, vocab, ["t h", "th e"])).encode("the").ids == [257]
    merges = tmp_path / "merges.txt"

    def wrong(lines, line, message):
        gpt2(tmp_path, vocab, lines)
        with pytest.raises(DataError, match=message) as refusal:
            Tokenizer.load(tmp_path)
        assert (refusal.value.path, refusal.value.line) == (str(merges), line)

    wrong(["t h", "th"], 3, "two tokens that make a third one, but is 'th'")
    wrong(["t h", "t h e"], 3, "two tokens")
    wrong(["t h", "", "th e"], 3, "two tokens")
    wrong(["t h", "th e", "t h"], 4, "two tokens")
    wrong(["t h", "th x"], 3, "two tokens")


def test_malformed_vocab_json_raises_located_errors(tmp_path):
    path = gpt2(tmp_path, BYTES, []) / "vocab.json"
    path.write_text('{"a": 0,\n "b": 1,\n "c" 2}')
    assert_located_error(path, 3, "is not JSON: expected `:`")
    path.write_text('{"a": 0, "b": 0}')
    assert_located_error(path, None, "ids of its tokens must be different")
    path.write_text('{"a": 0, "b": "1"}')
    assert_located_error(path, None, "ids of its tokens must be different whole numbers")
    path.write_text("[1]")
    assert_located_error(path, None, "must be a JSON object, but is a list")
    path.write_text('{"a": 0, "b": 1}')
    assert_located_error(path, None, "254 of the 256 byte tokens are missing")
    path.write_text('{"a</w>": 0, "b": 1}')
    assert_located_error(path, None, "the token <unk> is missing")


def test_malformed_tokenizer_json_raises_located_errors(tmp_path):
    text.train("words", ["a b"], 20).save(tmp_path)
    path = tmp_path / "tokenizer.json"
    good = path.read_text()
    path.write_text(good[: len(good) // 2])
    with pytest.raises(DataError, match="is not JSON") as refusal:
        Tokenizer.load(tmp_path)
    assert refusal.value.line > 1
    path.write_text(good.replace("WordLevel", "WordLevle"))
    assert_located_error(path, None, "is not a valid tokenizer.json")
    path.write_text("{}")
    assert_located_error(path, None, "is not a valid tokenizer.json")
    path.write_text(good)
    config = tmp_path / "tokenizer_config.json"
    config.write_text(config.read_text().replace("<pad>", "<blank>"))
    with pytest.raises(DataError, match="pad token '<blank>' is not in the vocabulary"):
        Tokenizer.load(tmp_path)


def test_roles_are_recognized_without_tokenizer_config(tmp_path):
    text.train("words", ["a b"], 20).save(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    again = Tokenizer.load(tmp_path)
    assert (again.kind, again.pad_id, again.eos_id) == ("words", 0, 2)
    for kind in ("bpe", "byte-bpe", "wordpiece", "characters"):
        text.train(kind, ["a b"], 300).save(tmp_path / kind)
        (tmp_path / kind / "tokenizer_config.json").unlink()
        assert Tokenizer.load(tmp_path / kind).kind == kind


def test_words_of_transformer_xl_are_read_from_vocab_txt(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("<eos>\nthe\n,\n<unk>\nOld\n@,@\n")
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.kind == "words" and (tokenizer.eos_id, tokenizer.unk_id) == (0, 3)
    assert tokenizer.encode("the Old , sea  @,@ old").ids == [1, 4, 2, 3, 5, 3]
    assert tokenizer.decode([1, 4, 2]) == "the Old ,"
    tokenizer.save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").encode("the Old sea").ids == [1, 4, 3]
    path.write_text("<eos>\nthe\n")
    with pytest.raises(DataError, match="<unk>"):
        Tokenizer.load(tmp_path)


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
