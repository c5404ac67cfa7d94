"""The tokenizer classes of `transformers` that override parts of tokenizer.json.

The classes of BERT, RoBERTa, GPT-2 and Llama take the vocabulary, the merges and
the added tokens from tokenizer.json. They build the normalizer, the pre-tokenizer and the decoder
from the fields of tokenizer_config.json. Other classes use tokenizer.json as it is.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.text.token_settings import ConfigFields, TokenSettings

Parts = dict[str, Any]  # of tokenizer.json, by name; "model" without vocabulary and merges

END_OF_TEXT = "<|endoftext|>"
BYTES = {"continuing_subword_prefix": "", "end_of_word_suffix": "", "unk_token": None}
PLAIN_BPE = {"dropout": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False}


@dataclass(frozen=True)
class Family:
    """A group of tokenizer classes that build the same parts.

    model: the type of the model in tokenizer.json.  parts: builds the parts from the settings.
    defaults: special tokens by role, for roles that no file names.
    """

    model: str
    parts: Callable[[TokenSettings], Parts]
    defaults: Mapping[str, str]


@dataclass(frozen=True)
class AdaptedTokenizer:
    """A tokenizer.json as the class of its folder uses it.

    family: None if it is used unchanged.
    """

    content: dict[str, Any]
    family: Family | None = None


def _named(settings: TokenSettings, role: str, default: str) -> str:
    token = settings.named.get(role)
    return default if token is None else token.content


def bert_normalizer(config: ConfigFields) -> Parts:
    """BERT's normalizer; a missing field has the value of an uncased model."""
    lower = True if config.do_lower_case is None else config.do_lower_case
    isolate = True if config.tokenize_chinese_chars is None else config.tokenize_chinese_chars
    return {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": isolate,
        "strip_accents": config.strip_accents,
        "lowercase": lower,
    }


def _bert(settings: TokenSettings) -> Parts:
    return {
        "normalizer": bert_normalizer(settings.config),
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "unk_token": _named(settings, "unk", "[UNK]"),
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
        },
    }


def _bytes(settings: TokenSettings) -> Parts:
    shape = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    return {
        "normalizer": None,
        "pre_tokenizer": {**shape, "add_prefix_space": bool(settings.config.add_prefix_space)},
        "decoder": {**shape, "add_prefix_space": True},
        "model": {**PLAIN_BPE, **BYTES},
    }


def _llama(settings: TokenSettings) -> Parts:
    config, space = settings.config, {"pattern": {"String": "▁"}, "content": " "}
    prefix = config.add_prefix_space is not False
    scheme = ("always" if config.legacy else "first") if prefix else "never"
    words = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}
    steps: list[Parts] = [{"type": "Replace", **space}, {"type": "ByteFallback"}, {"type": "Fuse"}]
    if prefix:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "normalizer": None,
        "pre_tokenizer": words,
        "decoder": {"type": "Sequence", "decoders": steps},
        "model": {
            **BYTES,
            "unk_token": _named(settings, "unk", "<unk>"),
            "dropout": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
        },
    }


BERT = Family(
    "WordPiece",
    _bert,
    {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"},
)
ROBERTA = Family(
    "BPE",
    _bytes,
    {
        "bos": "<s>",
        "eos": "</s>",
        "unk": "<unk>",
        "sep": "</s>",
        "pad": "<pad>",
        "cls": "<s>",
        "mask": "<mask>",
    },
)
GPT2 = Family("BPE", _bytes, dict.fromkeys(("bos", "eos", "unk"), END_OF_TEXT))
LLAMA = Family(
    "BPE",
    _llama,
    {"bos": "<s>", "eos": "</s>", "unk": "<unk>"},
)

CLASSES = {
    **dict.fromkeys(("Bert", "DistilBert", "Electra"), BERT),
    **dict.fromkeys(("Roberta", "Bart"), ROBERTA),
    "GPT2": GPT2,
    "Llama": LLAMA,
}
# The family of a model type, for folders in which no file names a tokenizer class.
MODEL_TYPES = {
    **dict.fromkeys(("bert", "distilbert", "electra"), BERT),
    **dict.fromkeys(("roberta", "bart"), ROBERTA),
    **dict.fromkeys(("gpt2", "gpt_neo"), GPT2),
}


def family_of(settings: TokenSettings) -> Family | None:
    """The family of the folder's tokenizer class; None if it uses tokenizer.json as it is."""
    if settings.class_name is not None:
        return CLASSES.get(settings.class_name.removesuffix("Tokenizer"))
    return MODEL_TYPES.get(settings.model_type or "")


def adapted(path: Path, content: dict[str, Any], settings: TokenSettings) -> AdaptedTokenizer:
    """A tokenizer.json with the parts that its folder's class overrides; one for another type of
    model, as multilingual sentence encoders of the class of BERT have it, is used as it is.
    """
    family = family_of(settings)
    model = content.get("model")
    if family is None or not isinstance(model, dict):
        return AdaptedTokenizer(content)
    if (actual := _type_of(model)) != family.model:
        warnings.warn(
            f"{path}: {settings.class_name or settings.model_type} is for a model of type "
            f"{family.model}, but the file has {actual}. It is used as it is.",
            stacklevel=4,
        )
        return AdaptedTokenizer(content)
    parts = family.parts(settings)
    model = {**content["model"], "type": family.model, **parts["model"]}
    return AdaptedTokenizer({**content, **parts, "model": model}, family)


def _type_of(model: Mapping[str, Any]) -> str:
    """The type of a model; old files do not state it."""
    if isinstance(model.get("type"), str):
        return model["type"]
    if "merges" in model:
        return "BPE"
    if isinstance(model.get("vocab"), list):
        return "Unigram"
    return "WordPiece" if "continuing_subword_prefix" in model else "WordLevel"
