"""Drawn arguments for every function that hands memory to the compiled kernels.

    python tests/kernels/drawn.py SEED COUNT [fast|older|plain] [THREADS]

Each case is a call with valid arguments, of which the answer is known from torch, or the same with
one malformed argument: then it must raise an error or still give the right answer. A crash ends
this process, so tests run it in one of its own.
"""

from __future__ import annotations

import math
import random
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regard import ops
from regard.data.batches import Sequences
from regard.errors import RegardError
from regard.kernels import (
    build,
    operations,
    products,
)
from regard.kernels.compiled_models import CompiledEncoder, CompiledGenerator
from regard.kernels.tensors import is_cpu_strided
from regard.layers.quantized import (
    Panels,
    pack,
    quantize_matrix,
    quantized_linear,
    quantized_recurrence,
    unpack,
)
from regard.models.bert import Bert, DistilBert
from regard.models.conversions import prepare
from regard.models.gpt2 import GPT2, GPT2Config
from regard.models.gpt3 import GPT3, GPT3Config
from regard.models.llama import Llama, LlamaConfig
from regard.models.roberta import Roberta

HALF, REAL = torch.bfloat16, torch.float32
ERRORS = (RegardError, IndexError, RuntimeError, TypeError, ValueError, AttributeError)
IDS = 101  # the vocabulary of whole models
CLOSE = dict(atol=3e-2, rtol=3e-2)

Draw = random.Random


@dataclass
class Case:
    """A call by keywords, and the function of the same keywords that gives the right answer."""

    call: Callable[..., Any]
    wanted: Callable[..., Any]
    given: dict[str, Any]
    ids: tuple[str, ...] = ()  # arguments that are numbers of something, each below `end`
    end: int = 0
    counts: tuple[str, ...] = ()  # arguments that count something


def size(draw: Draw, most: int = 70) -> int:
    return draw.choice([1, 2, 3, 4, 7, 15, 16, 17, 31, 33, 63, 64, 65, draw.randint(1, most)])


def normal(*shape: int, kind: torch.dtype = REAL) -> Tensor:
    return torch.randn(shape).to(kind)


# ---- the functions


def matrix(draw: Draw) -> tuple[Tensor, Tensor | None, tuple[int, int], Tensor]:
    """A matrix in panels with its scale and shape, and the same matrix in float32."""
    shape = size(draw), size(draw, 200)
    numbers, scale = quantize_matrix(normal(*shape), draw.choice(["int8", "bfloat16"]))
    packed = pack(numbers)
    wide = unpack(packed, *shape)
    return packed, scale, shape, wide if scale is None else wide * scale[:, None]


def a_product(draw: Draw) -> Case:
    packed, scale, shape, _ = matrix(draw)
    lead = draw.choice([(), (size(draw),), (2, 3), (0,)])
    bias = draw.choice([None, normal(shape[0])])
    given = dict(x=normal(*lead, shape[1]), packed=packed, scale=scale, bias=bias, shape=shape)

    def through(linear: Any) -> Any:
        return lambda x, packed, scale, bias, shape: linear(x, Panels(packed, scale, shape), bias)

    linear = quantized_linear
    return Case(through(linear), through(linear.definition), given)


def a_likelihood(draw: Draw) -> Case:
    rows, known = size(draw), draw.choice([size(draw), 600])
    given = dict(logits=normal(rows, known), targets=torch.randint(known, (rows,)))

    def wanted(logits: Tensor, targets: Tensor) -> Tensor:
        return -logits.double().log_softmax(-1).gather(1, targets[:, None])[:, 0]

    return Case(ops.negative_log_likelihood, wanted, given, ("targets",), known)


