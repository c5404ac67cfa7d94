"""XLM-R, and BERT with its tokenizer, as multilingual sentence encoders are published."""

from __future__ import annotations

import json

import pytest
import torch
from their_encoders import transformers

import regard

TEXTS = ["Ein Haus am See", "a house", "une maison près du lac, là-bas", ""]


@pytest.fixture
def folder(tmp_path):
    """`folder("Bert", "Model")`: tiny random weights beside a tokenizer of XLM-R's kind."""

    def make(family, ending):
        letters = sorted({char for text in TEXTS for char in text if char != " "})
        subwords = ["▁", "▁Haus", "▁house", "▁maison", "son", "ein", *letters]
        special = [(name, 0.0) for name in ("<s>", "<pad>", "</s>", "<unk>")]
        scores = [(subword, -1.0 - i / 10) for i, subword in enumerate(subwords)]
        tokenizer = transformers.XLMRobertaTokenizer(vocab=[*special, *scores, ("<mask>", 0.0)])
        sizes = dict(
            hidden_size=12, intermediate_size=20, num_hidden_layers=2, num_attention_heads=3
        )
        config = getattr(transformers, f"{family}Config")(
            vocab_size=len(tokenizer), pad_token_id=1, max_position_embeddings=70, **sizes
        )
        torch.manual_seed(0)
        model = getattr(transformers, family + ending)(config).eval()
        model.save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)
        return model, tokenizer

    return make


@pytest.mark.parametrize("family", ["XLMRoberta", "Bert"])
def test_texts_have_the_vectors_of_transformers(folder, tmp_path, family):
    model, tokenizer = folder(family, "Model")
    given = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**given).last_hidden_state
    keep = given["attention_mask"][:, :, None]
    wanted = (hidden * keep).sum(1) / keep.sum(1)
    task = regard.load(tmp_path)
    found = torch.as_tensor(task.embed(TEXTS, pooling="mean", normalize=False))
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("stated", ["BertTokenizer", "XLMRobertaTokenizer", "spiece"])
def test_a_multilingual_sentence_encoder_opens_in_one_command(folder, tmp_path, stated):
    """BERT's weights, unigram subwords and the modules of sentence-transformers."""
    model, tokenizer = folder("Bert", "Model")
    config = {
        "do_lower_case": True, "tokenize_chinese_chars": True, "strip_accents": None,
        "unk_token": "<unk>", "sep_token": "</s>", "pad_token": "<pad>", "cls_token": "<s>",
        "mask_token": "<mask>", "bos_token": "<s>", "eos_token": "</s>",
        "model_max_length": 512, "tokenizer_class": stated,
    }  # fmt: skip
    given = tokenizer(TEXTS, padding=True, return_tensors="pt")
    if stated == "spiece":
        spm = pytest.importorskip("sentencepiece")
        lines = tmp_path / "lines.txt"
        lines.write_text("\n".join(TEXTS * 30))
        spm.SentencePieceTrainer.train(
            input=str(lines), model_prefix=str(tmp_path / "sentencepiece.bpe"), vocab_size=30,
            hard_vocab_limit=False, minloglevel=2,
        )  # fmt: skip
        config["tokenizer_class"] = "XLMRobertaTokenizer"
        (tmp_path / "tokenizer.json").unlink()
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        theirs = transformers.XLMRobertaTokenizer.from_pretrained(tmp_path)
        given = theirs(TEXTS, padding=True, return_tensors="pt")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "modules.json").write_text(json.dumps([
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling",
         "type": "sentence_transformers.models.Pooling"},
    ]))  # fmt: skip
    (tmp_path / "sentence_bert_config.json").write_text(
        '{"max_seq_length": 60, "do_lower_case": false}'
    )
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({
        "word_embedding_dimension": 12, "pooling_mode_mean_tokens": True,
        "pooling_mode_cls_token": False, "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    }))  # fmt: skip
    with torch.no_grad():
        hidden = model(given["input_ids"], given["attention_mask"]).last_hidden_state
    keep = given["attention_mask"][:, :, None]
    wanted = (hidden * keep).sum(1) / keep.sum(1)
    found = torch.as_tensor(regard.load(tmp_path).embed(TEXTS))
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)
