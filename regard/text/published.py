"""Reads tokenizers that others have published, ids unchanged.

Formats:

    a folder           of Marian or M2M-100 (`regard.text.piece_tokenizer`), or with tokenizer.json,
                       or vocab.json + merges.txt (GPT-2, RoBERTa), or
                       encoder.json + vocab.bpe (GPT-2), or vocab.json alone (GPT), or vocab.txt
    tokenizer.json     of the `tokenizers` library, any model
    vocab.txt          of BERT, one token per line; if one has a capital, the vocabulary is cased;
                       or of Transformer-XL, one word per line, with <eos>
    vocab.json         or encoder.json, with the merges beside it
    spiece.model       and other SentencePiece models: unigram, and BPE of Llama and NLLB

The settings beside them are read as `transformers` does: see `regard.text.vocab_files`.

The classes of BERT, RoBERTa, GPT-2 and Llama in `transformers` override parts of tokenizer.json:
they take the vocabulary, the merges and the added tokens from it, and build the normalizer, the
pre-tokenizer and the decoder from the fields of tokenizer_config.json. Other classes use it as it
is.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from regard.errors import DataError, RegardError, warn
from regard.lazy import imported
from regard.text import sentencepiece, vocab_files
from regard.text.bpe import END, Pair, assemble, rebuild_merges
from regard.text.preprocessing import (
    Preprocessing,
    Split,
    parse,
    processor_of,
    roles_of,
    template_in,
)
from regard.text.templates import Template
from regard.text.tokenizer import Tokenizer
from regard.text.vocab_files import (
    AddedTokenSpec,
    ConfigFields,
    TokenSettings,
    add_from_settings,
    added_tokens,
    read_settings,
)
from regard.text.wordpiece import longest_match_tokenizer

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


def _bert_parts(settings: TokenSettings) -> Parts:
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


def _byte_parts(settings: TokenSettings) -> Parts:
    shape = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    return {
        "normalizer": None,
        "pre_tokenizer": {**shape, "add_prefix_space": bool(settings.config.add_prefix_space)},
        "decoder": {**shape, "add_prefix_space": True},
        "model": {**PLAIN_BPE, **BYTES},
    }


def _llama_parts(settings: TokenSettings) -> Parts:
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
            **PLAIN_BPE,
            **BYTES,
            "unk_token": _named(settings, "unk", "<unk>"),
            "fuse_unk": True,
            "byte_fallback": True,
        },
    }


BERT = Family(
    "WordPiece",
    _bert_parts,
    {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"},
)
ROBERTA = Family("BPE", _byte_parts, sentencepiece.XLM_ROBERTA.roles)
GPT2 = Family("BPE", _byte_parts, dict.fromkeys(("bos", "eos", "unk"), END_OF_TEXT))
LLAMA = Family("BPE", _llama_parts, sentencepiece.LLAMA.roles)

CLASSES = {
    **dict.fromkeys(("Bert", "DistilBert", "Electra"), BERT),
    **dict.fromkeys(("Roberta", "Bart"), ROBERTA),
    "GPT2": GPT2,
    "Llama": LLAMA,
}
# The family of a model type, for folders in which no file names a tokenizer class.
MODEL_TYPES = {"gpt_neo": GPT2, **{k.lower(): v for k, v in CLASSES.items() if v is not LLAMA}}


def family_of(settings: TokenSettings) -> Family | None:
    """The family of the folder's tokenizer class; None if it uses tokenizer.json as it is."""
    if settings.class_name is not None:
        return CLASSES.get(settings.class_name.removesuffix("Tokenizer"))
    return MODEL_TYPES.get(settings.model_type or "")


def adapted(
    path: Path, content: dict[str, Any], settings: TokenSettings
) -> tuple[dict[str, Any], Family | None]:
    """A tokenizer.json with the parts that its folder's class overrides, and the family of this
    class. One for another type of model, as multilingual sentence encoders of the class of BERT
    have it, is used as it is: of no family.
    """
    family = family_of(settings)
    model = content.get("model")
    if family is None or not isinstance(model, dict):
        return content, None
    if (actual := _type_of(model)) != family.model:
        warn(
            f"{path}: {settings.class_name or settings.model_type} is for a model of type "
            f"{family.model}, but the file has {actual}. It is used as it is.",
        )
        return content, None
    parts = family.parts(settings)
    model = {**content["model"], "type": family.model, **parts["model"]}
    return {**content, **parts, "model": model}, family


