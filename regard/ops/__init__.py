"""The operations that models are made of, and faster implementations of them.

    context = ops.attention(query, key, value, mask)

definitions.py     each equation once, in plain PyTorch
key_mask.py        masks as attention takes them
random_numbers.py  which elements a dropout sets to zero, and an index by its weight
precision.py       types under autocast, and low-precision copies of parameters

A definition runs where nothing faster applies. A faster implementation registers under the
operation with a condition on the arguments:

    ops.register(ops.attention, "compiled", run, when=fits)

`ops.reference()` turns all implementations off, `ops.without("attention.compiled")` one of them, as
does the environment variable REGARD_WITHOUT, a list with commas. Operations never compile anything:
`load_kernels` loads the optional package of compiled implementations before a model is built, and
raises an error for a name in REGARD_WITHOUT that no implementation has.

Internal: names that `regard` itself does not have may change with every version.
"""

from regard.ops.definitions import (
    ALL_KEYS,
    AdamUpdate,
    BlockRows,
    KeyMask,
    RecurrentWeights,
    SequenceOffsets,
    SparseMask,
    UnpaddedMask,
    adam,
    add_norm,
    attention,
    attention_weights,
    cross_entropy,
    cross_entropy_gradient,
    dropout,
    gelu,
    gradient_norm,
    gru,
    gru_step,
    large_empty,
    linear,
    lstm,
    lstm_step,
    negative_log_likelihood,
    qkv_attention,
    rnn,
    rnn_step,
    topk,
    unstack_qkv,
    zeros,
)
from regard.ops.numbers import (
    DRAWS,
    NO_DROP,
    Drop,
    WeightCopies,
    at_least_float32,
    autocast_dtype,
    autocasts_to_bfloat16,
    cached_copy,
    cast,
    hashed,
    keep_at,
    keep_mask,
    state_prototype,
    uniform,
    weight_copies,
    weighted_index,
)
from regard.registry import (
    OPERATIONS,
    is_disabled,
    load_kernels,
    operation,
    reference,
    register,
    without,
)

__all__ = [
    "ALL_KEYS",
    "AdamUpdate",
    "BlockRows",
    "DRAWS",
    "Drop",
    "KeyMask",
    "NO_DROP",
    "OPERATIONS",
    "RecurrentWeights",
    "SequenceOffsets",
    "SparseMask",
    "UnpaddedMask",
    "WeightCopies",
    "adam",
    "add_norm",
    "at_least_float32",
    "attention",
    "attention_weights",
    "autocast_dtype",
    "autocasts_to_bfloat16",
    "cached_copy",
    "cast",
    "cross_entropy",
    "cross_entropy_gradient",
    "dropout",
    "gelu",
    "gradient_norm",
    "gru",
    "gru_step",
    "hashed",
    "is_disabled",
    "keep_at",
    "keep_mask",
    "large_empty",
    "linear",
    "load_kernels",
    "lstm",
    "lstm_step",
    "negative_log_likelihood",
    "state_prototype",
    "operation",
    "qkv_attention",
    "reference",
    "register",
    "rnn",
    "rnn_step",
    "topk",
    "uniform",
    "unstack_qkv",
    "weight_copies",
    "weighted_index",
    "without",
    "zeros",
]
