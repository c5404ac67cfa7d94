"""Llama's folders in `regard.text.published`: ids and texts as `transformers` has them."""

from __future__ import annotations

import itertools
import json
import warnings

import pytest
from hard_texts import HARD
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer

import regard.text

transformers = pytest.importorskip("transformers")

LINES = [
    "the dog ran to the sea and the cat sat on the mat",
    "then the 12 dogs ran 3456 times, didn't they?",
    "naïve café 東京",
]
TEXTS = [*HARD, "", " ", "  two  spaces", " the", "a\n\n b\tc", "1234567", "I'm   x", "😀 the"]


def byte_fallback() -> Tokenizer:
    """As of Llama and Llama 2: made by SentencePiece, characters of no token as bytes."""
    plain = Tokenizer(models.BPE(unk_token="<unk>"))
    plain.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    plain.train_from_iterator(
        [line.replace(" ", " ▁") for line in LINES],
        BpeTrainer(vocab_size=90, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False),
    )
    content = json.loads(plain.to_str())
    pieces = sorted(content["model"]["vocab"], key=content["model"]["vocab"].get)
    pieces[3:3] = [f"<0x{byte:02X}>" for byte in range(256)]
    content["model"] |= {
        "vocab": {piece: number for number, piece in enumerate(pieces)},
        "byte_fallback": True,
        "fuse_unk": True,
    }
    made = Tokenizer.from_str(json.dumps(content))
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)]
    )  # fmt: skip
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)]
    )
    return made


def bytes_of(before: pre_tokenizers.PreTokenizer, *, regex: bool, bos: bool) -> Tokenizer:
    """Bytes behind another division into words: as of SmolLM2, or of Llama 3."""
    made = Tokenizer(models.BPE(ignore_merges=bos))
    inner = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)
    made.pre_tokenizer = pre_tokenizers.Sequence([before, inner])
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(
        LINES,
        BpeTrainer(
            vocab_size=290, special_tokens=["<|begin|>", "<|end|>"], show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )  # fmt: skip
    if bos:
        made.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=True),
            processors.TemplateProcessing(
                single="<|begin|> $A", pair="<|begin|> $A <|begin|>:1 $B:1",
                special_tokens=[("<|begin|>", 0)],
            ),
        ])  # fmt: skip
    return made


WORDS = Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+")
ROLES = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
FOLDERS = {
    "llama-3": (
        lambda: bytes_of(pre_tokenizers.Split(WORDS, "isolated"), regex=False, bos=True),
        {"tokenizer_class": "PreTrainedTokenizerFast", **ROLES},
    ),
    "smollm2": (
        lambda: bytes_of(pre_tokenizers.Digits(individual_digits=True), regex=True, bos=False),
        {"tokenizer_class": "GPT2Tokenizer", "unk_token": "<|end|>", **ROLES},
    ),
    "smollm2, as it is": (
        lambda: bytes_of(pre_tokenizers.Digits(individual_digits=True), regex=True, bos=False),
        {"tokenizer_class": "PreTrainedTokenizerFast", **ROLES},
    ),
}
CHOICES = {
    "tokenizer_class": ("LlamaTokenizer", "LlamaTokenizerFast"),
    "legacy": (None, True, False),
    "add_prefix_space": (None, True, False),
    "add_bos_token": (None, True, False),
    "add_eos_token": (None, True, False),
}
DRAWN = list(itertools.product(*CHOICES.values()))[::5]


def both(folder, tokenizer: Tokenizer, config: dict):
    """Theirs and ours, of one folder."""
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return transformers.AutoTokenizer.from_pretrained(folder), regard.text.Tokenizer.load(
            folder
        )


def assert_same(theirs, ours) -> None:
    for text in TEXTS:
        plain = theirs(text, add_special_tokens=False).input_ids
        assert list(ours.encode(text).ids) == plain, text
        assert ours.decode(plain) == theirs.decode(plain, skip_special_tokens=True), text
    for text, other in ((TEXTS[0], None), ("the dog", " ran  to"), ("", None)):
        wanted = theirs(text, other).input_ids if other else theirs(text).input_ids
        texts = [list(ours.encode(one).ids) for one in (text, other) if one is not None]
        found = texts[0] if len(texts) == 1 else texts[0] + texts[1]
        if ours.template is not None:
            found = ours.template.apply(texts).ids
        assert list(found) == wanted, text


@pytest.mark.parametrize("name", FOLDERS)
def test_byte_level_folders_of_the_family_give_the_ids_of_transformers(name, tmp_path):
    make, config = FOLDERS[name]
    assert_same(*both(tmp_path, make(), config))


@pytest.mark.parametrize("values", DRAWN, ids=str)
def test_llama_tokenizer_folders_give_the_ids_of_transformers(values, tmp_path):
    roles = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    config = {name: value for name, value in zip(CHOICES, values, strict=True) if value is not None}
    assert_same(*both(tmp_path, byte_fallback(), config | roles))
