"""Folders of mBART and NLLB: their tokenizers, and translation into a language by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from opus_folders import ENGLISH, GERMAN, trained

import regard
from regard.errors import ConfigError, DataError
from regard.text import Tokenizer

transformers = pytest.importorskip("transformers")
pytest.importorskip("sentencepiece")
SIZES = dict(
    d_model=16, encoder_ffn_dim=24, decoder_ffn_dim=32, encoder_layers=1, decoder_layers=2,
    encoder_attention_heads=2, decoder_attention_heads=4, max_position_embeddings=40, init_std=0.4,
    pad_token_id=1, eos_token_id=2, bos_token_id=0,
)  # fmt: skip
TEXTS = ENGLISH


def nllb_tokenizer(legacy: bool = False):
    letters = sorted({c for text in ENGLISH + GERMAN for c in text.replace(" ", "")})
    merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("a", "t"), ("▁", "a")]
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "▁", *letters, *map("".join, merges)]
    vocab = {token: i for i, token in enumerate(dict.fromkeys(tokens))}
    return transformers.NllbTokenizer(
        vocab=vocab, merges=merges, legacy_behaviour=legacy, src_lang="eng_Latn"
    )


def write(folder: Path, kind: str) -> tuple[torch.nn.Module, object]:
    """A folder with a tiny model; returns it and their tokenizer."""
    if kind.startswith("nllb"):
        tokenizer = nllb_tokenizer(legacy=kind == "nllb-legacy")
        tokenizer.save_pretrained(folder)
        config, model = transformers.M2M100Config, transformers.M2M100ForConditionalGeneration
    else:
        (folder / "sentencepiece.bpe.model").write_bytes(trained(ENGLISH + GERMAN, 90))
        name = {"mbart": "MBartTokenizer", "mbart-50": "MBart50Tokenizer"}[kind]
        settings = {"tokenizer_class": name, "src_lang": "en_XX", "tgt_lang": "de_DE"}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        tokenizer = getattr(transformers, name).from_pretrained(folder)
        config, model = transformers.MBartConfig, transformers.MBartForConditionalGeneration
    start = tokenizer.convert_tokens_to_ids("de_DE") if kind == "mbart" else 2
    torch.manual_seed(0)
    made = model(config(vocab_size=len(tokenizer), decoder_start_token_id=start, **SIZES)).eval()
    made.generation_config = transformers.GenerationConfig(
        decoder_start_token_id=start, pad_token_id=1, eos_token_id=2, num_beams=3, max_length=12
    )
    made.save_pretrained(folder)
    return made, tokenizer


LANGUAGES = {"mbart": "de_DE", "mbart-50": "de_DE", "nllb": "deu_Latn", "nllb-legacy": "deu_Latn"}


@pytest.mark.parametrize("kind", LANGUAGES)
def test_translations_into_a_language_are_those_of_transformers(kind, tmp_path):
    model, theirs = write(tmp_path, kind)
    task = regard.load(tmp_path, device="cpu")
    assert task.name == "translation"
    rows = theirs(TEXTS, return_tensors="pt", padding=True)
    template = task.tokenizer.template
    for text, ids, mask in zip(TEXTS, rows.input_ids, rows.attention_mask, strict=True):
        assert template.apply([task.tokenizer.encode(text).ids]).ids == ids[mask.bool()].tolist()
    language = LANGUAGES[kind]
    forced = {} if kind == "mbart" else dict(
        forced_bos_token_id=theirs.convert_tokens_to_ids(language)
    )  # fmt: skip
    wanted = model.generate(**rows, **forced).tolist()
    found = task.hypotheses(TEXTS, target_language=language)
    for row, hypotheses in zip(wanted, found, strict=True):
        ids = row[1:]
        ids = ids[: ids.index(2)] if 2 in ids else [i for i in ids if i != 1]
        assert hypotheses[0].tokens == ids
    with pytest.raises(ConfigError, match=f"It has: .*{language}"):
        task.translate(TEXTS, target_language="xx")
    if kind != "mbart":
        with pytest.raises(ConfigError, match="Give `target_language`"):
            task.translate(TEXTS)


def test_the_ids_of_mbart_are_those_of_transformers(tmp_path):
    for kind in ("mbart", "mbart-50"):
        folder = tmp_path / kind
        folder.mkdir()
        _, theirs = write(folder, kind)
        ours = Tokenizer.load(folder)
        assert ours.vocab_size == len(theirs)
        for token in ("<s>", "</s>", "<mask>", "en_XX", "zh_CN", "<pad>", "<unk>"):
            assert ours.id(token) == theirs.convert_tokens_to_ids(token)
        settings = {"tokenizer_class": type(theirs).__name__, "src_lang": "xx_XX"}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        with pytest.raises(DataError, match="`src_lang` must be one of ar_AR"):
            Tokenizer.load(folder)


def test_a_multilingual_model_is_trained_further_into_one_language(tmp_path):
    write(tmp_path, "mbart-50")
    pairs = list(zip(ENGLISH, GERMAN, strict=True)) * 3
    run = regard.train(
        task="translation", model=str(tmp_path), train=pairs, valid=0.25, epochs=1,
        source_language="en_XX", target_language="de_DE", show="none",
    )  # fmt: skip
    first = run.model.hypotheses(["the cat"], max_tokens=4)[0][0].tokens[0]
    assert first == run.model.tokenizer.id("de_DE")
    assert run.model.settings()["target_language"] == "de_DE"