def the_leading(draw: Draw) -> Case:
    rows, known = size(draw), draw.choice([size(draw), 600, 1100])

    def call(scores: Tensor, count: int) -> Any:
        if not ops.topk.has_implementation(scores, count):
            return None
        found = ops.topk(scores, count)
        return scores.gather(1, found[0]), found[1]

    def wanted(scores: Tensor, count: int) -> Any:
        if count > scores.size(1) or not is_cpu_strided(scores):
            return None
        found = scores.log_softmax(-1).sort(dim=-1, descending=True, stable=True)
        # Which of words that are nearly as probable comes first is a matter of rounding.
        return scores.gather(1, found.indices[:, :count]), found.values[:, :count]

    given = dict(scores=normal(rows, known), count=draw.randint(1, known))
    return Case(call, wanted, given, counts=("count",))


def a_sweep(draw: Draw) -> Case:
    gates, rows, tokens, width = draw.choice([1, 3, 4]), size(draw, 9), size(draw, 9), size(draw)
    shape = gates * width, width
    numbers, scale = quantize_matrix(
        normal(*shape) * width**-0.5 / 2, draw.choice(["int8", "bfloat16"])
    )
    cell = normal(rows, width if gates == 4 else 0)
    given = dict(below=normal(rows, tokens, shape[0]), packed=pack(numbers), scale=scale)
    given |= dict(bias=draw.choice([None, normal(shape[0])]), hidden=normal(rows, width), cell=cell)

    def through(recur: Any) -> Any:
        def call(below, packed, scale, bias, hidden, cell):
            return recur(below, Panels(packed, scale, shape), bias, hidden, cell)

        return call

    recur = quantized_recurrence
    return Case(through(recur), through(recur.definition), given)


def kind_of(draw: Draw) -> torch.dtype:
    return draw.choice([REAL, HALF])


def a_drop(draw: Draw) -> Case:
    x = normal(*draw.choice([(), (size(draw),), (3, size(draw))]), kind=kind_of(draw))
    given = dict(x=x, seed=draw.getrandbits(63), threshold=draw.choice([0, 1, 3000, 32767]))

    def wanted(x: Tensor, seed: int, threshold: int) -> Tensor:
        drop = ops.Drop(seed, threshold)
        scaled = (x.float() * drop.scale).to(x.dtype)
        return torch.where(ops.keep_mask(x.shape, drop), scaled, 0)

    return Case(operations.dropped, wanted, given, counts=("threshold",))


def a_norm(draw: Draw) -> Case:
    width, kind = size(draw, 200), kind_of(draw)
    lead = draw.choice([(size(draw, 200),), (2, size(draw))])
    given = dict(hidden=normal(*lead, width, kind=kind), update=normal(*lead, width, kind=kind))
    given |= dict(gain=normal(width), bias=normal(width), grad=normal(*lead, width, kind=kind))
    given |= dict(seed_threshold=draw.choice([(0, 0), (draw.getrandbits(63), 3000)]))

    def call(grad, hidden, update, gain, bias, seed_threshold):
        out, stats = operations.add_norm(hidden, update, gain, bias, 1e-5, seed_threshold)
        parts = hidden, update, gain, bias, stats
        return out, *operations.add_norm_back(grad, parts, 1e-5, seed_threshold)

    def wanted(grad, hidden, update, gain, bias, seed_threshold):
        with torch.enable_grad():
            leaves = [t.detach().double().requires_grad_() for t in (hidden, update, gain, bias)]
            hidden, update, gain, bias = leaves
            drop = ops.Drop(*seed_threshold)
            scaled = update * drop.scale
            update = torch.where(ops.keep_mask(update.shape, drop), scaled, 0)
            out = F.layer_norm(hidden + update, gain.shape, gain, bias)
            return out, *torch.autograd.grad(out, leaves, grad.double())

    return Case(call, wanted, given)


def an_entropy(draw: Draw) -> Case:
    rows, known, smoothing = size(draw), size(draw, 5000), draw.choice([0.0, 0.1])

    def call(scores: Tensor, targets: Tensor) -> Any:
        scores = scores.clone() if scores.is_contiguous() else scores
        return operations.cross_entropy(scores, targets, smoothing), scores

    def wanted(scores: Tensor, targets: Tensor) -> Any:
        with torch.enable_grad():
            wide = scores.detach().double().requires_grad_()
            asked = dict(reduction="none", label_smoothing=smoothing, ignore_index=-(1 << 40))
            losses = F.cross_entropy(wide, targets, **asked)
            return losses, *torch.autograd.grad(losses.sum(), wide)

    scores = normal(rows, known, kind=kind_of(draw))
    given = dict(scores=scores, targets=torch.randint(known, (rows,)))
    return Case(call, wanted, given, ("targets",), known)


