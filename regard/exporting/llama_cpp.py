"""llama.cpp opens a GGUF file, and its outputs are compared with ours.

Through the functions of the library itself, as llama-cpp-python binds them, with keys and values in
float32 and without fused attention.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import numpy as np
import torch

from regard.data.batches import Sequences
from regard.errors import CheckpointError
from regard.exporting.gguf_tokenizers import surrounding
from regard.exporting.runtime import Comparison, Difference, ExportSource, package
from regard.models.bert import Bert
from regard.models.t5 import T5

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
                found = _compare_t5(source, context, rows)
            elif isinstance(source.body, Bert):
                found = _compare_hidden(source, context, rows)
            else:
                found = _compare_logits(source, context, rows)
        return (found,), (_compare_texts(source, context),)


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
        given = text.encode()
        found = (ctypes.c_int32 * (len(given) + 8))()
        count = self.llama.llama_tokenize(
            self.vocab, given, len(given), found, len(found), True, reads_special_tokens
        )
        return list(found[: max(count, 0)])

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
    before, given = llama.llama_log_callback(), ctypes.c_void_p()
    llama.llama_log_get(ctypes.byref(before), ctypes.byref(given))
    silent = llama.llama_log_callback(_ignore)  # llama.cpp may call it as long as it is set
    llama.llama_log_set(silent, ctypes.c_void_p(0))
    try:
        yield
    finally:
        llama.llama_log_set(before, given)


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
