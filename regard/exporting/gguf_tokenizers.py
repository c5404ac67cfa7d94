"""Tokenizers in GGUF: byte-level BPE, WordPiece and Unigram, from tokenizer.json."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from regard.exporting.runtime import ExportSource, token_names
from regard.models.bert import Bert
from regard.models.t5 import T5
from regard.text.special_tokens import ROLES

if TYPE_CHECKING:
    from gguf import GGUFWriter

NAME = "llama.cpp"
SPACE = "\u2581"  # before the words of a Unigram model and, there, of WordPiece
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)


def write_tokenizer(writer: GGUFWriter, gguf: ModuleType, source: ExportSource) -> tuple[str, ...]:
    """Write vocabulary, kind and special tokens; how the runtime tokenizes otherwise comes back.

    Raises:
        ConfigError: the format has no form for this tokenizer.
    """
    content = source.tokenizer.to_json()
    kind, normalizer, split = content["model"]["type"], content["normalizer"], _parts(content)
    names = token_names(source.tokenizer, source.body.config.vocab_size)
    types = _types(gguf, source, content)
    match kind:
        case "BPE" if split and split[-1]["type"] == "ByteLevel":
            _write_bpe(writer, source, content, names)
        case "BPE" if content["model"]["byte_fallback"]:
            types = _write_llama(writer, gguf, content, names, types)
        case "WordPiece" if normalizer and normalizer["type"] == "BertNormalizer":
            names = _write_wordpiece(writer, gguf, source, content, names, types)
        case "Unigram" if split and split[-1]["type"] == "Metaspace":
            _write_unigram(writer, source, content)
        case _:
            raise _cannot(source, f"a {source.tokenizer.kind} tokenizer ({kind})")
    writer.add_token_list([name.encode() for name in names])
    writer.add_token_types(types)
    _write_roles(writer, source, kind)
    return tuple(_differences(source, content))


def _differences(source: ExportSource, content: Mapping[str, Any]) -> Iterator[str]:
    """What the runtime has no form for."""
    kind, parts = content["model"]["type"], {part["type"] for part in _parts(content)}
    rules = ("single_word",) if kind == "WordPiece" else ("single_word", "lstrip", "rstrip")
    reads = source.tokenizer.reads_special_tokens
    read = [token for token in content["added_tokens"] if reads or not token["special"]]
    if added := [token["content"] for token in read if any(map(token.get, rules))]:
        yield (
            "it finds these tokens within words, too, and leaves the spaces beside them: "
            + ", ".join(added[:8])
        )
    if kind != "Unigram":
        return
    if "WhitespaceSplit" not in parts and source.tokenizer.kind != "sentencepiece":
        yield "it reads several spaces as one"
    if content["model"]["byte_fallback"]:
        yield "it reads a character outside the vocabulary as the unknown token, not as bytes"


def _cannot(source: ExportSource, what: str) -> Exception:
    return source.unsupported(
        NAME,
        f"has no form for {what}",
        "It reads BPE of bytes and of SentencePiece, WordPiece as BERT's, and Unigram as T5's.",
    )


def _parts(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The steps that cut a text into words."""
    split = content["pre_tokenizer"]
    if split is None:
        return []
    return split["pretokenizers"] if split["type"] == "Sequence" else [split]


def _types(gguf: ModuleType, source: ExportSource, content: Mapping[str, Any]) -> list[int]:
    """Whether each token is text, a special token, or none of the tokenizer's."""
    kinds, size = gguf.TokenType, source.body.config.vocab_size
    ids = set(source.tokenizer.vocab().values())
    types = [int(kinds.NORMAL if i in ids else kinds.UNUSED) for i in range(size)]
    for token in content["added_tokens"]:
        types[token["id"]] = int(kinds.CONTROL if token["special"] else kinds.USER_DEFINED)
    for role, token in source.tokenizer.roles.items():
        types[source.tokenizer.id(token)] = int(kinds.UNKNOWN if role == "unk" else kinds.CONTROL)
    return types


def _write_bpe(
    writer: GGUFWriter, source: ExportSource, content: Mapping[str, Any], names: list[str]
) -> None:
    """Byte-level BPE, whose rule for words is one of those that the runtime knows by name."""
    model = content["model"]
    if content["normalizer"] is not None:
        raise _cannot(source, f"the normalizer {content['normalizer']['type']} before byte pairs")
    rule = _bpe_rule(_parts(content))
    if rule is None or model["ignore_merges"] != (rule == "llama-bpe"):
        raise _cannot(source, "the way in which tokenizer.json cuts texts into words")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(rule)
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])


def _write_llama(
    writer: GGUFWriter,
    gguf: ModuleType,
    content: Mapping[str, Any],
    names: list[str],
    types: list[int],
) -> list[int]:
    """SentencePiece's BPE: the pair whose token has the best score is merged first. The types of
    the tokens come back: those of bytes are another one.
    """
    ranks: dict[str, int] = {}
    for rank, pair in enumerate(content["model"]["merges"]):
        ranks.setdefault("".join(pair), rank)
    steps = content["normalizer"] or {}
    kinds = {step["type"] for step in steps.get("normalizers", [steps]) if step}
    schemes = [part.get("prepend_scheme", "never") for part in _parts(content)]
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_scores([-float(ranks.get(name, len(ranks))) for name in names])
    writer.add_add_space_prefix("Prepend" in kinds or any(scheme != "never" for scheme in schemes))
    bytes_ = {f"<0x{number:02X}>" for number in range(256)}
    return [
        int(gguf.TokenType.BYTE) if name in bytes_ else kind
        for name, kind in zip(names, types, strict=True)
    ]


