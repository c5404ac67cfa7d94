"""GGUF files, which llama.cpp opens: GPT-2, Llama and BERT, with their tokenizers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from regard.checkpoints.formats import layout_for, to_published
from regard.data.batches import Sequences
from regard.errors import CheckpointError
from regard.exporting import (
    Comparison,
    Difference,
    ExportSource,
    WeightsInFile,
    array,
    package,
    token_names,
)
from regard.models.bert import Bert
from regard.models.gpt2 import GPT2
from regard.models.llama import Llama
from regard.tasks.embedding import Embedder
from regard.text.preprocessing import ROLES

if TYPE_CHECKING:
    from gguf import GGUFWriter


TEXTS = (
    "The animal didn't cross the street because it was too tired.",
    "  two  spaces\tand\nlines  ",
    "Ünïcödé, naïve café; 東京タワー 🙂👍🏽",
    "in 1,234.5 ways: a/b@c.org (e-mail) don't!",
    "[CLS] [MASK] </s> <mask> <|endoftext|> are pieces somewhere",
    "Donaudampfschifffahrtsgesellschaft xqzwv ﬁﬀ ① ½",
    "",
)
F32, NO_POOLING = 0, 0  # types of keys and values, and of pooling


class LlamaContext:
    """A model of llama.cpp and a context that reads one sequence at a time.

    Args:
        model: the address of a model that it has loaded.
        longest: the most tokens of a sequence.
        embeds: whether hidden states are asked for, not logits.
    """

    def __init__(self, llama: ModuleType, model: int, longest: int, embeds: bool):
        self.llama, self.model, self.embeds = llama, model, embeds
        options = llama.llama_context_default_params()
        options.n_ctx = options.n_batch = options.n_ubatch = longest
        options.n_threads = options.n_threads_batch = 1
        options.type_k = options.type_v = F32
        options.flash_attn_type = 0
        options.embeddings, options.pooling_type = embeds, NO_POOLING
        self.context = llama.llama_init_from_model(model, options)
        assert self.context, "llama.cpp makes no context for this model"
        self.batch = llama.llama_batch_init(longest, 0, 1)
        self.vocab = llama.llama_model_get_vocab(model)

    def read(self, ids: Sequence[int], width: int) -> np.ndarray:
        """The outputs of all tokens, (T, width), of a sequence from its beginning."""
        memory = self.llama.llama_get_memory(self.context)
        if memory:
            self.llama.llama_memory_clear(memory, True)
        self.batch.n_tokens = len(ids)
        for n, token in enumerate(ids):
            self.batch.token[n], self.batch.pos[n] = token, n
            self.batch.n_seq_id[n], self.batch.seq_id[n][0] = 1, 0
            self.batch.logits[n] = True
        code = self.llama.llama_decode(self.context, self.batch)
        assert not code, f"llama.cpp could not compute a sequence: its code is {code}"
        get = self.llama.llama_get_logits_ith
        get = self.llama.llama_get_embeddings_ith if self.embeds else get
        rows = [np.ctypeslib.as_array(get(self.context, n), (width,)) for n in range(len(ids))]
        return np.stack(rows)

    def tokens(self, text: str, reads_special_tokens: bool) -> list[int]:
        """The ids of a text, with the special tokens that are put around it."""
        data = text.encode()
        ids = (ctypes.c_int32 * (len(data) + 8))()
        count = self.llama.llama_tokenize(
            self.vocab, data, len(data), ids, len(ids), True, reads_special_tokens
        )
        return list(ids[: max(count, 0)])

    def close(self) -> None:
        """Free its memory."""
        self.llama.llama_batch_free(self.batch)
        self.llama.llama_free(self.context)


@contextmanager
def opened(path: Path, longest: int, *, embeds: bool = False) -> Iterator[LlamaContext]:
    """The context of a file's model, without llama.cpp's messages; see `LlamaContext`.

    Raises:
        CheckpointError: llama.cpp does not open the file.
    """
    llama = package("llama_cpp", "llama-cpp-python")
    with _silent(llama):
        llama.llama_backend_init()
        options = llama.llama_model_default_params()
        model = llama.llama_model_load_from_file(str(path).encode(), options)
        if not model:
            raise CheckpointError(f"llama.cpp does not open {path}: please report this model.")
        try:
            context = LlamaContext(llama, model, longest, embeds)
            try:
                yield context
            finally:
                context.close()
        finally:
            llama.llama_model_free(model)


@contextmanager
def _silent(llama: ModuleType) -> Iterator[None]:
    """Inside, llama.cpp prints no message; the previous log callback is restored afterwards."""
    before, data = llama.llama_log_callback(), ctypes.c_void_p()
    llama.llama_log_get(ctypes.byref(before), ctypes.byref(data))
    # llama.cpp may call it as long as it is set; what went wrong is in the results
    silent = llama.llama_log_callback(lambda *message: None)
    llama.llama_log_set(silent, ctypes.c_void_p(0))
    try:
        yield
    finally:
        llama.llama_log_set(before, data)


POOLINGS = {"mean": "MEAN", "cls": "CLS", "lasttoken": "LAST", "none": "NONE"}  # ours -> theirs
GELU = (
    "GELU is computed by a table of its tanh form in 16 bits, so that outputs differ from ours by "
    "more than rounding in 32 bits would make them"
)
Tensors = Iterator[tuple[str, np.ndarray]]


class GGUF:
    """Files that llama.cpp opens."""

    name = "llama.cpp"
    ending = ".gguf"
    package = "llama_cpp"
    distribution = "llama-cpp-python"
    tolerance = 2e-2
    quantizes = True

    def write(
        self, source: ExportSource, out: Path, weights: WeightsInFile | None
    ) -> tuple[str, ...]:
        gguf, kind = package("gguf"), type(source.body)
        source.check_architecture(FAMILIES)
        family, fields, describe = FAMILIES[kind]
        source.check_heads(("pooler",) if kind is Bert else ())
        for field, values in fields.items():
            source.check_field(field, values)
        if layout_for(source.body) is None:
            reason = (
                f"reads published layouts, which have no form for this {kind.__name__}'s options"
            )
            raise source.unsupported(reason)
        writer = gguf.GGUFWriter(out, family)
        try:
            _write_sizes(writer, source)
            describe(writer, gguf, source)
            write_tokenizer(writer, gguf, source)
            writer.add_file_type(
                gguf.LlamaFileType.MOSTLY_Q8_0 if weights else gguf.LlamaFileType.ALL_F32
            )
            _add_tensors(writer, gguf, source, family, weights)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
        finally:
            writer.close()
        gelu = source.body.config.activation.startswith("gelu")
        return NOTES.get(kind, ()) + ((GELU,) if gelu else ())

    def compare(self, source: ExportSource, out: Path) -> Comparison:
        batch, model = Sequences(source.batch.ids, source.batch.lengths), source.body
        rows = [row[:count].tolist() for row, count in zip(batch.ids, batch.lengths, strict=True)]
        is_encoder = isinstance(model, Bert)
        output, width = "logits", model.config.vocab_size
        if is_encoder:
            output, width = "hidden states", model.config.d_model
        with opened(out, max(map(len, rows)) + 8, embeds=is_encoder) as context, torch.no_grad():
            theirs = np.concatenate([context.read(row, width) for row in rows])
            ours = model.encode(batch) if is_encoder else model.head.logits(model(batch.ids).hidden)
            difference = Difference.between(output, ours[batch.keep], theirs)
            return (difference,), (_compare_texts(source, context),)


def _compare_texts(source: ExportSource, context: LlamaContext) -> str:
    """How many of a few texts get our ids, special tokens included."""
    before, after = surrounding(source)
    wanted = [[*before, *ids, *after] for ids in source.tokenizer.encode_many(list(TEXTS))]
    reads = source.tokenizer.reads_special_tokens
    equal = sum(context.tokens(text, reads) == ids for text, ids in zip(TEXTS, wanted, strict=True))
    return f"{equal} of {len(TEXTS)} texts get our ids from its own tokenizer"


# ----------------------------------------------------------------------------------- fields


def _write_sizes(writer: GGUFWriter, source: ExportSource) -> None:
    config = source.body.config
    writer.add_name(source.path.name)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_length)
    writer.add_embedding_length(config.d_model)
    writer.add_feed_forward_length(config.d_ff or 4 * config.d_model)
    writer.add_block_count(config.layers)
    writer.add_head_count(config.heads)


def _describe_bert(writer: GGUFWriter, gguf: ModuleType, source: ExportSource) -> None:
    writer.add_layer_norm_eps(source.body.config.norm_eps)
    writer.add_causal_attention(False)
    writer.add_token_type_count(source.body.config.segments)
    kinds = source.task.pooling.kinds if isinstance(source.task, Embedder) else ("none",)
    if len(kinds) > 1 or kinds[0] not in POOLINGS:
        names = ", ".join(POOLINGS)
        reason = f"pools a text by one of {names}, but the folder by {', '.join(kinds)}"
        raise source.unsupported(reason)
    writer.add_pooling_type(gguf.PoolingType[POOLINGS[kinds[0]]])


def _describe_llama(writer: GGUFWriter, gguf: ModuleType, source: ExportSource) -> None:
    config, width = source.body.config, source.body.blocks[0].attention.head_dim
    writer.add_head_count_kv(config.shared_heads)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.norm_eps)


# ----------------------------------------------------------------------------------- tensors


def _add_tensors(
    writer: GGUFWriter,
    gguf: ModuleType,
    source: ExportSource,
    family: str,
    weights: WeightsInFile | None,
) -> None:
    """All tensors; rows of 32 numbers can have 8 bits, with a scale for each block of them."""
    for name, value in _tensors(gguf, source, family):
        exact = value.ndim == 1 or value.shape[-1] % 32
        if weights is None or exact or name.startswith(("position_embd", "token_types")):
            writer.add_tensor(name, value)
            continue
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, gguf.quants.quantize(value, kind), raw_dtype=kind)


def _tensors(gguf: ModuleType, source: ExportSource, family: str) -> Tensors:
    """Their names, and the values in their shapes."""
    body = source.body
    published = to_published(body)
    assert published is not None  # `write` has checked it
    architecture = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == family)
    names = gguf.get_tensor_name_map(architecture, body.config.layers)
    for theirs, tensor in published[1].items():
        plain = theirs.removeprefix("bert.")
        name = names.get_name(plain, try_suffixes=(".weight", ".bias"))
        if plain == "lm_head.weight":
            continue  # below
        assert name is not None, f"gguf has no name for {theirs}"
        yield name, _shaped(source, plain, tensor)
    if not isinstance(body, Bert) and not body.config.tied:
        yield "output.weight", array(body.head.weight)
    if isinstance(body, Llama) and body.config.rope_scaling != "none":
        # what the frequencies are divided by: (K / 2,)
        angles, width = body.config.angles, body.blocks[0].attention.head_dim
        plain = replace(angles, scaling="none").frequencies(width)
        yield "rope_freqs.weight", array(plain / angles.frequencies(width))


def _shaped(source: ExportSource, name: str, tensor: Tensor) -> np.ndarray:
    """A published tensor in the shape that the format has for it."""
    body = source.body
    if isinstance(body, GPT2) and ".c_" in name and tensor.dim() == 2:
        return array(tensor.t())  # (in, out) -> (out, in)
    if isinstance(body, Llama) and ("q_proj" in name or "k_proj" in name):
        heads = body.config.heads if "q_proj" in name else body.config.shared_heads
        # (H, 2, K / 2, ...) -> (H, K / 2, 2, ...): what is rotated together side by side
        halves = tensor.unflatten(0, (heads, 2, -1))
        return array(halves.transpose(1, 2).flatten(0, 2))
    return array(tensor)


Describe = Callable[["GGUFWriter", ModuleType, ExportSource], None]
Family = tuple[str, dict[str, tuple[Any, ...]], Describe]
GELUS, OUTPUTS = ("gelu-tanh", "gelu"), ("tied", "own")
# class -> its name there, the values of options that it computes, and the fields of its own
FAMILIES: dict[type, Family] = {
    GPT2: (
        "gpt2",
        {
            "positions": ("learned",),
            "activation": GELUS,
            "output": OUTPUTS,
            "scaled": (True,),
            "scaled_by_layer": (False,),
        },
        lambda writer, gguf, source: writer.add_layer_norm_eps(source.body.config.norm_eps),
    ),
    Bert: ("bert", {"positions": ("learned",), "activation": GELUS}, _describe_bert),
    Llama: ("llama", {"activation": ("swish",), "output": OUTPUTS}, _describe_llama),
}
NOTES: dict[type, tuple[str, ...]] = {
    Bert: (
        "every token is of the first segment: pairs of texts need another runtime",
        "the trained pooler is left out; texts are pooled as the folder says",
    ),
}


# ----------------------------------------------------------------------------------- tokenizers

SPACE = "\u2581"  # before the words of WordPiece there
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)


def write_tokenizer(writer: GGUFWriter, gguf: ModuleType, source: ExportSource) -> None:
    """Write vocabulary, kind and special tokens.

    Raises:
        ConfigError: the format has no form for this tokenizer.
    """
    content = source.tokenizer.to_json()
    kind, normalizer, split = content["model"]["type"], content["normalizer"], _parts(content)
    names = token_names(source.tokenizer, source.body.config.vocab_size)
    types = _types(gguf, source, content)
    match kind:
        case "BPE" if split and split[-1]["type"] == "ByteLevel":
            _write_bpe(writer, source, content)
        case "BPE" if content["model"]["byte_fallback"]:
            types = _write_llama(writer, gguf, content, names, types)
        case "WordPiece" if normalizer and normalizer["type"] == "BertNormalizer":
            names = _write_wordpiece(writer, gguf, source, content, names, types)
        case _:
            raise _cannot(source, f"a {source.tokenizer.kind} tokenizer ({kind})")
    writer.add_token_list([name.encode() for name in names])
    writer.add_token_types(types)
    _write_roles(writer, source, kind)


def _cannot(source: ExportSource, what: str) -> Exception:
    return source.unsupported(
        f"has no form for {what}",
        "It reads BPE of bytes and of SentencePiece, and WordPiece as BERT's.",
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


def _write_bpe(writer: GGUFWriter, source: ExportSource, content: Mapping[str, Any]) -> None:
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


def _write_roles(writer: GGUFWriter, source: ExportSource, kind: str) -> None:
    """The ids of special tokens, and which of them surround a text.

    Raises:
        ConfigError: a text is surrounded by others than the runtime can put around it.
    """
    tokenizer, is_encoder = source.tokenizer, isinstance(source.body, Bert)
    ids = {role: tokenizer.id(tokenizer.roles[role]) for role in ROLES if role in tokenizer.roles}
    if not is_encoder and source.body.config.eos is not None:
        ids["eos"] = source.body.config.eos
    before, after = surrounding(source)
    if max(len(before), len(after)) > 1 or kind == "WordPiece" and not (before and after):
        can = "one token on each side of" if kind == "WordPiece" else "at most one on a side of"
        tokens = " ".join(map(tokenizer.token, [*before, *after])) or "none"
        reason = f"puts {can} a text of a {kind} tokenizer, but this model reads {tokens}"
        raise source.unsupported(reason)
    for role, around in (("bos", before), ("eos", after), ("sep", after)):
        if around:
            ids[role] = around[0]
    if "eos" not in ids:
        raise source.unsupported("needs an end-of-text token (`eos`)")
    for role in ("bos", "eos", "unk", "sep", "pad", "mask"):
        if role in ids:
            getattr(writer, f"add_{role}_token_id")(ids[role])
    writer.add_add_bos_token(bool(before))
    writer.add_add_eos_token(bool(after))


def surrounding(source: ExportSource) -> tuple[list[int], list[int]]:
    """The special tokens that the model reads before and after a text."""
    template = source.tokenizer.template
    before, after = ([i for i, _ in part] for part in template.single) if template else ([], [])
    return before, after if isinstance(source.body, Bert) else []  # a prompt is continued
