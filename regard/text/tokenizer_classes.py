"""The tokenizer classes of `transformers` that override parts of tokenizer.json.

BertTokenizer, RobertaTokenizer, GPT2Tokenizer, OpenAIGPTTokenizer and LlamaTokenizer take the
vocabulary, the merges and the added tokens from tokenizer.json. They build the normalizer, the
pre-tokenizer and the decoder from the fields of tokenizer_config.json. Other classes use
tokenizer.json as it is.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unicodedata import normalize

import tokenizers

from regard.errors import DataError
from regard.text.bpe import END
from regard.text.token_settings import ConfigFields, TokenSettings
from regard.text.tokenizers_calls import call

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


def _gpt(settings: TokenSettings) -> Parts:
    return {
        "normalizer": bert_normalizer(ConfigFields()),
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "BPEDecoder", "suffix": END},
        "model": {
            **PLAIN_BPE,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": END,
            "unk_token": _named(settings, "unk", "<unk>"),
        },
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
GPT = Family("BPE", _gpt, {"unk": "<unk>"})
LLAMA = Family(
    "BPE",
    _llama,
    {"bos": "<s>", "eos": "</s>", "unk": "<unk>"},
)

CLASSES = {
    **dict.fromkeys(("Bert", "DistilBert", "Electra", "ConvBert", "MobileBert", "Lxmert"), BERT),
    **dict.fromkeys(("LayoutLM", "SqueezeBert", "DPRQuestionEncoder"), BERT),
    **dict.fromkeys(("DPRContextEncoder",), BERT),
    **dict.fromkeys(("Roberta", "Bart", "Longformer", "LED"), ROBERTA),
    "GPT2": GPT2,
    "OpenAIGPT": GPT,
    "Llama": LLAMA,
}
# The family of a model type, for folders in which no file names a tokenizer class.
MODEL_TYPES = {
    **dict.fromkeys(("bert", "distilbert", "electra", "convbert", "layoutlm"), BERT),
    **dict.fromkeys(("squeezebert", "megatron-bert", "ernie"), BERT),
    **dict.fromkeys(("roberta", "bart", "roberta-prelayernorm", "data2vec-text"), ROBERTA),
    **dict.fromkeys(("gpt2", "gpt_neo", "gptj", "opt", "codegen"), GPT2),
    "openai-gpt": GPT,
}


def family_of(settings: TokenSettings) -> Family | None:
    """The family of the folder's tokenizer class; None if it uses tokenizer.json as it is."""
    if settings.class_name is not None:
        return CLASSES.get(settings.class_name.removesuffix("Tokenizer"))
    return MODEL_TYPES.get(settings.model_type or "")


def adapted(path: Path, content: dict[str, Any], settings: TokenSettings) -> AdaptedTokenizer:
    """A tokenizer.json with the parts that its folder's class overrides.

    Raises:
        DataError: the class belongs to another type of model than tokenizer.json has.
    """
    family = family_of(settings)
    model = content.get("model")
    if family is None or not isinstance(model, dict):
        return AdaptedTokenizer(content)
    if _type_of(model) != family.model:
        mismatch = f"is for a model of type {family.model}, but {path.name} has {_type_of(model)}"
        # Multilingual sentence encoders were published as BERT with XLM-R's tokenizer.json.
        multilingual = family is BERT and _type_of(model) == "Unigram"
        if settings.class_name is not None and not multilingual:
            problem = f"`tokenizer_class` {settings.class_name} {mismatch}."
            hint = 'To use the file as it is, set it to "PreTrainedTokenizerFast".'
            raise DataError(settings.path, None, problem, hint)
        stated = f"{path.with_name('config.json')}: `model_type` {settings.model_type}"
        if settings.class_name is not None:
            stated = f"{settings.path}: `tokenizer_class` {settings.class_name}"
        warnings.warn(
            f"{stated} {mismatch}. The file is used as it is.",
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


# Classes that override parts in ways that are not implemented here.
UNKNOWN_CLASSES = (
    *("Albert", "BigBird", "Blenderbot", "Camembert", "CodeGen", "Deberta", "DebertaV2", "FNet"),
    *("Funnel", "GPTNeoX", "Herbert", "MPNet", "Pegasus", "RemBert", "Splinter", "T5"),
    *("XLMRoberta", "XLNet"),
)


# Of these, those that read none of the fields for case, accents and Chinese characters.
WITHOUT_CASE = ("XLMRoberta",)


def check_unknown_class(path: Path, fast: tokenizers.Tokenizer, settings: TokenSettings) -> None:
    """Raise an error for a field that contradicts tokenizer.json, for the UNKNOWN_CLASSES.

    Raises:
        DataError: for example, `do_lower_case` is true, but the file's normalizer keeps capitals.
    """
    name = (settings.class_name or "").removesuffix("Tokenizer")
    if name not in UNKNOWN_CLASSES:
        return

    def normalized(text: str) -> str:
        return text if fast.normalizer is None else fast.normalizer.normalize_str(text)

    def tokens() -> list[str]:
        return fast.encode("a", add_special_tokens=False).tokens

    does: dict[str, Callable[[], bool]] = {
        "do_lower_case": lambda: "A" not in normalized("A"),
        "strip_accents": lambda: "\u0301" not in normalize("NFD", normalized("\u00e9")),
        "tokenize_chinese_chars": lambda: " " in normalized("a\u4e2da").strip(),
        "add_prefix_space": lambda: "".join(tokens()).startswith(("\u0120", "\u2581")),
    }
    for field_name, check in does.items():
        if name in WITHOUT_CASE and field_name != "add_prefix_space":
            continue
        stated = getattr(settings.config, field_name)
        if stated is not None and stated != call(
            check, lambda reason: DataError(path, None, reason)
        ):
            problem = f"`{field_name}` is {str(stated).lower()}, but {path.name} does the opposite."
            hint = (
                f"The behaviour of {settings.class_name} is not implemented: make both files agree."
            )
            raise DataError(settings.path, None, problem, hint)
