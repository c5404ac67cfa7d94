"""Constituency trees: brackets read and written, spans, chains and tokens."""

from __future__ import annotations

import re
import zipfile

from hypothesis import given
from hypothesis import strategies as st

from regard.text.trees import (
    ConstituencyTree,
    chains,
    from_linearized,
    linearized,
    read_trees,
    simplified,
    tree_of,
    unchained,
)

LABELS = st.sampled_from(
    ["S", "NP-SBJ", "ADVP|PRT", "-LRB-", "-NONE-", "PRP$", "X=2", "=2", "|X", "-", "``", "#"]
)
WORDS = st.sampled_from(["a", "-RRB-", "*T*-1", "1\\/2", "Zürich", "''", "XX", "|"])
LEAVES = st.builds(ConstituencyTree, LABELS, st.just(()), WORDS)
CONSTITUENTS = st.recursive(
    LEAVES,
    lambda inner: st.builds(
        ConstituencyTree, LABELS, st.lists(inner, min_size=1, max_size=4).map(tuple)
    ),
    max_leaves=12,
)
SENTENCES = st.builds(
    ConstituencyTree, LABELS, st.lists(CONSTITUENTS, min_size=1, max_size=3).map(tuple)
)


def compact(text: str) -> str:
    """Without the spaces that mean nothing."""
    return re.sub(r"\s*([()])\s*", r"\1", " ".join(text.split()))


def test_a_tree_of_any_depth_is_written_simplified_and_taken_apart():
    depth = 3000
    tree = ConstituencyTree("NN", word="cat")
    for _ in range(depth):
        tree = ConstituencyTree("NP-SBJ", (tree,))
    made = simplified(tree)
    assert str(made) == "(NP " * depth + "(NN cat)" + ")" * depth
    assert linearized(made) == ["(NP"] * depth + ["XX"] + [")NP"] * depth
    assert made.spans() == [(0, 1, "NP")] * depth and made.words == ["cat"]
    assert str(tree_of(["cat"], ["NN"], made.spans())) == str(made)
    assert str(from_linearized(linearized(made), ["cat"], ["NN"])) == str(made)


@given(SENTENCES)
def test_a_tree_is_written_and_read_back(tree):
    assert read_trees(str(tree)) == [tree]


@given(SENTENCES)
def test_spans_and_tokens_hold_the_whole_tree(tree):
    leaves = tree.leaves()
    words, tags = [leaf.word for leaf in leaves], [leaf.label for leaf in leaves]
    assert tree_of(words, tags, tree.spans()) == tree
    spans = [(start, stop, chain) for (start, stop), chain in chains(tree).items()]
    assert tree_of(words, tags, unchained(reversed(spans))) == tree
    assert from_linearized(linearized(tree), words, tags) == tree


def test_every_tree_of_the_treebank_is_written_as_it_was_read(shared):
    count = labels = 0
    with zipfile.ZipFile(shared("nltk/treebank.zip")) as archive:
        for name in archive.namelist():
            if not name.endswith(".mrg"):
                continue
            text = archive.read(name).decode()
            trees = read_trees(text)
            assert compact("".join(map(str, trees))) == compact(text)
            for tree in map(simplified, trees):
                leaves = tree.leaves()
                words, tags = [leaf.word for leaf in leaves], [leaf.label for leaf in leaves]
                spans = [(*span, label) for span, label in chains(tree).items()]
                assert tree_of(words, tags, unchained(spans)) == tree
                labels += any(set("-=|") & set(label) for _, _, label in tree.spans())
            count += len(trees)
    assert count == 3914 and not labels
