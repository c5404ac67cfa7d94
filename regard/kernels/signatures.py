"""The ctypes declarations of the compiled kernels: every structure and function of cpp/."""

import ctypes
from ctypes import c_double as float64
from ctypes import c_float as float32
from ctypes import c_int as int_result
from ctypes import c_int32 as int32
from ctypes import c_int64 as int64
from ctypes import c_uint64 as uint64
from ctypes import c_void_p as pointer
from typing import Any

from regard.errors import RegardError

INVALID_ARGUMENT, NO_MEMORY = -(1 << 63), -(1 << 63) + 1  # the same values as in boundary.h


def _fields_of(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class MatrixStruct(ctypes.Structure):
    """y = W x + b; the weights are packed in panels (products.h)."""

    _fields_ = [*_fields_of(int64, "weights n k"), *_fields_of(pointer, "data scale bias")]


class OpStruct(ctypes.Structure):
    """An operation of a program (programs.h)."""

    _fields_ = [
        *_fields_of(int32, "kind target source other layer heads head_dim activation"),
        *(("number", float32), *_fields_of(int32, "rows window unused")),
        *_fields_of(pointer, "matrix gain bias table"),
    ]


class MemoryStruct(ctypes.Structure):
    """Keys and values of a cache or of a source, and their shape (attention.h)."""

    _fields_ = [
        *_fields_of(pointer, "keys values"),
        *_fields_of(int64, "dtype slot_stride layer_stride head_stride position_stride"),
        ("lengths", pointer),
        *_fields_of(int64, "sharing longest"),
        ("origin", pointer),
        *_fields_of(int64, "origin_row_stride origin_stride origin_shift slot_mask"),
        *_fields_of(int64, "rows slots layers heads capacity width"),
    ]


class PartStruct(ctypes.Structure):
    """A tensor of a recurrent state: where it is read, where the next is written (programs.h)."""

    _fields_ = [("before", pointer), ("before_stride", int64)]
    _fields_ += [("after", pointer), ("after_stride", int64)]


class ProgramStruct(ctypes.Structure):
    """Operations over registers (programs.h)."""

    _fields_ = [("ops", pointer), ("count", int64), ("widths", pointer)]
    _fields_ += _fields_of(int64, "registers widest")


class BeamsStruct(ctypes.Structure):
    """The options and the results of a beam search (beams.h)."""

    _fields_ = [
        *_fields_of(int64, "sentences size wanted count stopping bits first_bits max_tokens"),
        *_fields_of(int64, "n_ends n_forbidden normalized forced"),
        *_fields_of(pointer, "ends forbidden limits penalties bound_penalties limit_penalties"),
        *_fields_of(int64, "work threads work_per_thread"),
        *_fields_of(pointer, "counts scores log_probs ended lengths tokens"),
    ]


class DropStruct(ctypes.Structure):
    """The random mask of a dropout: seed and threshold (lanes.h)."""

    _fields_ = [("seed", uint64), ("threshold", int64)]


class DroppingStruct(ctypes.Structure):
    """Dropout (training.h)."""

    _fields_ = [*_fields_of(pointer, "x y"), *_fields_of(int64, "rows width"), ("drop", DropStruct)]


class AddNormStruct(ctypes.Structure):
    """norm(hidden + drop(update)) and its backward pass (training.h)."""

    _fields_ = [
        *_fields_of(pointer, "hidden update gain bias stats"),
        *_fields_of(int64, "rows width"),
        ("drop", DropStruct),
        *_fields_of(float32, "eps unused"),
        *_fields_of(pointer, "out grad update_grad sums parameters"),
    ]


class EntropyStruct(ctypes.Structure):
    """Cross-entropy (loss.h)."""

    _fields_ = [
        *_fields_of(pointer, "logits targets losses"),
        *_fields_of(int64, "rows vocab_size"),
        ("smoothing", float64),
    ]


class HeadsStruct(ctypes.Structure):
    """Address and strides of the heads (B, H, T, K) (attention_autograd.h)."""

    _fields_ = [("data", pointer), *_fields_of(int64, "row position head")]


class AttentionStruct(ctypes.Structure):
    """Attention and its backward pass (attention_autograd.h)."""

    _fields_ = [
        *_fields_of(HeadsStruct, "query key value context"),
        *_fields_of(HeadsStruct, "context_grad query_grad key_grad value_grad"),
        ("mask", pointer),
        *_fields_of(int64, "mask_row mask_head mask_query"),
        ("norms", pointer),
        *_fields_of(int64, "rows heads queries keys width causal"),
        ("drop", DropStruct),
        *_fields_of(float32, "scale unused"),
        *_fields_of(pointer, "query_starts key_starts"),
        *_fields_of(int64, "all_queries all_keys"),
    ]


class LstmLayerStruct(ctypes.Structure):
    """A layer of LSTM over whole sequences (lstm.h)."""

    _fields_ = [
        *_fields_of(int64, "rows steps width"),
        *_fields_of(pointer, "weight inputs bias hidden cell gates cells hiddens"),
        *_fields_of(pointer, "d_hiddens d_end d_cell d_hidden d_gates d_bias"),
    ]


# In the order of `regard_sizes` in kernels.cpp.
STRUCTURES: tuple[type[ctypes.Structure], ...] = (
    *(MatrixStruct, OpStruct, MemoryStruct, PartStruct, ProgramStruct, BeamsStruct),
    *(DropStruct, DroppingStruct, AddNormStruct, EntropyStruct, HeadsStruct, AttentionStruct),
    LstmLayerStruct,
)

_matrix = [int64, int64, int64, pointer, pointer]  # type, rows, columns, data, scale
_memories = [int64, int64, pointer, pointer, pointer]  # rows, tokens, cache, source, parts
_typed_call = [int64, int64, pointer]  # the type, threads, a structure

# The argument types of each function. Every function returns an int64: see `declare`.
FUNCTIONS: dict[str, list[Any]] = {
    "regard_linear": [*_matrix, pointer, pointer, int64, pointer, int64],
    "regard_run": [pointer, pointer, pointer, *_memories, int64],
    "regard_beams": [*[pointer] * 4, *[int64] * 4],
    "regard_encode": [pointer, pointer, int64, pointer, pointer, pointer, int64, int64],
    "regard_recur": [
        *(int64, *_matrix, pointer, pointer, int64, int64, pointer, pointer, pointer, int64)
    ],
    "regard_nll": [pointer, int64, int64, pointer, pointer, int64],
    "regard_topk": [pointer, int64, int64, int64, pointer, pointer, int64],
    **dict.fromkeys(["regard_drop", "regard_add_norm", "regard_add_norm_back"], _typed_call),
    **dict.fromkeys(["regard_entropy"], _typed_call),
    **dict.fromkeys(["regard_attend", "regard_attend_back"], [int64, pointer]),
    **dict.fromkeys(["regard_lstm_forward", "regard_lstm_backward"], [pointer, int64]),
}
FLAGS = ("regard_check", "regard_attention_is_fast", "regard_lstm_available")  # no arguments


def declare(library: ctypes.CDLL) -> None:
    """Declare the argument and result types of a library's functions to ctypes.

    A call raises RegardError for arguments with which a kernel would read or write outside its
    arrays, and MemoryError if there is not enough memory.
    """
    library.regard_error_message.restype = ctypes.c_char_p
    library.regard_error_message.argtypes = []
    library.regard_threads.restype = None
    library.regard_threads.argtypes = [pointer] * 3
    for name in FLAGS:
        function = getattr(library, name)
        function.argtypes, function.restype = [], int_result

    def checked(result: int, function: Any, arguments: Any) -> int:
        if result > NO_MEMORY:
            return result
        problem = library.regard_error_message().decode(errors="replace")
        raise MemoryError(problem) if result == NO_MEMORY else RegardError(problem)

    for name, takes in FUNCTIONS.items():
        function = getattr(library, name)
        function.argtypes, function.restype, function.errcheck = takes, int64, checked


def sizes(library: ctypes.CDLL) -> list[int]:
    """The size in bytes of each of `STRUCTURES` in a library; negative if the library lacks it."""
    return list((int64 * len(STRUCTURES)).in_dll(library, "regard_sizes"))
