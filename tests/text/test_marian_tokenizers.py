"""Tokenizers of Marian and M2M-100 equal those of transformers."""

from __future__ import annotations

import io
import json
import pickle
import sys
from pathlib import Path

import pytest
import torch

import regard
from regard.text import Tokenizer
from regard.text.piece_tokenizer import LANGUAGE_TOKENS

transformers = pytest.importorskip("transformers")
sentencepiece = pytest.importorskip("sentencepiece")
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


def assert_same_translations(model, theirs, task, texts) -> list[list[int]]:
    """The tokens of both; those of `transformers` are given back."""
    rows = theirs(texts, return_tensors="pt", padding=True)
    wanted = model.generate(**rows).tolist()
    for row, hypotheses in zip(wanted, task.hypotheses(texts), strict=True):
        ended = row.index(0) if 0 in row else len(row)
        assert [i for i in hypotheses[0].tokens if i] == row[1:ended]
    return wanted


def test_a_folder_opens_in_one_command_and_translates_as_transformers_does(folder):
    model = transformers.MarianMTModel.from_pretrained(folder)
    theirs = transformers.MarianTokenizer.from_pretrained(folder)
    task = regard.load(folder, device="cpu")
    texts = [f"{code} {text}" for text in ENGLISH for code in CODES]
    assert_same_translations(model, theirs, task, texts)


def test_a_saved_tokenizer_is_the_same_there_and_here(folder, tmp_path):
    ours = Tokenizer.load(folder)
    ours.save(tmp_path)
    again, theirs = Tokenizer.load(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    copied = pickle.loads(pickle.dumps(ours))
    for tokenizer in (again, copied):
        assert tokenizer.encode_many(TEXTS) == ours.encode_many(TEXTS)
        assert tokenizer.fingerprint() == ours.fingerprint()
    assert [theirs(text).input_ids[:-1] for text in TEXTS] == ours.encode_many(TEXTS)


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
    wanted = assert_same_translations(model, theirs, task, texts)
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


M2M_TEXTS = [
    *ENGLISH, *GERMAN, "", " ", "the  cat ", "хорошо the", "ß the 日本", "café ﬁ 1/2 … “quoted”",
    "a\tb\nc", "aée", "aaaa bbbb", "</s> the", "the<pad>cat </s>a", "<unk>", "__fr__ the",
    "__en__a", "thethethe --- ....", "\u0065\u0301t\u00e9",
]  # fmt: skip


def write_m2m_tokenizer(folder: Path, kind: str = "bpe", **config: object) -> None:
    """Their files, without some pieces of the model."""
    folder.mkdir(parents=True, exist_ok=True)
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter((ENGLISH + GERMAN) * 4), model_writer=written, vocab_size=110,
        model_type=kind, hard_vocab_limit=False, minloglevel=2, num_threads=1,
    )  # fmt: skip
    (folder / "sentencepiece.bpe.model").write_bytes(written.getvalue())
    model = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    pieces = [model.id_to_piece(i) for i in range(3, model.get_piece_size())]
    vocab = ["<s>", "<pad>", "</s>", "<unk>", *sorted(pieces[:20] + pieces[23:])]
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(vocab)}))
    settings = {"tokenizer_class": "M2M100Tokenizer"} | config
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("listed", [False, True], ids=["", "listed"])
def test_ids_and_languages_are_those_of_transformers(kind, listed, tmp_path):
    names = {"additional_special_tokens": LANGUAGE_TOKENS}
    write_m2m_tokenizer(tmp_path, kind, src_lang="de", **names if listed else {})
    ours = Tokenizer.load(tmp_path)
    theirs = transformers.M2M100Tokenizer.from_pretrained(tmp_path)
    found = ours.encode_many(M2M_TEXTS)
    for text, ids in zip(M2M_TEXTS, found, strict=True):
        expected = theirs(text).input_ids
        assert ours.template.apply([ids]).ids == expected, text
        assert ids == ours.encode(text).ids and len(ours.encode(text).offsets) == len(ids)
    for text in ENGLISH:
        ids = theirs(text).input_ids[1:]  # unless they are listed, theirs spells languages out
        if 3 not in ids:  # ours shows what was lost
            assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    for language in ("en", "ja", "cs"):
        assert ours.id(f"__{language}__") == theirs.get_lang_id(language)
    assert ours.vocab_size == len(theirs.encoder) + len(theirs.lang_code_to_id)


def test_a_saved_m2m_tokenizer_is_the_same_there_and_here(tmp_path):
    write_m2m_tokenizer(tmp_path / "a", src_lang="fr")
    ours = Tokenizer.load(tmp_path / "a")
    ours.save(tmp_path / "b")
    theirs = transformers.M2M100Tokenizer.from_pretrained(tmp_path / "b")
    for copy in (Tokenizer.load(tmp_path / "b"), pickle.loads(pickle.dumps(ours))):
        assert copy.encode_many(M2M_TEXTS) == ours.encode_many(M2M_TEXTS)
        assert copy.fingerprint() == ours.fingerprint() and copy.template == ours.template
    assert [theirs(t).input_ids[1:-1] for t in M2M_TEXTS] == ours.encode_many(M2M_TEXTS)


def test_a_folder_opens_in_one_command_translates_and_is_trained_further(tmp_path):
    write_m2m_tokenizer(tmp_path / "m2m")
    theirs = transformers.M2M100Tokenizer.from_pretrained(tmp_path / "m2m")
    torch.manual_seed(0)
    size = len(theirs.encoder) + 100 + 8
    model = transformers.M2M100ForConditionalGeneration(
        transformers.M2M100Config(
            vocab_size=size, d_model=16, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=20,
            decoder_ffn_dim=20, encoder_attention_heads=2, decoder_attention_heads=2, init_std=0.7,
            max_position_embeddings=64,
        )
    ).eval()  # fmt: skip
    model.generation_config = transformers.GenerationConfig(
        decoder_start_token_id=2, pad_token_id=1, eos_token_id=2, num_beams=3, max_length=12
    )
    model.save_pretrained(tmp_path / "m2m")
    task = regard.load(tmp_path / "m2m", device="cpu")
    rows = theirs(ENGLISH, return_tensors="pt", padding=True)
    wanted = model.generate(**rows, forced_bos_token_id=theirs.get_lang_id("de")).tolist()
    for row, several in zip(wanted, task.hypotheses(ENGLISH, target_language="de"), strict=True):
        ids = row[1:]
        ids = ids[: ids.index(2)] if 2 in ids else [i for i in ids if i != 1]
        assert several[0].tokens == ids
    pairs = list(zip(ENGLISH, GERMAN, strict=True)) * 3
    regard.train(
        task="translation", model=str(tmp_path / "m2m"), train=pairs, valid=0.25, epochs=1,
        source_language="en", target_language="de", progress=False, out=tmp_path / "run",
    )  # fmt: skip
    assert (tmp_path / "run" / "model" / "sentencepiece.bpe.model").exists()
    regard.load(tmp_path / "run").translate(["the cat"])
