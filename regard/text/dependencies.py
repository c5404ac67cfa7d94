"""Dependency trees from constituency trees, by head rules (Magerman 1995; Collins 1999).

    tree = simplified(read_trees("((S (NP-SBJ (PRP It)) (VP (VBZ works))))")[0])
    words, heads = dependencies(tree)                        the word that governs each word

Each constituent has one head among its children, which rules find by the labels of the children:
those of Collins' appendix A. The head word of every other child depends on the head word of the
constituent. In these rules an auxiliary governs its verb, and a preposition its noun.
"""

from __future__ import annotations

from collections.abc import Sequence

from regard.text.trees import ConstituencyTree

# label -> (the side where the search begins, the labels of heads, the best first)
RULES: dict[str, tuple[str, str]] = {
    "ADJP": ("left", "NNS QP NN $ ADVP JJ VBN VBG ADJP JJR NP JJS DT FW RBR RBS SBAR RB"),
    "ADVP": ("right", "RB RBR RBS FW ADVP TO CD JJR JJ IN NP JJS NN"),
    "CONJP": ("right", "CC RB IN"),
    "FRAG": ("right", ""),
    "INTJ": ("left", ""),
    "LST": ("right", "LS :"),
    "NAC": ("left", "NN NNS NNP NNPS NP NAC EX $ CD QP PRP VBG JJ JJS JJR ADJP FW"),
    "PP": ("right", "IN TO VBG VBN RP FW"),
    "PRN": ("left", ""),
    "PRT": ("right", "RP"),
    "QP": ("left", "$ IN NNS NN JJ RB DT CD NCD QP JJR JJS"),
    "RRC": ("right", "VP NP ADVP ADJP PP"),
    "S": ("left", "TO IN VP S SBAR ADJP UCP NP"),
    "SBAR": ("left", "WHNP WHPP WHADVP WHADJP IN DT S SQ SINV SBAR FRAG"),
    "SBARQ": ("left", "SQ S SINV SBARQ FRAG"),
    "SINV": ("left", "VBZ VBD VBP VB MD VP S SINV ADJP NP"),
    "SQ": ("left", "VBZ VBD VBP VB MD VP SQ"),
    "UCP": ("right", ""),
    "VP": ("left", "TO VBD VBN MD VBZ VB VBG VBP VP ADJP NN NNS NP"),
    "WHADJP": ("left", "CC WRB JJ ADJP"),
    "WHADVP": ("right", "CC WRB"),
    "WHNP": ("left", "WDT WP WP$ WHADJP WHPP WHNP"),
    "WHPP": ("right", "IN TO FW"),
}
# Of noun phrases: the first child that has one of some labels, search by search.
NOUN_RULES = (
    ("right", "NN NNP NNPS NNS NX POS JJR"),
    ("left", "NP"),
    ("right", "$ ADJP PRN"),
    ("right", "CD"),
    ("right", "JJ JJS RB QP"),
)
NOUN_PHRASES = ("NP", "NX")
PUNCTUATION = {",", ".", ":", "``", "''", "-LRB-", "-RRB-"}


def dependencies(tree: ConstituencyTree) -> tuple[list[str], list[int]]:
    """The words, and for each the index of the word that governs it; the root governs itself."""
    leaves = tree.leaves()
    heads = list(range(len(leaves)))

    def visit(node: ConstituencyTree, start: int) -> tuple[int, int]:
        """The index of the head word of a constituent that begins at `start`, and its end."""
        if not node.children:
            return start, start + 1
        words = []
        for child in node.children:
            word, start = visit(child, start)
            words.append(word)
        head = words[head_child(node)]
        for word in words:
            if word != head:
                heads[word] = head
        return head, start

    visit(tree, 0)
    return [leaf.word for leaf in leaves], heads


def head_child(node: ConstituencyTree) -> int:
    """The index of the child that is the head of a constituent."""
    labels = [child.label for child in node.children]
    head = _noun_head(labels) if node.label in NOUN_PHRASES else _head(node.label, labels)
    # Of "Y and Z" the head is Y (Collins 1999, appendix A).
    return head - 2 if head > 1 and labels[head - 1] == "CC" else head


def _head(label: str, labels: Sequence[str]) -> int:
    side, ranked = RULES.get(label, ("left", ""))
    order = _from(side, labels)
    for candidate in ranked.split():
        for index in order:
            if labels[index] == candidate:
                return index
    return next((index for index in order if labels[index] not in PUNCTUATION), order[0])


def _noun_head(labels: Sequence[str]) -> int:
    if labels[-1] == "POS":
        return len(labels) - 1
    for side, ranked in NOUN_RULES:
        for index in _from(side, labels):
            if labels[index] in ranked.split():
                return index
    order = _from("right", labels)
    return next((index for index in order if labels[index] not in PUNCTUATION), order[0])


def _from(side: str, labels: Sequence[str]) -> list[int]:
    order = list(range(len(labels)))
    return order if side == "left" else order[::-1]
