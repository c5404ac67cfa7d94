"""Beam search as a tree: what was tried, what was kept, what won."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from rich.text import Text

from regard.errors import ConfigError
from regard.visual.drawing import Connector, Drawing, Label, Rect, Shape, clip, text_width, visible
from regard.visual.picture import Picture

KEPT, PRUNED, FINISHED, WINNER = "kept", "pruned", "finished", "winner"
STATES = (KEPT, PRUNED, FINISHED, WINNER)
COLUMN, LINE = 132.0, 26.0
ROLES = {KEPT: "accent", PRUNED: "muted", FINISHED: "good", WINNER: "warm"}
STYLES = {KEPT: "", PRUNED: "dim", FINISHED: "green", WINNER: "bold yellow"}


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

    def __post_init__(self) -> None:
        if self.state not in STATES:
            raise ConfigError(f"`state` must be one of {STATES}, but is {self.state!r}.")


@dataclass(frozen=True)
class BeamTree(Picture):
    """The nodes of a search, parents before children. Make it with `of`."""

    nodes: tuple[BeamNode, ...]
    title: str = ""

    @classmethod
    def of(cls, nodes: Sequence[BeamNode], title: str = "") -> Self:
        """The tree of a search; a node's parent must stand before it in the list."""
        for index, node in enumerate(nodes):
            if node.parent is not None and not 0 <= node.parent < index:
                raise ConfigError(
                    f"`parent` of node {index} ({visible(node.token)!r}) must be the number of a "
                    f"node before it, but is {node.parent}."
                )
        return cls(tuple(nodes), title)

    @cached_property
    def winning(self) -> frozenset[int]:
        """The numbers of the nodes on the way to the winner."""
        path: set[int] = set()
        for index, node in enumerate(self.nodes):
            if node.state == WINNER:
                step: int | None = index
                while step is not None:
                    path.add(step)
                    step = self.nodes[step].parent
        return frozenset(path)

    def children(self) -> dict[int | None, list[int]]:
        """The numbers of each node's children, the likeliest first."""
        found: dict[int | None, list[int]] = {}
        for index, node in enumerate(self.nodes):
            found.setdefault(node.parent, []).append(index)
        for order in found.values():
            order.sort(key=lambda index: -self.nodes[index].log_prob)
        return found

    def drawing(self) -> Drawing:
        depth, line = self._places()
        top = 34.0 if self.title else 8.0
        at = [(12 + depth[i] * COLUMN, top + (line[i] + 0.5) * LINE) for i in range(len(depth))]
        shapes: list[Shape] = [Label(8, 14, self.title, 14, bold=True)] if self.title else []
        winning = self.winning
        for index, node in enumerate(self.nodes):
            if node.parent is not None:
                (x, y), end = at[node.parent], at[index]
                role = "warm" if index in winning else ROLES[node.state]
                thick = 2.2 if index in winning else 1.1
                opacity = 0.4 if node.state == PRUNED else 0.9
                shapes.append(Connector((x + COLUMN - 28, y), end, role, thick, opacity))
        for index, node in enumerate(self.nodes):
            shapes += self._box(node, at[index], index in winning)
        width = 24 + (max(depth, default=0) + 1) * COLUMN
        key = [Label(12, top + (max(line, default=0) + 1.7) * LINE, LEGEND, 11, fill="muted")]
        height = top + (max(line, default=0) + 2.4) * LINE
        wide = max(width, text_width(LEGEND, 11) + 24, text_width(self.title, 14.5) + 16)
        return Drawing(wide, height, (*shapes, *key), self.title or "beam search")

    def _box(self, node: BeamNode, at: tuple[float, float], wins: bool) -> list[Shape]:
        x, y = at
        role = "warm" if wins else ROLES[node.state]
        tip = f"{node.token}: probability {math.exp(node.log_prob):.4g}, log {node.log_prob:.4f}"
        ink = "muted" if node.state == PRUNED else "ink"
        solid = 0.2 if wins else 0.0 if node.state == PRUNED else 0.1
        return [
            Rect(x, y - 10, COLUMN - 28, 20, role, solid, f"{tip}, {node.state}", 4, role),
            Label(x + 7, y, clip(node.token, 8), 12.5, fill=ink, bold=wins, title=tip),
            Label(x + COLUMN - 33, y, f"{node.log_prob:.2f}", 10.5, "end", "muted"),
        ]

    def _places(self) -> tuple[list[int], list[float]]:
        """Depth of each node, and its line: a parent stands in the middle of its children."""
        depth, line = [0] * len(self.nodes), [0.0] * len(self.nodes)
        for index, node in enumerate(self.nodes):
            depth[index] = 0 if node.parent is None else depth[node.parent] + 1
        children, free = self.children(), 0
        for index in self._leaves_first(children):
            below = children.get(index)
            if below:
                line[index] = (line[below[0]] + line[below[-1]]) / 2
            else:
                line[index], free = float(free), free + 1
        return depth, line

    def _leaves_first(self, children: dict[int | None, list[int]]) -> list[int]:
        """Every node after its children, top to bottom; long searches would overflow recursion."""
        order, pending = [], list(children.get(None, []))
        while pending:
            index = pending.pop()
            order.append(index)
            pending += children.get(index, [])
        return order[::-1]

    def terminal(self, width: int, color: bool) -> Text:
        text = Text(no_wrap=True)
        if self.title:
            text.append(clip(self.title, width) + "\n", style="bold")
        children, winning = self.children(), self.winning
        pending = [(index, "", "") for index in reversed(children.get(None, []))]
        branch, last, bar = ("├─", "└─", "│ ") if color else ("|-", "`-", "| ")
        while pending:
            index, lead, twig = pending.pop()
            self._line(text, index, lead + twig, width, index in winning)
            inner = lead + {"": "", last: "  ", branch: bar}[twig]
            below = children.get(index, [])
            for child in reversed(below):
                pending.append((child, inner, last if child == below[-1] else branch))
        return text

    def _line(self, text: Text, index: int, lead: str, width: int, wins: bool) -> None:
        node = self.nodes[index]
        mark = " *" if wins else {KEPT: "", PRUNED: " x", FINISHED: " ."}.get(node.state, "")
        number = f" {node.log_prob:.2f}{mark}"
        # Deep trees run out of columns: the end of the lead is what tells where a branch hangs.
        room = max(4, width - len(number) - 12)
        lead = lead if len(lead) <= room else "…" + lead[len(lead) - room + 1 :]
        text.append(lead, style="dim")
        text.append(clip(node.token, 12), style=STYLES[WINNER] if wins else STYLES[node.state])
        text.append(number + "\n", style="dim")