def an_attention(draw: Draw) -> Case:
    rows, heads, width = size(draw, 3) % 4 + 1, size(draw, 3) % 4 + 1, size(draw)
    queries, keys = size(draw, 150), size(draw, 150)
    causal = draw.random() < 0.4
    keys = queries if causal else keys
    of_keys = (rows, heads, keys, width)
    given = dict(query=normal(rows, heads, queries, width, kind=HALF))
    given |= dict(key=normal(*of_keys, kind=HALF), value=normal(*of_keys, kind=HALF))
    given |= dict(grad=normal(rows, heads, queries, width, kind=HALF), allowed=None)
    if not causal and draw.random() < 0.5:
        given["allowed"] = torch.rand(rows, heads, queries, keys) < 0.7

    def call(query, key, value, grad, allowed):
        asked = operations.AttentionCall(allowed, causal, width**-0.5, ops.NO_DROP)
        context, norms = operations.attend(query, key, value, asked)
        found = [torch.empty_like(x.contiguous()) for x in (query, key, value)]
        operations.attend_back(grad, (query, key, value, context), norms, asked, found)
        return context, *found

    def wanted(query, key, value, grad, allowed):
        with torch.enable_grad():
            leaves = [x.detach().double().requires_grad_() for x in (query, key, value)]
            query, key, value = leaves
            scores = query @ key.transpose(2, 3) * width**-0.5
            seen = torch.ones_like(scores, dtype=torch.bool) if allowed is None else allowed
            seen = seen.tril() if causal else seen
            weights = scores.masked_fill(~seen, -1e300).softmax(-1) * seen.any(-1, keepdim=True)
            context = weights @ value
            return context, *torch.autograd.grad(context, leaves, grad.double())

    return Case(call, wanted, given)


def rows_end_to_end(draw: Draw) -> Case:
    heads, width = 2, size(draw)
    lengths = torch.tensor([draw.randint(0, 40) for _ in range(draw.randint(1, 5))])
    total = int(lengths.sum()) + draw.randint(0, 3)
    shape = (1, heads, max(1, total), width)
    starts = F.pad(lengths.cumsum(0), (1, 0))
    longest = max(1, int(lengths.max()))
    given = {n: normal(*shape, kind=HALF) for n in ("query", "key", "value", "grad")}
    given |= dict(query_starts=starts, key_starts=starts.clone())

    def call(query, key, value, grad, query_starts, key_starts):
        extents = (
            ops.SequenceOffsets(query_starts, longest),
            ops.SequenceOffsets(key_starts, longest),
        )
        asked = operations.AttentionCall(None, False, width**-0.5, ops.NO_DROP, extents)
        context, norms = operations.attend(query, key, value, asked)
        found = [torch.empty_like(x.contiguous()) for x in (query, key, value)]
        operations.attend_back(grad, (query, key, value, context), norms, asked, found)
        return [context[:, :, : starts[-1]]]

    def wanted(query, key, value, grad, query_starts, key_starts):
        found = torch.zeros(1, heads, int(starts[-1]), width, dtype=torch.float64)
        for start, end, first, last in zip(
            query_starts, query_starts[1:], key_starts, key_starts[1:], strict=False
        ):
            own, read = slice(start, end), slice(first, last)
            scores = query[0, :, own].double() @ key[0, :, read].double().transpose(1, 2)
            if last > first:
                weights = (scores * width**-0.5).softmax(-1)
                found[0, :, own] = weights @ value[0, :, read].double()
        return [found]

    names = ("query_starts", "key_starts")
    return Case(call, wanted, given, names, total + 1)