def _type_of(model: Mapping[str, Any]) -> str:
    """The type of a model; old files do not state it."""
    if isinstance(model.get("type"), str):
        return model["type"]
    if "merges" in model:
        return "BPE"
    if isinstance(model.get("vocab"), list):
        return "Unigram"
    return "WordPiece" if "continuing_subword_prefix" in model else "WordLevel"


# -------------------------------------------------------------------------------------------- files


VOCAB_NAMES = ("vocab.json", "encoder.json")
LINE_END = "<eos>"  # the first word of Transformer-XL's vocabularies
MERGES_NAMES = ("merges.txt", "vocab.bpe")
BACKEND = "TokenizersBackend"  # of `transformers` 5, which gives no segments unless it is told to
SEGMENTS = "token_type_ids"  # in `model_input_names`, where the model gets segments
TWO_FILES = {  # what a folder holds -> the class of its tokenizer
    sentencepiece.is_marian: "MarianTokenizer",
    sentencepiece.is_m2m_100: "M2M100Tokenizer",
}
MODELS = {  # the type of model of each kind that `regard_kind` may name
    "bpe": "BPE",
    "byte-bpe": "BPE",
    "unigram": "Unigram",
    "sentencepiece": "Unigram",
    "sentencepiece-bpe": "BPE",
    "wordpiece": "WordPiece",
    "wordpiece-likelihood": "WordPiece",
    "words": "WordLevel",
    "characters": "WordLevel",
}


def load(path: str | PathLike[str]) -> Tokenizer:
    """A tokenizer from a folder or file, recognized by its name and content (see this module).

    Raises:
        DataError: a file is missing or malformed, or what it asks for is not supported.
    """
    path = Path(path)
    for holds, kind in TWO_FILES.items():
        if holds(path):
            return imported("regard.text.piece_tokenizer:" + kind).load(path)
    path = _main_file(path)
    if sentencepiece.is_model(path.name):
        return _sentencepiece(path)
    if path.suffix == ".txt":
        return _words(path) if vocab_files.read_lines(path)[0] == LINE_END else _bert(path)
    if path.suffix == ".json":
        text = vocab_files.read_text(path)
        content = vocab_files.parse_json(path, text)
        if path.name == "tokenizer.json" or isinstance(content.get("model"), dict):
            return _tokenizer_json(path, text, content)  # in vocab.json "model" is a token
        return _bpe(path)
    hint = "Known: .json, .txt, .model, folder."
    raise DataError(path, None, "is not a known kind of vocabulary.", hint)


def holds_tokenizer(folder: Path) -> bool:
    """Whether a folder has one of the files that `load` reads."""
    names = ("tokenizer.json", *VOCAB_NAMES, "vocab.txt")
    return any(p.name in names or sentencepiece.is_model(p.name) for p in folder.iterdir())


def _main_file(path: Path) -> Path:
    """The file to read: of a folder, the first of the known names."""
    if not path.is_dir():
        return path
    if (path / "tokenizer.json").is_file():
        return path / "tokenizer.json"
    merges = any((path / name).is_file() for name in MERGES_NAMES)
    if not merges and (model := sentencepiece.find_model(path)) is not None:
        return model
    for name in (*VOCAB_NAMES, "vocab.txt"):
        if (path / name).is_file():
            return path / name
    names = ", ".join(sorted(p.name for p in path.iterdir())[:8]) or "nothing"
    expected = "tokenizer.json, vocab.json, encoder.json, vocab.txt or spiece.model"
    raise DataError(path, None, f"the folder must have {expected}, but has {names}.")


# ---- tokenizer.json


def _tokenizer_json(path: Path, text: str, content: dict[str, Any]) -> Tokenizer:
    model, listed = content.get("model"), added_tokens(path, content)
    if isinstance(model, dict) and isinstance(model.get("vocab"), dict):
        vocab_files.check_ids(path, model["vocab"])
    vocab_files.check_ids(path, {token.content: number for number, token in listed})
    settings = read_settings(path, content)
    start, family = adapted(path, content, settings)
    asked = {number: token for number, (token, _) in settings.added.items()}
    if family is not None and asked != dict(listed):
        start = {**start, "added_tokens": []}  # its class adds what tokenizer_config.json lists
    fast = parse(path, text if start is content else json.dumps(start))
    names = family.defaults if family else {}
    defaults = {role: AddedTokenSpec(name, plain=True) for role, name in names.items()}
    add_from_settings(path, fast, settings, defaults)
    added = {token.content: number for number, token in fast.get_added_tokens_decoder().items()}
    for number, token in listed:
        if added.get(token.content) != number:
            problem = f"the added token {token.content!r} must have the id {number}, but has "
            problem += f"{added.get(token.content, 'none')}."
            hint = "tokenizer_config.json must list it, and ids must follow the vocabulary."
            raise DataError(path, None, problem, hint)
    unnamed = {role: name for role, name in names.items() if role not in settings.named}
    present = {r: name for r, name in unnamed.items() if fast.token_to_id(name) is not None}
    roles = present | settings.roles
    if family in (BERT, ROBERTA) and {"cls", "sep"} <= roles.keys():
        processor = _class_processor(fast, family, roles)
        if _check_template(path, fast) != template_in(processor):
            fast.post_processor = processor
    _check_template(path, fast)
    return _loaded(path, fast, _kind_of(fast), roles or _known_roles(fast), settings)


