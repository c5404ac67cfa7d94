"""The output layer: logits for decoding, and a loss that never stores all logits.

4,096 tokens and a vocabulary of 50,000 have 800 MB of logits and as much again of gradients. The
implementation of `ops.cross_entropy` here computes the loss and the gradients slice by slice of the
tokens: only the logits of one slice are in memory, and the backward pass is a multiplication by the
incoming gradient. For few tokens the gradient of the logits is smaller than the gradients of the
parameters, and is stored instead of them.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from regard import ops
from regard.data.batches import IGNORE
from regard.layers.linear import linear_no_grad, weight_gradient
from regard.ops import at_least_float32, autocast_dtype, cast

SLICE = 2**21  # logits of a slice: 8 MB in float32, which fit into a CPU's cache
MIN_ROWS = 128  # of a slice without gradients: fewer do not pay for reading the weight
SLICES = {"cuda": 2**26}  # 256 MB: products large enough to keep a GPU busy
# In training, 16 MB in bfloat16: each slice also passes over the weight's gradient, so that all of
# this takes 0.6 times as long as with slices of 2**21 (700 tokens, V = 10,000, D = 650).
TRAINING_SLICE = 2**23
# Products of bfloat16 on a GPU need aligned rows for its fast kernels: with V = 50,257 those of the
# output took 47 % of the GPU's time in an update of GPT-2 124M (H200).
ALIGNMENTS = {"cuda": 64}


class Softmax(nn.Module):
    """log p(token) = log softmax(W h + b), with W shared with an embedding where it is given."""

    def __init__(self, d_model: int, vocab_size: int, *, tied: nn.Embedding | None, bias: bool):
        super().__init__()
        if tied is not None and tied.weight.shape != (vocab_size, d_model):
            raise ValueError(
                f"A tied output needs an embedding of shape {(vocab_size, d_model)}, "
                f"but it is {tuple(tied.weight.shape)}."
            )
        weight = torch.empty(vocab_size, d_model) if tied is None else tied.weight
        self.weight = nn.Parameter(weight) if tied is None else tied.weight
        if tied is None:
            nn.init.normal_(self.weight, std=d_model**-0.5)
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if bias else None

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., V)"""
        return ops.linear(hidden, self.weight, self.bias)

    def loss(
        self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0, count: int | None = None
    ) -> tuple[Tensor, int]:
        """The sum of the cross-entropies in nats, and the number of targets that are not ignored.

        Args:
            hidden: (N, D).
            targets: (N,) token ids; -100 is ignored.
            smoothing: label smoothing e (Szegedy et al. 2016, section 7):
                (1 - e) * -log p(target) + e * mean(-log p).
            count: the number of targets that are not ignored, where it is known: computing it waits
                for the device.
        """
        hidden, targets = without_ignored(hidden, targets, count)
        total = ops.cross_entropy(hidden, self.weight, self.bias, targets, smoothing)
        return total, targets.numel()


def without_ignored(hidden: Tensor, targets: Tensor, count: int | None) -> tuple[Tensor, Tensor]:
    """The hidden states (N, D) and targets (N,) without those of target -100: (N', D) and (N',).

    count: N', if known.
    """
    counts = targets != IGNORE
    count = int(counts.sum()) if count is None else count
    if count == targets.numel():
        return hidden, targets
    index = torch.nonzero_static(counts, size=count)[:, 0]
    return hidden.index_select(0, index), targets[index]


def slice_on(device: torch.device) -> int:
    """The number of logits of a slice on a device."""
    return SLICES.get(device.type, SLICE)


