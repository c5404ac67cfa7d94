"""Texts as pictures: what an encoder reads, constituency trees, and texts as points of a plane."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from rich.text import Text
from torch import Tensor
from torch.nn import functional as F

from regard.errors import ConfigError
from regard.tasks.embedder import TextMatch, best_matches, products
from regard.text import Tokenizer
from regard.text.templates import Template
from regard.text.trees import ConstituencyTree, Span, read_trees, walk
from regard.visual.drawing import Drawing, Label, Polyline, Shape, clip, text_width
from regard.visual.picture import Illustration, Picture, PictureRow, Table


def encoder_inputs(
    texts: str | Sequence[str],
    tokenizer: Tokenizer,
    template: Template,
    *,
    length: int | None = None,
    title: str = "",
) -> Illustration:
    """The input of an encoder for a text, or for a pair of texts (a, b), padded to `length`.

    Args:
        texts: one text or two.
        tokenizer, template: those of the model; see `regard.text.templates`.
        length: tokens, padding included; by default as many as the texts need.

    Returns:
        A table with a row for each token; `numbers` has its columns by name. "mask" is 0 where
        there is padding.

    Raises:
        ConfigError: the texts need more than `length` tokens.
    """
    pair = (texts,) if isinstance(texts, str) else tuple(texts)
    row = template.apply([tokenizer.encode(text).ids for text in pair])
    missing = 0 if length is None else length - len(row)
    if missing < 0:
        raise ConfigError(f"`length` must be at least {len(row)}, but is {length}.")
    ids = [*row.ids, *[tokenizer.pad_id or 0] * missing]
    columns = {
        "tokens": list(map(tokenizer.token, ids)),
        "ids": ids,
        "segments": [*row.segments, *[0] * missing],
        "mask": [1] * len(row) + [0] * missing,
        "positions": list(range(len(ids))),
    }
    table = Table.of(list(columns), list(zip(*columns.values(), strict=True)), title)
    return Illustration((table,), title or "what the encoder reads", numbers=columns)


# ---- trees

LEVEL, SIZE, GAP = 44.0, 13.0, 14.0  # pixels: between levels, of letters, between words
MOST_CELLS = 18  # of a word or a label
CAPITALS = 1.25  # the width of a label in that of other text


@dataclass(frozen=True, repr=False)
class TreePicture(Picture):
    """A constituency tree. Make it with `of`.

    marked: constituents, as spans of words with their labels, that are drawn in another colour.
    """

    tree: ConstituencyTree
    title: str = ""
    marked: frozenset[Span] = frozenset()

    @classmethod
    def of(cls, tree: ConstituencyTree | str, title: str = "", marked: Sequence[Span] = ()) -> Self:
        """The picture of a tree, or of the first one in brackets."""
        if isinstance(tree, str):
            tree = read_trees(tree)[0]
        return cls(tree, title, frozenset(marked))

    def drawing(self) -> Drawing:
        placed = _Layout(self)
        placed.node(self.tree, 0, 0)
        top = 30.0 if self.title else 6.0
        bottom = (placed.depth + 1) * LEVEL
        shapes = [shape.moved(8, top) for shape in placed.shapes(bottom)]
        width = max(placed.right + 16, self._title_width())
        return Drawing(
            width, top + bottom + 18, (*self._title_shapes(), *shapes), self.title or "tree"
        )

    def terminal(self, width: int, color: bool) -> Text:
        text = self._title_text(width)
        depth = start = 0
        for node, ended in walk(self.tree):
            if ended:
                depth -= 1
                continue
            lead = "  " * min(depth, max(0, width - MOST_CELLS) // 2)
            label = clip(node.label, MOST_CELLS)
            if node.word:
                text.append(lead + label + " ", style="cyan").append(clip(node.word, MOST_CELLS))
                start += 1
            else:
                marked = (start, start + len(node.leaves()), node.label) in self.marked
                text.append(lead + label, style="bold yellow" if marked else "bold blue")
                depth += 1
            text.append("\n")
        return text


@dataclass
class _Node:
    """A constituent, a tag or a word at its position. parent: the index of the node above it."""

    text: str
    x: float
    depth: int
    parent: int | None
    word: bool
    marked: bool


class _Layout:
    """The positions of the nodes: words from left to right, a parent above the middle of its
    children.
    """

    def __init__(self, picture: TreePicture):
        self.picture = picture
        self.nodes: list[_Node] = []
        self.right = 0.0
        self.depth = 0

    def node(
        self, tree: ConstituencyTree, depth: int, start: int, parent: int | None = None
    ) -> int:
        """Add a tree whose first word has the number `start`; return the number after its last."""
        index, self.depth = len(self.nodes), max(self.depth, depth)
        label = clip(tree.label, MOST_CELLS)
        self.nodes.append(_Node(label, 0, depth, parent, False, False))
        if tree.word:
            word = clip(tree.word, MOST_CELLS)
            wide = max(text_width(word, SIZE), CAPITALS * text_width(label, SIZE))
            x = self.right + wide / 2
            self.right += wide + GAP
            self.nodes[index].x = x
            self.nodes.append(_Node(word, x, depth + 1, index, True, False))
            return start + 1
        children, stop, left = [], start, self.right
        for child in tree.children:
            children.append(len(self.nodes))
            stop = self.node(child, depth + 1, stop, index)
        self._widen(index, left, CAPITALS * text_width(label, SIZE))
        node = self.nodes[index]
        node.x = (self.nodes[children[0]].x + self.nodes[children[-1]].x) / 2
        node.marked = (start, stop, tree.label) in self.picture.marked
        return stop

    def _widen(self, index: int, left: float, wide: float) -> None:
        """Move what is under the node `index`, which begins at `left`, under a wider label."""
        lacking = left + wide + GAP - self.right
        if lacking > 0:
            self.right += lacking
            for node in self.nodes[index + 1 :]:
                node.x += lacking / 2

    def shapes(self, bottom: float) -> list[Shape]:
        """Lines, then labels; all words are on the line at the bottom."""
        lines: list[Shape] = []
        labels: list[Shape] = []
        for node in self.nodes:
            y = bottom if node.word else node.depth * LEVEL + 10
            if node.parent is not None:
                above = self.nodes[node.parent]
                ends = ((above.x, above.depth * LEVEL + 19), (node.x, y - 10))
                lines.append(Polyline(ends, "muted", 1.0, 0.8, dashed=node.word))
            ink = "warm" if node.marked else "ink" if node.word else "accent"
            labels.append(Label(node.x, y, node.text, SIZE, "middle", ink, bold=node.marked))
        return lines + labels


def n_best_picture(
    trees: Sequence[tuple[ConstituencyTree, float]], title: str = "the best trees"
) -> PictureRow:
    """Trees of one sentence side by side with their scores, the best first.

    Constituents that the best tree lacks are marked in the others.
    """
    best = set(trees[0][0].spans())
    return PictureRow(
        tuple(
            TreePicture.of(tree, f"{rank}. score {score:.2f}", sorted({*tree.spans()} - best))
            for rank, (tree, score) in enumerate(trees, 1)
        ),
        title,
    )


# ---- a map


@dataclass(frozen=True, eq=False, repr=False)
class TextMap:
    """Texts with vectors and points; make it with `of`.

    labels: of the texts; () where they have none.
    vectors: (N, D) in float32, of length 1.
    mean: (D,) of the vectors.  directions: (2, D), orthonormal.
    points: (N, 2), (vectors - mean) directions^T.
    shares: of the vectors' variance, how much lies in each direction.
    """

    texts: tuple[str, ...]
    labels: tuple[str, ...]
    vectors: Tensor
    mean: Tensor
    directions: Tensor
    points: Tensor
    shares: tuple[float, float]

    def __repr__(self) -> str:
        return f"<TextMap of {len(self.texts):,} texts>"

    @classmethod
    def of(cls, vectors: Any, texts: Sequence[str], labels: Sequence[str] = ()) -> Self:
        """The map of texts by their principal components (Pearson 1901; Hotelling 1933).

        The directions are the eigenvectors of the covariance of the vectors, each scaled to length
        1 before, with the largest eigenvalues. In each of them the entry of largest size is
        positive, so that the same vectors always give the same map.

        Args:
            vectors: (N, D), an array or a tensor.
            texts: N of them.
            labels: N of them, or none.

        Raises:
            ConfigError: vectors are not finite.
        """
        array = torch.as_tensor(np.asarray(vectors), dtype=torch.float32)
        if not array.isfinite().all():
            raise ConfigError("The vectors are infinite or NaN: use another model.")
        unit = F.normalize(array, dim=1)
        mean, directions, shares = principal_directions(unit)
        points = (unit - mean) @ directions.T
        return cls(tuple(texts), tuple(labels), unit, mean, directions, points, shares)

    def nearest(self, vector: Any, k: int) -> list[TextMatch]:
        """The `k` texts with the largest cosines with a vector (D,), best first."""
        (cosines,) = products(_unit(vector)[None].numpy(), self.vectors.numpy())
        return best_matches(cosines, self.texts, k)

    def place(self, vector: Any) -> tuple[float, float]:
        """The point of another vector (D,) in this map."""
        x, y = (self.directions @ (_unit(vector) - self.mean)).tolist()
        return x, y


def _unit(vector: Any) -> Tensor:
    return F.normalize(torch.as_tensor(vector, dtype=torch.float32), dim=0)


def principal_directions(vectors: Tensor) -> tuple[Tensor, Tensor, tuple[float, float]]:
    """The mean (D,) of vectors (N, D), their two principal directions (2, D), and the shares of
    the variance that lie in these; 0 where all vectors are equal."""
    wide = vectors.double()
    mean = wide.mean(0)
    centred = wide - mean
    variances, columns = torch.linalg.eigh(centred.T @ centred)  # ascending
    directions = columns.T[-2:].flip(0)
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    directions = directions * largest.sign()
    total = float(variances.clamp(min=0).sum())
    first, second = (float(value) / total if total > 1e-9 else 0.0 for value in variances[[-1, -2]])
    return mean.float(), directions.float(), (first, second)
