"""Beam trees and next words."""

from __future__ import annotations

import itertools
import math
import re
from types import SimpleNamespace

import pytest
import torch

from regard.models.protocols import Generator
from regard.state import Cells
from regard.visual import BeamNode, BeamTree, next_tokens

NODES = [
    BeamNode("start", 0.0, None),
    BeamNode("the", -0.5, 0),
    BeamNode("a", -1.0, 0),
    BeamNode("one", -3.0, 0, "pruned"),
    BeamNode("cat", -1.5, 2),
    BeamNode("dog", -0.7, 1),
    BeamNode("</s>", -1.75, 5, "winner"),
    BeamNode("</s>", -2.5, 4, "finished"),
]


def boxes(svg: str) -> dict[str, tuple[float, float]]:
    """Log-probability -> the corner of its box."""
    shown = r'<rect x="([\d.]+)" y="([\d.]+)"[^>]*><title>[^:]*: probability [^,]*, log (-?[\d.]+)'
    return {log: (float(x), float(y)) for x, y, log in re.findall(shown, svg)}


def test_parents_are_left_of_their_children_and_in_their_middle():
    drawn = boxes(BeamTree(tuple(NODES)).svg())
    assert len(drawn) == len(NODES)
    at = {f"{node.log_prob:.4f}": index for index, node in enumerate(NODES)}
    where = {at[log]: box for log, box in drawn.items()}
    columns = sorted({x for x, _ in where.values()})
    depth = [0, 1, 1, 1, 2, 2, 3, 3]
    assert [columns.index(where[index][0]) for index in range(8)] == depth
    assert where[0][1] == pytest.approx((where[1][1] + where[3][1]) / 2)
    leaves = [where[index][1] for index in (6, 7, 3)]
    assert leaves == sorted(leaves) and min(b - a for a, b in itertools.pairwise(leaves)) >= 20


def test_the_nodes_of_the_winner_are_marked():
    tree = BeamTree(tuple(NODES))
    assert tree.winning == {0, 1, 5, 6}
    marked = [line for line in tree.text().splitlines() if line.endswith("*")]
    assert [line.strip(" |-`").split()[0] for line in marked] == ["start", "the", "dog", "</s>"]


def test_the_text_of_a_tree_indents_hypotheses_and_has_their_scores():
    assert BeamTree(tuple(NODES[:5]), "t").text() == (
        "t\nstart 0.00\n  the -0.50\n  a -1.00\n    cat -1.50\n  one -3.00 x\n"
    )


class Bigrams(torch.nn.Module, Generator):
    """A model that knows one table: the scores of the next word after each word."""

    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(pad=0)
        self.table = torch.log(torch.tensor([[0.2, 0.8], [0.7, 0.3]])) + 5

    continues, first_token = True, 0

    def empty(self, sequences, dtype=None):
        return Cells(torch.zeros(sequences), torch.zeros(sequences))

    def prefill(self, tokens, state, lengths=None):
        return state

    def step(self, tokens, state):
        return self.table[tokens], state


def test_next_tokens_have_the_probabilities_of_the_model():
    tokenizer = SimpleNamespace(
        encode=lambda text: SimpleNamespace(ids=[int(word) for word in text.split()]),
        label=lambda index: "no yes".split()[index],
    )
    model = Bigrams().train()
    for text, expected in (("0 1", {"no": 0.7, "yes": 0.3}), ("", {"yes": 0.8, "no": 0.2})):
        shown = next_tokens(model, tokenizer, text)
        found = dict(zip(shown.tokens, shown.probabilities, strict=True))
        assert found == pytest.approx(expected, abs=1e-6)
        assert math.fsum(shown.probabilities) == pytest.approx(1)
    assert model.training
