"""Constituency trees: read from brackets and written exactly; as labelled spans; as tokens.

    tree = read_trees("(S (NP (PRP It)) (VP (VBZ works)) (. .))")[0]
    str(tree)                     the same brackets on one line
    tree.spans()                  [(0, 3, "S"), (0, 1, "NP"), (1, 2, "VP")]
    linearized(tree)              (S (NP XX )NP (VP XX )VP XX )S     (Vinyals et al. 2015)

A tree of a file has all that the brackets have: traces, grammatical functions, an outer bracket
without a label. `simplified` leaves those out, as parsers are trained and scored without them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from regard.errors import RegardError

TRACE = "-NONE-"  # the tag of what stands in no text
ROOT = "TOP"  # the label of a root that has none
WORD = "XX"  # any word of a linearized tree, whatever its tag
MOST_DEPTH = 400  # brackets inside each other
TOKEN = re.compile(r"[()]|[^\s()]+")
# How brackets of a text are written as words of a tree.
ESCAPES = {"(": "-LRB-", ")": "-RRB-", "[": "-LSB-", "]": "-RSB-", "{": "-LCB-", "}": "-RCB-"}
UNESCAPED = {escape: bracket for bracket, escape in ESCAPES.items()}

Span = tuple[int, int, str]  # words from, to before, and the label


class TreeError(RegardError):
    """Brackets that are no tree. line: where, from 1.  problem: what is wrong."""

    def __init__(self, line: int, problem: str):
        self.line, self.problem = line, problem
        super().__init__(f"Bracketed trees, line {line}: {problem}")


@dataclass(frozen=True, eq=False, repr=False)
class ConstituencyTree:
    """A constituent with children, or a tag with a word."""

    label: str
    children: tuple[ConstituencyTree, ...] = ()
    word: str = ""

    def leaves(self) -> list[ConstituencyTree]:
        """The tags with their words, from left to right."""
        return [node for node, _ in walk(self) if node.word]

    @property
    def words(self) -> list[str]:
        """The words, from left to right."""
        return [leaf.word for leaf in self.leaves()]

    @property
    def tags(self) -> list[str]:
        """The tags of the words."""
        return [leaf.label for leaf in self.leaves()]

    def spans(self) -> list[Span]:
        """The words and the label of each constituent, each before those inside it."""
        spans: list[Span] = []
        position, unended = 0, list[int]()
        for node, ended in walk(self):
            if node.word:
                position += 1
            elif ended:
                start, _, label = spans[unended[-1]]
                spans[unended.pop()] = start, position, label
            else:
                unended.append(len(spans))
                spans.append((position, position, node.label))
        return spans

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConstituencyTree) and self._parts() == other._parts()

    def __hash__(self) -> int:
        return hash(self._parts())

    def _parts(self) -> tuple[tuple[str, str, bool], ...]:
        """What makes a tree, without any inside another."""
        return tuple((node.label, node.word, ended) for node, ended in walk(self))

    def __repr__(self) -> str:
        return f"ConstituencyTree({str(self)!r})"

    def __str__(self) -> str:
        parts = []
        for node, ended in walk(self):
            word = f" {escaped(node.word)})" if node.word else ""
            parts.append(")" if ended else f" ({node.label}{word}")
        return "".join(parts)[1:]


def walk(tree: ConstituencyTree) -> Iterator[tuple[ConstituencyTree, bool]]:
    """Each node before those inside it, with False, and each constituent once more after them, with
    True. However deep the tree is, there is no recursion.
    """
    waiting = [(tree, False)]
    while waiting:
        node, ended = waiting.pop()
        yield node, ended
        if not (ended or node.word):
            waiting.append((node, True))
            waiting += [(child, False) for child in reversed(node.children)]


def escaped(word: str) -> str:
    """A word as a tree has it, without round brackets."""
    return re.sub(r"[()]", lambda match: ESCAPES[match[0]], word)


# ------------------------------------------------------------------------------------ brackets


def read_trees(text: str) -> list[ConstituencyTree]:
    """All trees of a text in brackets, as they are written.

    Raises:
        TreeError: brackets are not balanced, or a word is not written as (TAG WORD).
    """
    return [tree for _, tree in numbered_trees(text.splitlines())]


def numbered_trees(lines: Iterable[str]) -> Iterator[tuple[int, ConstituencyTree]]:
    """The trees of lines in brackets, each with the number of its first line, from 1.

    Raises:
        TreeError: see `read_trees`.
    """
    # Of each open bracket its label (None: not read yet), its children and its word.
    stack: list[tuple[str | None, list[ConstituencyTree], str]] = []
    begun = number = 0
    for number, line in enumerate(lines, 1):
        for token in TOKEN.findall(line):
            if token != "(" and not stack:
                problem = f"{token!r} stands outside of all brackets. Trees are written as "
                raise TreeError(number, f"{problem}(S (NP (PRP It)) (VP (VBZ works))).")
            label, children, word = stack[-1] if stack else ("", [], "")
            if token == "(":
                begun = begun if stack else number
                if word or len(stack) >= MOST_DEPTH:
                    problem = f"the word {word!r} must be written as (TAG WORD)."
                    deep = f"more than {MOST_DEPTH} brackets are inside each other."
                    raise TreeError(number, problem if word else deep)
                stack[-1:] = [(label or "", children, word)] if stack else []
                stack.append((None, [], ""))
            elif token == ")":
                if not word and not children:
                    raise TreeError(number, f"the bracket ({label or ''}) is empty.")
                stack.pop()
                tree = ConstituencyTree(label or "", tuple(children), word)
                if stack:
                    stack[-1][1].append(tree)
                else:
                    yield begun, tree
            elif label is None:
                stack[-1] = token, children, word
            elif word or children or not label:
                raise TreeError(number, f"the word {token!r} must be written as (TAG WORD).")
            else:
                stack[-1] = label, children, token
    if stack:
        raise TreeError(number, f"{len(stack)} brackets are not closed.")


# ------------------------------------------------------------------------------------ transforms


def category(label: str) -> str:
    """A label without functions and indices: NP-SBJ-1 is NP, ADVP|PRT is ADVP; -LRB- and |X, of
    which nothing would be left, stay.
    """
    return re.split(r"[-=|]", label)[0] or label


def simplified(tree: ConstituencyTree) -> ConstituencyTree | None:
    """A tree without traces, functions and brackets without a label; None where no word is left.

    The root is always a constituent: one of several trees, or of a single word, gets the label TOP.
    """
    roots = _simplified(tree)
    if len(roots) == 1 and not roots[0].word:
        return roots[0]
    return ConstituencyTree(ROOT, tuple(roots)) if roots else None


def _simplified(tree: ConstituencyTree) -> list[ConstituencyTree]:
    levels: list[list[ConstituencyTree]] = [[]]
    for node, ended in walk(tree):
        if node.word:
            levels[-1] += [] if node.label == TRACE else [node]
        elif not ended:
            levels.append([])
        else:
            inside = levels.pop()
            if node.label and inside:
                inside = [ConstituencyTree(category(node.label), tuple(inside))]
            levels[-1] += inside
    return levels[0]


def tree_of(words: Sequence[str], tags: Sequence[str], spans: Iterable[Span]) -> ConstituencyTree:
    """The tree of these constituents, which are nested; of equal spans the first is the outer one.

    Raises:
        RegardError: two spans cross, or none covers all words.
    """
    ordered = sorted(spans, key=lambda span: (span[0], -span[1]))
    leaves = [ConstituencyTree(tag, word=word) for tag, word in zip(tags, words, strict=True)]
    if not ordered or ordered[0][:2] != (0, len(leaves)):
        raise RegardError(f"No constituent covers all {len(leaves)} words.")
    tree, left = _nested(leaves, ordered)
    if left < len(ordered):
        raise RegardError(f"The constituents {ordered[left - 1]} and {ordered[left]} cross.")
    return tree


def _nested(
    leaves: Sequence[ConstituencyTree], spans: Sequence[Span]
) -> tuple[ConstituencyTree, int]:
    """The first constituent, and the index of the first that is not inside it."""
    unended: list[tuple[Span, list[ConstituencyTree]]] = [(spans[0], [])]
    index, position = 1, 0
    while True:
        (_, end, label), children = unended[-1]
        if position == end:
            tree = ConstituencyTree(label, tuple(children))
            unended.pop()
            if not unended:
                return tree, index
            unended[-1][1].append(tree)
        elif index < len(spans) and spans[index][0] == position and spans[index][1] <= end:
            unended.append((spans[index], []))
            index += 1
        else:
            children.append(leaves[position])
            position += 1


# ------------------------------------------------------------------------------------ chains

CHAIN = " "  # between the labels of a unary chain; no label has a space


def chains(tree: ConstituencyTree) -> dict[tuple[int, int], str]:
    """The label of each span of words; that of a unary chain is "S VP", the outer one first."""
    labels: dict[tuple[int, int], str] = {}
    for start, stop, label in tree.spans():
        above = labels.get((start, stop))
        labels[start, stop] = label if above is None else above + CHAIN + label
    return labels


def unchained(spans: Iterable[Span]) -> Iterator[Span]:
    """Constituents, of spans whose labels may be chains."""
    for start, stop, chain in spans:
        for label in chain.split(CHAIN):
            yield start, stop, label


# ------------------------------------------------------------------------------------ tokens


def linearized(tree: ConstituencyTree) -> list[str]:
    """A tree as tokens: typed brackets, and XX for each word (Vinyals et al. 2015, figure 2)."""
    return [
        WORD if node.word else f"){node.label}" if ended else f"({node.label}"
        for node, ended in walk(tree)
    ]


def from_linearized(
    tokens: Sequence[str], words: Sequence[str], tags: Sequence[str]
) -> ConstituencyTree:
    """The tree of such tokens over words and their tags.

    Raises:
        RegardError: the tokens are no tree of so many words.
    """
    stack: list[tuple[str, list[ConstituencyTree]]] = [("", [])]
    leaves = iter([ConstituencyTree(t, word=w) for t, w in zip(tags, words, strict=True)])
    for token in tokens:
        label, children = stack[-1]
        if token == WORD:
            leaf = next(leaves, None)
            if leaf is None:
                raise RegardError(f"The tokens have more than {len(words)} words.")
            children.append(leaf)
        elif token.startswith("("):
            stack.append((token[1:], []))
        elif token != f"){label}" or not children or len(stack) == 1:
            raise RegardError(f"The token {token!r} does not continue a tree.")
        else:
            stack.pop()
            stack[-1][1].append(ConstituencyTree(label, tuple(children)))
    roots = stack[-1][1]
    if len(stack) > 1 or len(roots) != 1 or next(leaves, None) is not None:
        raise RegardError(f"The tokens are not one tree of {len(words)} words.")
    return roots[0]