def an_lstm(draw: Draw) -> Case:
    rows, steps, width = size(draw, 20), size(draw, 9) % 9 + 1, size(draw)
    given = dict(weight=normal(4 * width, width) * 0.3, bias=normal(4 * width))
    given |= dict(inputs=normal(rows, steps, 4 * width, kind=HALF), hidden=normal(rows, width))
    given |= dict(cell=normal(rows, width), d_hiddens=normal(rows, steps, width))
    given |= dict(d_end=normal(rows, width), d_cell=normal(rows, width))

    def call(weight, bias, inputs, hidden, cell, d_hiddens, d_end, d_cell):
        swept = products.lstm_forward(weight, inputs, bias, hidden, cell, keep=True)
        last = products.lstm_forward(weight, inputs, bias, hidden, cell, keep=False)
        grads = d_hiddens, d_end, d_cell
        products.lstm_backward(weight, swept, cell, grads, first=True)
        return swept.hiddens, last.hiddens, swept.cells[:, -1], last.cells[:, 0]

    def wanted(weight, bias, inputs, hidden, cell, **_):
        states = []
        for x in inputs.float().unbind(1):
            gates = x + bias + hidden.bfloat16().float() @ weight.bfloat16().float().t()
            enter, keep, new, leave = gates.chunk(4, 1)
            cell = keep.sigmoid() * cell + enter.sigmoid() * new.tanh()
            hidden = leave.sigmoid() * cell.tanh()
            states.append(hidden)
        hiddens = torch.stack(states, 1)
        return hiddens, hiddens, cell, cell

    return Case(call, wanted, given)


# ---- whole models, as programs of many operations


def quantized(model: Any, draw: Draw) -> Any:
    """The model with quantized weights so large that states differ from token to token."""
    for parameter in model.eval().requires_grad_(False).parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    return prepare(model, draw.choice(["int8", "bfloat16"]))


def sizes_of_layers(draw: Draw) -> dict[str, Any]:
    heads, head_dim = draw.choice([1, 2, 3]), draw.choice([4, 12, 16, 20, 64])
    d_ff = draw.choice([16, 40, 96])
    return dict(d_model=heads * head_dim, d_ff=d_ff, heads=heads, layers=draw.choice([1, 2]))


def an_encoder(draw: Draw) -> Case:
    kind: Any = draw.choice([Bert, Roberta, DistilBert])
    model = quantized(kind(kind.Config(IDS, max_length=70, **sizes_of_layers(draw))), draw)
    lengths = torch.tensor([min(size(draw), 70) for _ in range(draw.choice([1, 2, 5]))])
    ids = torch.randint(3, IDS, (len(lengths), int(lengths.max())))

    def call(ids, lengths):
        read = Sequences(ids, lengths)
        return CompiledEncoder(model).encode(read)[read.keep]

    def wanted(ids, lengths):
        """Compiled forms do not read what stands at padding."""
        keep = Sequences(ids, lengths).keep
        return model.encode(Sequences(ids.where(keep, ids.new_zeros(())), lengths))[keep]

    return Case(call, wanted, dict(ids=ids, lengths=lengths), ("ids",), IDS)


def a_decoder(draw: Draw) -> Case:
    model: Any
    sizes = sizes_of_layers(draw)
    kind = draw.choice(["llama", "gpt2", "gpt3"])
    if kind == "llama":
        shared = draw.choice([n for n in (1, 2, 3) if sizes["heads"] % n == 0])
        model = Llama(LlamaConfig(IDS, key_value_heads=shared, **sizes))
    elif kind == "gpt2":
        model = GPT2(GPT2Config(IDS, max_length=70, **sizes))
    else:
        window = draw.choice([1, 2, 5, 33])
        model = GPT3(GPT3Config(IDS, max_length=70, window=window, **sizes))
    model = quantized(model, draw)
    tokens = torch.randint(3, IDS, (draw.choice([1, 2, 5]), 1 + size(draw, 40)))

    def call(tokens):
        """All but the last token at once, then a step."""
        compiled = CompiledGenerator(model)
        state = compiled.prefill(tokens[:, :-1], compiled.empty(len(tokens)))
        scores, _ = compiled.step(tokens[:, -1:], state)
        return scores.log_softmax(-1)

    def wanted(tokens):
        return model.head.logits(model(tokens).hidden[:, -1:]).log_softmax(-1)

    return Case(call, wanted, dict(tokens=tokens), ("tokens",), IDS)


