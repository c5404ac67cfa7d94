"""Small models with random weights and odd configurations, as folders to be exported."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from regard.models import model_class
from regard.models.bert import Bert, BertConfig
from regard.models.encoder_with_heads import assembled
from regard.models.gpt2 import GPT2, GPT2Config
from regard.models.llama import Llama, LlamaConfig
from regard.models.recurrent import RecurrentConfig, RecurrentLanguageModel
from regard.models.t5 import T5, T5Config
from regard.models.transformer import PreNormTransformer, Transformer, TransformerConfig
from regard.tasks import folders
from regard.tasks.embedding import Embedder
from regard.tasks.language_modeling import TextGenerator
from regard.tasks.pair_tasks import Translator
from regard.tasks.text_to_text import TextToText
from regard.text import Tokenizer, train

TEXTS = ["The animal didn't cross the street because it was too tired.", "a dog runs, 12.5 km"] * 3
SIDES = {"encoder_layers": 2, "decoder_layers": 1}


def tokenizer(kind: str, size: int = 300, **options: Any) -> Tokenizer:
    """A tokenizer of a kind, trained on a few lines."""
    return train(kind, TEXTS, size, **options)


def drawn(model: Any) -> Any:
    """The same model with weights far from those at the start, biases and norms included."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter += noise * (0.2 if parameter.dim() == 1 else 0.7 * parameter.size(-1) ** -0.5)
    return model.eval()


def saved(task: Any, path: Path) -> Path:
    """The folder of a task."""
    folders.save(task, path)
    return path


def gpt2(
    path: Path, kind: str = "byte-bpe", words: Tokenizer | None = None, **options: Any
) -> Path:
    """A GPT-2 of width 60 in 3 heads."""
    words = words or tokenizer(kind)
    sizes = {"d_model": 60, "d_ff": 52, "heads": 3, "layers": 2, "max_length": 40}
    ids = {"bos": words.bos_id, "eos": words.eos_id, "vocab_size": words.vocab_size}
    config = GPT2Config(**(sizes | ids | options))
    return saved(TextGenerator(drawn(GPT2(config)), words), path)


def llama(path: Path, kind: str = "byte-bpe", **options: Any) -> Path:
    """A Llama with 4 heads of which 2 share keys and values."""
    words = tokenizer(kind)
    sizes = {"d_model": 64, "d_ff": 96, "heads": 4, "key_value_heads": 2, "layers": 2}
    ids = {"bos": words.bos_id, "eos": words.eos_id, "vocab_size": words.vocab_size}
    config = LlamaConfig(**({"max_length": 40} | sizes | ids | options))
    return saved(TextGenerator(drawn(Llama(config)), words), path)


def bert(
    path: Path, heads: dict[str, int] | None = None, kind: str = "wordpiece", **options: Any
) -> Path:
    """A BERT of width 60 in 3 heads, as an encoder of texts."""
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    words = tokenizer(kind, special_tokens=special)
    sizes = {"d_model": 60, "d_ff": 52, "heads": 3, "layers": 2, "max_length": 40, "segments": 3}
    config = BertConfig(words.vocab_size, **(sizes | {"pad": words.pad_id} | options))
    model = drawn(assembled(Bert(config), heads or {}))
    return saved(Embedder(model, words), path)


def encoder(path: Path, name: str, **options: Any) -> Path:
    """An encoder of another name, of width 12 in 3 heads."""
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    words = tokenizer("wordpiece", special_tokens=special)
    kind: Any = model_class(name)
    sizes = {"d_model": 12, "d_ff": 7, "heads": 3, "layers": 1, "max_length": 40}
    known = {field.name for field in fields(kind.Config)}
    sizes = {name: size for name, size in sizes.items() if name in known}
    model = kind(kind.Config(words.vocab_size, **(sizes | {"pad": words.pad_id} | options)))
    return saved(Embedder(drawn(assembled(model, {})), words), path)


def transformer(path: Path, prenorm: bool = False, **options: Any) -> Path:
    """A translator of width 60, with 3 heads in the encoder and 5 in the decoder."""
    words = tokenizer("bpe")
    if "source_vocab_size" in options:
        words.targets = tokenizer("bpe")
    sizes = {"d_model": 60, "d_ff": 52, "heads": 3, "decoder_heads": 5, "max_length": 40}
    ids = {"pad": words.pad_id, "bos": words.bos_id, "eos": words.eos_id}
    config = TransformerConfig(words.vocab_size, **(sizes | SIDES | ids | options))
    model = (PreNormTransformer if prenorm else Transformer)(config)
    return saved(Translator(drawn(model), words), path)


def recurrent(path: Path) -> Path:
    """An LSTM language model."""
    words = tokenizer("words")
    config = RecurrentConfig(words.vocab_size, d_model=8, layers=1)
    return saved(TextGenerator(RecurrentLanguageModel(config), words), path)


def t5(path: Path, **options: Any) -> Path:
    """A T5 with heads wider than the model."""
    words = tokenizer("unigram")
    sizes = {"d_model": 40, "d_ff": 52, "heads": 3, "head_dim": 24, "layers": 2}
    ids = {"pad": words.pad_id, "bos": words.pad_id, "eos": words.eos_id, "decoder_layers": 3}
    config = T5Config(words.vocab_size, **(sizes | ids | options))
    return saved(TextToText(drawn(T5(config)), words), path)
