"""Constituency trees as pictures, and several trees of one sentence side by side.

TreePicture.of("(S (NP (PRP It)) (VP (VBZ works)))").show()
n_best_picture(task.predict("I shot an elephant.", return_proba=True, n_best=3).n_best)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from rich.text import Text

from regard.errors import ConfigError
from regard.text.trees import ConstituencyTree, Span, read_trees, walk
from regard.visual.drawing import Drawing, Label, Polyline, Shape, clip, text_width
from regard.visual.picture import Picture, PictureRow

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
        """The picture of a tree, or of one in brackets.

        Raises:
            ConfigError: the text is not one tree.
        """
        if isinstance(tree, str):
            trees = read_trees(tree)
            if len(trees) != 1:
                raise ConfigError(f"`tree` must be one tree in brackets, but is {len(trees)}.")
            (tree,) = trees
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

    Raises:
        ConfigError: there is no tree.
    """
    if not trees:
        raise ConfigError("There is no tree to draw.")
    best = set(trees[0][0].spans())
    return PictureRow(
        tuple(
            TreePicture.of(tree, f"{rank}. score {score:.2f}", sorted({*tree.spans()} - best))
            for rank, (tree, score) in enumerate(trees, 1)
        ),
        title,
    )
