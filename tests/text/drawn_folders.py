"""Tokenizer folders with drawn fields, as other libraries write them: small vocabularies."""

from __future__ import annotations

import json
from random import Random

import tokenizers
from hard_texts import HARD
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

LETTERS = sorted({char for text in HARD for char in text if not char.isspace()})
BERT = ["[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"]
WORDS = ["the", "##ing", "Un", "##aff", "cafe", "café", "e1", "[E0]"]
WORDPIECES = {p: i for i, p in enumerate(
    dict.fromkeys([*BERT, *WORDS, *LETTERS[:-60], *("##" + c for c in LETTERS[:-90])])
)}  # fmt: skip
MERGES = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("Ġ", "a"), ("i", "n"), ("in", "g")]
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
BYTES = {p: i for i, p in enumerate(
    [*ROBERTA, *ALPHABET, *("".join(pair) for pair in MERGES), "<|endoftext|>", "[E0]"]
)}  # fmt: skip
GPT_MERGES = [("t", "h"), ("th", "e</w>"), ("i", "n"), ("in", "g</w>")]
GPT = {p: i for i, p in enumerate(
    ["<unk>", *LETTERS[:-60], *(c + "</w>" for c in LETTERS[:-60]), *map("".join, GPT_MERGES)]
)}  # fmt: skip
UNIGRAMS = [
    *(("<unk>", 0.0), ("</s>", 0.0), ("<pad>", 0.0), ("▁", -3.0), ("▁the", -2.0), ("ing", -4.0)),
    *((letter, -10.0 - i / 100) for i, letter in enumerate(LETTERS[:-60])),
]
CLASSES = {
    "bert": ["BertTokenizer", "BertTokenizerFast", "DistilBertTokenizer", "ElectraTokenizerFast"],
    "roberta": ["RobertaTokenizer", "RobertaTokenizerFast", "BartTokenizer"],
    "gpt2": ["GPT2Tokenizer", "GPT2TokenizerFast"],
    "gpt": ["OpenAIGPTTokenizer"],
    "marian": ["PreTrainedTokenizerFast"],
}
PLAIN = ["PreTrainedTokenizerFast", "TokenizersBackend", "NoSuchTokenizer"]
MODEL_TYPES = {"bert": "bert", "roberta": "roberta", "gpt2": "gpt2", "gpt": "openai-gpt"}
ROLES = {
    "bert": dict(zip(("unk", "sep", "pad", "cls", "mask"), BERT, strict=True)),
    "roberta": {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"},
    "gpt2": dict.fromkeys(("bos", "eos", "unk"), "<|endoftext|>"),
    "gpt": {"unk": "<unk>"},
    "marian": {"unk": "<unk>", "eos": "</s>", "pad": "<pad>"},
}
NAMES = ["[E1]", "[E0]", "<e>", "new tok", "[e2]", "thé"]
FLAGS = ("lstrip", "rstrip", "single_word", "normalized")
BOOLEANS = ("do_lower_case", "strip_accents", "tokenize_chinese_chars", "add_prefix_space",
            "split_special_tokens", "clean_up_tokenization_spaces", "add_eos_token")  # fmt: skip
TEXTS = [
    *("a [E1] b[E1]c", "[e1] x [E0]y", "A <e> B<E>", "new tok newtok NEW TOK", "x [e2] [E2]"),
    *("thé Thé", "a [MASK] b", "[CLS]x[SEP]", "<s>a</s>", "x<|endoftext|>y", "<unk> [UNK] [unk]"),
    *("[NEW] <img> <x>", "the . cat ' s it 's , do n't"),
]


def tokenizer_json(kind: str, draw: Random) -> dict:
    """A tokenizer.json whose normalizer, flags and template are drawn."""
    if kind == "bert":
        fast = tokenizers.Tokenizer(models.WordPiece(WORDPIECES, unk_token="[UNK]"))
        options = {name: draw.random() < 0.5 for name in ("lowercase", "handle_chinese_chars")}
        fast.normalizer = normalizers.BertNormalizer(**options)
        fast.pre_tokenizer, names = pre_tokenizers.BertPreTokenizer(), BERT
        fast.decoder = decoders.WordPiece()
        fast.post_processor = processors.BertProcessing(("[SEP]", 1), ("[CLS]", 3))
    elif kind in ("roberta", "gpt2"):
        fast = tokenizers.Tokenizer(models.BPE(BYTES, MERGES))
        fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=draw.random() < 0.3)
        fast.decoder = decoders.ByteLevel()
        names = ROBERTA if kind == "roberta" else ["<|endoftext|>"]
        ends = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
        fast.post_processor = ends if kind == "roberta" else processors.ByteLevel()
    elif kind == "gpt":
        model = models.BPE(GPT, GPT_MERGES, unk_token="<unk>", end_of_word_suffix="</w>")
        fast, names = tokenizers.Tokenizer(model), ["<unk>"]
        fast.normalizer = normalizers.BertNormalizer(lowercase=True)
        fast.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        fast.decoder = decoders.BPEDecoder("</w>")
    else:
        fast = tokenizers.Tokenizer(models.Unigram(UNIGRAMS, unk_id=0))
        fast.pre_tokenizer, fast.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        names = ["<unk>", "</s>", "<pad>"]
        ends = [("</s>", 1)]
        fast.post_processor = processors.TemplateProcessing("$A </s>", "$A $B:1 </s>:1", ends)
    added = [AddedToken(name, special=True, lstrip=draw.random() < 0.2) for name in names]
    if draw.random() < 0.4:
        flags = {flag: draw.random() < 0.3 for flag in (*FLAGS, "special")}
        added.append(AddedToken("[E1]", **flags))
    fast.add_tokens(added)
    return json.loads(fast.to_str())