def token_losses(
    hidden: Tensor, targets: Tensor, logits: Callable[[Tensor], Tensor], vocab_size: int
) -> Iterator[Tensor]:
    """-log p(target) in nats, without gradient: (N, D) and (N,) -> one (n,) for each slice."""
    rows = max(slice_on(hidden.device) // vocab_size, MIN_ROWS)
    for start in range(0, targets.numel(), rows):
        part = slice(start, start + rows)
        yield ops.negative_log_likelihood(logits(hidden[part]), targets[part])


def summed_loss(
    hidden: Tensor, targets: Tensor, logits: Callable[[Tensor], Tensor], vocab_size: int
) -> Tensor:
    """The sum of -log p(target) in nats, without gradient: (N, D) and (N,) -> ()."""
    total = hidden.new_zeros((), dtype=torch.float64)
    for part in token_losses(hidden, targets, logits, vocab_size):
        total += part.sum()
    return total.to(at_least_float32(hidden.dtype))


# -------------------------------------------------------- an implementation of cross_entropy


def _in_slices(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float = 0.0
) -> Tensor:
    learning = torch.is_grad_enabled()  # inside the function it is always off
    if learning or smoothing:
        return _SlicedCrossEntropy.apply(hidden, weight, bias, targets, smoothing, learning)
    return summed_loss(hidden, targets, lambda part: ops.linear(part, weight, bias), weight.size(0))


class _SlicedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        smoothing: float,
        learning: bool,
    ) -> Tensor:
        dtype = autocast_dtype(hidden)
        copies = cast(weight, dtype), None if bias is None else cast(bias, dtype)
        if not smoothing:  # whose loss is a mean over all logits
            copies = _aligned(*copies)
        ctx.learning = learning and any(ctx.needs_input_grad)
        ctx.dtypes, ctx.vocab_size = (hidden.dtype, weight.dtype), weight.size(0)
        # Adding to the gradient of the weight pays for slices of about D/2 tokens or more.
        slice_size = SLICES.get(weight.device.type, TRAINING_SLICE)
        rows = max(slice_size // weight.size(0), weight.size(1) // 2, 1)
        total = hidden.new_zeros((), dtype=torch.float64)
        # The gradient of few logits is smaller than that of the weight, and scaled with less work.
        ctx.stores_logits_gradient = 0 < hidden.size(0) <= min(rows, weight.size(1))
        gradients = None
        if ctx.learning and not ctx.stores_logits_gradient:
            gradients = _Gradients(hidden, weight, bias, ctx.needs_input_grad)
        for start in range(0, hidden.size(0), rows):
            part = slice(start, start + rows)
            inputs = hidden[part].to(dtype)
            logits = linear_no_grad(inputs, *copies)
            loss, grad = ops.cross_entropy_gradient(logits, targets[part], smoothing)
            total += loss
            if gradients is not None:
                gradients.add(part, inputs, copies[0], grad.to(dtype))
            elif ctx.learning:
                ctx.save_for_backward(inputs, copies[0], grad.to(dtype))
        if gradients is not None:
            ctx.save_for_backward(gradients.hidden, gradients.weight, gradients.bias)
        return total.to(at_least_float32(hidden.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        gradients_of = _from_logits_gradient if ctx.stores_logits_gradient else _from_sums
        return *gradients_of(ctx, grads[0]), None, None, None


def _aligned(weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The output (V, D), (V,) with further tokens, of probability 0, for products that are fast."""
    count = -weight.size(0) % ALIGNMENTS.get(weight.device.type, 1)
    if not count:
        return weight, bias
    bias = weight.new_zeros(weight.size(0)) if bias is None else bias
    return F.pad(weight, (0, 0, 0, count)), F.pad(bias, (0, count), value=-torch.inf)


def _from_logits_gradient(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
    """From the gradient of the logits of the only slice."""
    part, weight, grad = ctx.saved_tensors
    hidden_dtype, dtype = ctx.dtypes
    needs_hidden, needs_weight, needs_bias, *_ = ctx.needs_input_grad
    count = ctx.vocab_size  # V, without the tokens of `_aligned`
    scaled = part * scale.to(part.dtype)
    return (
        linear_no_grad(grad, weight.t()).mul_(scale).to(hidden_dtype) if needs_hidden else None,
        weight_gradient(grad, scaled, dtype)[:count] if needs_weight else None,
        grad.sum(0, dtype=dtype)[:count] * scale if needs_bias else None,
    )


def _from_sums(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
    """From the sums of the gradients of all slices."""
    return tuple(
        None if gradient is None else gradient * scale.to(gradient.dtype)
        for gradient in ctx.saved_tensors
    )


class _Gradients:
    """Gradients summed slice by slice; those of the parameters in their own precision.

    needed: whether those of hidden, weight and bias are; the others are None and not computed.
    """

    def __init__(self, hidden: Tensor, weight: Tensor, bias: Tensor | None, needed: Sequence[bool]):
        # The first slice writes the gradient of the weight; without tokens there is none.
        allocate = torch.empty_like if hidden.size(0) else torch.zeros_like
        self.hidden = torch.empty_like(hidden) if needed[0] else None
        self.weight = allocate(weight) if needed[1] else None
        self.bias = torch.zeros_like(bias) if bias is not None and needed[2] else None

    def add(self, part: slice, inputs: Tensor, weight: Tensor, grad: Tensor) -> None:
        """`grad` is d loss / d logits of one slice, (n, V), `_aligned` as `weight` is."""
        if self.hidden is not None:
            self.hidden[part] = linear_no_grad(grad, weight.t())
        if self.weight is not None:
            product = linear_no_grad(grad.t(), inputs.t())  # (V, n) and (n, D) -> (V, D)
            product = product[: self.weight.size(0)]
            if part.start:
                self.weight += product
            else:
                self.weight.copy_(product)
        if self.bias is not None:
            self.bias += grad.to(at_least_float32(grad.dtype)).sum(0)[: self.bias.size(0)]


ops.register(ops.cross_entropy, "sliced", _in_slices)


BISECTIONS = 60


class SampledSoftmax(Softmax):
    """A `Softmax` over V words; in training each loss is over its target and `samples` words.

    One sample, drawn from torch's default generator, serves all targets of a call.

    Raises:
        ValueError: there are fewer words than samples.
    """

    def __init__(self, d_model: int, vocab_size: int, samples: int):
        super().__init__(d_model, vocab_size, tied=None, bias=True)
        if not 1 <= samples <= vocab_size:
            raise ValueError(
                f"`negative_samples` must be at most the {vocab_size} words of the vocabulary, "
                f"but is {samples}."
            )
        self.samples = samples
        probabilities = zipfian(vocab_size)
        expected = expected_counts(probabilities, samples)
        for name, values in (("probabilities", probabilities), ("log_expected", np.log(expected))):
            self.register_buffer(name, torch.from_numpy(values).float(), persistent=False)

    def loss(
        self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0, count: int | None = None
    ) -> tuple[Tensor, int]:
        """See `Softmax`; in evaluation, and with `smoothing`, it is the loss over all words."""
        if not self.training or smoothing:
            return super().loss(hidden, targets, smoothing, count)
        hidden, targets = without_ignored(hidden, targets, count)
        probabilities: Tensor = self.probabilities  # type: ignore[assignment]
        sampled = torch.multinomial(probabilities, self.samples)  # (S,)
        return self.sampled_loss(hidden, targets, sampled), targets.numel()

    def sampled_loss(self, hidden: Tensor, targets: Tensor, sampled: Tensor) -> Tensor:
        """The sum of the losses in nats with a sample: (N, D), (N,) ids and (S,) ids -> ()."""
        correction: Tensor = self.log_expected  # type: ignore[assignment]
        bias = torch.zeros_like(correction) if self.bias is None else self.bias
        bias = bias - correction
        target_logits = (hidden * self.weight[targets]).sum(1) + bias[targets]  # (N,)
        sampled_logits = torch.addmm(bias[sampled], hidden, self.weight[sampled].t())  # (N, S)
        sampled_logits = sampled_logits.masked_fill(targets[:, None] == sampled, float("-inf"))
        logits = torch.cat([target_logits[:, None], sampled_logits], 1).float()
        return (logits.logsumexp(1) - target_logits.float()).sum()


def zipfian(vocab_size: int) -> np.ndarray:
    """p_k = log((k + 2) / (k + 1)) / log(V + 1), (V,) in float64."""
    ranks = np.log(np.arange(1, vocab_size + 2))
    return np.diff(ranks) / ranks[-1]


def expected_counts(probabilities: np.ndarray, samples: int) -> np.ndarray:
    """q, the probability that each word is in a sample of `samples` different words: (V,).

    In n draws with replacement it is 1 - (1 - p_k)^n; n is chosen so that these sum to `samples`.
    """
    if samples == len(probabilities):
        return np.ones_like(probabilities)
    low, high = float(samples), 1e12
    for _ in range(BISECTIONS):
        tries = (low * high) ** 0.5
        drawn = -np.expm1(tries * np.log1p(-probabilities))
        low, high = (tries, high) if drawn.sum() < samples else (low, tries)
    return -np.expm1(high * np.log1p(-probabilities))