def _class_processor(
    fast: tokenizers.Tokenizer, family: Family, roles: Mapping[str, str]
) -> processors.PostProcessor:
    cls, sep = ((roles[role], _id_of(fast, roles[role])) for role in ("cls", "sep"))
    if family is BERT:
        return processor_of(Template.bert(cls[1], sep[1]), fast.id_to_token)
    return processors.RobertaProcessing(sep, cls, trim_offsets=True, add_prefix_space=False)


def _id_of(fast: tokenizers.Tokenizer, token: str) -> int:
    number = fast.token_to_id(token)
    assert number is not None, f"{token!r} is in the vocabulary"
    return number


def _check_template(path: Path, fast: tokenizers.Tokenizer) -> Template | None:
    """The template of a tokenizer.json.

    Raises:
        DataError: it cannot be read, or has an id that is not in the vocabulary.
    """
    try:
        template = template_in(fast.post_processor)
    except RegardError as error:
        raise DataError(path, None, str(error)) from None
    parts = (*template.single, *template.pair) if template else ()
    for number in (number for part in parts for number, _ in part):
        if fast.id_to_token(number) is None:
            problem = f"its `post_processor` adds the id {number} to texts, which no token has."
            raise DataError(path, None, problem)
    return template


def _loaded(
    path: Path,
    fast: tokenizers.Tokenizer,
    kind: str,
    roles: Mapping[str, str],
    settings: TokenSettings,
) -> Tokenizer:
    """The tokenizer, with the options of tokenizer_config.json."""
    config = settings.config
    inputs = config.model_input_names
    if inputs is None and config.tokenizer_class == BACKEND:
        inputs = []
    if inputs is not None and SEGMENTS not in inputs:
        template = template_in(fast.post_processor)
        if template is not None and template.segment_count > 1:
            fast.post_processor = processor_of(
                template.unsegmented(), fast.id_to_token, fast.post_processor
            )
    roles = {role: name for role, name in roles.items() if fast.token_to_id(name) is not None}
    if roles.get("unk") in (roles.get("bos", ""), roles.get("eos", "")) and not config.regard_kind:
        del roles["unk"]  # GPT-2 names the end of a text there, but no text is unknown to it
    asked = config.regard_kind or kind
    model = type(fast.model).__name__
    if MODELS.get(asked) != model:
        problem = f"`regard_kind` is {asked!r}, which the model of {path.name}, {model}, is not."
        raise DataError(settings.path, None, problem)
    return Tokenizer(
        fast,
        asked,
        roles,
        reads_special_tokens=not config.split_special_tokens,
        sides=config.model_dump(include={"padding_side", "truncation_side"}, exclude_none=True),
        clean_up_spaces=bool(config.clean_up_tokenization_spaces) and model != "BPE",
        max_length=settings.max_length,
        chat_template=settings.chat_template,
    )


def _known_roles(fast: tokenizers.Tokenizer) -> dict[str, str]:
    """The roles of added special tokens, recognized by their names."""
    special_tokens = [t.content for t in fast.get_added_tokens_decoder().values() if t.special]
    ends = {"bos": END_OF_TEXT, "eos": END_OF_TEXT} if END_OF_TEXT in special_tokens else {}
    return roles_of(special_tokens) or ends


def _kind_of(fast: tokenizers.Tokenizer) -> str:
    model = type(fast.model).__name__
    if model == "BPE":
        return "bpe" if fast.model.end_of_word_suffix else "byte-bpe"
    if model == "WordLevel":
        return "characters" if type(fast.pre_tokenizer).__name__ == "Split" else "words"
    return model.lower()


# ---- BERT


