"""The tree that a beam search grows, kept for a picture."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from regard.data.batches import Sequences
from regard.decoding.beam import Beam, Expansion
from regard.decoding.hypothesis import Hypothesis


@dataclass
class Node:
    """A continuation that the search looked at.

    number: its place in the tree's `nodes`.  parent: the number of the node that it continues;
    None at the root, which stands for the first token and has no token of its own.
    depth: tokens from the root.  log_prob: from the root to here.
    fate: "kept" went on; "finished" ended with `eos`; "cut off" reached a limit; "pruned" was
    looked at and given up.
    """

    number: int
    parent: int | None
    depth: int
    token: int | None
    log_prob: float
    fate: str


@dataclass
class BeamTree:
    """One sentence's search: `nodes` in the order in which they were found, the root first."""

    nodes: list[Node] = field(default_factory=lambda: [Node(0, None, 0, None, 0.0, "kept")])

    def path(self, node: Node) -> list[Node]:
        """From the root to this node."""
        nodes = [node]
        while nodes[-1].parent is not None:
            nodes.append(self.nodes[nodes[-1].parent])
        return nodes[::-1]

    def children(self, node: Node) -> list[Node]:
        """The continuations of a node, best first."""
        return [child for child in self.nodes if child.parent == node.number]

    def find(self, hypothesis: Hypothesis, eos: int | None) -> Node:
        """The node where a hypothesis ended."""
        tokens = [*hypothesis.tokens, eos] if hypothesis.finished else hypothesis.tokens
        at = self.nodes[0]
        for token in tokens:
            at = next(child for child in self.children(at) if child.token == token)
        return at


class Recorder:
    """Listens to a search and grows a tree for each sentence."""

    def __init__(self, sentences: int):
        self.trees = [BeamTree() for _ in range(sentences)]
        self._running = [[0] for _ in range(sentences)]  # the running hypotheses' nodes

    def expanded(self, sentences: Tensor, step: Expansion, ends: Tensor, done: Tensor) -> None:
        """One step of the search."""
        for at, sentence in enumerate(sentences.tolist()):
            first = len(self.trees[sentence].nodes)
            self._grow(sentence, step, at, _fates(step, at, ends[at], bool(done[at])))
            self._running[sentence] = [first + place for place in step.kept[at].tolist()]

    def _grow(self, sentence: int, step: Expansion, at: int, fates: list[str]) -> None:
        nodes, running = self.trees[sentence].nodes, self._running[sentence]
        columns = (step.parent[at].tolist(), step.token[at].tolist(), step.log_prob[at].tolist())
        for parent, token, log_prob, fate in zip(*columns, fates, strict=True):
            above = running[parent]
            depth = nodes[above].depth + 1
            nodes.append(Node(len(nodes), above, depth, token, log_prob, fate))


def _fates(step: Expansion, at: int, ends: Tensor, done: bool) -> list[str]:
    fates = ["pruned"] * step.token.size(1)
    for place in [] if done else step.kept[at].tolist():
        fates[place] = "kept"
    for place in ends.nonzero()[:, 0].tolist():
        fates[place] = "finished" if step.ended[at, place] else "cut off"
    return fates


def trace(
    model: Any, source: Sequences | None, beam: Beam
) -> tuple[list[list[Hypothesis]], list[BeamTree]]:
    """Decodes as `beam.run` does, and gives the tree of every sentence as well."""
    recorder = Recorder(1 if source is None else len(source))
    return beam.run(model, source, recorder), recorder.trees