def token(name: str, draw: Random, typed: bool = True):
    """A token as a string, or with drawn flags."""
    if draw.random() < 0.4:
        return name
    flags = {flag: draw.random() < 0.3 for flag in FLAGS}
    return {"content": name, **flags} | ({"__type": "AddedToken"} if typed else {})


def drawn(draw: Random) -> tuple[str, dict]:
    """A kind, and the files of a folder: name -> JSON or text."""
    kind = draw.choice(["bert", "bert", "roberta", "gpt2", "gpt", "marian"])
    content = tokenizer_json(kind, draw)
    whole = kind == "marian" or draw.random() < 0.7
    config: dict = {}
    files: dict = {"tokenizer_config.json": config}
    if not whole or draw.random() < 0.6:
        config["tokenizer_class"] = draw.choice(CLASSES[kind])
    elif draw.random() < 0.5:
        config["tokenizer_class"] = draw.choice(PLAIN)
    if kind in MODEL_TYPES and ("tokenizer_class" not in config or draw.random() < 0.3):
        files["config.json"] = {"model_type": MODEL_TYPES[kind]}
    if whole:
        files["tokenizer.json"] = content
    elif kind == "bert":
        files["vocab.txt"] = "".join(f"{piece}\n" for piece in WORDPIECES)
    else:
        model = content["model"]
        files["vocab.json"] = model["vocab"]
        files["merges.txt"] = "".join(f"{' '.join(pair)}\n" for pair in model["merges"])
    _fields(config, files, kind, draw)
    _added(config, files, content, whole, draw)
    return kind, files


def _fields(config: dict, files: dict, kind: str, draw: Random) -> None:
    for name in BOOLEANS:
        # Without an eos token there is nothing that could be added.
        if draw.random() < 0.3 and (name != "add_eos_token" or kind == "gpt2"):
            config[name] = draw.random() < 0.5
    mapped = {}
    for role, name in ROLES[kind].items():
        if draw.random() < 0.3 or role == "mask" and "tokenizer.json" not in files:
            config[f"{role}_token"] = token(name, draw)
        if draw.random() < 0.3:
            mapped[f"{role}_token"] = token(name, draw, typed=False)
    if isinstance(config.get("mask_token"), str) and "tokenizer.json" not in files:
        config["mask_token"] = {"content": config["mask_token"], "__type": "AddedToken"}
        mapped.pop("mask_token", None)
    config |= {"pad_token": "[NEW]"} if draw.random() < 0.1 else {}
    config |= {"image_token": "<img>"} if draw.random() < 0.1 else {}
    name = draw.choice(["additional_special_tokens", "extra_special_tokens"])
    if (way := draw.random()) < 0.3:
        config[name] = draw.sample(NAMES, draw.randint(0, 3))
    elif way < 0.5:
        config["extra_special_tokens"] = {"x_token": "<x>"}
    if mapped:
        files["special_tokens_map.json"] = mapped


def _added(config: dict, files: dict, content: dict, whole: bool, draw: Random) -> None:
    vocab = content["model"]["vocab"]
    there = {one["content"]: one for one in content["added_tokens"]}
    known = {*(vocab if isinstance(vocab, dict) else []), *there}
    free = max([len(vocab), *(one["id"] + 1 for one in there.values() if whole)])
    names = [n for n in draw.sample(NAMES, draw.randint(0, 3)) if n not in known]
    if draw.random() < 0.4:
        listed = {}
        for one in there.values():
            if whole or one["id"] < len(vocab):
                listed[str(one["id"])] = {k: v for k, v in one.items() if k != "id"}
        for number, name in enumerate(names, free):
            flags = {flag: draw.random() < 0.3 for flag in (*FLAGS, "special")}
            listed[str(number)] = {"content": name, **flags}
        if whole or len(listed) == len(there) or names == list(listed):
            config["added_tokens_decoder"] = listed
    elif draw.random() < 0.4:
        files["added_tokens.json"] = {name: number for number, name in enumerate(names, free)}
