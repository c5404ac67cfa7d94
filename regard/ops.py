"""The operations that models are made of: each equation once, in plain PyTorch.

    context = ops.attention(query, key, value, mask)

A function marked `@operation` defines an operation. It is short and deterministic: a mask is a
tensor, a dropout is a seed and a threshold. It runs where nothing faster applies. A faster
implementation registers under the operation with a condition on the arguments:

    ops.register(ops.attention, "compiled", run, when=fits)

`ops.reference()` turns all implementations off, `ops.without("attention.compiled")` one of them, as
does the environment variable REGARD_WITHOUT, a list with commas. Operations never compile anything:
`load_kernels` loads the optional package of compiled implementations before a model is built, and
raises an error for a name in REGARD_WITHOUT that no implementation has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.weak import WeakTensorKeyDictionary

from regard.registry import OPERATIONS as OPERATIONS
from regard.registry import is_disabled as is_disabled
from regard.registry import load_kernels as load_kernels
from regard.registry import operation as operation
from regard.registry import reference as reference
from regard.registry import register as register
from regard.registry import without as without

# ---------------------------------------------------------------------------------- types


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """Float32 for the 16-bit types, the type itself otherwise."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def autocast_dtype(x: Tensor) -> torch.dtype:
    """The type of `x @ weight` under autocast as it is set; it leaves float64 alone."""
    if x.dtype == torch.float64:
        return x.dtype
    device = x.device.type
    known = torch.amp.is_autocast_available(device)  # the meta device is not
    on = known and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if on else x.dtype


