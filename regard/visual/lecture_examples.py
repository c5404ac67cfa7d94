"""Examples of lectures, computed with the library's own functions.

Each is a picture with its `numbers`, computed by the code of the models. Where a figure of a slide
differs from its own arithmetic, the picture shows both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from regard.attention.attend import attend
from regard.visual.curves import Curves, Series
from regard.visual.heatmap import Heatmap
from regard.visual.picture import Illustration, Note, Picture, PictureRow
from regard.visual.table import Table

LECTURE_SCORES = ((112.0, 96.0, 16.0, 8.0), (92.0, 124.0, 22.0, 8.0))
LECTURE_WEIGHTS = ((0.87, 0.12, 0.01, 0.0), (0.08, 0.91, 0.01, 0.0))
LECTURE_WORDS = ("The", "brown", "dog", "ran")
IMAGE = tuple(
    tuple(map(int, row)) for row in ("100001", "010010", "001100", "100010", "010010", "001010")
)
FILTERS = (
    ((1, -1, -1), (-1, 1, -1), (-1, -1, 1)),
    ((-1, 1, -1), (-1, 1, -1), (-1, 1, -1)),
)


def self_attention(
    scores: Sequence[Sequence[float]] = LECTURE_SCORES,
    words: Sequence[str] = LECTURE_WORDS,
    head_dim: int = 64,
    slide: Sequence[Sequence[float]] | None = LECTURE_WEIGHTS,
) -> Illustration:
    """Scores divided by sqrt(d_k), softmax, weighted sum: the lecture's 112, 96, 16, 8.

    The lecture has the products q·k and not the vectors. Here keys are unit vectors and queries
    hold the scores, which gives these products. Values are unit vectors, too, so that the context
    that `attend` returns is the weights.

    Args:
        scores: q·k, (T, S).
        words: labels of the S keys; the first T are those of the queries.
        head_dim: d_k.
        slide: the weights that the slide prints, (T, S).
    """
    given = torch.tensor(scores, dtype=torch.float64)  # (T, S)
    keys = torch.eye(given.size(1), head_dim, dtype=torch.float64)  # (S, K)
    query = given @ keys  # (T, K), so that query @ keys.T is `given`
    weights = attend(query, keys, torch.eye(given.size(1), dtype=torch.float64))  # (T, S)
    divided = given / math.sqrt(head_dim)
    lines = (
        "Step 1  Each word has a query q, a key k and a value v.",
        f"Step 2  A query meets every key: score s_j = q · k_j. Here d_k = {head_dim}.",
        f"Step 3  Divide by sqrt(d_k) = {math.sqrt(head_dim):g}, then softmax:",
        "  a_j = exp(s_j / sqrt(d_k)) / sum_i exp(s_i / sqrt(d_k))",
    )
    parts: list[Picture] = [Note(lines, "Self-attention, step by step")]
    for row, word in enumerate(words[: len(scores)]):
        printed = None if slide is None else slide[row]
        parts += _softmax_steps(word, words, given[row], divided[row], weights[row], printed)
    picture = Heatmap.of(weights, words[: len(scores)], words, "The weights")
    numbers = {"scores": given, "divided": divided, "weights": weights}
    return Illustration((*parts, replace(picture, digits=3)), "Self-attention", numbers=numbers)


def _softmax_steps(
    word: str,
    words: Sequence[str],
    scores: Tensor,
    divided: Tensor,
    weights: Tensor,
    slide: Sequence[float] | None,
) -> list[Picture]:
    """The row of a query: a table of its steps, the sum, and where the slide differs."""
    head = ["key", "q · k", "/ sqrt(d_k)", "weight"]
    columns = [list(words), _each(scores, "{:g}"), _each(divided, "{:g}"), _each(weights, "{:.6f}")]
    terms = [f"{w:.4f} v_{i}" for i, w in enumerate(weights.tolist(), 1) if w >= 0.00005]
    lines = ["Step 4  Weigh the values and add them up:", "  z = " + " + ".join(terms)]
    if slide is not None:
        head.append("on the slide")
        columns.append([f"{value:.2f}" for value in slide])
        if (weights - torch.tensor(slide)).abs().max() > 0.00501:
            lines.append(
                "The slide's weights are not the softmax of its scores; see docs/reports/errata.md."
            )
    table = Table.of(head, list(zip(*columns, strict=True)), f"The query of “{word}”")
    return [table, Note(tuple(lines))]


def _each(values: Tensor, form: str) -> list[str]:
    return [form.format(value) for value in values.tolist()]


def convolution(
    image: Sequence[Sequence[float]] = IMAGE,
    filters: Sequence[Sequence[Sequence[float]]] = FILTERS,
) -> Illustration:
    """A 6x6 image and two 3x3 filters, stride 1: each filter detects a small pattern.

    out[i, j] = sum_{a, b} image[i + a, j + b] filter[a, b]

    Args:
        image: (H, W).
        filters: (F, H', W').
    """
    pixels = torch.tensor(image, dtype=torch.float64)
    kernels = torch.tensor(filters, dtype=torch.float64)
    maps = torch.nn.functional.conv2d(pixels[None, None], kernels[:, None])[0]  # (F, H', W')
    factors = zip(pixels[:3, :3].flatten().tolist(), kernels[0].flatten().tolist(), strict=True)
    products = " + ".join(f"{pixel:g}·{weight:g}" for pixel, weight in factors)
    row: list[Picture] = [_numbers(pixels, "Input")]
    for index, (kernel, found) in enumerate(zip(kernels, maps, strict=True), 1):
        row += [_numbers(kernel, f"Filter {index}"), _numbers(found, f"Output {index}")]
    note = Note(
        (
            "Each output is large where the input under the filter looks like the filter.",
            "The first output of filter 1 is the sum of the products in the upper left corner:",
            f"  {products} = {maps[0, 0, 0]:g}".replace("·-", "·−"),
        )
    )
    return Illustration((PictureRow(tuple(row)), note), "Convolution", numbers={"maps": maps})


def _numbers(values: Tensor, title: str) -> Heatmap:
    height, width = values.shape
    rows, columns = ("",) * height, ("",) * width
    return replace(Heatmap.of(values, rows, columns, title), digits=0)


def kernel_regression(
    count: int = 40, width: float = 0.5, queries: int = 120, seed: int = 0
) -> Illustration:
    """Nadaraya-Watson regression (1964) is attention: x is a query, x_i a key, y_i its value.

    f(x) = sum_i K(x - x_i) y_i / sum_j K(x - x_j) with K(u) = exp(-u^2 / (2 width^2))
         = softmax_i(-(x - x_i)^2 / (2 width^2)) · y

    Args:
        count: of the points (x_i, y_i).
        width: of the kernel, in units of x.
        queries: how many x are evaluated.
        seed: of the points.
    """
    generator = torch.Generator().manual_seed(seed)
    keys = (5 * torch.rand(count, 1, generator=generator, dtype=torch.float64)).sort(0).values
    noise = 0.5 * torch.randn(count, 1, generator=generator, dtype=torch.float64)
    values = _curve(keys) + noise
    xs = torch.linspace(0, 5, queries, dtype=torch.float64)[:, None]

    def gaussian(query: Tensor, key: Tensor) -> Tensor:
        return -((query - key.transpose(-2, -1)) ** 2) / (2 * width**2)

    fitted = attend(xs, keys, values, score=gaussian)[:, 0]
    weights = attend(xs, keys, torch.eye(count, dtype=torch.float64), score=gaussian)
    lines = (
        "A query x meets every key x_i; the answer is the weighted mean of the y_i.",
        "  f(x) = softmax(-(x - x_i)² / (2 h²)) · y",
        f"{count} noisy points of 2 sin x + x^0.8, width h = {width:g}.",
    )
    curves = (
        _series("the curve", xs, _curve(xs)),
        _series("attention", xs, fitted),
        replace(_series("data", keys, values), joined=False),
    )
    shown = weights[:: max(1, queries // 24)]
    parts = (
        Note(lines, "Nadaraya-Watson regression as attention"),
        Curves(curves, "", "x", "y"),
        Heatmap.of(shown, title="The weights: rows x, columns x_i"),
    )
    numbers = {"keys": keys[:, 0], "values": values[:, 0], "queries": xs[:, 0]}
    numbers |= {"fitted": fitted, "weights": weights}
    return Illustration(parts, "Nadaraya-Watson regression", numbers=numbers)


def _curve(x: Tensor) -> Tensor:
    return 2 * x.sin() + x**0.8


def _series(name: str, xs: Tensor, ys: Tensor) -> Series:
    return Series(name, tuple(zip(xs.flatten().tolist(), ys.flatten().tolist(), strict=True)))


def saturation(
    head_dims: Sequence[int] = (1, 4, 16, 64, 256, 1024),
    queries: int = 256,
    keys: int = 16,
    seed: int = 0,
) -> Illustration:
    """Why sqrt(d_k): the variance of q · k grows like d_k, and its softmax saturates.

    For independent entries of N(0, 1): E[q · k] = 0, Var[q · k] = d_k. Measured on `queries` random
    queries, each over `keys` random keys of its own, through `attend` with the score q · k and with
    the score q · k / sqrt(d_k); the gradient is that of the largest weight, mean of
    sum_j |d a_max / d s_j| = 2 a_max (1 - a_max).
    """
    from regard.attention.scores import PLAIN, Dot

    rows, measured = [], []
    for head_dim in head_dims:
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randn(queries, 1 + keys, head_dim, generator=generator, dtype=torch.float64)
        query, key = drawn.split([1, keys], 1)  # (N, 1, K), (N, S, K)
        each = torch.eye(keys, dtype=torch.float64).expand(queries, keys, keys)
        found = {"head_dim": float(head_dim)}
        for name, score in (("plain", PLAIN), ("scaled", Dot())):
            largest = attend(query, key, each, score=score).amax(-1)
            found[f"{name}_variance"] = score(query, key).var(correction=0).item()
            found[f"{name}_largest"] = largest.mean().item()
            found[f"{name}_gradient"] = (2 * largest * (1 - largest)).mean().item()
        measured.append(found)
        rows.append([str(head_dim), *(f"{found[name]:.3g}" for name in list(found)[1:])])
    head = ("d_k", "Var[q·k]", "largest", "gradient", "Var, divided", "largest", "gradient")
    lines = (
        "Entries of q and k are drawn from N(0, 1). The variance of q · k is d_k:",
        "  E[q · k] = 0    Var[q · k] = d_k    Var[q · k / sqrt(d_k)] = 1",
        "With growing d_k one key takes all the weight, and the softmax passes no gradient.",
        "largest: the mean largest weight; gradient: what the softmax passes back.",
    )
    note = Note(lines, "Why the scores are divided by sqrt(d_k)")
    numbers = {name: [found[name] for found in measured] for name in measured[0]}
    dims = list(map(math.log2, head_dims))
    series = tuple(
        Series(name, tuple(zip(dims, numbers[column], strict=True)))
        for name, column in (("q · k", "plain_largest"), ("q · k / sqrt(d_k)", "scaled_largest"))
    )
    curves = Curves(series, f"Mean largest of {keys} weights", "log2 d_k", "")
    return Illustration((note, Table.of(head, rows), curves), "Softmax saturation", numbers=numbers)
