"""What the compiled kernels take and give: each structure and each function of cpp/, once."""

from __future__ import annotations

import ctypes
from ctypes import c_double as double
from ctypes import c_float as single
from ctypes import c_int as flag
from ctypes import c_int32 as short
from ctypes import c_int64 as number
from ctypes import c_uint64 as seed
from ctypes import c_void_p as address
from typing import Any

from regard.errors import RegardError

WRONG, NO_MEMORY = -(1 << 63), -(1 << 63) + 1  # as boundary.h has them


def _of(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class Matrix(ctypes.Structure):
    """y = W x + b, in panels (products.h)."""

    _fields_ = [*_of(number, "weights n k"), *_of(address, "data scale bias")]


class Op(ctypes.Structure):
    """An operation of a program (programs.h)."""

    _fields_ = [
        *_of(short, "kind target source other layer heads head_dim activation"),
        *(("number", single), ("lines", short)),
        *_of(address, "matrix gain bias table"),
    ]


class Memory(ctypes.Structure):
    """Keys and values of a cache or of a source, and their shape (attention.h)."""

    _fields_ = [
        *_of(address, "keys values"),
        *_of(number, "numbers line layer head position"),
        ("lengths", address),
        *_of(number, "sharing longest"),
        ("origin", address),
        *_of(number, "origin_row origin_position"),
        *_of(number, "rows lines layers heads positions width"),
    ]


class Part(ctypes.Structure):
    """Of a recurrent state: where it is, and where what follows it shall be (programs.h)."""

    _fields_ = [("before", address), ("before_step", number)]
    _fields_ += [("after", address), ("after_step", number)]


class Program(ctypes.Structure):
    """Operations over registers (programs.h)."""

    _fields_ = [("ops", address), ("count", number), ("widths", address)]
    _fields_ += _of(number, "registers widest")


class Beams(ctypes.Structure):
    """What a beam search looks for, and finds (beams.h)."""

    _fields_ = [
        *_of(number, "sentences size wanted count stopping bits first_bits most"),
        *_of(number, "n_ends n_never normalized forced"),
        *_of(address, "ends never limits now soon last"),
        *_of(number, "work threads a_threads_work"),
        *_of(address, "counts scores log_probs ended lengths tokens"),
    ]


class Drop(ctypes.Structure):
    """Which numbers are dropped (lanes.h)."""

    _fields_ = [("seed", seed), ("threshold", number)]


class Dropping(ctypes.Structure):
    """Dropout (training.h)."""

    _fields_ = [*_of(address, "x y"), *_of(number, "rows width"), ("drop", Drop)]


class AddNorm(ctypes.Structure):
    """norm(hidden + drop(update)) and its backward pass (training.h)."""

    _fields_ = [
        *_of(address, "hidden update gain bias stats"),
        *_of(number, "rows width"),
        ("drop", Drop),
        *_of(single, "eps unused"),
        *_of(address, "out slope update_slope sums parameters"),
    ]


class Gelu(ctypes.Structure):
    """gelu(x), or its derivative times a gradient (training.h)."""

    _fields_ = [*_of(address, "x slope out"), *_of(number, "count tanh")]


class Sums(ctypes.Structure):
    """Sums over rows (training.h)."""

    _fields_ = [*_of(address, "x sums out"), *_of(number, "rows width")]


class Entropy(ctypes.Structure):
    """Cross-entropy (loss.h)."""

    _fields_ = [*_of(address, "scores targets losses"), *_of(number, "rows words")]
    _fields_ += [("smoothing", double)]


class LstmStep(ctypes.Structure):
    """One step of an LSTM's cell (lstm_step.h)."""

    _fields_ = [
        *(*_of(address, "sums more"), ("step", number)),
        *_of(address, "before gates hidden after d_hidden d_after d_sums d_before"),
        *_of(number, "rows width"),
    ]


class Place(ctypes.Structure):
    """Where heads (B, H, T, K) lie (learning_attention.h)."""

    _fields_ = [("data", address), *_of(number, "row position head")]


class Attention(ctypes.Structure):
    """Attention and its backward pass (learning_attention.h)."""

    _fields_ = [
        *_of(Place, "query key value context"),
        *_of(Place, "context_slope query_slope key_slope value_slope"),
        ("allowed", address),
        *_of(number, "allowed_row allowed_head allowed_query"),
        ("norms", address),
        *_of(number, "rows heads queries keys width causal"),
        ("drop", Drop),
        *_of(single, "scale unused"),
        *_of(address, "query_starts key_starts"),
        *_of(number, "all_queries all_keys"),
    ]


class Parameter(ctypes.Structure):
    """A parameter that Adam updates (adam.h)."""

    _fields_ = [
        *_of(address, "values slopes means squares narrow"),
        ("count", number),
        *_of(single, "keep pull rate unused"),
    ]


class Adam(ctypes.Structure):
    """An update of all parameters (adam.h)."""

    _fields_ = [
        *(*_of(address, "parameters pieces"), ("count", number)),
        *_of(single, "slope_scale first second lacking eps unused"),
        ("sums", address),
    ]


class LstmLayer(ctypes.Structure):
    """A layer of LSTM over whole sequences (lstm.h)."""

    _fields_ = [
        *_of(number, "rows steps width"),
        *_of(address, "weight inputs bias hidden cell gates cells hiddens"),
        *_of(address, "d_hiddens d_end d_cell d_hidden d_gates d_bias"),
    ]


# In the order of `regard_sizes` in kernels.cpp.
STRUCTURES: tuple[type[ctypes.Structure], ...] = (
    *(Matrix, Op, Memory, Part, Program, Beams),
    *(Drop, Dropping, AddNorm, Gelu, Sums, Entropy, LstmStep, Place, Attention),
    *(Parameter, Adam, LstmLayer),
)

_matrix = [number, number, number, address, address]  # type, lines, columns, data, scale
_memories = [number, number, address, address, address]  # rows, tokens, cache, source, parts
_of_numbers = [number, number, address]  # the type, threads, a structure

# What each function takes. Each gives a number: see `declare`.
FUNCTIONS: dict[str, list[Any]] = {
    "regard_linear": [*_matrix, address, address, number, address, number],
    "regard_run": [address, address, address, *_memories, number],
    "regard_run_leading": [address, address, *_memories, number, address, address, number],
    "regard_beams": [*[address] * 4, *[number] * 4],
    "regard_encode": [address, address, number, address, address, address, number, number],
    "regard_recur": [
        *(number, *_matrix, address, address, number, number, address, address, address, number)
    ],
    "regard_lines": [*_matrix, address, number, address],
    "regard_best": [address, number, number, address, address, number],
    "regard_surprise": [address, number, number, address, address, number],
    "regard_leading": [address, number, number, number, address, address, number],
    **dict.fromkeys(
        ["regard_drop", "regard_add_norm", "regard_add_norm_back", "regard_gelu"], _of_numbers
    ),
    **dict.fromkeys(["regard_entropy", "regard_sum_rows"], _of_numbers),
    **dict.fromkeys(["regard_lstm_step", "regard_lstm_step_back"], [number, address]),
    **dict.fromkeys(["regard_attend", "regard_attend_back"], [number, address]),
    **dict.fromkeys(["regard_adam", "regard_add_squares"], [number, address]),
    **dict.fromkeys(["regard_lstm_forward", "regard_lstm_backward"], [address, number]),
}
FLAGS = ("regard_check", "regard_attention_is_fast", "regard_lstm_there")  # take nothing


def declare(library: ctypes.CDLL) -> None:
    """Tell ctypes what the functions of a library take and give.

    Each gives a number. Where it could not do its work, the call raises RegardError (arguments with
    which it would read or write memory that is not its own) or MemoryError.
    """
    library.regard_problem.restype = ctypes.c_char_p
    library.regard_problem.argtypes = []
    library.regard_threads.restype = None
    library.regard_threads.argtypes = [address] * 3
    for name in FLAGS:
        function = getattr(library, name)
        function.argtypes, function.restype = [], flag

    def checked(result: int, function: Any, arguments: Any) -> int:
        if result > NO_MEMORY:
            return result
        problem = library.regard_problem().decode(errors="replace")
        raise MemoryError(problem) if result == NO_MEMORY else RegardError(problem)

    for name, takes in FUNCTIONS.items():
        function = getattr(library, name)
        function.argtypes, function.restype, function.errcheck = takes, number, checked


def sizes(library: ctypes.CDLL) -> list[int]:
    """How many bytes each of `STRUCTURES` has in a library; below 0: it has none of them."""
    return list((number * len(STRUCTURES)).in_dll(library, "regard_sizes"))
