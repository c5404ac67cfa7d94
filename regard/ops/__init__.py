"""The operations that models are made of, and faster implementations of them.

    context = ops.attention(query, key, value, mask)

A function marked `@operation` defines an operation: each equation once, in plain PyTorch. It is
short and deterministic: a mask is a tensor, a dropout is a seed and a threshold. It runs where
nothing faster applies. A faster implementation registers under the operation with a condition on
the arguments:

    ops.register(ops.attention, "compiled", run, when=fits)

`ops.reference()` turns all implementations off, `ops.without("attention.compiled")` one of them, as
does the environment variable REGARD_WITHOUT, a list with commas. Operations never compile anything:
`load_kernels` loads the optional package of compiled implementations before a model is built, and
raises an error for a name in REGARD_WITHOUT that no implementation has.

Internal: names that `regard` itself does not have may change with every version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.ops.numbers import (
    DRAWS,
    NO_DROP,
    Drop,
    WeightCopies,
    at_least_float32,
    autocast_dtype,
    autocasts_to_bfloat16,
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

# What other modules of this folder and the registry define, under the name `ops`.
__all__ = [
    "DRAWS", "NO_DROP", "Drop", "WeightCopies", "at_least_float32", "autocast_dtype",
    "autocasts_to_bfloat16", "cast", "hashed", "keep_at", "keep_mask",
    "state_prototype", "uniform", "weight_copies", "weighted_index", "OPERATIONS", "is_disabled",
    "load_kernels", "operation", "reference", "register", "without",
]  # fmt: skip


@dataclass(frozen=True)
class SequenceOffsets:
    """B sequences without padding, one after another in one row of N tokens.

    starts: (B + 1,) int64, where each sequence begins, and N.
    longest: T, the greatest length.
    spare: how many of the sequences, the last ones, are padding that only makes N a round number.
    """

    starts: Tensor
    longest: int
    spare: int = 0

    @property
    def count(self) -> int:
        """The number of sequences, without those that are only padding."""
        return len(self.starts) - 1 - self.spare

    @cached_property
    def keep(self) -> Tensor:
        """(B, T) bool, which positions of the padded sequences hold a token."""
        lengths = self.starts.diff()[:, None]  # (B, 1)
        return torch.arange(self.longest, device=lengths.device) < lengths

    def pad(self, x: Tensor) -> Tensor:
        """(1, H, N, K) -> (B, H, T, K), zeros at padding."""
        if not x.size(2):
            return x.new_zeros(len(self.starts) - 1, x.size(1), self.longest, x.size(3))
        position = torch.arange(self.longest, device=x.device)
        token = (self.starts[:-1, None] + position).clamp(max=x.size(2) - 1)  # (B, T)
        padded = x[0].transpose(0, 1).index_select(0, token.flatten())  # (H, N, K) -> (B T, H, K)
        padded = padded.unflatten(0, token.shape).masked_fill(~self.keep[..., None, None], 0.0)
        return padded.transpose(1, 2)  # (B, T, H, K) -> (B, H, T, K)

    def unpad(self, x: Tensor, count: int) -> Tensor:
        """(B, H, T, K) -> (1, H, N, K), N being `count`."""
        token = torch.arange(count, device=x.device)
        # `right`: of sequences that begin at one token all but the last are empty.
        row = torch.searchsorted(self.starts, token, right=True) - 1  # (N,)
        flat = x.transpose(1, 2).flatten(0, 1)  # (B, H, T, K) -> (B * T, H, K)
        unpadded = flat.index_select(0, row * self.longest + token - self.starts[row])
        return unpadded.transpose(0, 1)[None]  # (N, H, K) -> (1, H, N, K)


@dataclass(frozen=True)
class UnpaddedMask:
    """Attention among sequences without padding: each query sees the keys of its own sequence.

    causal: of these only the ones up to and including its own position; queries and keys are of the
        same sequences then.
    window: of the causal ones only the last so many; None: all.

    Raises:
        ValueError: a window without `causal`.
    """

    queries: SequenceOffsets
    keys: SequenceOffsets
    causal: bool = False
    window: int | None = None

    def __post_init__(self) -> None:
        if self.window is not None and not self.causal:
            raise ValueError("a window of unpadded sequences must be causal.")

    @property
    def padded(self) -> KeyMask:
        """The mask of the same sequences with padding."""
        if not self.causal:
            return KeyMask(self.keys.keep[:, None, None, :])  # (B, S) -> (B, 1, 1, S)
        return KeyMask.causal(self.keys.longest, self.keys.starts.device, self.window)


@dataclass(frozen=True)
class BlockRows:
    """R blocks of queries, each of which reads M blocks of keys.

    rows: (R,) indices of the blocks of queries.
    keys: (B or 1, H or 1, R, M) indices of the blocks of keys that each of them reads.
    grid: (B or 1, H or 1, R, size or 1, M * size) bool, which of these keys each query may see.
    """

    rows: Tensor
    keys: Tensor
    grid: Tensor


@dataclass(frozen=True, eq=False)
class SparseMask:
    """A mask of as many queries as keys that forbids most blocks of keys.

    size: queries, and keys, of a block.
    length: queries of a sequence.
    rows: the blocks that are computed; every block of queries is in one of them.
    grid: from a number of queries T, the first ones, to their rows of the dense grid, (B, H, T, S).
    """

    size: int
    length: int
    rows: tuple[BlockRows, ...]
    grid: Callable[[int], Tensor]

    @cached_property
    def dense(self) -> KeyMask:
        """The same mask as a grid."""
        return KeyMask(self.grid(self.length))


def _can_branch_on(tensor: Tensor) -> bool:
    """Whether Python may read values to choose what is computed: not on a GPU, nor in an export."""
    return tensor.device.type == "cpu" and not torch.compiler.is_exporting()


@dataclass(frozen=True)
class KeyMask:
    """Which keys each query may attend to.

    grid: boolean, broadcastable to (B, H, T, S), True = may attend; None: all of them.
    is_causal: the grid is exactly `key <= query` with as many queries as keys.
    unpadded: replaces both for sequences without padding, (1, H, N, K).
    sparse: replaces both where most blocks of keys are left out.
    """

    grid: Tensor | None = None
    is_causal: bool = False
    unpadded: UnpaddedMask | None = None
    sparse: SparseMask | None = None

    @classmethod
    def causal(
        cls, count: int, device: torch.device | None = None, window: int | None = None
    ) -> KeyMask:
        """Each of `count` queries sees the keys up to its own position, of these the last
        `window`; None: all.
        """
        keys = torch.arange(count, device=device)  # (S,)
        queries = keys[:, None]  # (T, 1)
        if window is None or count <= window:
            return cls((keys <= queries)[None, None], is_causal=True)
        return cls(((keys <= queries) & (keys > queries - window))[None, None])

    @classmethod
    def padding(cls, lengths: Tensor, width: int) -> KeyMask:
        """Each query of sequence b sees the first `lengths[b]` of `width` keys.

        lengths: (B,) int64.
        """
        if _can_branch_on(lengths) and lengths.numel() and int(lengths.min()) >= width:
            return ALL_KEYS
        keys = torch.arange(width, device=lengths.device)
        return cls((keys < lengths[:, None])[:, None, None, :])  # (B, S) -> (B, 1, 1, S)

    @cached_property
    def blocked(self) -> Tensor | None:
        """True = may not attend: the opposite of the grid; None where all keys may be seen."""
        return None if self.grid is None else ~self.grid

    @cached_property
    def idle(self) -> Tensor | None:
        """(..., T, 1), True for a query that may see no key; None where there surely is none."""
        if self.grid is None or self.is_causal:
            return None
        idle = ~self.grid.any(-1, keepdim=True)
        # Where Python cannot read the values, the weights of idle queries are always set to zero.
        return None if _can_branch_on(idle) and not bool(idle.any()) else idle


ALL_KEYS = KeyMask()

# ---------------------------------------------------------------------------------- memory


@operation
def large_empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Uninitialized memory on the CPU, for a matrix that every decoding step reads."""
    return torch.empty(tuple(shape), dtype=dtype)


