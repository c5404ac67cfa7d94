"""The lectures' examples worked through with the library's own functions.

Each gives a picture and the numbers in it (`.numbers`), computed by the code that models run.
Where a slide's figure differs from its own arithmetic, the picture shows both.
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
IMAGE = (
    (1, 0, 0, 0, 0, 1),
    (0, 1, 0, 0, 1, 0),
    (0, 0, 1, 1, 0, 0),
    (1, 0, 0, 0, 1, 0),
    (0, 1, 0, 0, 1, 0),
    (0, 0, 1, 0, 1, 0),
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

    The lecture gives the products q·k and not the vectors, so vectors with exactly these products
    are made: keys are unit vectors, queries hold the scores. With unit vectors as values too the
    context that `attend` returns is the weights themselves. `slide`: the weights it prints.
    """
    given = torch.tensor(scores, dtype=torch.float64)  # (T, S)
    keys = torch.eye(given.size(1), head_dim, dtype=torch.float64)  # (S, K)
    query = given @ keys  # (T, K), so that query @ keys.T is `given`
    weights = attend(query, keys, torch.eye(given.size(1), dtype=torch.float64))  # (T, S)
    divided = given / math.sqrt(head_dim)
    parts: list[Picture] = [
        Note(
            (
                "Step 1  Each word has a query q, a key k and a value v.",
                f"Step 2  A query meets every key: score s_j = q · k_j. Here d_k = {head_dim}.",
                f"Step 3  Divide by sqrt(d_k) = {math.sqrt(head_dim):g}, then softmax:",
                "  a_j = exp(s_j / sqrt(d_k)) / sum_i exp(s_i / sqrt(d_k))",
            ),
            "Self-attention, step by step",
        )
    ]
    for row, word in enumerate(words[: len(scores)]):
        printed = None if slide is None else slide[row]
        parts += _softmax_steps(word, words, given[row], divided[row], weights[row], printed)
    picture = Heatmap.of(weights, words[: len(scores)], words, "The weights, from `attend`")
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
    """One query's row: a table of its steps, the sum, and what the slide says where it differs."""
    head = ["key", "q · k", "/ sqrt(d_k)", "weight"] + ([] if slide is None else ["on the slide"])
    columns = [list(words), _each(scores, "{:g}"), _each(divided, "{:g}"), _each(weights, "{:.6f}")]
    if slide is not None:
        columns.append([f"{value:.2f}" for value in slide])
    terms = [f"{w:.4f} v_{i}" for i, w in enumerate(weights.tolist(), 1) if w >= 0.00005]
    lines = ["Step 4  Weigh the values and add them up:", "  z = " + " + ".join(terms)]
    if (
        slide is not None
        and max(abs(a - b) for a, b in zip(weights.tolist(), slide, strict=True)) > 0.00501
    ):
        lines.append("The slide's weights are not the softmax of its scores; see docs/errata.md.")
    return [
        Table.of(head, list(zip(*columns, strict=True)), f"The query of “{word}”"),
        Note(tuple(lines)),
    ]


def _each(values: Tensor, form: str) -> list[str]:
    return [form.format(value) for value in values.tolist()]


def convolution(
    image: Sequence[Sequence[float]] = IMAGE,
    filters: Sequence[Sequence[Sequence[float]]] = FILTERS,
) -> Illustration:
    """The 6x6 image and two 3x3 filters, stride 1: each filter detects a small pattern.

    out[i, j] = sum_{a, b} image[i + a, j + b] filter[a, b]
    """
    pixels = torch.tensor(image, dtype=torch.float64)
    kernels = torch.tensor(filters, dtype=torch.float64)
    maps = torch.nn.functional.conv2d(pixels[None, None], kernels[:, None])[0]  # (F, H', W')
    first = [
        f"{p:g}·{k:g}"
        for p, k in zip(
            pixels[:3, :3].flatten().tolist(), kernels[0].flatten().tolist(), strict=True
        )
    ]
    row: list[Picture] = [_numbers(pixels, "Input")]
    for index, (kernel, found) in enumerate(zip(kernels, maps, strict=True), 1):
        row += [_numbers(kernel, f"Filter {index}"), _numbers(found, f"Output {index}")]
    note = Note(
        (
            "Each output is large where the input under the filter looks like the filter.",
            "The first output of filter 1 is the sum of the products in the upper left corner:",
            f"  {' + '.join(first)} = {maps[0, 0, 0]:g}".replace("·-", "·−"),
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
    """Nadaraya-Watson regression (1964) is attention: x asks, x_i answers, y_i is the value.

    f(x) = sum_i K(x - x_i) y_i / sum_j K(x - x_j) with K(u) = exp(-u^2 / (2 width^2))
         = softmax_i(-(x - x_i)^2 / (2 width^2)) · y
    """
    generator = torch.Generator().manual_seed(seed)
    keys = (5 * torch.rand(count, 1, generator=generator, dtype=torch.float64)).sort(0).values
    noise = 0.5 * torch.randn(count, 1, generator=generator, dtype=torch.float64)
    values = _curve(keys) + noise
    asked = torch.linspace(0, 5, queries, dtype=torch.float64)[:, None]

    def gaussian(query: Tensor, key: Tensor) -> Tensor:
        return -((query - key.transpose(-2, -1)) ** 2) / (2 * width**2)

    fitted = attend(asked, keys, values, score=gaussian)[:, 0]
    weights = attend(asked, keys, torch.eye(count, dtype=torch.float64), score=gaussian)
    parts = (
        Note(
            (
                "A query x meets every key x_i; the answer is the weighted mean of the y_i.",
                "  f(x) = softmax(-(x - x_i)² / (2 h²)) · y",
                f"{count} noisy points of 2 sin x + x^0.8, width h = {width:g}.",
            ),
            "Nadaraya-Watson regression as attention",
        ),
        Curves(
            (
                _series("the curve", asked, _curve(asked)),
                _series("attention", asked, fitted),
                replace(_series("data", keys, values), joined=False),
            ),
            "",
            "x",
            "y",
        ),
        Heatmap.of(weights[:: max(1, queries // 24)], title="The weights: rows x, columns x_i"),
    )
    numbers = {
        "keys": keys[:, 0],
        "values": values[:, 0],
        "queries": asked[:, 0],
        "fitted": fitted,
        "weights": weights,
    }
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
    note = Note(
        (
            "Entries of q and k are drawn from N(0, 1). The variance of q · k is d_k:",
            "  E[q · k] = 0    Var[q · k] = d_k    Var[q · k / sqrt(d_k)] = 1",
            "With growing d_k one key takes all the weight, and the softmax passes no gradient.",
            "largest: the mean largest weight; gradient: what the softmax passes back.",
        ),
        "Why the scores are divided by sqrt(d_k)",
    )
    curves = Curves(
        (
            _by_dim("q · k", measured, "plain_largest"),
            _by_dim("q · k / sqrt(d_k)", measured, "scaled_largest"),
        ),
        f"Mean largest of {keys} weights",
        "log2 d_k",
        "",
    )
    numbers = {name: [found[name] for found in measured] for name in measured[0]}
    return Illustration((note, Table.of(head, rows), curves), "Softmax saturation", numbers=numbers)


def _by_dim(name: str, measured: Sequence[dict[str, float]], column: str) -> Series:
    points = ((math.log2(found["head_dim"]), found[column]) for found in measured)
    return Series(name, tuple(points))
