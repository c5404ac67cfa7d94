"""GGUF files, which llama.cpp opens, and the comparison of its outputs with ours."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from regard.checkpoints.formats import layout_for, to_published
from regard.data.batches import Sequences
from regard.errors import CheckpointError
from regard.exporting.gguf_tokenizers import surrounding, write_tokenizer
from regard.exporting.runtime import (
    Comparison,
    Difference,
    ExportSource,
    WeightsInFile,
    array,
    package,
)
from regard.models.bert import Bert
from regard.models.gpt2 import GPT2
from regard.models.llama import Llama
from regard.models.t5 import T5
from regard.tasks.embedding import Embedder

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


def compare(source: ExportSource, path: Path) -> Comparison:
    """The difference of logits, or of hidden states, and whether a few texts get the same ids.

    Raises:
        CheckpointError: llama.cpp does not open the file.
    """
    rows = [
        row[:count].tolist()
        for row, count in zip(source.batch.ids, source.batch.lengths, strict=True)
    ]
    longest = max(map(len, rows)) + 8
    with opened(path, longest, embeds=isinstance(source.body, Bert)) as context:
        with torch.no_grad():
            if isinstance(source.body, T5):
                difference = _compare_t5(source, context, rows)
            elif isinstance(source.body, Bert):
                difference = _compare_hidden(source, context, rows)
            else:
                difference = _compare_logits(source, context, rows)
        return (difference,), (_compare_texts(source, context),)


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
        if not self.context:
            raise CheckpointError("llama.cpp makes no context for this model.")
        self.batch = llama.llama_batch_init(longest, 0, 1)
        self.vocab = llama.llama_model_get_vocab(model)

    def read(self, ids: Sequence[int], width: int) -> np.ndarray:
        """The outputs of all tokens, (T, width), of a sequence from its beginning."""
        self.forget()
        self._fill(ids)
        self._run(self.llama.llama_decode)
        get = self.llama.llama_get_logits_ith
        get = self.llama.llama_get_embeddings_ith if self.embeds else get
        rows = [np.ctypeslib.as_array(get(self.context, n), (width,)) for n in range(len(ids))]
        return np.stack(rows)

    def encode(self, ids: Sequence[int]) -> None:
        """Let the encoder read a source."""
        self.forget()
        self._fill(ids)
        self._run(self.llama.llama_encode)

    def forget(self) -> None:
        """Start again."""
        memory = self.llama.llama_get_memory(self.context)
        if memory:
            self.llama.llama_memory_clear(memory, True)

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

    def _fill(self, ids: Sequence[int]) -> None:
        self.batch.n_tokens = len(ids)
        for n, token in enumerate(ids):
            self.batch.token[n], self.batch.pos[n] = token, n
            self.batch.n_seq_id[n], self.batch.seq_id[n][0] = 1, 0
            self.batch.logits[n] = True

    def _run(self, function: Callable[..., int]) -> None:
        if code := function(self.context, self.batch):
            raise CheckpointError(f"llama.cpp could not compute a sequence: its code is {code}.")


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
    silent = llama.llama_log_callback(_ignore)  # llama.cpp may call it as long as it is set
    llama.llama_log_set(silent, ctypes.c_void_p(0))
    try:
        yield
    finally:
        llama.llama_log_set(before, data)


def _ignore(level: int, text: bytes, data: int | None) -> None:
    """No message is printed: what went wrong is in the results."""


def _compare_logits(
    source: ExportSource, context: LlamaContext, rows: list[list[int]]
) -> Difference:
    model = source.body
    theirs = [context.read(row, model.config.vocab_size) for row in rows]
    ours = model.head.logits(model(source.batch.ids).hidden)[source.batch.keep]
    return Difference.between("logits", ours, np.concatenate(theirs))


def _compare_hidden(
    source: ExportSource, context: LlamaContext, rows: list[list[int]]
) -> Difference:
    batch, model = Sequences(source.batch.ids, source.batch.lengths), source.body
    theirs = [context.read(row, model.config.d_model) for row in rows]
    ours = model.encode(batch)[batch.keep]
    return Difference.between("hidden states", ours, np.concatenate(theirs))


def _compare_t5(source: ExportSource, context: LlamaContext, rows: list[list[int]]) -> Difference:
    model, config = source.body, source.body.config
    targets = [[config.bos, *row] for row in source.targets]
    theirs = []
    for row, target in zip(rows, targets, strict=True):
        context.encode(row)
        theirs.append(context.read(target, config.vocab_size))
    hidden = model(source.batch, Sequences.full(torch.tensor(targets))).hidden
    return Difference.between("logits", model.head.logits(hidden), np.stack(theirs))


def _compare_texts(source: ExportSource, context: LlamaContext) -> str:
    """How many of a few texts get our ids, special tokens included."""
    before, after = surrounding(source)
    wanted = [[*before, *ids, *after] for ids in source.tokenizer.encode_many(list(TEXTS))]
    reads = source.tokenizer.reads_special_tokens
    equal = sum(context.tokens(text, reads) == ids for text, ids in zip(TEXTS, wanted, strict=True))
    return f"{equal} of {len(TEXTS)} texts get our ids from its own tokenizer"


NAME = "llama.cpp"
POOLINGS = {"mean": "MEAN", "cls": "CLS", "lasttoken": "LAST"}  # ours -> theirs
T5_DISTANCE = 128  # from which on all distances share a bucket, in its program
T5_LENGTH = 512  # of a T5, which reads texts of any length: for how many it reserves memory
GELU = (
    "GELU is computed by a table of its tanh form in 16 bits, so that outputs differ from ours by "
    "more than rounding in 32 bits would make them"
)
Tensors = Iterator[tuple[str, np.ndarray]]


class GGUF:
    """Files that llama.cpp opens."""

    name = NAME
    ending = ".gguf"
    package = "llama_cpp"
    distribution = "llama-cpp-python"
    tolerance = 2e-2
    quantizes = True

    def write(
        self, source: ExportSource, out: Path, weights: WeightsInFile | None
    ) -> tuple[str, ...]:
        gguf, kind = package("gguf"), type(source.body)
        if kind not in FAMILIES:
            names = ", ".join(family.__name__ for family in FAMILIES)
            raise source.unsupported(
                NAME,
                f"cannot run the architecture {kind.__name__} as it is written here",
                f"These can be exported: {names}.",
            )
        source.check_layers(NAME)
        family, check, describe = FAMILIES[kind]
        source.check_heads(NAME, HEADS.get(kind, ()))
        check(source)
        if layout_for(source.body) is None:
            reason = (
                f"reads published layouts, which have no form for this {kind.__name__}'s options"
            )
            raise source.unsupported(NAME, reason)
        writer = gguf.GGUFWriter(out, family)
        try:
            _write_sizes(writer, source)
            describe(writer, gguf, source)
            otherwise = write_tokenizer(writer, gguf, source)
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
        return NOTES.get(kind, ()) + ((GELU,) if gelu else ()) + otherwise

    def compare(self, source: ExportSource, out: Path) -> Comparison:
        from regard.exporting.gguf import compare

        return compare(source, out)


# ----------------------------------------------------------------------------------- fields


def _write_sizes(writer: GGUFWriter, source: ExportSource) -> None:
    config = source.body.config
    writer.add_name(source.path.name)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_length or T5_LENGTH)
    writer.add_embedding_length(config.d_model)
    writer.add_feed_forward_length(config.d_ff or 4 * config.d_model)
    writer.add_block_count(config.layers)
    writer.add_head_count(config.heads)


def _check_gpt2(source: ExportSource) -> None:
    source.check_field(NAME, "positions", ("learned",))
    source.check_field(NAME, "activation", ("gelu-tanh", "gelu"))
    source.check_field(NAME, "output", ("tied", "own"))
    source.check_field(NAME, "scaled", (True,))
    source.check_field(NAME, "scaled_by_layer", (False,))


def _describe_gpt2(writer: GGUFWriter, gguf: ModuleType, source: ExportSource) -> None:
    writer.add_layer_norm_eps(source.body.config.norm_eps)


def _check_bert(source: ExportSource) -> None:
    source.check_field(NAME, "positions", ("learned",))
    source.check_field(NAME, "activation", ("gelu", "gelu-tanh"))
    if isinstance(source.task, Embedder) and source.task.pooling.kinds[1:]:
        kinds = ", ".join(source.task.pooling.kinds)
        raise source.unsupported(
            NAME, f"pools a text in one way, but the folder in several: {kinds}"
        )
    if isinstance(source.task, Embedder) and source.task.pooling.kinds[0] not in POOLINGS:
        names = ", ".join(POOLINGS)
        kind = source.task.pooling.kinds[0]
        raise source.unsupported(NAME, f"pools a text by {names}, but the folder by {kind!r}")


def _describe_bert(writer: GGUFWriter, gguf: ModuleType, source: ExportSource) -> None:
    writer.add_layer_norm_eps(source.body.config.norm_eps)
    writer.add_causal_attention(False)
    writer.add_token_type_count(source.body.config.segments)
    pooling = "NONE"
    if isinstance(source.task, Embedder):
        pooling = POOLINGS[source.task.pooling.kinds[0]]
    writer.add_pooling_type(gguf.PoolingType[pooling])


def _check_t5(source: ExportSource) -> None:
    config = source.body.config
    source.check_field(NAME, "max_distance", (T5_DISTANCE,))
    if config.decoder_layers > config.layers:
        needed = f"`decoder_layers` ({config.decoder_layers}) to be at most `layers`"
        raise source.unsupported(NAME, f"needs {needed}, but they are {config.layers}")
    source.check_field(NAME, "activation", ("gelu-tanh", "gelu") if config.gated else ("relu",))
    source.check_field(NAME, "max_length", (None,))


def _describe_t5(writer: GGUFWriter, gguf: ModuleType, source: ExportSource) -> None:
    config = source.body.config
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_eps(config.norm_eps)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_relative_attn_buckets_count(config.buckets)
    writer.add_decoder_block_count(config.decoder_layers)
    writer.add_decoder_start_token_id(config.bos)


def _check_llama(source: ExportSource) -> None:
    source.check_field(NAME, "activation", ("swish",))
    source.check_field(NAME, "output", ("tied", "own"))


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
        exact = value.ndim == 1 or value.shape[-1] % 32 or ".attn_rel_b" in name
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
    layers = max(source.body.config.layers, _decoder_layers(source))
    names = gguf.get_tensor_name_map(architecture, layers)
    for theirs, tensor in published[1].items():
        plain = theirs.removeprefix("bert.")
        name = names.get_name(plain, try_suffixes=(".weight", ".bias"))
        if plain == "lm_head.weight" or "embed_tokens" in plain and family == "t5":
            continue  # below, or a copy
        assert name is not None, f"gguf has no name for {theirs}"
        yield name, _shaped(source, plain, tensor)
    if isinstance(body, T5):
        yield "output.weight", array(body.head.weight * body.output_scale)
    elif not isinstance(body, Bert) and not body.config.tied:
        yield "output.weight", array(body.head.weight)
    if isinstance(body, Llama) and body.config.rope_scaling != "none":
        yield "rope_freqs.weight", _rope_factors(body)


def _decoder_layers(source: ExportSource) -> int:
    return source.body.config.decoder_layers if isinstance(source.body, T5) else 0


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


def _rope_factors(model: Llama) -> np.ndarray:
    """What the frequencies are divided by: (K / 2,)."""
    angles, width = model.config.angles, model.blocks[0].attention.head_dim
    plain = replace(angles, scaling="none").frequencies(width)
    return array(plain / angles.frequencies(width))


Describe = Callable[["GGUFWriter", ModuleType, ExportSource], None]
Family = tuple[str, Callable[[ExportSource], None], Describe]
# class -> its name there, what is checked, and the fields of its own
FAMILIES: dict[type, Family] = {
    GPT2: ("gpt2", _check_gpt2, _describe_gpt2),
    Bert: ("bert", _check_bert, _describe_bert),
    T5: ("t5", _check_t5, _describe_t5),
    Llama: ("llama", _check_llama, _describe_llama),
}
HEADS: dict[type, tuple[str, ...]] = {Bert: ("pooler",)}
NOTES: dict[type, tuple[str, ...]] = {
    Bert: (
        "every token is of the first segment: pairs of texts need another runtime",
        "the trained pooler is left out; texts are pooled as the folder says",
    ),
}
