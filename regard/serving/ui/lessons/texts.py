"""Lessons about what a model reads: subwords, special tokens, segments, masks."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from regard.models.bert import Bert
from regard.serving.ui.lessons.lesson import Control, Lesson, Link
from regard.text import Tokenizer, wordpiece
from regard.text.explain import SegmentedWord, Training, training
from regard.text.unigram import UnigramModel
from regard.visual.inputs import Inputs
from regard.visual.lattice import Lattice
from regard.visual.picture import Illustration, Note, Picture
from regard.visual.table import Table

COUNTED = {"old": 7, "older": 3, "finest": 9, "lowest": 4}
VOCABULARY = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] my dog is cute he likes play ##ing un ##aff ##able una ##ffa "
    "##ble work . ,"
).split()
PAIR = ("my dog is cute", "he likes playing")
SPLIT = ("unaffable", "playing", "work")
SUBWORDS = {
    "h": -5.0,
    "e": -4.5,
    "l": -4.5,
    "o": -4.6,
    "w": -5.2,
    "r": -5.0,
    "d": -5.0,
    "he": -3.2,
    "ell": -6.0,
    "hell": -5.1,
    "hello": -3.4,
    "lo": -4.4,
    "ow": -5.0,
    "world": -3.6,
    "wor": -6.0,
    "or": -4.0,
    "ld": -4.8,
    "low": -4.1,
    "orld": -7.0,
}


@cache
def tokenizer() -> Tokenizer:
    """A tokenizer with the vocabulary of these lessons."""
    with tempfile.TemporaryDirectory(prefix="regard-") as folder:
        file = Path(folder) / "vocab.txt"
        file.write_text("\n".join(VOCABULARY), encoding="utf-8")
        return Tokenizer.load(file)


def merges(count: int = 5) -> Picture:
    """The merges of byte-pair encoding, and the words and tokens after the last of them."""
    found = training(COUNTED, count)
    steps = [
        [f"{number}", f"{one.left} + {one.right}", one.symbol, f"{one.count}", _ties(len(one.tied))]
        for number, one in enumerate(found.merges, 1)
    ]
    head = ["", "pair", "becomes", "count", ""]
    return Illustration(
        (Table.of(head, steps, "The merges"), _words(found), _tokens(found)), "Byte-pair encoding"
    )


def _ties(pairs: int) -> str:
    return f"first of {pairs} equally frequent pairs" if pairs > 1 else ""


def _words(found: Training) -> Table:
    rows = [[word, f"{count}"] for word, count in found.iterations[-1].words.items()]
    return Table.of(["word", "count"], rows, f"The words after {len(found.merges)} merges")


def _tokens(found: Training) -> Table:
    rows = [[one.token, f"{one.frequency}"] for one in found.iterations[-1].rows]
    return Table.of(["token", "frequency"], rows, "The tokens")


def inputs(length: int = 14) -> Picture:
    """What BERT reads of two sentences."""
    found = tokenizer()
    return Inputs.of(PAIR, found, Bert.template(found), length=length)


def longest_match(words: Sequence[str] = SPLIT) -> Picture:
    """How WordPiece splits words, match by match."""
    tables = []
    for word in words:
        steps = list(wordpiece.longest_match(word, VOCABULARY))
        rows = [[" ".join(one.tried), one.found or "nothing", f"{one.start}"] for one in steps]
        title = f"{word}: {' '.join(one.found or '[UNK]' for one in steps)}"
        tables.append(Table.of(["tried, the longest first", "found", "at character"], rows, title))
    return Illustration(tuple(tables), "The longest match")


def segmentations() -> Picture:
    """The lattice of a word by a small unigram model."""
    model, word = UnigramModel(SUBWORDS), "helloworld"
    likelihood = model.log_likelihood(word)
    found = SegmentedWord(word, tuple(model.edges(word)), tuple(model.best(word)), likelihood)
    said = f"The best segmentation has {found.best_share:.1%} of the probability of all."
    return Illustration((Lattice(found), Note((said,))), "Segmentations")


LESSONS = (
    Lesson(
        "subword-merges",
        "Byte-pair encoding: which pair is merged next",
        (
            "Training begins with characters. The most frequent pair of neighbouring tokens is "
            "merged into a new token, again and again. The text has “old” 7 times, “older” 3, "
            "“finest” 9 and “lowest” 4 times; </w> marks the end of a word.",
        ),
        merges,
        (Control("count", "number of merges", 5, 1, 12),),
        (
            "Why does the frequency of “s” become 0 with the first merge?",
            "At which merge does “old” become one token?",
        ),
        (Link("tokens", "How a model's tokenizer splits words", "/ui/tokens"),),
    ),
    Lesson(
        "longest-match",
        "WordPiece: the longest match",
        (
            "BERT's tokenizer takes the longest entry of its vocabulary with which a word begins, "
            "and continues after it in the same way; “##” marks entries that continue a word. If "
            "some part of a word is not in the vocabulary, the whole word becomes [UNK].",
            f"The vocabulary of this lesson: {' '.join(VOCABULARY)}",
        ),
        longest_match,
        (),
        ("The parts of “un ##aff ##able” are in the vocabulary, too. Why is it not the result?",),
        (Link("tokens", "How a model's tokenizer splits words", "/ui/tokens"),),
    ),
    Lesson(
        "segmentations",
        "The unigram model: all segmentations of a word",
        (
            "Each subword has a probability; that of a segmentation is the product of those of its "
            "subwords. The boxes are all subwords that occur in “helloworld”, with their log "
            "probabilities; a path of boxes from left to right is a segmentation. The Viterbi "
            "algorithm finds the most probable one (orange).",
        ),
        segmentations,
        (),
        ("Which segmentation is the second most probable?",),
    ),
    Lesson(
        "bert-inputs",
        "What BERT reads: ids, segments, mask",
        (
            "BERT reads two sentences as [CLS] first [SEP] second [SEP]. The segment says to which "
            "of the two a token belongs; the mask is 0 at padding, which is not read. The "
            "embeddings of token, segment and position are added.",
        ),
        inputs,
        (Control("length", "length with padding", 14, 11, 24),),
        ("Which segment do [CLS] and the two [SEP] have?",),
        (Link("attention", "The heads of a model", "/ui/attention", {"text": PAIR[0]}),),
    ),
)
