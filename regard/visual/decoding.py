"""The next token's distribution as bars, and a beam search as a tree."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import torch
from rich.cells import cell_len
from rich.text import Text
from torch import Tensor

from regard.data.batches import Sequences
from regard.decoding.beam import Expansion
from regard.decoding.steps import Hypothesis, evaluating, start
from regard.models.protocols import Generator
from regard.text import Tokenizer
from regard.visual import characters
from regard.visual.drawing import Drawing, Label, Polyline, Rect, Shape, clip, text_width, visible
from regard.visual.picture import Picture

LONGEST = 24  # columns of a token
FULL = 220  # pixels of the longest bar


@dataclass(frozen=True, repr=False)
class Distribution(Picture):
    """Tokens with probabilities, largest first; the `others` further ones have `rest` in sum."""

    tokens: tuple[str, ...]
    probabilities: tuple[float, ...]
    rest: float = 0.0
    others: int = 0
    title: str = ""

    @classmethod
    def of(cls, probabilities: Any, tokens: Sequence[str], most: int = 10, title: str = "") -> Self:
        """The `most` probable of `tokens`.

        probabilities: of the V tokens, a tensor, an array or a list; they sum to one. Equal ones
        keep the order of the vocabulary.
        """
        numbers = torch.as_tensor(probabilities).tolist()
        order = sorted(range(len(numbers)), key=lambda index: -numbers[index])[:most]
        chosen = tuple(numbers[index] for index in order)
        others = len(numbers) - len(order)
        rest = max(0.0, sum(numbers) - sum(chosen)) if others else 0.0
        return cls(tuple(tokens[index] for index in order), chosen, rest, others, title)

    def _bars(self) -> list[tuple[str, float, str]]:
        """(token, probability, colour)"""
        bars = [(t, p, "accent") for t, p in zip(self.tokens, self.probabilities, strict=True)]
        if self.others:
            bars.append((f"{self.others:,} others", self.rest, "muted"))
        return bars

    @property
    def _full(self) -> float:
        """The probability of a bar of full length; the sum of the others has no bar."""
        return max(self.probabilities, default=0.0) or 1.0

    def drawing(self) -> Drawing:
        bars, shapes, top = self._bars(), self._title_shapes(), 34 if self.title else 8
        left = 18 + max((text_width(clip(token, LONGEST), 13) for token, _, _ in bars), default=0)
        for index, (token, probability, fill) in enumerate(bars):
            y = top + 24 * (index + 0.5)
            wide = FULL * probability / self._full if fill == "accent" else 0.0
            ink = "ink" if fill == "accent" else "muted"
            tip = f"{token}: {probability:.6f}"
            shapes += [
                Label(left - 8, y, clip(token, LONGEST), 13, "end", ink, title=token),
                Rect(left, y - 8, max(wide, 0.5), 16, fill, 0.85, tip),
                Label(left + wide + 6, y, f"{probability:.4f}", 11.5, fill="muted"),
            ]
        width = max(left + FULL + 70, self._title_width())
        return Drawing(width, top + 24 * len(bars) + 6, tuple(shapes), self.title or "next token")

    def terminal(self, width: int, color: bool) -> Text:
        text, bars = self._title_text(width), self._bars()
        name = min(LONGEST, max((cell_len(visible(token)) for token, _, _ in bars), default=1))
        for token, probability, fill in bars:
            text.append(f"{characters.pad(token, name, right=True)} {probability:.4f} ")
            share = probability / self._full if fill == "accent" else 0.0
            drawn = characters.bar(share, max(1, width - name - 9), color)
            text.append(drawn + "\n", style="blue" if color else "")
        return text


def next_tokens(
    model: Generator, tokenizer: Tokenizer, text: str = "", most: int = 10, title: str = ""
) -> Distribution:
    """The next-token distribution of a language model after `text`; "" is the start of a text.

    most: how many tokens are shown.
    """
    ids = tokenizer.encode(text).ids
    prompt = Sequences.of([ids], model.config.pad) if ids else None
    with torch.no_grad(), evaluating(model):
        state, first = start(model, prompt)
        scores, _ = model.step(first, state)
    probabilities = scores[0, -1].double().softmax(-1)
    tokens = [tokenizer.label(index) for index in range(len(probabilities))]
    return Distribution.of(probabilities, tokens, most, title or f"after {text!r}")


KEPT, PRUNED, FINISHED, WINNER = "kept", "pruned", "finished", "winner"
COLUMN, LINE = 132.0, 26.0
COLORS = {KEPT: "accent", PRUNED: "muted", FINISHED: "good", WINNER: "warm"}
STYLES = {KEPT: "", PRUNED: "dim", FINISHED: "green", WINNER: "bold yellow"}
MARKS = {KEPT: "", PRUNED: " x", FINISHED: " .", WINNER: " *"}
LEGEND = "log-probability of each prefix; orange: the winner, green: finished, grey: pruned"


@dataclass(frozen=True)
class BeamNode:
    """A token that the search tried after its parent (a number in the list; None: the root).

    `log_prob` is the natural logarithm of the probability of the whole prefix; `state` is "kept",
    "pruned", "finished" or "winner".
    """

    token: str
    log_prob: float
    parent: int | None
    state: str = KEPT


@dataclass(frozen=True, repr=False)
class BeamTree(Picture):
    """The nodes of a search, parents before children."""

    nodes: tuple[BeamNode, ...]
    title: str = ""

    @cached_property
    def winning(self) -> frozenset[int]:
        """The numbers of the nodes from the root to the winner."""
        path: set[int] = set()
        for index, node in enumerate(self.nodes):
            step = index if node.state == WINNER else None
            while step is not None:
                path.add(step)
                step = self.nodes[step].parent
        return frozenset(path)

    @cached_property
    def _children(self) -> dict[int | None, list[int]]:
        """The numbers of each node's children, the most probable first."""
        children: dict[int | None, list[int]] = {}
        for index, node in enumerate(self.nodes):
            children.setdefault(node.parent, []).append(index)
        for order in children.values():
            order.sort(key=lambda index: -self.nodes[index].log_prob)
        return children

    def _state(self, index: int) -> str:
        return WINNER if index in self.winning else self.nodes[index].state

    def drawing(self) -> Drawing:
        depth, line = self._layout()
        top = 34.0 if self.title else 8.0
        at = [
            (12 + column * COLUMN, top + (row + 0.5) * LINE)
            for column, row in zip(depth, line, strict=True)
        ]
        shapes = self._title_shapes()
        for index, node in enumerate(self.nodes):
            if node.parent is not None:
                (x, y), color = at[node.parent], COLORS[self._state(index)]
                width = 2.2 if index in self.winning else 1.1
                opacity = 0.4 if node.state == PRUNED else 0.9
                ends = ((x + COLUMN - 28, y), at[index])
                shapes.append(Polyline(ends, color, width, opacity))
        for index, (x, y) in enumerate(at):
            shapes += self._box(index, x, y)
        last = max(line, default=0)
        shapes.append(Label(12, top + (last + 1.7) * LINE, LEGEND, 11, fill="muted"))
        tree = 24 + (max(depth, default=0) + 1) * COLUMN
        width = max(tree, text_width(LEGEND, 11) + 24, self._title_width())
        return Drawing(width, top + (last + 2.4) * LINE, tuple(shapes), self.title or "beam search")

    def _box(self, index: int, x: float, y: float) -> list[Shape]:
        node, wins, color = self.nodes[index], index in self.winning, COLORS[self._state(index)]
        tip = f"{node.token}: probability {math.exp(node.log_prob):.4g}, log {node.log_prob:.4f}"
        ink = "muted" if node.state == PRUNED else "ink"
        opacity = 0.2 if wins else 0.0 if node.state == PRUNED else 0.1
        box = (x, y - 10, COLUMN - 28, 20, color, opacity, f"{tip}, {node.state}", color)
        return [
            Rect(*box),
            Label(x + 7, y, clip(node.token, 8), 12.5, fill=ink, bold=wins, title=tip),
            Label(x + COLUMN - 33, y, f"{node.log_prob:.2f}", 10.5, "end", "muted"),
        ]

    def _layout(self) -> tuple[list[int], list[float]]:
        """Depth and line of each node; a parent is in the middle of its children."""
        depth, line, free = [0] * len(self.nodes), [0.0] * len(self.nodes), 0
        for index, node in enumerate(self.nodes):
            depth[index] = 0 if node.parent is None else depth[node.parent] + 1
        order, pending = [], list(self._children.get(None, []))
        while pending:  # no recursion, which would be too deep for long searches
            order.append(pending.pop())
            pending += self._children.get(order[-1], [])
        for index in reversed(order):  # children before parents, top to bottom
            if below := self._children.get(index):
                line[index] = (line[below[0]] + line[below[-1]]) / 2
            else:
                line[index], free = float(free), free + 1
        return depth, line

    def terminal(self, width: int, color: bool) -> Text:
        """The nodes, each indented behind its parent."""
        text = self._title_text(width)
        pending = [(index, 0) for index in reversed(self._children.get(None, []))]
        while pending:
            index, depth = pending.pop()
            node, state = self.nodes[index], self._state(index)
            number = f" {node.log_prob:.2f}{MARKS[state]}\n"
            text.append("  " * min(depth, max(0, width - len(number) - 12) // 2))
            text.append(clip(node.token, 12), style=STYLES[state])
            text.append(number, style="dim")
            pending += [(child, depth + 1) for child in reversed(self._children.get(index, []))]
        return text


class BeamTrace:
    """Listens to the beam search of one sentence and records every token that it tried.

        trace = BeamTrace(size=4)
        hypotheses = Beam(size=4).run(model, source, trace)
        trace.tree(tokenizer.label, hypotheses[0][0]).save("beam.html")

    size: beams of the search.  sentence: a row of the batch.
    """

    def __init__(self, size: int, sentence: int = 0):
        self.size, self.sentence = size, sentence
        self.steps: list[tuple[int, int, float, str]] = []  # parent, token, log-prob, state
        self._running = [-1]  # the nodes that the search continues; -1 is the start

    def __call__(self, sentences: Tensor, step: Expansion, done: Tensor) -> None:
        """A step of the search: see `regard.decoding.beam.SearchListener`."""
        rows = sentences.tolist()
        if self.sentence not in rows:
            return
        row = rows.index(self.sentence)
        continued, is_done = step.continued[row].tolist(), bool(done[row])
        columns = (step.parent, step.token, step.log_prob, step.ended)
        continuations = zip(*(column[row].tolist() for column in columns), strict=True)
        numbers: dict[int, int] = {}  # of the nodes, by the index of the continuation
        for index, (parent, token, log_prob, ended) in enumerate(continuations):
            if log_prob == -math.inf:
                continue
            goes_on = index in continued and not is_done
            state = KEPT if goes_on else FINISHED if ended and index < self.size else PRUNED
            numbers[index] = len(self.steps)
            self.steps.append((self._running[parent], token, log_prob, state))
        self._running = [numbers[index] for index in continued if index in numbers]

    def tree(
        self,
        label: Callable[[int], str] = str,
        winner: Hypothesis | None = None,
        title: str = "beam search",
    ) -> BeamTree:
        """The tree; `label` gives the text of a token, `winner` is the chosen hypothesis."""
        best = self._find(winner.tokens, winner.finished) if winner is not None else None
        nodes = [BeamNode("start", 0.0, None)]
        for index, (parent, token, log_prob, state) in enumerate(self.steps):
            state = WINNER if index == best else state
            nodes.append(BeamNode(label(token), log_prob, parent + 1, state))
        return BeamTree(tuple(nodes), title)

    def _find(self, tokens: Sequence[int], finished: bool) -> int | None:
        """The node of the last of these tokens, or of the end token after it."""
        at = -1
        below = {(parent, token): i for i, (parent, token, _, _) in enumerate(self.steps)}
        for token in tokens:
            if (at, token) not in below:
                return None
            at = below[at, token]
        ends = [i for i, step in enumerate(self.steps) if step[0] == at and step[3] == FINISHED]
        return ends[0] if finished and ends else at
