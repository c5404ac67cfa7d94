"""Sentences and their constituency trees: what all parsing tasks have in common."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from regard.data.datasets.records import RecordReader
from regard.data.token_arrays import ReadReport
from regard.errors import TextError
from regard.metrics.brackets import BracketF1, BracketScore
from regard.tasks.inputs import text_or_words
from regard.text.trees import (
    CHAIN,
    ROOT,
    UNESCAPED,
    WORD,
    ConstituencyTree,
    TreeError,
    read_trees,
    simplified,
    tree_of,
    walk,
)
from regard.text.word_spans import WordSpans

# What the Penn Treebank writes as a word of its own: do n't, she 's, we 'll.
CLITICS = re.compile(r"(?i)(.+?)(n[’']t|[’'](?:s|re|ve|ll|d|m))")


def treebank_words(text: str) -> tuple[str, ...]:
    """The words of a running text as a treebank has them."""
    words: list[str] = []
    for word in WordSpans.of(text).words:
        parts = CLITICS.fullmatch(word)
        words += parts.groups() if parts else (word,)
    return tuple(words)


@dataclass(frozen=True)
class KnownLabels:
    """The labels of a parser, which tell a tree from running text in parentheses.

    constituents: without functions.  tags: of words; empty where the parser has none.
    """

    constituents: frozenset[str]
    tags: frozenset[str] = frozenset()

    @classmethod
    def of(cls, chains: Iterable[str], tags: Iterable[str] = ()) -> KnownLabels:
        """Those of the labels of spans, which may be chains."""
        return cls(
            frozenset(label for chain in chains for label in chain.split(CHAIN)), frozenset(tags)
        )

    def tree_of(self, text: str, index: int) -> ConstituencyTree | None:
        """The tree of a text in brackets; None of running text.

        Each opening bracket of a tree is followed by another one or by a label, so that nearly no
        running text can be read as a tree. If a text can, such as "(He (came late))", the labels
        decide: it is a tree if the parser knows them, and running text if it knows none of them and
        some have lower-case letters.

        Raises:
            TextError: the labels do not decide, or there are several trees.
        """
        try:
            trees = read_trees(text) if text.lstrip().startswith("(") else []
        except TreeError:
            return None
        tree = simplified(ConstituencyTree("", tuple(trees)))
        if (
            tree is None
            or not all(subtree.children for subtree in trees)
            or not self._has_labels(tree, index)
        ):
            return None
        if len(trees) > 1:
            raise TextError(index, f"must be one tree, but is {len(trees)}.", "Give each alone.")
        return tree

    def _has_labels(self, tree: ConstituencyTree, index: int) -> bool:
        """Whether these are labels of a tree."""
        nodes = [node for node, ended in walk(tree) if not ended]
        labels = {node.label for node in nodes if not node.word and node.label != ROOT}
        tags = {node.label for node in nodes if node.word}
        compared = labels | tags if self.tags or not labels else labels
        unknown = compared - self.constituents - self.tags - {WORD}
        as_words = sorted(
            label for label in labels | tags if not label.isascii() or label != label.upper()
        )
        if not unknown or (unknown < compared and not as_words):
            return True
        if unknown == compared and as_words:
            return False
        shown = ", ".join(map(repr, sorted(unknown)[:3]))
        raise TextError(
            index,
            "can be read as running text in parentheses and as a tree in brackets, "
            f"some of whose labels this parser does not know: {shown}.",
            'Give its words as a list, such as ["(", "He", "came", ")"], or a tree with labels '
            f"such as {', '.join(sorted(self.constituents)[:3])}.",
        )


@dataclass(frozen=True)
class Sentence:
    """What is parsed: words, and their tags where they are known."""

    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None

    @classmethod
    def of(cls, text: str | Sequence[str], labels: KnownLabels, index: int) -> Sentence:
        """Of a running text; of a list of words; or of a tree in brackets, its words and tags.

        labels: those of the parser.  index: of the text, for errors.

        Raises:
            TextError: see `KnownLabels.tree_of`.
        """
        if not isinstance(text, str):
            return cls(tuple(text))
        tree = labels.tree_of(text, index)
        return cls(treebank_words(text)) if tree is None else cls.of_tree(tree)

    @classmethod
    def of_tree(cls, tree: ConstituencyTree) -> Sentence:
        """The words of a gold tree with its tags."""
        return cls(tuple(tree.words), tuple(tree.tags))


def sentence_or_words(given: Any, index: int) -> str | list[str]:
    """A sentence as a str, or its words as a list, each of which a tree can have.

    Raises:
        TextError: it is neither, or a word is empty or has white space.
    """
    sentence = text_or_words(given, index)
    for number, word in enumerate(sentence if isinstance(sentence, list) else (), 1):
        if word.split() != [word]:
            problem = f"has {word!r:.80} as word {number}, which is no single word."
            hint = "Words of a tree are not empty and have no white space; or give a text."
            raise TextError(index, problem, hint)
    return sentence


def read_form(word: str) -> str:
    """A word of a treebank as a model reads it: -LRB- is (."""
    return UNESCAPED.get(word, word)


@dataclass(frozen=True)
class LearnedTrees:
    """Trees with the lines on which they begin, and the report of the reader."""

    trees: list[ConstituencyTree]
    lines: list[int]
    report: ReadReport

    @classmethod
    def of(cls, rows: RecordReader[ConstituencyTree]) -> LearnedTrees:
        """All trees of a file."""
        lines, trees = zip(*rows.numbered(), strict=True)
        return cls(list(trees), list(lines), rows.report)


def bracket_score(
    predicted: Sequence[ConstituencyTree], gold: Sequence[ConstituencyTree]
) -> BracketScore:
    """The F1 of labelled brackets, equal to EVALB's for trees with the tags of the gold trees.

    So parsers that predict other tags, or none, are scored on the same words: with a wrong tag of
    punctuation EVALB would leave the whole sentence out.
    """
    metric = BracketF1()
    metric.add(
        [_with_tags(parse, gold_tree) for parse, gold_tree in zip(predicted, gold, strict=True)],
        gold,
    )
    return metric.result()


def _with_tags(tree: ConstituencyTree, gold: ConstituencyTree) -> ConstituencyTree:
    """A tree with the tags of another one, where they have the same words."""
    words = tree.words
    return tree_of(words, gold.tags, tree.spans()) if words == gold.words else tree


def bracket_values(score: BracketScore) -> dict[str, float]:
    """What validation reports of a score."""
    return {
        "f1": score.value,
        "precision": score.precision,
        "recall": score.recall,
        "exact": score.exact_match,
    }


METRIC_NAMES = ("f1", "precision", "recall", "exact")


def shown_words(tree: ConstituencyTree) -> str:
    """The sentence of a tree, as a model reads it."""
    return " ".join(map(read_form, tree.words))