LEGEND = "log-probability of each prefix; orange: the winner, green: finished, grey: pruned"


class BeamTrace:
    """Listens to one sentence of a beam search and remembers every continuation it looked at.

        trace = BeamTrace(size=4)
        hypotheses = Beam(size=4).run(model, source, trace)
        trace.tree(tokenizer.label, hypotheses[0][0]).save("beam.html")

    `size` is the search's beam, `sentence` the row of the batch.
    """

    def __init__(self, size: int, sentence: int = 0):
        self.size, self.sentence = size, sentence
        self.steps: list[tuple[int, int, float, str]] = []  # parent, token, log-prob, state
        self._running = [-1]  # the nodes that the search continues; -1 is the start

    def expanded(self, sentences: Any, step: Any, done: Any) -> None:
        """Called by the search: see `regard.decoding.beam.Listener`."""
        rows = sentences.tolist()
        if self.sentence not in rows:
            return
        row = rows.index(self.sentence)
        kept, over = step.kept[row].tolist(), bool(done[row])
        columns = (step.parent, step.token, step.log_prob, step.ended)
        found = zip(*(column[row].tolist() for column in columns), strict=True)
        numbers: dict[int, int] = {}
        for index, (parent, token, log_prob, ended) in enumerate(found):
            if log_prob == -math.inf:
                continue
            going = index in kept and not over
            state = KEPT if going else FINISHED if ended and index < self.size else PRUNED
            numbers[index] = len(self.steps)
            self.steps.append((self._running[parent], token, log_prob, state))
        self._running = [numbers[index] for index in kept if index in numbers]

    def tree(
        self, word: Callable[[int], str] = str, winner: Any = None, title: str = "beam search"
    ) -> BeamTree:
        """The tree, its tokens spelled by `word`; `winner` is the `Hypothesis` that was chosen."""
        best = self._find(winner.tokens, winner.finished) if winner is not None else None
        nodes = [BeamNode("start", 0.0, None)]
        for index, (parent, token, log_prob, state) in enumerate(self.steps):
            state = WINNER if index == best else state
            nodes.append(BeamNode(word(token), log_prob, parent + 1, state))
        return BeamTree.of(nodes, title)

    def _find(self, tokens: Sequence[int], finished: bool) -> int | None:
        """The node at the end of `tokens`: of its end mark, where it is finished."""
        at = -1
        below = {(parent, token): i for i, (parent, token, _, _) in enumerate(self.steps)}
        for token in tokens:
            if (at, token) not in below:
                return None
            at = below[at, token]
        ends = [i for i, step in enumerate(self.steps) if step[0] == at and step[3] == FINISHED]
        return ends[0] if finished and ends else at