# ------------------------------------------------------------ linear, activations, dropout


@operation
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b: (..., D_in), (D_out, D_in) and (D_out,) -> (..., D_out)."""
    return F.linear(x, weight, bias)


@operation
def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """x Phi(x), Phi being the standard normal distribution function (Hendrycks & Gimpel 2016).

    approximate: "none", or "tanh" for the paper's approximation.
    """
    return F.gelu(x, approximate=approximate)


@operation
def dropout(x: Tensor, drop: Drop) -> Tensor:
    """Zero for the dropped elements, the others times 1 / (1 - p): (..., D) -> (..., D)."""
    if not drop.threshold:
        return x
    return torch.where(keep_mask(x.shape, drop, x.device), x * drop.scale, 0)


@operation
def add_norm(
    hidden: Tensor, update: Tensor, weight: Tensor, bias: Tensor, eps: float, drop: Drop = NO_DROP
) -> Tensor:
    """LayerNorm(hidden + dropout(update)), (..., D) and (..., D) -> (..., D).

    The box "Add & Norm" in figure 1 of Vaswani et al. 2017, with the dropout of section 5.4.
    """
    return F.layer_norm(hidden + dropout(update, drop), weight.shape, weight, bias, eps)


# ------------------------------------------------------------------------------- attention


def attention_weights(
    scores: Tensor, mask: KeyMask = ALL_KEYS, bias: Tensor | None = None
) -> Tensor:
    """softmax(scores + bias) over the keys that the mask allows: (..., T, S) -> (..., T, S).

    A row sums to one, or is all zero where a query may see no key. The softmax is taken in float32
    at least, whatever the type of the scores: bfloat16 has only 8 bits of precision.
    """
    dtype = scores.dtype
    if bias is not None:
        scores = scores + bias
    if mask.blocked is not None:
        # The lowest finite number and not -inf: the gradient of a row of only -inf would be NaN.
        scores = scores.masked_fill(mask.blocked, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1, dtype=at_least_float32(scores.dtype)).to(dtype)
    return weights if mask.idle is None else weights.masked_fill(mask.idle, 0.0)


@operation
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: KeyMask = ALL_KEYS,
    bias: Tensor | None = None,
    scale: float | None = None,
    drop: Drop = NO_DROP,
) -> Tensor:
    """Attention(Q, K, V) = softmax(scale Q K^T + bias) V          (Vaswani et al. 2017, eq. 1)

    Args:
        query, key, value: (..., T, K), (..., S, K), (..., S, K').
        mask: which keys each query may see; a query that may see none gets zeros.
        bias: (..., T, S), added to the scores.
        scale: of the scores; None: 1 / sqrt(K).
        drop: which weights are dropped after the softmax.

    Returns:
        The context, (..., T, K').
    """
    if (unpadded := mask.unpadded) is not None:
        queries, keys = unpadded.queries, unpadded.keys
        padded = queries.pad(query), keys.pad(key), keys.pad(value)
        context = attention(*padded, unpadded.padded, bias, scale, drop)
        return queries.unpad(context, query.size(2))
    if mask.sparse is not None:
        mask = mask.sparse.dense
    scale = query.size(-1) ** -0.5 if scale is None else scale
    weights = attention_weights((query * scale) @ key.mT, mask, bias)
    return dropout(weights, drop) @ value


def unstack_qkv(projected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of one projection: (B, T, 3, H, K) -> 3 times (B, H, T, K)."""
    # (B, T, 3, H, K) -> (B, H, 3, T, K) -> 3 times (B, H, T, K)
    query, key, value = projected.transpose(1, 3).unbind(2)
    return query, key, value


# ------------------------------------------------------------------- vocabulary and losses


@operation
def cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float = 0.0
) -> Tensor:
    """Sum of the cross-entropies, in nats, of softmax(hidden W^T + b).

    loss = (1 - e) * -log p(target) + e * mean(-log p)      (Szegedy et al. 2016, section 7)

    Args:
        hidden: (N, D), of N predicted tokens.
        weight, bias: (V, D), and (V,) or None.
        targets: (N,) int64, from 0 to V - 1.
        smoothing: e, the weight of the uniform distribution.

    Returns:
        (), float32 at least.
    """
    logits = linear(hidden, weight, bias)
    logits = logits.to(at_least_float32(logits.dtype))
    return F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)


