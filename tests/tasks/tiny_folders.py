"""Folders of tiny random models as `transformers` writes them, with a tokenizer each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

TEXT = (
    "a dog runs after a red ball in the park . the old cat sleeps on a warm mat . "
    "who sleeps ? what does the dog do ? where is the ball ? the ball is very good and cheap . "
    "it was bad , slow and dull . i liked the film a lot , it was good fun . "
).split(" . ")

BODY = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24)
GPT = dict(n_embd=16, n_layer=2, n_head=2, n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0)
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", dict(BODY, max_position_embeddings=64)),
    "roberta": ("Roberta", dict(BODY, max_position_embeddings=68, type_vocab_size=1)),
    "distilbert": (
        "DistilBert", dict(dim=16, n_layers=2, n_heads=2, hidden_dim=24, max_position_embeddings=64)
    ),
    "gpt": ("OpenAIGPT", dict(GPT)),
    "gpt2": ("GPT2", dict(GPT)),
}  # fmt: skip
# Published with a decoder; their encoders make vectors, and heads stand on them.
WITH_DECODER: dict[str, tuple[str, dict[str, Any]]] = {
    "bart": ("Bart", dict(
        d_model=16, encoder_layers=2, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=4, encoder_ffn_dim=24, decoder_ffn_dim=20,
        max_position_embeddings=64, bos_token_id=0, eos_token_id=2, decoder_start_token_id=2,
        forced_eos_token_id=None,
    )),
    "mbart": ("MBart", dict(
        d_model=16, encoder_layers=2, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=4, encoder_ffn_dim=24, decoder_ffn_dim=20,
        max_position_embeddings=64, bos_token_id=0, eos_token_id=2, forced_eos_token_id=None,
    )),
    "t5": ("T5", dict(
        d_model=16, d_kv=6, d_ff=24, num_layers=2, num_decoder_layers=1, num_heads=2,
        eos_token_id=2, decoder_start_token_id=1, is_encoder_decoder=True,
    )),
}  # fmt: skip
ENCODERS = ["bert", "roberta", "distilbert"]
GPTS = ["gpt", "gpt2"]


def wordpiece_tokenizer() -> tuple[tokenizers.Tokenizer, dict[str, str]]:
    """BERT's kind."""
    fast = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    fast.normalizer = normalizers.BertNormalizer(lowercase=True)
    fast.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    fast.decoder = decoders.WordPiece()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    fast.train_from_iterator(
        TEXT, trainers.WordPieceTrainer(vocab_size=120, special_tokens=specials)
    )
    fast.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(name, fast.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    roles = dict(zip(("pad", "unk", "cls", "sep", "mask"), specials, strict=True))
    return fast, roles


def byte_tokenizer(*specials: str) -> tokenizers.Tokenizer:
    """GPT-2's and RoBERTa's kind."""
    fast = tokenizers.Tokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=list(specials),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    fast.train_from_iterator([f" {text}" for text in TEXT], trainer)
    return fast


def end_of_word_tokenizer() -> tuple[tokenizers.Tokenizer, dict[str, str]]:
    """GPT's kind."""
    fast = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    fast.normalizer = normalizers.BertNormalizer(lowercase=True)
    fast.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    fast.decoder = decoders.BPEDecoder(suffix="</w>")
    trainer = trainers.BpeTrainer(
        vocab_size=150, special_tokens=["<unk>"], end_of_word_suffix="</w>"
    )
    fast.train_from_iterator(TEXT, trainer)
    return fast, {"unk": "<unk>"}


def tokenizer_of(family: str) -> tuple[tokenizers.Tokenizer, dict[str, str]]:
    """The tokenizer of a family, and its special tokens by role."""
    if family in ("bert", "distilbert"):
        return wordpiece_tokenizer()
    if family == "gpt":
        return end_of_word_tokenizer()
    if family == "gpt2":
        fast = byte_tokenizer("<|endoftext|>")
        fast.post_processor = processors.ByteLevel(trim_offsets=False)
        return fast, {role: "<|endoftext|>" for role in ("bos", "eos", "unk")}
    fast = byte_tokenizer("<s>", "<pad>", "</s>", "<unk>")
    fast.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=True, normalized=False)])
    ids = {name: fast.token_to_id(name) for name in ("<s>", "</s>")}
    if family == "t5":
        fast.post_processor = processors.TemplateProcessing(
            single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", ids["</s>"])]
        )
        return fast, {"eos": "</s>", "pad": "<pad>", "unk": "<unk>"}
    fast.post_processor = processors.RobertaProcessing(
        ("</s>", ids["</s>"]), ("<s>", ids["<s>"]), add_prefix_space=False
    )
    roles = {"cls": "<s>", "bos": "<s>", "sep": "</s>", "eos": "</s>", "pad": "<pad>"}
    return fast, {**roles, "unk": "<unk>", "mask": "<mask>"}


def folder(path: Path, family: str, ending: str, **options: Any) -> Path:
    """A folder such as bert with "ForSequenceClassification", its weights far from zero."""
    name, sizes = {**FAMILIES, **WITH_DECODER}[family]
    fast, roles = tokenizer_of(family)
    types = ["token_type_ids"] if family == "bert" else []
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=fast,
        model_input_names=["input_ids", *types, "attention_mask"],
        **{f"{role}_token": piece for role, piece in roles.items()},
    )
    ids = {} if theirs.pad_token_id is None else {"pad_token_id": theirs.pad_token_id}
    if family == "gpt2":
        ids = {"bos_token_id": 0, "eos_token_id": 0}
    config = getattr(transformers, f"{name}Config")(
        vocab_size=len(theirs), initializer_range=0.3, **{**sizes, **ids, **options}
    )
    torch.manual_seed(1)
    model = getattr(transformers, name + ending)(config)
    with torch.no_grad():
        for weights in model.parameters():
            weights.add_(torch.randn_like(weights) * 0.1)
    model.save_pretrained(path)
    theirs.save_pretrained(path)
    return path


def their_scores(auto: str, path: Path, *texts: Any, **more: Any) -> torch.Tensor:
    """What `transformers` computes from texts, with the folder's own tokenizer: float32 logits."""
    model = getattr(transformers, auto).from_pretrained(path).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    padding = tokenizer.pad_token is not None
    given = tokenizer(*texts, return_tensors="pt", padding=padding, **more)
    with torch.no_grad():
        return model(**given).logits
