"""Sources and targets with a vocabulary each: trained, saved, loaded and exported."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

import regard
from regard.errors import RegardError
from regard.text import Tokenizer

PAIRS = [("ein alter hund", "an old dog"), ("die katze schläft", "the cat sleeps")] * 8
MODEL = dict(name="transformer", d_model=8, d_ff=8, heads=2, encoder_layers=1, decoder_layers=1)


def trained(folder: Path, **tokenizer: object) -> regard.Run:
    return regard.train(
        task="translation", train=PAIRS, valid=PAIRS, model=dict(MODEL, max_length=32),
        tokenizer={"vocab_size": 60, **tokenizer}, max_steps=2, progress=False, out=folder,
    )  # fmt: skip


def test_a_pair_of_tokenizers_is_trained_saved_loaded_and_exported(tmp_path):
    run = trained(tmp_path / "run", shared=False)
    task = run.model
    source, target = task.tokenizer, task.tokenizer.for_targets
    assert "katze</w>" not in target.vocab() and "cat</w>" not in source.vocab()
    assert task.module.config.source_vocab_size == source.vocab_size
    assert task.module.config.vocab_size == target.vocab_size
    task.save(tmp_path / "saved")
    again = regard.load(tmp_path / "saved")
    text = "ein alter hund"
    assert again.translate(text, max_tokens=5) == task.translate(text, max_tokens=5)
    assert again.tokenizer.fingerprint() == pickle.loads(pickle.dumps(source)).fingerprint()
    assert again.tokenizer.decode(target.encode("the cat").ids) == "the cat"
    assert source.with_eos_template().for_targets is target
    made = regard.export(tmp_path / "saved", "onnx", check=True)
    assert (
        Tokenizer.load(made.path.parent if made.path.is_file() else made.path).for_targets.vocab()
        == target.vocab()
    )


def test_a_model_with_two_vocabularies_does_not_open_with_one_tokenizer(tmp_path):
    trained(tmp_path / "run", shared=False).model.save(tmp_path / "saved")
    for file in (tmp_path / "saved/target_tokenizer").iterdir():
        file.unlink()
    (tmp_path / "saved/target_tokenizer").rmdir()
    with pytest.raises(RegardError, match="vocabulary of its own for sources"):
        regard.load(tmp_path / "saved")


def test_a_new_single_tokenizer_replaces_a_pair_in_a_folder(tmp_path):
    one = Tokenizer.train(["a cat"], kind="words", vocab_size=9)
    one.targets = Tokenizer.train(["ein hund"], kind="words", vocab_size=9)
    one.save(tmp_path)
    assert Tokenizer.load(tmp_path).for_targets.vocab() == one.targets.vocab()
    one.targets.save(tmp_path)
    assert Tokenizer.load(tmp_path).targets is None
    assert json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]


CODES = "#version: 0.2\nl o\nlo w</w>\ne r</w>\nn e\n"
WORDS = "low 9\nlo@@ 5\ner 4\nne@@ 3\nw@@ 2\n"


def test_fairseq_dictionaries_with_codes_are_read_as_subword_nmt_writes_them(tmp_path):
    """lower -> lo@@ w@@ er, newer -> ne@@ w@@ er; the first four ids are in no file."""
    (tmp_path / "dict.txt").write_text(WORDS)
    (tmp_path / "bpecodes").write_text(CODES)
    ours = Tokenizer.load(tmp_path)
    text = "low lower newer lux"
    tokens = ["low", "lo@@", "w@@", "er", "ne@@", "w@@", "er", "l@@", "<unk>", "<unk>"]
    assert ours.encode(text).tokens[:7] == tokens[:7]
    assert ours.encode(text).ids == [4, 5, 8, 6, 7, 8, 6, 3, 3, 3]
    assert ours.encode_many([text, "low"]) == [ours.encode(text).ids, [4]]
    assert ours.decode([0, 4, 5, 8, 6, 2, 1]) == "low lower"
    (tmp_path / "dict.de.txt").write_text("tief 3\n")
    (tmp_path / "words").mkdir()
    (tmp_path / "words/dict.de.txt").write_text("tief 3\n")
    ours.targets = Tokenizer.load(tmp_path / "words/dict.de.txt")
    ours.save(tmp_path / "saved")
    again = Tokenizer.load(tmp_path / "saved")
    assert again.encode(text).ids == ours.encode(text).ids and again.eos_id == 2
    assert again.for_targets.encode("tief hoch").ids == [4, 3] and again.decode([4]) == "tief"
    (tmp_path / "dict.txt").write_text("low 9\nlow 2\n")
    with pytest.raises(RegardError, match=r"dict.txt:2: must be a token that is new and its count"):
        Tokenizer.load(tmp_path)
