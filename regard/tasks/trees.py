"""Sentences and their constituency trees: what all parsing tasks have in common."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from regard.data.datasets.records import RecordReader
from regard.data.token_arrays import ReadReport
from regard.errors import TextError
from regard.metrics.brackets import BracketF1, BracketScore
from regard.tasks.inputs import text_or_words
from regard.text.trees import UNESCAPED, ConstituencyTree, tree_of
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
class Sentence:
    """What is parsed: words, and their tags where they are known."""

    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None

    @classmethod
    def of(cls, text: str | Sequence[str]) -> Sentence:
        """Of a running text, or of a list of words."""
        return cls(treebank_words(text) if isinstance(text, str) else tuple(text))

    @classmethod
    def of_tree(cls, tree: ConstituencyTree) -> Sentence:
        """The words of a gold tree with its tags."""
        return cls(tuple(tree.words), tuple(tree.tags))


def sentence_or_words(item: Any, index: int) -> str | list[str]:
    """A sentence as a str, or its words as a list, each of which a tree can have.

    Raises:
        TextError: it is neither, or a word is empty or has white space.
    """
    sentence = text_or_words(item, index)
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
