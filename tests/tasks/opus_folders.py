"""Folders as OPUS-MT publishes them: SentencePiece models, one vocabulary, and a tiny model."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import torch

ENGLISH = [
    "the cat sat on the mat", "a small dog, and an old cat!", "where is the house?", "it's 42 or 7",
    "the houses are old and small", "I'm going to the mat", "dogs and cats sat there",
]  # fmt: skip
GERMAN = [
    "die Katze saß auf der Matte", "ein kleiner Hund und eine alte Katze!", "wo ist das Haus?",
    "es sind 42 oder 7", "die Häuser sind alt und klein", "ich gehe zur Matte", "Hunde und Katzen",
]  # fmt: skip
CODES = (">>deu<<", ">>fra<<")
TARGET_VOCAB = "target_vocab.json"


def trained(texts: list[str], vocab_size: int = 60, kind: str = "unigram", **options: Any) -> bytes:
    """A SentencePiece model of this type."""
    import sentencepiece

    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts * 4), model_writer=written, vocab_size=vocab_size,
        model_type=kind, hard_vocab_limit=False, minloglevel=2, num_threads=1, **options,
    )  # fmt: skip
    return written.getvalue()


def pieces_of(model: bytes) -> list[str]:
    """The pieces of a model, without its special ones."""
    import sentencepiece

    loaded = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [loaded.id_to_piece(i) for i in range(3, loaded.get_piece_size())]


def write_tokenizer(folder: Path, codes: tuple[str, ...] = CODES) -> list[str]:
    """The files of the tokenizer; returns the vocabulary, without some pieces of the models."""
    source, target = trained(ENGLISH), trained(GERMAN)
    (folder / "source.spm").write_bytes(source)
    (folder / "target.spm").write_bytes(target)
    both = dict.fromkeys([*pieces_of(source)[:-3], *pieces_of(target)[:-2]])
    vocab = ["</s>", "<unk>", *both, *codes, "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(vocab)}))
    config = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": False}
    config |= {"source_lang": "eng", "target_lang": "deu", "model_max_length": 512}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return vocab


def write_separate_tokenizer(folder: Path, codes: tuple[str, ...] = CODES) -> tuple[int, int]:
    """With a vocabulary of each side, the source's the larger one; returns their sizes."""
    source, target = trained(ENGLISH, 70), trained(GERMAN, 50)
    sizes = []
    sides = ((source, "source.spm", "vocab.json", codes), (target, "target.spm", TARGET_VOCAB, ()))
    for model, name, table, more in sides:
        (folder / name).write_bytes(model)
        pieces = pieces_of(model)[:-2]
        vocab = ["</s>", "<unk>", "<pad>", *more, *pieces]
        (folder / table).write_text(json.dumps({token: i for i, token in enumerate(vocab)}))
        sizes.append(len(vocab))
    config = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": True}
    config |= {"source_lang": "eng", "target_lang": "deu", "model_max_length": 512}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return sizes[0], sizes[1]


def write_separate_folder(folder: Path, tied: bool = True) -> torch.nn.Module:
    """A folder with two vocabularies and two embeddings; returns the model."""
    folder.mkdir(parents=True, exist_ok=True)
    source, target = write_separate_tokenizer(folder)
    return _write_model(
        folder, source, pad=2, decoder_vocab_size=target, share_encoder_decoder_embeddings=False,
        tie_word_embeddings=tied,
    )  # fmt: skip


def write_folder(folder: Path, codes: tuple[str, ...] = CODES, **options: Any) -> torch.nn.Module:
    """A folder with a tiny model of random weights; returns the model."""
    folder.mkdir(parents=True, exist_ok=True)
    size = len(write_tokenizer(folder, codes))
    return _write_model(folder, size, pad=size - 1, **options)


def _write_model(folder: Path, size: int, pad: int, **options: Any) -> torch.nn.Module:
    import transformers

    sizes = {"encoder_ffn_dim": 32, "decoder_ffn_dim": 24, "d_model": 16, "init_std": 0.7}
    sizes |= {"encoder_layers": 2, "decoder_layers": 1}
    sizes |= {f"{part}_attention_heads": 2 for part in ("encoder", "decoder")}
    ids = {"pad_token_id": pad, "eos_token_id": 0, "decoder_start_token_id": pad}
    config = transformers.MarianConfig(
        vocab_size=size, max_position_embeddings=64, scale_embedding=True, **sizes, **ids, **options
    )
    torch.manual_seed(3)
    model = transformers.MarianMTModel(config).eval()
    with torch.no_grad():
        model.final_logits_bias.normal_()
        # the embedding with which decoders start
        model.model.decoder.embed_tokens.weight[pad] = 0.0
    model.generation_config = transformers.GenerationConfig(
        num_beams=4, bad_words_ids=[[pad]], max_length=20, forced_eos_token_id=0, **ids
    )
    model.save_pretrained(folder)
    return model
