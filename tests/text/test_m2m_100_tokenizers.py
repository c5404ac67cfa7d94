"""M2M-100's tokenizers against `transformers`, and a folder of theirs in one command."""

from __future__ import annotations

import io
import json
import pickle
import sys
from pathlib import Path

import pytest
import torch

import regard
from regard.errors import DataError
from regard.text import Tokenizer
from regard.text.m2m_100 import LANGUAGES

transformers = pytest.importorskip("transformers")
sentencepiece = pytest.importorskip("sentencepiece")
sys.path.insert(0, str(Path(__file__).parents[1] / "tasks"))
from opus_folders import ENGLISH, GERMAN  # noqa: E402

TEXTS = [
    *ENGLISH, *GERMAN, "", " ", "the  cat ", "хорошо the", "ß the 日本", "café ﬁ 1/2 … “quoted”",
    "a\tb\nc", "aée", "aaaa bbbb", "</s> the", "the<pad>cat </s>a", "<unk>", "__fr__ the",
    "__en__a", "thethethe --- ....", "\u0065\u0301t\u00e9",
]  # fmt: skip


def write_tokenizer(folder: Path, kind: str = "bpe", **config: object) -> None:
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
@pytest.mark.parametrize("codes", ["m2m100", "wmt21"])
@pytest.mark.parametrize("listed", [False, True], ids=["", "listed"])
def test_ids_and_languages_are_those_of_transformers(kind, codes, listed, tmp_path):
    names = {"additional_special_tokens": [f"__{code}__" for code in LANGUAGES[codes]]}
    write_tokenizer(tmp_path, kind, language_codes=codes, src_lang="de", **names if listed else {})
    ours = Tokenizer.load(tmp_path)
    theirs = transformers.M2M100Tokenizer.from_pretrained(tmp_path)
    found = ours.encode_many(TEXTS)
    for text, ids in zip(TEXTS, found, strict=True):
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


def test_a_saved_tokenizer_is_the_same_there_and_here(tmp_path):
    write_tokenizer(tmp_path / "a", src_lang="fr")
    ours = Tokenizer.load(tmp_path / "a")
    ours.save(tmp_path / "b")
    theirs = transformers.M2M100Tokenizer.from_pretrained(tmp_path / "b")
    for copy in (Tokenizer.load(tmp_path / "b"), pickle.loads(pickle.dumps(ours))):
        assert copy.encode_many(TEXTS) == ours.encode_many(TEXTS)
        assert copy.fingerprint() == ours.fingerprint() and copy.template == ours.template
    assert [theirs(t).input_ids[1:-1] for t in TEXTS] == ours.encode_many(TEXTS)


def test_a_folder_opens_in_one_command_translates_and_is_trained_further(tmp_path):
    write_tokenizer(tmp_path / "m2m")
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


@pytest.mark.parametrize(
    "change, said",
    [
        ({"src_lang": "xx"}, "`src_lang` must be one of af, am"),
        ({"additional_special_tokens": ["__fr__", "__en__"]}, "must name all languages, __af__ to"),
        ({"language_codes": "wmt30"}, "`language_codes` must be one of m2m100, wmt21"),
    ],
)
def test_a_language_that_there_is_not_is_refused_by_name(change, said, tmp_path):
    write_tokenizer(tmp_path, **change)
    with pytest.raises(DataError, match=said):
        Tokenizer.load(tmp_path)