def _bpe_rule(parts: list[dict[str, Any]]) -> str | None:
    """Their name of a rule; None: they have none."""
    *before, last = parts
    if last["add_prefix_space"]:
        return None
    match before:
        case []:
            return "gpt-2" if last["use_regex"] else None
        case [{"type": "Digits", "individual_digits": True}]:
            return "smollm" if last["use_regex"] else None
        case [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}]:
            return "llama-bpe" if pattern == LLAMA_3 and not last["use_regex"] else None
    return None


def _write_wordpiece(
    writer: GGUFWriter,
    gguf: ModuleType,
    source: ExportSource,
    content: Mapping[str, Any],
    names: list[str],
    types: list[int],
) -> list[str]:
    """WordPiece, in whose vocabulary the first subwords of words are marked, not the others."""
    normalizer, prefix = content["normalizer"], content["model"]["continuing_subword_prefix"]
    if not (normalizer["clean_text"] and normalizer["handle_chinese_chars"]):
        raise _cannot(source, "a BertNormalizer without `clean_text` and `handle_chinese_chars`")
    lowercase, strip = normalizer["lowercase"], normalizer["strip_accents"]
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_bool("tokenizer.ggml.normalizer.lowercase", lowercase)
    writer.add_bool(
        "tokenizer.ggml.normalizer.strip_accents", lowercase if strip is None else strip
    )
    marked = []
    for name, kind in zip(names, types, strict=True):
        text = name.removeprefix(prefix) if name.startswith(prefix) else SPACE + name
        marked.append(text if kind == gguf.TokenType.NORMAL else name)
    return marked


def _write_unigram(writer: GGUFWriter, source: ExportSource, content: Mapping[str, Any]) -> None:
    """Unigram, with the table of SentencePiece's normalization where it has one."""
    table, normalizer = b"", content["normalizer"]
    if normalizer is not None:
        if normalizer["type"] != "Precompiled":
            raise _cannot(source, f"the normalizer {normalizer['type']} before Unigram")
        table = b64decode(normalizer["precompiled_charsmap"])
    vocab, size = content["model"]["vocab"], source.body.config.vocab_size
    scores = [score for _, score in vocab] + [-1000.0] * (size - len(vocab))
    writer.add_tokenizer_model("t5")
    writer.add_tokenizer_pre("default")
    writer.add_token_scores(scores[:size])
    if _parts(content)[-1]["prepend_scheme"] == "never":
        raise _cannot(source, "Unigram without a space before the first word")
    writer.add_add_space_prefix(True)
    writer.add_remove_extra_whitespaces(True)
    if table:
        writer.add_precompiled_charsmap(table)


def _write_roles(writer: GGUFWriter, source: ExportSource, kind: str) -> None:
    """The ids of special tokens, and which of them surround a text.

    Raises:
        ConfigError: a text is surrounded by others than the runtime can put around it.
    """
    ids = _role_ids(source)
    before, after = surrounding(source)
    if max(len(before), len(after)) > 1 or kind == "WordPiece" and not (before and after):
        raise _cannot_surround(source, before, after, kind)
    for role, around in (("bos", before), ("eos", after), ("sep", after)):
        if around:
            ids[role] = around[0]
    if "eos" not in ids:
        reason = (
            "needs an end-of-text token (`eos`): without one it ends texts at a token of its own"
        )
        raise source.unsupported(NAME, reason)
    adders = {
        "bos": writer.add_bos_token_id,
        "eos": writer.add_eos_token_id,
        "unk": writer.add_unk_token_id,
        "sep": writer.add_sep_token_id,
        "pad": writer.add_pad_token_id,
        "mask": writer.add_mask_token_id,
    }
    for role, add in adders.items():
        if role in ids:
            add(ids[role])
    writer.add_add_bos_token(bool(before))
    writer.add_add_eos_token(bool(after))


def _role_ids(source: ExportSource) -> dict[str, int]:
    """The id of each special token that the tokenizer or the configuration names."""
    tokenizer, config = source.tokenizer, source.body.config
    ids = {role: tokenizer.id(tokenizer.roles[role]) for role in ROLES if role in tokenizer.roles}
    if not isinstance(source.body, Bert) and config.eos is not None:
        ids["eos"] = config.eos
    return ids


def surrounding(source: ExportSource) -> tuple[list[int], list[int]]:
    """The special tokens that the model reads before and after a text."""
    if isinstance(source.body, T5):
        return [], [source.body.config.eos]
    template = source.tokenizer.template
    before, after = ([i for i, _ in part] for part in template.single) if template else ([], [])
    return before, after if isinstance(source.body, Bert) else []  # a prompt is continued


def _cannot_surround(
    source: ExportSource, before: list[int], after: list[int], kind: str
) -> Exception:
    tokens = [*map(source.tokenizer.token, before), "TEXT", *map(source.tokenizer.token, after)]
    can = "one token on each side of" if kind == "WordPiece" else "at most one token on a side of"
    return source.unsupported(
        NAME, f"puts {can} a text of a {kind} tokenizer, but this model reads {' '.join(tokens)}"
    )