def _bert(path: Path) -> Tokenizer:
    """vocab.txt of BERT, with BERT's preprocessing and template."""
    vocab, settings = vocab_files.read_vocab_txt(path), read_settings(path)
    for special in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"):
        # Some copies of the uncased vocabulary have the special tokens in lower case, too.
        if special not in vocab and special.lower() in vocab:
            vocab[special] = vocab.pop(special.lower())
    vocab = dict(sorted(vocab.items(), key=lambda item: item[1]))
    names = {"unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]"} | settings.roles
    _check_present(path, vocab, "BERT", names["unk"], names["cls"], names["sep"])
    config = settings.config
    is_bert, lower = family_of(settings) is BERT, config.do_lower_case
    if lower is None:  # an unnamed vocabulary is cased where a token has a capital
        capital = any(t != t.lower() for t in vocab if not (t.startswith("[") and t.endswith("]")))
        lower = (is_bert and settings.class_name is not None) or not capital
    isolate, accents = config.tokenize_chinese_chars, config.strip_accents
    preprocessing = Preprocessing(
        clean=True,
        isolate_cjk=True if isolate is None else isolate,
        strip_accents=lower if accents is None else accents,
        lowercase=lower,
        split="punctuation",
    )
    fast = longest_match_tokenizer(vocab, preprocessing, names["unk"])
    fast.post_processor = _class_processor(fast, BERT, names)
    return _finish(path, fast, "wordpiece", settings, BERT.defaults if is_bert else roles_of(vocab))


def _check_present(path: Path, vocab: Mapping[str, int], model: str, *names: str) -> None:
    for name in names:
        if name not in vocab:
            hint = f"A {model} vocabulary has it."
            raise DataError(path, None, f"the token {name} is missing.", hint)


# ---- Transformer-XL


def _words(path: Path) -> Tokenizer:
    """vocab.txt of Transformer-XL: words between white space, in a text that is tokenized already.

    The text of Wikipedia that it learned from has spaces around punctuation and inside numbers
    ("1 @,@ 000"); nothing here makes them.
    """
    vocab, settings = vocab_files.read_vocab_txt(path), read_settings(path)
    unknown = next((name for name in ("<unk>", "<UNK>") if name in vocab), None)
    if unknown is None:
        _check_present(path, vocab, "Transformer-XL", "<unk>")
    preprocessing = Preprocessing(lowercase=bool(settings.config.do_lower_case))
    fast = assemble(models.WordLevel(vocab, unknown), preprocessing)
    return _finish(path, fast, "words", settings, {"unk": str(unknown), "eos": LINE_END})


# ---- SentencePiece


def _sentencepiece(path: Path) -> Tokenizer:
    """A SentencePiece model; ids as the class numbers them that files beside it name."""
    settings = read_settings(path)
    family = sentencepiece.family_of(path, settings)
    model = sentencepiece.read(path, family.types if family else sentencepiece.UNIGRAM)
    if family is None:
        split = settings.config.split_special_tokens is not False  # where no file says it, too
        config = settings.config.model_copy(update={"split_special_tokens": split})
        settings, fast = replace(settings, config=config), sentencepiece.pipeline(model)
        return _finish(path, fast, "sentencepiece", settings, model.roles)
    fast = family.tokenizer(model, settings)
    roles = {**family.roles, **settings.roles}
    _check_present(path, fast.get_vocab(), settings.class_name or "this", *family.roles.values())
    tokens = {**roles, **family.language(settings)}
    ids = {role: _id_of(fast, token) for role, token in tokens.items() if token in fast.get_vocab()}
    fast.post_processor = processor_of(family.template(ids), fast.id_to_token)
    return _finish(path, fast, family.kind(model), settings, family.roles)


# ---- GPT, GPT-2, RoBERTa


def _bpe(path: Path) -> Tokenizer:
    """vocab.json with its merges: characters with </w> (GPT) or bytes (GPT-2, RoBERTa)."""
    vocab, settings = vocab_files.read_vocab_json(path), read_settings(path)
    merges = _merges(path, vocab)
    if any(token.endswith(END) and token != END for token in vocab):
        return _gpt(path, vocab, merges, settings)
    family = family_of(settings)
    if family is ROBERTA or (family is None and "<s>" in vocab and "<mask>" in vocab):
        return _roberta(path, vocab, merges, settings)
    fast = _bytes(path, vocab, merges, settings)
    ends = {"bos": END_OF_TEXT, "eos": END_OF_TEXT} if END_OF_TEXT in vocab else roles_of(vocab)
    return _finish(path, fast, "byte-bpe", settings, family.defaults if family else ends)