def nothing_like(weight: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """An empty tensor, on a weight's device and of the type of states beside it, (0,).

    dtype: None: that in which the model computes.
    """
    return weight.new_empty(0, dtype=dtype or autocast_dtype(weight))


def autocasts_to_bfloat16(x: Tensor) -> bool:
    """Whether autocast computes products with x, on the CPU, in bfloat16."""
    if x.device.type != "cpu" or x.dtype == torch.float64:
        return False
    return torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16


# The low-precision copy of each parameter, with the version of the values it was made from.
WeightCopies = WeakTensorKeyDictionary
_copies: ContextVar[WeightCopies | None] = ContextVar("copies", default=None)


@contextmanager
def weight_copies(copies: WeightCopies) -> Iterator[None]:
    """Inside, the low-precision copy of a parameter is made once, and again when it has changed.

    Do not change parameters through `.data` inside: that leaves no trace.
    """
    token = _copies.set(copies)
    try:
        yield
    finally:
        _copies.reset(token)


def cast(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """A detached copy in another type; cached for parameters inside `weight_copies`."""
    if weight.dtype == dtype:
        return weight.detach()
    copies = _copies.get()
    if copies is None or not weight.is_leaf:
        return weight.detach().to(dtype)
    version, copy = copies.get(weight, (None, None))
    if version != weight._version or copy.dtype != dtype:
        copy = weight.detach().to(dtype)
        copies[weight] = (weight._version, copy)
    return copy


def cached_copy(weight: Tensor) -> Tensor | None:
    """The copy that `weight_copies` has of a parameter as it is now, or None."""
    copies = _copies.get()
    version, copy = (None, None) if copies is None else copies.get(weight, (None, None))
    return copy if version == weight._version else None


# --------------------------------------------------------------------------------- memory


@operation
def zeros(shape: Sequence[int], like: Tensor) -> Tensor:
    """Zeros with the type and device of `like`."""
    return like.new_zeros(shape)


@operation
def large_empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Uninitialized memory on the CPU, for a matrix that every decoding step reads."""
    return torch.empty(tuple(shape), dtype=dtype)


# --------------------------------------------------------------------- linear, activations


@operation
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b: (..., K), (N, K) and (N,) -> (..., N)."""
    return F.linear(x, weight, bias)


@operation
def sum_rows(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum over the rows, such as the gradient of a bias: (M, N) -> (N,)."""
    return x.sum(0, dtype=dtype)


@operation
def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """x Phi(x), Phi being the standard normal distribution function (Hendrycks & Gimpel 2016).

    approximate: "none", or "tanh" for the paper's approximation.
    """
    return F.gelu(x, approximate=approximate)


# -------------------------------------------------------------------------------- dropout


class Drop(NamedTuple):
    """Which elements a dropout sets to zero: those whose random number is below `threshold`.

    That number is a function of the seed and of the element's position. It is one of `DRAWS`
    values, so the probability is `threshold / DRAWS`.
    """

    seed: int
    threshold: int

    @property
    def probability(self) -> float:
        """With which an element is set to zero."""
        return self.threshold / DRAWS

    @property
    def scale(self) -> float:
        """The factor of the remaining elements, 1 / (1 - p), which keeps the mean."""
        return DRAWS / (DRAWS - self.threshold)


DRAWS = 1 << 15
NO_DROP = Drop(0, 0)


@operation
def dropout(x: Tensor, drop: Drop) -> Tensor:
    """Zero for the dropped elements, the others times 1 / (1 - p): (..., D) -> (..., D)."""
    if not drop.threshold:
        return x
    return torch.where(keep_mask(x.shape, drop, x.device), x * drop.scale, 0)


def keep_mask(shape: torch.Size, drop: Drop, device: torch.device | None = None) -> Tensor:
    """Which elements of a tensor (..., D) remain.

    Number r * ceil(D / 4) + i of the generator of Steele et al. 2014, "Fast splittable
    pseudorandom number generators", decides over elements 4i to 4i + 3 of row r, by 15 bits each.
    """
    width = shape[-1] if shape else 1
    rows = shape.numel() // max(1, width)
    numbers = (width + 3) // 4
    z = torch.arange(1, rows * numbers + 1, device=device) * GOLDEN + drop.seed
    draws = hashed(z).view(torch.int16).view(rows, 4 * numbers)[:, :width]
    return ((draws & (DRAWS - 1)) >= drop.threshold).view(shape)


def keep_at(row: Tensor, column: Tensor, width: int, drop: Drop) -> Tensor:
    """`keep_mask` of rows with `width` elements, at some of them: int64, broadcast together."""
    z = (row * ((width + 3) // 4) + column // 4 + 1) * GOLDEN + drop.seed
    draws = hashed(z) >> 16 * (column % 4)
    return (draws & (DRAWS - 1)) >= drop.threshold


def uniform(seeds: Tensor, numbers: Tensor) -> Tensor:
    """Number `numbers` of the generators with these seeds: int64 -> float64, from 0 to below 1."""
    return _shift_right(hashed(seeds + numbers * GOLDEN), 11).double() * 2.0**-53


def hashed(z: Tensor) -> Tensor:
    """The finalizer of Steele et al. 2014: integers with 64 bits to others that look random."""
    z = (z ^ _shift_right(z, 30)) * _int64(0xBF58476D1CE4E5B9)
    z = (z ^ _shift_right(z, 27)) * _int64(0x94D049BB133111EB)
    return z ^ _shift_right(z, 31)


def _int64(number: int) -> int:
    """A 64-bit number above 2**63 as int64 has it; products wrap around."""
    return number - (1 << 64)


GOLDEN = _int64(0x9E3779B97F4A7C15)  # what the generator of Steele et al. 2014 adds at each step


def _shift_right(z: Tensor, bits: int) -> Tensor:
    """Zeros enter from the left."""
    return (z >> bits) & ((1 << 64 - bits) - 1)


@operation
def add_norm(
    hidden: Tensor, update: Tensor, weight: Tensor, bias: Tensor, eps: float, drop: Drop = NO_DROP
) -> Tensor:
    """LayerNorm(hidden + dropout(update)), (..., D) and (..., D) -> (..., D).

    The box "Add & Norm" in figure 1 of Vaswani et al. 2017, with the dropout of section 5.4.
    """
    return F.layer_norm(hidden + dropout(update, drop), weight.shape, weight, bias, eps)


# ------------------------------------------------------------------------------ attention


@dataclass(frozen=True)
class SequenceOffsets:
    """Sequences without padding, one behind the other in one row of N tokens.

    starts: (R + 1,) int64, where each sequence begins, and N.  longest: the greatest length.
    spare: how many of them, at the end, are padding that only makes N a round number.
    """

    starts: Tensor
    longest: int
    spare: int = 0

    @property
    def count(self) -> int:
        """Sequences that are read."""
        return len(self.starts) - 1 - self.spare

    @cached_property
    def keep(self) -> Tensor:
        """(R, W) boolean: which positions of the padded sequences hold a token."""
        lengths = self.starts.diff()[:, None]
        return torch.arange(self.longest, device=lengths.device) < lengths

    def pad(self, x: Tensor) -> Tensor:
        """(1, H, N, K) -> (R, H, W, K), zeros at padding."""
        if not x.size(2):
            return x.new_zeros(len(self.starts) - 1, x.size(1), self.longest, x.size(3))
        position = torch.arange(self.longest, device=x.device)
        token = (self.starts[:-1, None] + position).clamp(max=x.size(2) - 1)  # (R, W)
        padded = x[0].transpose(0, 1).index_select(0, token.flatten())  # (H, N, K) -> (R W, H, K)
        padded = padded.unflatten(0, token.shape).masked_fill(~self.keep[..., None, None], 0.0)
        return padded.transpose(1, 2)  # (R, W, H, K) -> (R, H, W, K)

    def unpad(self, x: Tensor, count: int) -> Tensor:
        """(R, H, W, K) -> (1, H, N, K), N being `count`."""
        token = torch.arange(count, device=x.device)
        row = torch.searchsorted(self.starts, token, right=True) - 1  # of empty ones the last
        flat = x.transpose(1, 2).flatten(0, 1)  # (R, H, W, K) -> (R * W, H, K)
        found = flat.index_select(0, row * self.longest + token - self.starts[row])
        return found.transpose(0, 1)[None]


@dataclass(frozen=True)
class UnpaddedMask:
    """Attention among sequences without padding: each query sees the keys of its own sequence.

    causal: of these only the ones up to and including its own position.
    window: of these only the last so many; None: all.
    """

    queries: SequenceOffsets
    keys: SequenceOffsets
    causal: bool = False
    window: int | None = None

    @property
    def padded(self) -> KeyMask:
        """The mask of the same sequences with padding."""
        if not self.causal:
            return KeyMask(self.keys.keep[:, None, None, :])  # (R, W) -> (R, 1, 1, W)
        return KeyMask.causal(self.keys.longest, self.keys.starts.device, self.window)


@dataclass(frozen=True)
class BlockRows:
    """Some blocks of queries, which see as many blocks of keys.

    rows: (R,) numbers of blocks of queries.
    keys: (B or 1, H or 1, R, M) numbers of the blocks of keys that each of them reads.
    grid: (B or 1, H or 1, R, size or 1, M * size), which of these keys each query may see.
    """

    rows: Tensor
    keys: Tensor
    grid: Tensor


@dataclass(frozen=True, eq=False)
class SparseMask:
    """A mask of as many queries as keys that leaves most blocks of them out.

    size: of a block.  length: queries of a sequence.  rows: what is computed, every block of
    queries once.  grid: gives the first queries' part of the dense grid, (B, H, T, S).
    """

    size: int
    length: int
    rows: tuple[BlockRows, ...]
    grid: Callable[[int], Tensor]

    @cached_property
    def dense(self) -> KeyMask:
        """The same mask as a grid."""
        return KeyMask(self.grid(self.length))


def may_ask(tensor: Tensor) -> bool:
    """Whether numbers may decide what is computed: not those of a GPU, nor of an exported graph."""
    return tensor.device.type == "cpu" and not torch.compiler.is_exporting()


@dataclass(frozen=True)
class KeyMask:
    """Which keys each query may attend to.

    grid: boolean, broadcastable to (B, H, T, S), True = may attend; None: all of them.
    is_causal: the grid is exactly `key <= query` with as many queries as keys.
    unpadded: stands in place of both for sequences without padding, (1, H, N, K).
    sparse: stands in place of both where most blocks of keys are left out.
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
        keys = torch.arange(count, device=device)
        queries = keys[:, None]
        if window is None or count <= window:
            return cls((keys <= queries)[None, None], is_causal=True)
        return cls(((keys <= queries) & (keys > queries - window))[None, None])

    @classmethod
    def padding(cls, lengths: Tensor, width: int) -> KeyMask:
        """Sequence b sees its first `lengths[b]` of `width` keys: (B,) integers."""
        if may_ask(lengths) and lengths.numel() and int(lengths.min()) >= width:
            return ALL_KEYS
        keys = torch.arange(width, device=lengths.device)
        return cls((keys < lengths[:, None])[:, None, None, :])  # (B, S) -> (B, 1, 1, S)

    @cached_property
    def blocked(self) -> Tensor | None:
        """The opposite of the grid."""
        return None if self.grid is None else ~self.grid

    @cached_property
    def idle(self) -> Tensor | None:
        """(..., T, 1), True for a query that may see no key; None where there surely is none."""
        if self.grid is None or self.is_causal:
            return None
        idle = ~self.grid.any(-1, keepdim=True)
        # Where nobody may ask, the weights of idle queries are always set to zero.
        return None if may_ask(idle) and not bool(idle.any()) else idle


ALL_KEYS = KeyMask()


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
        query, key, value: (..., T, K), (..., S, K), (..., S, V).
        mask: which keys each query may see; a query that may see none gets zeros.
        bias: (..., T, S), added to the scores.
        scale: of the scores; None: 1 / sqrt(K).
        drop: which weights are dropped after the softmax.

    Returns:
        The context, (..., T, V).
    """
    if (rows := mask.unpadded) is not None:
        padded = rows.queries.pad(query), rows.keys.pad(key), rows.keys.pad(value)
        context = attention(*padded, rows.padded, bias, scale, drop)
        return rows.queries.unpad(context, query.size(2))
    if mask.sparse is not None:
        mask = mask.sparse.dense
    scale = query.size(-1) ** -0.5 if scale is None else scale
    weights = attention_weights((query * scale) @ key.mT, mask, bias)
    return dropout(weights, drop) @ value


@operation
def qkv_attention(
    projected: Tensor, mask: KeyMask = ALL_KEYS, scale: float | None = None, drop: Drop = NO_DROP
) -> Tensor:
    """`attention`, its queries, keys and values in one tensor: (B, T, 3, H, K) -> (B, H, T, K)."""
    return attention(*unstack_qkv(projected), mask, scale=scale, drop=drop)


def unstack_qkv(projected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of one projection: (B, T, 3, H, K) -> 3 times (B, H, T, K)."""
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
        hidden: (N, D).
        weight, bias: (V, D), and (V,) or None.
        targets: (N,) int64, from 0 to V - 1.
        smoothing: e.

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
    """Sum of the cross-entropies of logits (N, V), float64, and its gradient (N, V).

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
    """-log softmax(logits)[target] of each row: (N, V) and (N,) int64 -> (N,) float64."""
    wide = logits.to(at_least_float32(logits.dtype))
    return F.cross_entropy(wide, targets, reduction="none").double()


class TopKTokens(NamedTuple):
    """The most probable tokens of each row, best first, and their log-probabilities: (R, N).

    vocab_size: V.
    """

    tokens: Tensor
    log_probs: Tensor
    vocab_size: int


@operation
def argmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The most probable token of each row and its log-probability: (R, V) -> 2 times (R,).

    Of tokens with equal log-probabilities it is the first. NaN in a row gives NaN.
    """
    log_probs = logits.to(at_least_float32(logits.dtype)).log_softmax(-1)
    token = log_probs.argmax(-1, keepdim=True)
    return token[:, 0], log_probs.gather(1, token)[:, 0]


@operation
def topk(logits: Tensor, count: int) -> TopKTokens:
    """The `count` most probable tokens of each row: (R, V) -> 2 times (R, `count`).

    Of tokens with equal log-probabilities the first comes first. NaN in a row gives NaN.
    """
    log_probs = logits.to(at_least_float32(logits.dtype)).log_softmax(-1)
    best = log_probs.sort(dim=-1, descending=True, stable=True)
    return TopKTokens(best.indices[:, :count], best.values[:, :count], logits.size(1))


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
    """W (G D, D_in), U (G D, D), and biases (G D,) or None; the G gates as in `torch.nn.LSTM`."""

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


# -------------------------------------------------------------------------------- updates


class AdamUpdate(NamedTuple):
    """A parameter, its gradient, the running means m and v of Adam, and what its update takes.

    step: (), how many updates there have been; the next one adds 1.
    copy: the low-precision copy of the parameter, for implementations that write both at once.
    decay_factor: 1 - learning rate * weight decay where the decay is decoupled, else 1.
    l2: the weight decay where it is added to the gradient, else 0.
    """

    parameter: Tensor
    gradient: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    step: Tensor
    copy: Tensor | None
    decay_factor: float
    l2: float
    learning_rate: float


@operation
def adam(
    updates: Sequence[AdamUpdate], scale: float, betas: tuple[float, float], eps: float
) -> None:
    """The next update of Adam or AdamW, in place, by gradients times `scale`.

    g = scale * gradient + l2 * x,  m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2,
    x = decay_factor * x - learning_rate * m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps)
                                 (Kingma & Ba 2015, algorithm 1; Loshchilov & Hutter 2019)
    """
    first, second = betas
    for one in updates:
        gradient = one.gradient * scale + one.l2 * one.parameter
        one.exp_avg.lerp_(gradient, 1 - first)
        one.exp_avg_sq.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        one.step.add_(1)
        root = (one.exp_avg_sq / (1 - second**one.step)).sqrt() + eps
        change = one.learning_rate * one.exp_avg / (1 - first**one.step) / root
        one.parameter.mul_(one.decay_factor).sub_(change)


@operation
def gradient_norm(gradients: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm of all gradients together: (), on their device."""
    return torch.nn.utils.get_total_norm(list(gradients))
