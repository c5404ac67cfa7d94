"""Folders of mBART and NLLB: their tokenizers, and translation into a language by name.

Tests of `regard.tasks.text_to_text` and `regard.tasks.pair_tasks`.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from opus_folders import ENGLISH, GERMAN, trained, write_folder
from tiny_folders import folder as tiny

import regard
from regard.checkpoints.formats import layout_for
from regard.data.batches import Sequences
from regard.errors import ConfigError, DataError
from regard.text import Tokenizer
from regard.text import sentencepiece as sentencepiece_classes

transformers = pytest.importorskip("transformers")
sentencepiece = pytest.importorskip("sentencepiece")
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


def nllb_from_pieces(folder: Path, legacy: bool):
    """A folder without tokenizer.json, and their tokenizer with the ids of release 4.

    There fairseq's four tokens come first, then the pieces, the languages and the mask. Release 5
    gives ids to no language when it opens such a folder, so its vocabulary is written out here.
    """
    from transformers.convert_slow_tokenizer import SentencePieceExtractor
    from transformers.models.nllb.tokenization_nllb import BPE, FAIRSEQ_LANGUAGE_CODES

    path = folder / "sentencepiece.bpe.model"
    path.write_bytes(trained(ENGLISH + GERMAN, 90, "bpe"))
    settings = {"tokenizer_class": "NllbTokenizer", "legacy_behaviour": legacy}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    found = SentencePieceExtractor(str(path)).extract(BPE)
    pieces = [token for token in found["vocab"] if token not in ("<s>", "</s>", "<unk>")]
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *pieces, *FAIRSEQ_LANGUAGE_CODES, "<mask>"]
    return transformers.NllbTokenizer(
        vocab={token: i for i, token in enumerate(tokens)}, merges=found["merges"],
        legacy_behaviour=legacy, _spm_precompiled_charsmap=found["_spm_precompiled_charsmap"],
    )  # fmt: skip


def write(folder: Path, kind: str) -> tuple[torch.nn.Module, object]:
    """A folder with a tiny model; returns it and their tokenizer."""
    if kind.startswith("nllb-pieces"):
        tokenizer = nllb_from_pieces(folder, legacy=kind == "nllb-pieces-legacy")
        config, model = transformers.M2M100Config, transformers.M2M100ForConditionalGeneration
    elif kind.startswith("nllb"):
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


NLLB = ("nllb", "nllb-legacy", "nllb-pieces", "nllb-pieces-legacy")
LANGUAGES = {"mbart": "de_DE", "mbart-50": "de_DE"} | dict.fromkeys(NLLB, "deu_Latn")


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


@pytest.mark.parametrize("named", ["tokenizer_config.json", "config.json"])
@pytest.mark.parametrize("legacy", [False, True], ids=["", "legacy"])
def test_nllb_without_tokenizer_json_has_the_template_of_transformers(named, legacy, tmp_path):
    theirs = nllb_from_pieces(tmp_path, legacy)
    if named == "config.json":
        config = {"model_type": "m2m_100", "vocab_size": len(theirs)}
        (tmp_path / "config.json").write_text(json.dumps(config))
        stated = {"legacy_behaviour": legacy, "src_lang": "fra_Latn"}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(stated))
        theirs.src_lang = "fra_Latn"
    ours = Tokenizer.load(tmp_path)
    assert ours.vocab() == theirs.get_vocab()
    for texts in (["the cat"], ["the cat", "a dog"]):
        row = ours.template.apply([ours.encode(text).ids for text in texts])
        assert row.ids == theirs(*texts).input_ids
    assert ours.encode("the eng_Latn<mask>").ids == theirs.convert_tokens_to_ids(
        ["▁the", "eng_Latn", "<mask>"]
    )
    ours.save(tmp_path / "saved")
    again = Tokenizer.load(tmp_path / "saved")
    assert again.encode_many(ENGLISH) == ours.encode_many(ENGLISH)
    assert again.template == ours.template and again.fingerprint() == ours.fingerprint()
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")("the cat").input_ids == (
        theirs("the cat").input_ids
    )


CLASSES = {
    "MBartTokenizer": sentencepiece_classes.MBART_LANGUAGES,
    "MBart50Tokenizer": (
        sentencepiece_classes.MBART_LANGUAGES + sentencepiece_classes.MBART_50_LANGUAGES
    ),
    "NllbTokenizer": sentencepiece_classes.NLLB_LANGUAGES,
    "XLMRobertaTokenizer": (),
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", CLASSES)
def test_drawn_models_alone_have_fairseqs_ids_and_the_languages(name, seed, tmp_path):
    """Its four special tokens, the pieces behind the first three, the languages, the mask."""
    draw, languages = Random(f"{name} {seed}"), CLASSES[name]
    kind = draw.choice(["bpe", "unigram"]) if name == "NllbTokenizer" else "unigram"
    rule = draw.choice(["nmt_nfkc", "nfkc", "nmt_nfkc_cf", "identity"])
    model = trained(
        draw.sample(ENGLISH + GERMAN, 10), draw.randrange(50, 90), kind,
        normalization_rule_name=rule, add_dummy_prefix=draw.random() < 0.8,
    )  # fmt: skip
    (tmp_path / "sentencepiece.bpe.model").write_bytes(model)
    source = draw.choice(languages) if languages else None
    settings = {"tokenizer_class": name} | ({"src_lang": source} if source else {})
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    ours = Tokenizer.load(tmp_path)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = [theirs.id_to_piece(i) for i in range(3, theirs.get_piece_size())]
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *pieces, *languages, "<mask>"]
    assert ours.vocab() == {token: i for i, token in enumerate(tokens)}
    texts = [*ENGLISH, *GERMAN, "", "  The  CAT ", "Straße ﬁne 日本", "a\tb", "日本語 cat", "½ …"]
    expected = [[i + 1 if i else 3 for i in theirs.encode(text)] for text in texts]
    assert ours.encode_many(texts) == expected == [ours.encode(text).ids for text in texts]
    if name != "NllbTokenizer":  # release 5 gives its languages no ids
        auto = transformers.AutoTokenizer.from_pretrained(tmp_path)
        assert auto.get_vocab() == ours.vocab()
        for pair in (["the cat"], ["the cat", "a dog"]):
            row = ours.template.apply([ours.encode(text).ids for text in pair])
            assert [i for i in row.ids if i < 4 or i > len(pieces) + 3] == [
                i for i in auto(*pair).input_ids if i < 4 or i > len(pieces) + 3
            ]
    ours.save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").encode_many(texts) == expected
    if languages:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"src_lang": "xx"}))
        with pytest.raises(DataError, match="`src_lang` must be one of"):
            Tokenizer.load(tmp_path)


@pytest.mark.parametrize("kind", ["mbart", "mbart-50", "nllb-pieces-legacy"])
def test_a_multilingual_model_is_trained_further_and_opens_without_a_warning(kind, tmp_path):
    _, theirs = write(tmp_path, kind)
    source, target = ("en_XX", "de_DE") if "mbart" in kind else ("eng_Latn", "deu_Latn")
    pairs = list(zip(ENGLISH, GERMAN, strict=True)) * 3
    run = regard.train(
        task="translation", model=str(tmp_path), train=pairs, valid=0.25, epochs=1,
        source_language=source, target_language=target, progress=False,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened = regard.load(run.folder, device="cpu")
    first = opened.hypotheses(["the cat"], max_tokens=4)[0][0].tokens[0]
    if kind != "mbart":
        assert first == opened.tokenizer.id(target)
        assert opened.settings()["target_language"] == target
    folder, bos = run.folder / "model", 0  # <s>
    start = theirs.convert_tokens_to_ids(target) if kind == "mbart" else 2
    for name in ("config.json", "generation_config.json"):
        found = json.loads((folder / name).read_text())
        assert (found["bos_token_id"], found["decoder_start_token_id"]) == (bos, start)
    again = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert again.config.bos_token_id == again.generation_config.bos_token_id == bos


# ---- source embedding

EMBEDDED = [*ENGLISH, "a", ""]
KINDS = ("t5", "bart", "marian", "mbart", "mbart-50", "nllb", "nllb-pieces-legacy")


def write_any(path: Path, kind: str):
    """A folder; returns their model and tokenizer."""
    if kind in ("t5", "bart"):
        tiny(path, kind, "ForConditionalGeneration")
    elif kind == "marian":
        pytest.importorskip("sentencepiece")
        return write_folder(path, codes=()), transformers.MarianTokenizer.from_pretrained(path)
    else:
        pytest.importorskip("sentencepiece")
        return write(path, kind)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(path).eval()
    return model, transformers.AutoTokenizer.from_pretrained(path)


@torch.no_grad()
def their_states(model, tokenizer, text: str) -> list[torch.Tensor]:
    """Of one text: the embeddings' states (T, D), then those of each layer."""
    given = tokenizer(text, return_tensors="pt")
    found = model.get_encoder()(given.input_ids, output_hidden_states=True)
    return [hidden[0] for hidden in found.hidden_states]


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_those_of_the_encoder_in_transformers(kind, tmp_path):
    model, tokenizer = write_any(tmp_path, kind)
    task = regard.load(tmp_path, device="cpu")
    # Marian's dimensions have another order in ours: sines and cosines side by side.
    layout = layout_for(task.module)
    given = [text for text in EMBEDDED if text]
    states = [their_states(model, tokenizer, text) for text in given]
    for options, wanted in (
        ({}, [layers[-1].mean(0) for layers in states]),
        ({"pooling": "first"}, [layers[-1][0] for layers in states]),
        ({"layers": 0}, [layers[0].mean(0) for layers in states]),
        ({"layers": 1}, [layers[1].mean(0) for layers in states]),
        (
            {"layers": list(range(1, len(states[0]))), "combine": "sum"},
            [sum(layers[1:]).mean(0) for layers in states],
        ),
    ):
        found = layout.in_their_order(torch.from_numpy(task.embed(given, **options)))
        torch.testing.assert_close(found, torch.stack(wanted), atol=1e-5, rtol=0, msg=str(options))
    for rows, layers in zip(task.embed(given, granularity="token"), states, strict=True):
        found = layout.in_their_order(torch.from_numpy(np.array(rows)))
        torch.testing.assert_close(found, layers[-1], atol=1e-5, rtol=0)
    assert np.abs(task.embed(given[0]) - task.embed(given)[0]).max() < 1e-6
    assert task.similarity("the cat", "the cat") == pytest.approx(1)
    assert task.embed([]).shape == (0, 16) and np.isfinite(task.embed("")).all()


def test_gradients_reach_the_weights_of_the_model_itself(tmp_path):
    write_any(tmp_path, "bart")
    model = regard.load(tmp_path, device="cpu").module
    batch = Sequences.of([[0, 9, 8, 2], [0, 2]], model.config.pad)
    model.source_encoder().encode(batch).square().sum().backward()
    assert float(model.encoder[0].feed.inner.weight.grad.abs().sum()) > 0
    assert model.decoder[0].feed.inner.weight.grad is None