@operation
def cross_entropy_gradient(
    logits: Tensor, targets: Tensor, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Sum of the cross-entropies of logits (N, V), in nats, float64, and its gradient (N, V).

    d/dz of (1 - e) * (lse z - z_t) + e * (lse z - mean z) is softmax z - (1 - e) * onehot - e / V.
    An implementation may write the gradient over the logits.
    """
    gradient = logits.softmax(-1, dtype=at_least_float32(logits.dtype))
    # log sum exp z = max z - log max p: the softmax has already computed the sum.
    log_sum = logits.amax(-1).double() - gradient.amax(-1).double().log()  # (N,)
    loss = log_sum - (1 - smoothing) * logits.gather(1, targets[:, None])[:, 0].double()
    gradient[torch.arange(targets.numel(), device=targets.device), targets] -= 1 - smoothing
    if smoothing:
        loss -= smoothing * logits.mean(-1, dtype=gradient.dtype).double()
        gradient -= smoothing / logits.size(-1)
    return loss.sum(), gradient


@operation
def negative_log_likelihood(logits: Tensor, targets: Tensor) -> Tensor:
    """-log softmax(logits)[target] of each row, in nats: (N, V) and (N,) int64 -> (N,) float64."""
    logits = logits.to(at_least_float32(logits.dtype))
    return F.cross_entropy(logits, targets, reduction="none").double()


@operation
def topk(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The N = `count` most probable tokens of each row, best first, and their log-probabilities:
    (B, V) -> 2 times (B, N).

    Of tokens with equal log-probabilities the first comes first. NaN in a row gives NaN.
    """
    log_probs = logits.to(at_least_float32(logits.dtype)).log_softmax(-1)
    if count == 1:  # without a sort
        token = log_probs.argmax(-1, keepdim=True)  # (B, 1)
        return token, log_probs.gather(1, token)
    best = log_probs.sort(dim=-1, descending=True, stable=True)
    return best.indices[:, :count], best.values[:, :count]


# ------------------------------------------------------------------------------ recurrence


@operation
def rnn_step(below: Tensor, recurrent: Tensor) -> Tensor:
    """h' = tanh(W x + U h)                                                     (Elman 1990)

    Args:
        below, recurrent: W x + b and U h + c, (B, D).
    """
    return torch.tanh(below + recurrent)


@operation
def gru_step(below: Tensor, recurrent: Tensor, hidden: Tensor) -> Tensor:
    """h' = (1 - z) n + z h,  n = tanh(W x + r (U h + c))                  (Cho et al. 2014)

    The reset r multiplies U h + c, as in cuDNN, and not h.

    Args:
        below, recurrent: W x + b and U h + c of the gates r, z, n, (B, 3D).
        hidden: h, (B, D).
    """
    (reset, update, new), (u_reset, u_update, u_new) = below.chunk(3, 1), recurrent.chunk(3, 1)
    candidate = torch.tanh(new + torch.sigmoid(reset + u_reset) * u_new)
    return torch.lerp(candidate, hidden, torch.sigmoid(update + u_update))


@operation
def lstm_step(below: Tensor, recurrent: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """c' = f c + i g,  h' = o tanh(c')                                   (Gers et al. 2000)

    i, f and o are sigmoids of their gates, g is the tanh of its gate.

    Args:
        below, recurrent: W x + b and U h + c of the gates i, f, g, o, (B, 4D).
        cell: c, (B, D).

    Returns:
        h' and c', (B, D).
    """
    i, f, g, o = (below + recurrent).chunk(4, 1)
    cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(cell), cell


class RecurrentWeights(NamedTuple):
    """W (G D, D_in), U (G D, D), and biases (G D,) or None, of a cell with G gates.

    The gates are stacked in the order of `torch.nn.LSTM` and `torch.nn.GRU`; `rnn` has G = 1.
    """

    input: Tensor
    recurrent: Tensor
    input_bias: Tensor | None
    recurrent_bias: Tensor | None


@operation
def rnn(x: Tensor, hidden: Tensor, weights: RecurrentWeights) -> tuple[Tensor, Tensor]:
    """`rnn_step` over sequences: every hidden state (B, T, D), and the last (B, D).

    Args:
        x: (B, T, D_in), T > 0.
        hidden: before the first step, (B, D).
    """
    below, outputs = linear(x, weights.input, weights.input_bias).to(hidden.dtype), []
    for t in range(x.size(1)):
        recurrent = linear(hidden, weights.recurrent, weights.recurrent_bias)
        hidden = rnn_step(below[:, t], recurrent.to(hidden.dtype))
        outputs.append(hidden)
    return torch.stack(outputs, 1), hidden


@operation
def gru(x: Tensor, hidden: Tensor, weights: RecurrentWeights) -> tuple[Tensor, Tensor]:
    """`gru_step` over sequences; see `rnn`."""
    below, outputs = linear(x, weights.input, weights.input_bias).to(hidden.dtype), []
    for t in range(x.size(1)):
        recurrent = linear(hidden, weights.recurrent, weights.recurrent_bias)
        hidden = gru_step(below[:, t], recurrent.to(hidden.dtype), hidden)
        outputs.append(hidden)
    return torch.stack(outputs, 1), hidden


@operation
def lstm(
    x: Tensor, hidden: Tensor, cell: Tensor, weights: RecurrentWeights
) -> tuple[Tensor, Tensor, Tensor]:
    """`lstm_step` over sequences: every hidden state (B, T, D), the last (B, D), the last cell.

    Args:
        x: (B, T, D_in), T > 0.
        hidden, cell: before the first step, (B, D).
    """
    below, outputs = linear(x, weights.input, weights.input_bias).to(hidden.dtype), []
    for t in range(x.size(1)):
        recurrent = linear(hidden, weights.recurrent, weights.recurrent_bias)
        hidden, cell = lstm_step(below[:, t], recurrent.to(hidden.dtype), cell)
        outputs.append(hidden)
    return torch.stack(outputs, 1), hidden, cell


# --------------------------------------------------------------------------------- updates


def gradient_norm(gradients: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm of all gradients together: (), on their device."""
    return torch.nn.utils.get_total_norm(list(gradients))