FUNCTIONS: dict[str, Callable[[Draw], Case]] = {
    one.__name__: one
    for one in (
        *(a_product, a_likelihood, the_leading, a_sweep, a_drop, a_norm),
        *(an_entropy, an_attention, rows_end_to_end, an_lstm),
        *(an_encoder, a_decoder),
    )
}


# ---- malformed arguments


def resized(x: Tensor, draw: Draw) -> Tensor:
    """Shorter, or longer, in one dimension."""
    at = draw.randrange(x.dim())
    if draw.random() < 0.5 or not x.size(at):
        return torch.cat([x, x.new_ones(*x.shape[:at], 1, *x.shape[at + 1 :])], at)
    return x.narrow(at, 0, x.size(at) - 1).contiguous()


def strided(x: Tensor) -> Tensor:
    """The same numbers, every other one of a larger tensor."""
    wide = x.new_zeros(*x.shape[:-1], 2 * x.size(-1))
    wide[..., ::2] = x
    return wide[..., ::2]


def in_another_order(x: Tensor) -> Tensor:
    """The same numbers, stored with the first dimension last."""
    return x.movedim(0, -1).contiguous().movedim(-1, 0)


def misaligned(x: Tensor) -> Tensor:
    """The same numbers at an address that is not aligned."""
    room = torch.zeros(x.nbytes + 16, dtype=torch.uint8).numpy()
    moved = torch.frombuffer(room.data, dtype=x.dtype, count=max(1, x.numel()), offset=1)
    return moved[: x.numel()].view(x.shape).copy_(x)


def negated(x: Tensor) -> Tensor:
    return torch._neg_view(-x) if x.is_floating_point() else x


MALFORMED: dict[str, Callable[[Tensor, Draw], Any]] = {
    "int32": lambda x, draw: x.to(torch.int32),
    "float64": lambda x, draw: x.double(),
    "float16": lambda x, draw: x.half(),
    "bool": lambda x, draw: x.bool(),
    "bfloat16": lambda x, draw: x.bfloat16(),
    "float32": lambda x, draw: x.float(),
    "meta": lambda x, draw: x.to("meta"),
    "sparse": lambda x, draw: x.to_sparse(),
    "none": lambda x, draw: None,
    "a number": lambda x, draw: 1.0,
    "empty": lambda x, draw: x[:0] if x.dim() else x.reshape(1)[:0],
    "expanded": lambda x, draw: x[:1].expand(x.shape) if x.dim() and len(x) else x,
    "strided": lambda x, draw: strided(x) if x.dim() else x,
    "other dimension order": lambda x, draw: in_another_order(x) if x.dim() > 1 else x,
    "misaligned": lambda x, draw: misaligned(x),
    "negated": lambda x, draw: negated(x),
    "resized": lambda x, draw: resized(x, draw) if x.dim() else x,
    "flattened": lambda x, draw: x.flatten(),
    "extra dimension": lambda x, draw: x[None],
    "transposed": lambda x, draw: x.transpose(-1, -2) if x.dim() > 1 else x,
    "nan": lambda x, draw: x * math.nan if x.is_floating_point() else x,
}


def malform(case: Case, draw: Draw) -> tuple[str, Case]:
    """The case with one malformed argument, and what was changed."""
    name = draw.choice(list(case.given))
    old = case.given[name]
    if name in case.ids and draw.random() < 0.5 and old.numel():
        new, how = old.clone(), "out of range"
        far = [-1, -100, case.end, case.end + 15, 1 << 40, -(1 << 62)]
        new.view(-1)[draw.randrange(old.numel())] = draw.choice(far)
    elif name in case.counts:
        new, how = draw.choice([0, -1, -5, 1 << 15, 1 << 31, 1 << 40, 10**30]), "a count"
    elif isinstance(old, Tensor):
        how = draw.choice(list(MALFORMED))
        new = MALFORMED[how](old, draw)
    else:
        return "nothing", case
    return f"{name} {how}", replace(case, given=case.given | {name: new})