def _merges(path: Path, vocab: dict[str, int]) -> list[Pair]:
    """The merges beside the vocabulary, or rebuilt from the order of the ids."""
    for name in MERGES_NAMES:
        if (beside := path.with_name(name)).is_file():
            return vocab_files.read_merges(beside, vocab)
    try:
        return rebuild_merges(vocab, [*roles_of(vocab).values(), END_OF_TEXT, "\n" + END])
    except ValueError as error:
        problem = f"has no merges beside it ({' or '.join(MERGES_NAMES)}), and its ids do not "
        problem += f"follow the order of learning: {error}."
        raise DataError(path, None, problem) from None


def _gpt(
    path: Path, vocab: dict[str, int], merges: list[Pair], settings: TokenSettings
) -> Tokenizer:
    unknown = settings.roles.get("unk", "<unk>")
    _check_present(path, vocab, "GPT", unknown)
    model = models.BPE(vocab, merges, unk_token=unknown, end_of_word_suffix=END)
    fast = tokenizers.Tokenizer(model)
    fast.normalizer = normalizers.BertNormalizer(lowercase=True)
    fast.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    fast.decoder = decoders.BPEDecoder(suffix=END)
    return _finish(path, fast, "bpe", settings, roles_of(vocab))


def _bytes(
    path: Path, vocab: dict[str, int], merges: list[Pair], settings: TokenSettings
) -> tokenizers.Tokenizer:
    missing = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - vocab.keys())
    if missing:
        problem = f"{len(missing)} of the 256 byte tokens are missing, the first is {missing[0]!r}."
        raise DataError(path, None, problem, "Is it a byte-level vocabulary?")
    split: Split = "gpt2-prefix" if settings.config.add_prefix_space else "gpt2"
    return assemble(models.BPE(vocab, merges), Preprocessing(split=split), decoders.ByteLevel())


def _roberta(
    path: Path, vocab: dict[str, int], merges: list[Pair], settings: TokenSettings
) -> Tokenizer:
    fast = _bytes(path, vocab, merges, settings)
    names = {"cls": "<s>", "sep": "</s>"} | settings.roles
    _check_present(path, vocab, "RoBERTa", names["cls"], names["sep"])
    fast.post_processor = _class_processor(fast, ROBERTA, names)
    defaults = {**ROBERTA.defaults, **roles_of(vocab)}
    mask = settings.named.get("mask", AddedTokenSpec(defaults["mask"], plain=True))
    if mask is not None and mask.plain:
        # In RoBERTa's own code the space before <mask> is part of it: it stands for " word". So it
        # is in `transformers` 4, by which such folders were written; later releases differ.
        named = {**settings.named, "mask": AddedTokenSpec(mask.content, lstrip=True)}
        settings = replace(settings, named=named)
    return _finish(path, fast, "byte-bpe", settings, defaults)


def bytes_of_characters() -> dict[str, int]:
    """The byte of each of GPT-2's characters; a printable byte is written as its own character."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    shifted = {chr(256 + n): byte for n, byte in enumerate(others)}
    return {chr(byte): byte for byte in printable} | shifted


def _finish(
    path: Path,
    fast: tokenizers.Tokenizer,
    kind: str,
    settings: TokenSettings,
    defaults: Mapping[str, str],
) -> Tokenizer:
    """The tokenizer, with the tokens that files beside the vocabulary add to it."""
    tokens = {role: AddedTokenSpec(name, plain=True) for role, name in defaults.items()}
    add_from_settings(path, fast, settings, tokens)
    present = {r: t.content for r, t in tokens.items() if fast.token_to_id(t.content) is not None}
    roles = present | settings.roles
    if fast.post_processor is None:
        _put_ends(fast, roles, settings)
    return _loaded(path, fast, kind, roles, settings)


def _put_ends(
    fast: tokenizers.Tokenizer, roles: Mapping[str, str], settings: TokenSettings
) -> None:
    """The template that `add_bos_token` and `add_eos_token` ask for."""
    config = settings.config
    ids: dict[str, list[int]] = {"bos": [], "eos": []}
    for role, asked in (("bos", config.add_bos_token), ("eos", config.add_eos_token)):
        if asked and settings.named.get(role, roles.get(role)) is None:
            problem = f"`add_{role}_token` asks for a {role} token, but there is none."
            raise DataError(settings.path, None, problem, f"Name one in `{role}_token`.")
        ids[role] += [_id_of(fast, roles[role])] if asked else []
    if not ids["bos"] + ids["eos"]:
        return
    (bos, bos_of_second), (eos, eos_of_second) = (
        [tuple((i, segment) for i in ids[role]) for segment in (0, 1)] for role in ("bos", "eos")
    )
    template = Template((bos, eos), (bos, (*eos, *bos_of_second), eos_of_second))
    fast.post_processor = processor_of(template, fast.id_to_token)
