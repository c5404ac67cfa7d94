"""Dependency trees by head rules: sentences by hand, and the sample of the Penn Treebank."""

from __future__ import annotations

import zipfile

import pytest

from regard.text.dependencies import dependencies
from regard.text.trees import read_trees, simplified

SENTENCE = """
( (S (NP-SBJ (NP (NNP Pierre) (NNP Vinken)) (, ,) (ADJP (NP (CD 61) (NNS years)) (JJ old)) (, ,))
  (VP (MD will) (VP (VB join) (NP (DT the) (NN board))
    (PP-CLR (IN as) (NP (DT a) (JJ nonexecutive) (NN director)))
    (NP-TMP (NNP Nov.) (CD 29))))
  (. .)))
"""
GOVERNORS = {
    "Pierre": "Vinken", "Vinken": "will", "61": "years", "years": "old", "old": "Vinken",
    "will": "will", "join": "will", "the": "board", "board": "join", "as": "join",
    "a": "director", "nonexecutive": "director", "director": "as", "Nov.": "join", "29": "Nov.",
    ".": "will",
}  # fmt: skip


def governors(brackets: str) -> dict[str, str]:
    """word -> the word that governs it, of a sentence without repeated words."""
    tree = simplified(read_trees(brackets)[0])
    words, heads = dependencies(tree)
    return {word: words[head] for word, head in zip(words, heads, strict=True) if word != ","}


def test_the_first_sentence_of_the_treebank_has_the_heads_found_by_hand():
    assert governors(SENTENCE) == GOVERNORS


@pytest.mark.parametrize(
    "brackets, expected",
    [
        ("(NP (DT the) (NN dog) (POS 's))", {"the": "'s", "dog": "'s", "'s": "'s"}),
        ("(NP (NNS cats) (CC and) (NNS dogs))", {"cats": "cats", "and": "cats", "dogs": "cats"}),
        ("(PP (IN of) (NP (PRP it)))", {"of": "of", "it": "of"}),
        ("(VP (TO to) (VP (VB go)))", {"to": "to", "go": "to"}),
        ("(X (, !) (FW a) (FW b))", {"!": "a", "a": "a", "b": "a"}),
        ("(S (NP-SBJ (-NONE- *-1)) (VP (VB go) (ADVP|PRT (RB up))))", {"go": "go", "up": "go"}),
    ],
)
def test_head_rules_choose_the_governor_of_each_word(brackets, expected):
    assert governors(brackets) == expected


def test_every_tree_of_the_treebank_is_projective_and_has_its_root_in_a_verb(shared):
    roots, count = 0, 0
    with zipfile.ZipFile(shared("nltk/treebank.zip")) as archive:
        files = [name for name in archive.namelist() if name.endswith(".mrg")][:20]
        texts = [archive.read(name).decode() for name in files]
        trees = [simplified(tree) for text in texts for tree in read_trees(text)]
    for tree in trees:
        leaves = tree.leaves()
        words, heads = dependencies(tree)
        assert words == [leaf.word for leaf in leaves]
        (root,) = [word for word, head in enumerate(heads) if word == head]
        sentence = leaves[root].label[:2] in ("VB", "MD")
        roots, count = roots + sentence, count + 1
        for word, head in enumerate(heads):  # whoever stands between is governed by the head
            for between in range(min(word, head) + 1, max(word, head)):
                above = between
                while above not in (head, root):
                    above = heads[above]
                assert above == head or head == root
    assert count > 200 and roots / count > 0.9
