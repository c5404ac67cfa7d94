"""Folders of Marian as `transformers` saves them: the decoder begins with the padding."""

from __future__ import annotations

import json

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, processors

import regard
from regard.errors import CheckpointError, ConfigError

TEXTS = ["ab cd ef", "a b c", "cd cd ab p", "p"]
PIECES = [
    *(("</s>", 0.0), ("<unk>", 0.0), ("▁ab", -2.0), ("▁cd", -2.5), ("ef", -3.0)),
    *((letter, -5.0 - i / 10) for i, letter in enumerate("abcdefghijklmnop▁")),
    ("<pad>", 0.0),
]
PAD = len(PIECES) - 1


def tokenizer():
    fast = tokenizers.Tokenizer(models.Unigram(PIECES, unk_id=1))
    fast.pre_tokenizer, fast.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    fast.add_special_tokens(["</s>", "<unk>", "<pad>"])
    fast.post_processor = processors.TemplateProcessing("$A </s>", "$A $B </s>", [("</s>", 0)])
    return fast


def marian(folder, start=PAD, seed=3):
    """A tiny model with its tokenizer, which has no bos token; both as the other library has it."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    sizes = {"encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "d_model": 16, "init_std": 0.7}
    sizes |= {f"{part}_layers": 2 for part in ("encoder", "decoder")}
    sizes |= {f"{part}_attention_heads": 2 for part in ("encoder", "decoder")}
    ids = {"pad_token_id": PAD, "eos_token_id": 0, "decoder_start_token_id": start}
    ids |= {"bos_token_id": None, "forced_eos_token_id": None}
    config = transformers.MarianConfig(
        vocab_size=len(PIECES), max_position_embeddings=64, scale_embedding=True, **sizes, **ids
    )
    model = transformers.MarianMTModel(config).eval()
    model.final_logits_bias[0, PAD] = 0.0
    model.generation_config.max_length = None
    model.save_pretrained(folder)
    names = {"unk_token": "<unk>", "eos_token": "</s>", "pad_token": "<pad>"}
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer(), **names)
    theirs.save_pretrained(folder)
    return model, theirs


def assert_same_translations(folder, model, theirs):
    task = regard.load(folder, device="cpu")
    assert task.tokenizer.bos_id is None
    for beams in (1, 4):
        rows = theirs(TEXTS, return_tensors="pt", padding=True)
        found = model.generate(**rows, num_beams=beams, max_new_tokens=12, do_sample=False)
        ours = task.hypotheses(TEXTS, beams=beams, max_tokens=12)
        for (_, *wanted), best in zip(found.tolist(), ours, strict=True):
            ended = wanted.index(0) if 0 in wanted else len(wanted)
            assert best[0].tokens == wanted[:ended]


@pytest.mark.parametrize("start", [PAD, 0, 5])
def test_translations_equal_transformers(tmp_path, start):
    assert_same_translations(tmp_path, *marian(tmp_path, start))


def test_generation_config_overrides_the_decoder_start_token(tmp_path):
    model, theirs = marian(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    for stated in ({}, {"decoder_start_token_id": 3}):  # generation_config.json has the last word
        config.pop("decoder_start_token_id", None)
        path.write_text(json.dumps(config | stated))
        assert_same_translations(tmp_path, model, theirs)
    generation = tmp_path / "generation_config.json"
    values = json.loads(generation.read_text())
    generation.write_text(json.dumps(values | {"decoder_start_token_id": "3"}))
    with pytest.raises(CheckpointError, match="`decoder_start_token_id` must be a whole number"):
        regard.load(tmp_path)


def test_a_tokenizer_without_eos_token_raises_an_error(tmp_path):
    marian(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"eos_token": None}))
    with pytest.raises(ConfigError, match="a token that ends a sentence"):
        regard.load(tmp_path).translate("ab")


def test_a_published_translator_is_trained_further_with_its_own_tokenizer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    marian(tmp_path / "start")
    before = regard.load("start", device="cpu")
    pairs = [(text, text) for text in TEXTS] * 4
    run = regard.train(
        task="translation", model="start", train=pairs, valid=0.25, epochs=2, learning_rate=1e-2,
            schedule={"name": "constant"},
        progress=False,
    )  # fmt: skip
    assert run.model.tokenizer.fingerprint() == before.tokenizer.fingerprint()
    assert run.result.step > 0 and run.scores["loss"] is not None
    assert not torch.equal(run.model.module.embedding.weight, before.module.embedding.weight)
