"""llama.cpp through llama-cpp-python's own functions of the library, the leanest way from Python.

The weights are written as GGUF once: matrices in blocks of 8 bits (Q8_0), or 16, or 32.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import llama_cpp as llama
import numpy as np

from benchmarks.cache import cached
from benchmarks.decoding.quality import told
from benchmarks.decoding.shape import Shape

GPT2 = {  # transformers -> GGUF
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
LLAMA = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def prepare(folder: str, shape: dict[str, int], weights: str) -> None:
    """Write the weights as GGUF."""
    cached(
        _path(folder, weights),
        lambda made: convert(folder, Shape(**shape), made, weights),
    )


class Llama:
    """weights: "Q8_0", "BF16", "F16" or "F32"; flash: its fused attention."""

    def __init__(
        self, folder: str, shape: dict[str, int], weights: str, threads: int, flash: bool = True
    ):
        self.shape = Shape(**shape)
        path = _path(folder, weights)
        llama.llama_backend_init()
        self.model = llama.llama_model_load_from_file(
            str(path).encode(), llama.llama_model_default_params()
        )
        if not self.model:
            raise RuntimeError(f"llama.cpp does not read {path}")
        self.threads, self.flash = threads, flash
        self._open(self.shape.prompt + self.shape.new, self.shape.rows)

    def _open(self, length: int, rows: int) -> None:
        options = llama.llama_context_default_params()
        options.n_ctx, options.n_seq_max = rows * length, rows
        options.n_batch, options.n_ubatch = rows * length, min(512, rows * length)
        options.n_threads = options.n_threads_batch = self.threads
        options.flash_attn_type = 1 if self.flash else 0
        options.kv_unified = False
        self.context = llama.llama_init_from_model(self.model, options)
        if not self.context:
            raise RuntimeError("llama.cpp makes no context of these sizes")
        self.batch = llama.llama_batch_init(options.n_batch, 0, 1)

    def turn(self) -> list[list[int]]:
        """The new tokens of each sequence."""
        llama.llama_memory_clear(llama.llama_get_memory(self.context), False)
        rows = self.shape.prompts()
        self._decode([(t, n, row) for row, ids in enumerate(rows) for n, t in enumerate(ids)])
        last = [(row + 1) * self.shape.prompt - 1 for row in range(len(rows))]
        found: list[list[int]] = [[] for _ in rows]
        for step in range(self.shape.new):
            for row, at in enumerate(last):
                found[row].append(int(self._logits(at).argmax()))
            if step + 1 < self.shape.new:
                at = self.shape.prompt + step
                self._decode([(ids[-1], at, row) for row, ids in enumerate(found)])
                last = list(range(len(rows)))
        return found

    def _decode(self, tokens: list[tuple[int, int, int]], every: bool = False) -> None:
        """Tokens as (id, position, sequence); scores of each sequence's last are asked for."""
        batch = self.batch
        batch.n_tokens = len(tokens)
        for i, (token, position, row) in enumerate(tokens):
            batch.token[i], batch.pos[i] = token, position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = row
            batch.logits[i] = every or i + 1 == len(tokens) or tokens[i + 1][2] != row
        if llama.llama_decode(self.context, batch):
            raise RuntimeError("llama.cpp could not decode")

    def scores(self, ids: list[list[int]]) -> list[tuple[float, list[int]]]:
        """See `quality.told`."""
        found = []
        self._open(self.shape.length, 1)
        for row in ids:
            llama.llama_memory_clear(llama.llama_get_memory(self.context), False)
            self._decode([(token, n, 0) for n, token in enumerate(row)], every=True)
            found.append(told(np.stack([self._logits(at) for at in range(len(row))]), row))
        return found

    def _logits(self, index: int) -> np.ndarray:
        """(V,) of a token of the last batch, not copied: its own sampler takes longer to choose."""
        scores = llama.llama_get_logits_ith(self.context, index)
        return np.ctypeslib.as_array(scores, (self.shape.vocab_size,))


def _path(folder: str, weights: str) -> Path:
    return Path(folder) / f"llama-{weights}.gguf"


def convert(folder: str, shape: Shape, path: Path, weights: str) -> None:
    """Write the weights of the folder as GGUF, without a vocabulary: only ids are exchanged."""
    import gguf
    from safetensors.numpy import load_file

    tensors = load_file(Path(folder) / "model.safetensors")
    kind = getattr(gguf.GGMLQuantizationType, weights)
    writer = gguf.GGUFWriter(path, shape.family)
    writer.add_vocab_size(shape.vocab_size)
    writer.add_context_length(shape.length)
    writer.add_embedding_length(shape.width)
    writer.add_feed_forward_length(shape.d_ff)
    writer.add_block_count(shape.layers)
    writer.add_head_count(shape.heads)
    if shape.family == "llama":
        writer.add_head_count_kv(shape.shared)
        writer.add_layer_norm_rms_eps(1e-6)
        writer.add_rope_dimension_count(shape.width // shape.heads)
        writer.add_rope_freq_base(10_000.0)
    else:
        writer.add_layer_norm_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{weights}" if weights != "F32" else "ALL_F32"])
    writer.add_tokenizer_model("no_vocab")
    of_family = llama_tensors if shape.family == "llama" else gpt2_tensors
    for name, value in of_family(tensors, shape):
        value = np.ascontiguousarray(value, np.float32)
        exact = value.ndim == 1 or name.startswith("position")
        if exact or kind == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(name, value)
        else:
            writer.add_tensor(name, gguf.quants.quantize(value, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gpt2_tensors(tensors: dict[str, np.ndarray], shape: Shape) -> Iterator[tuple[str, np.ndarray]]:
    """GGUF's names of a GPT-2, and its weights."""
    tensors = {name.removeprefix("transformer."): value for name, value in tensors.items()}
    yield "token_embd.weight", tensors["wte.weight"]
    yield "position_embd.weight", tensors["wpe.weight"]
    for layer in range(shape.layers):
        for theirs, name in GPT2.items():
            for end in ("weight", "bias"):
                # (in, out) -> (out, in)
                yield f"blk.{layer}.{name}.{end}", tensors[f"h.{layer}.{theirs}.{end}"].T
    for end in ("weight", "bias"):
        yield f"output_norm.{end}", tensors[f"ln_f.{end}"]


def llama_tensors(tensors: dict[str, np.ndarray], shape: Shape) -> Iterator[tuple[str, np.ndarray]]:
    """The same of a Llama. There, the two numbers that are rotated together are neighbours."""
    yield "token_embd.weight", tensors["model.embed_tokens.weight"]
    for layer in range(shape.layers):
        for theirs, name in LLAMA.items():
            value = tensors[f"model.layers.{layer}.{theirs}.weight"]
            if name in ("attn_q", "attn_k"):
                heads = shape.heads if name == "attn_q" else shape.shared
                halves = value.reshape(heads, 2, -1, value.shape[1])
                value = halves.swapaxes(1, 2).reshape(value.shape)
            yield f"blk.{layer}.{name}.weight", value
    yield "output_norm.weight", tensors["model.norm.weight"]