# ---- the comparison


def parts(found: Any) -> list[Tensor]:
    if isinstance(found, Tensor):
        return [found]
    return [] if found is None else [one for one in found if one is not None]


def differ(found: Any, wanted: Any) -> str:
    """How an answer differs from the wanted one; "" if it does not."""
    if (found is None) != (wanted is None):
        return f"{found} is not {wanted}"
    for number, (one, other) in enumerate(zip(parts(found), parts(wanted), strict=True)):
        one, other = one.detach().double(), other.detach().double()
        one, other = one.to_dense(), other.to_dense()
        if one.is_meta:
            continue
        if one.shape != other.shape:
            return f"part {number} is of shape {one.shape}, not {other.shape}"
        real = other.isfinite()
        scale = other[real].abs().max().clamp(min=1.0) if real.any() else 1.0
        near = torch.isclose(one[real] / scale, other[real] / scale, **CLOSE).all()
        if not near and one.numel():
            worst = (one[real] - other[real]).abs().max().item()
            return f"part {number} differs by {worst:.3g} of {scale:.3g}"
    return ""


def check(case: Case, *, malformed: bool) -> str:
    """What is wrong with a call; "" if it gave the right answer or an error that is allowed."""
    torch.manual_seed(0)
    try:
        found = case.call(**case.given)
    except ERRORS as error:
        return "" if malformed else f"{type(error).__name__}: {str(error):.200}"
    if any(map(is_undefined, case.given.values())):
        return ""
    try:
        wanted = case.wanted(**case.given)
    except ERRORS as error:
        return f"torch raises {type(error).__name__}: {str(error):.200}, the kernels do not"
    return differ(found, wanted)


def is_undefined(value: Any) -> bool:
    """Whether an argument holds NaN or no numbers: of such a call only memory safety is checked."""
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        return False
    return value.is_meta or bool(value.isnan().any())


def run(seed: int, count: int, names: list[str]) -> list[str]:
    """The failures among so many cases of each function, each valid and malformed."""
    failures = []
    for name in names:
        for number in range(count):
            label = f"{name} {seed} {number}"
            draw = Draw(label)
            torch.manual_seed(draw.getrandbits(32))
            case = FUNCTIONS[name](draw)
            how, worse = malform(case, draw)
            for text, one in (("valid", case), (how, worse)):
                print(label, text, flush=True)
                if problem := check(one, malformed=one is worse):
                    failures.append(f"{label} ({text}): {problem}")
    return failures


KINDS = {"fast": build.KINDS, "plain": (("-DPORTABLE", "-O1"),)}
KINDS["older"] = (("-mavx2", "-mfma", "-DPORTABLE"),)


def main(seed: int, count: int, kind: str = "fast", threads: int = 1) -> int:
    warnings.filterwarnings(
        "error", ".* is not compiled"
    )  # whole models, which then compute the same
    build.SECONDS = 3600  # with sanitizers it takes minutes
    library = build.load(build.build(KINDS[kind]))
    build.kernels = lambda: library  # type: ignore[assignment]
    operations.register()
    if threads > 1:  # however little there is to do
        products.threads_for = lambda *work: threads  # type: ignore[assignment]
        operations._threads = lambda x: threads  # type: ignore[assignment]
        torch.set_num_threads(threads)
    names = [n for n in FUNCTIONS if n != "an_lstm" or library.regard_lstm_available()]
    if not library.regard_attention_is_fast():
        names = [n for n in names if n not in ("an_attention", "rows_end_to_end")]
    failures = run(seed, count, names)
    print(*failures, f"{len(failures)} failures", sep="\n", file=sys.stderr)
    return bool(failures)


if __name__ == "__main__":
    seed, count, *more = sys.argv[1:]
    sys.exit(main(int(seed), int(count), *more[:1], *map(int, more[1:])))
