"""Marian's tokenizers against `transformers`, and folders of OPUS-MT in one command."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

import pytest
import torch

import regard
from regard.errors import DataError
from regard.text import Tokenizer

transformers = pytest.importorskip("transformers")
pytest.importorskip("sentencepiece")
sys.path.insert(0, str(Path(__file__).parents[1] / "tasks"))
from opus_folders import (  # noqa: E402
    CODES,
    ENGLISH,
    GERMAN,
    TARGET_VOCAB,
    write_folder,
    write_separate_folder,
    write_tokenizer,
)

TEXTS = [
    *ENGLISH, *GERMAN, ">>deu<< the cat", ">>fra<<a dog", ">>xyz<< the", "", " ", "the  cat ",
    "хорошо the", "ß the 日本", "café ﬁ",
    "Häuser 1/2 … “quoted”", "a\tb\nc", ">> the", "x<<y >>deu<<", "aée",
    "</s> the", "the<pad>cat </s>>>deu<< a", "<unk>",
]  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore:Recommended")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("opus")
    write_folder(made)
    return made


def test_ids_of_sources_and_targets_are_those_of_transformers(folder):
    ours = Tokenizer.load(folder)
    theirs = transformers.MarianTokenizer.from_pretrained(folder)
    found, targets = ours.encode_many(TEXTS), ours.for_targets.encode_many(TEXTS)
    for text, ids, target in zip(TEXTS, found, targets, strict=True):
        assert [*ids, 0] == theirs(text).input_ids, text
        assert ids == ours.encode(text).ids
        assert [*target, 0] == theirs(text_target=text).input_ids, text
        encoding = ours.encode(text)
        assert len(encoding.offsets) == len(ids)
    for text in ENGLISH[:2] + GERMAN[1:2]:
        ids = theirs(text_target=text).input_ids
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_a_folder_opens_in_one_command_and_translates_as_transformers_does(folder):
    model = transformers.MarianMTModel.from_pretrained(folder)
    theirs = transformers.MarianTokenizer.from_pretrained(folder)
    task = regard.load(folder, device="cpu")
    texts = [f"{code} {text}" for text in ENGLISH for code in CODES]
    rows = theirs(texts, return_tensors="pt", padding=True)
    wanted = model.generate(**rows).tolist()
    for row, hypotheses in zip(wanted, task.hypotheses(texts), strict=True):
        ended = row.index(0) if 0 in row else len(row)
        assert [i for i in hypotheses[0].tokens if i] == row[1:ended]


def test_a_saved_tokenizer_is_the_same_there_and_here(folder, tmp_path):
    ours = Tokenizer.load(folder)
    ours.save(tmp_path)
    again, theirs = Tokenizer.load(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    copied = pickle.loads(pickle.dumps(ours))
    for tokenizer in (again, copied):
        assert tokenizer.encode_many(TEXTS) == ours.encode_many(TEXTS)
        assert tokenizer.fingerprint() == ours.fingerprint()
    assert [theirs(text).input_ids[:-1] for text in TEXTS] == ours.encode_many(TEXTS)


def test_a_folder_is_trained_further_with_the_pieces_of_each_side(folder, tmp_path):
    pairs = [(f">>deu<< {a}", b) for a, b in zip(ENGLISH, GERMAN, strict=True)] * 3
    run = regard.train(
        task="translation", model=str(folder), train=pairs, valid=0.25, epochs=1,
        progress=False, out=tmp_path / "run",
    )  # fmt: skip
    task = regard.load(tmp_path / "run")
    assert (tmp_path / "run" / "model" / "source.spm").exists()
    texts = [">>deu<< the cat"]
    assert task.translate(texts) == run.model.translate(texts)
    opened = transformers.MarianMTModel.from_pretrained(tmp_path / "run" / "model")
    assert opened.config.model_type == "marian"


def test_vocabularies_of_their_own_are_read_for_each_side(folder, tmp_path):
    write_tokenizer(tmp_path)
    vocab = json.loads((tmp_path / "vocab.json").read_text())
    target = {token: i for i, token in enumerate(reversed(vocab))}
    (tmp_path / "target_vocab.json").write_text(json.dumps(target))
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config["separate_vocabs"] = True
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours = Tokenizer.load(tmp_path)
    theirs = transformers.MarianTokenizer.from_pretrained(
        tmp_path, target_vocab_file=str(tmp_path / "target_vocab.json")
    )
    for text in ENGLISH + GERMAN:
        assert ours.encode(text).ids == theirs(text).input_ids[:-1]
        wanted = theirs(text_target=text).input_ids
        assert ours.for_targets.encode(text).ids == wanted[:-1]
    assert ours.decode(ours.for_targets.encode("ein kleiner").ids) == "ein kleiner"


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_a_folder_with_two_vocabularies_translates_and_is_written_as_it_was(tied, tmp_path):
    model = write_separate_folder(tmp_path / "opus", tied)
    theirs = transformers.MarianTokenizer.from_pretrained(
        tmp_path / "opus", target_vocab_file=str(tmp_path / "opus" / TARGET_VOCAB)
    )
    task = regard.load(tmp_path / "opus", device="cpu")
    config = task.module.config
    assert config.source_vocab_size == model.config.vocab_size
    assert config.vocab_size == model.config.decoder_vocab_size != config.source_vocab_size
    assert (task.module.head.weight is task.module.embedding.weight) == tied
    texts = [f"{code} {text}" for text in ENGLISH for code in CODES]
    rows = theirs(texts, return_tensors="pt", padding=True)
    wanted = model.generate(**rows).tolist()
    for row, hypotheses in zip(wanted, task.hypotheses(texts), strict=True):
        ended = row.index(0) if 0 in row else len(row)
        assert [i for i in hypotheses[0].tokens if i] == row[1:ended]
    targets = theirs(text_target=GERMAN).input_ids
    found = [task.tokenizer.for_targets.encode(text).ids for text in GERMAN]
    assert [[*ids, 0] for ids in found] == targets
    assert task.translate(texts[:2])[0] == theirs.decode(wanted[0], skip_special_tokens=True)
    regard.save(task, tmp_path / "saved")
    again = transformers.MarianMTModel.from_pretrained(tmp_path / "saved")
    labels = theirs(text_target=GERMAN, return_tensors="pt", padding=True)["input_ids"]
    sources = theirs(ENGLISH, return_tensors="pt", padding=True)
    with torch.no_grad():
        one, other = (each.eval()(**sources, labels=labels).logits for each in (model, again))
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    assert regard.load(tmp_path / "saved").translate(texts) == task.translate(texts)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"</s>": None}, "the eos token '</s>' is missing"),
        ({"<unk>": None}, "the unk token '<unk>' is missing"),
        ({"more": 999}, "the ids must be 0, 1, 2"),
    ],
)
def test_a_vocabulary_that_does_not_fit_is_an_error_that_names_it(tmp_path, change, message):
    write_tokenizer(tmp_path)
    vocab = json.loads((tmp_path / "vocab.json").read_text()) | change
    vocab = {token: i for token, i in vocab.items() if i is not None}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    with pytest.raises(DataError, match=f"vocab.json.*{message}"):
        Tokenizer.load(tmp_path)


def test_commands_take_the_languages_of_a_model(folder, capsys):
    from typer.testing import CliRunner

    from regard.cli import app

    def said(*words: str) -> str:
        return CliRunner().invoke(app, [*words]).output

    plain = said("predict", str(folder), "--max-tokens", "5", ">>fra<< a dog")
    words = ("predict", str(folder), "--max-tokens", "5", "--target-language")
    assert said(*words, "fra", "a dog") == plain
    assert "It has: deu, fra." in said(*words, "xx", "a dog")
