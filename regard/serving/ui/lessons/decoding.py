"""Lessons about probabilities of words, and the search for texts and trees."""

from __future__ import annotations

import math

import torch

from regard.decoding.beam import Beam
from regard.decoding.filters import Prefix, Temperature, TopK, TopP, apply
from regard.decoding.length_penalty import Power
from regard.layers.chart import k_best_trees
from regard.serving.ui.lessons.lesson import Control, Lesson, Link
from regard.serving.ui.lessons.prefix_table import END, PrefixTable, Probabilities
from regard.text.trees import tree_of
from regard.visual.beam_tree import BeamTrace
from regard.visual.constituents import n_best_picture
from regard.visual.distribution import Distribution
from regard.visual.picture import Illustration, Note, Picture

SENTENCE = "The child came home from"
LOGITS = {
    "school": 5.0,
    "work": 2.6,
    "the": 2.4,
    "his": 1.9,
    "play": 1.7,
    "hospital": 1.5,
    "college": 1.2,
    "church": 0.8,
    "camp": 0.6,
    "war": 0.1,
    "Paris": -0.6,
    "green": -3.0,
}
# After each prefix the next words of translations of "les pauvres sont démunis".
TRANSLATIONS: Probabilities = {
    (): {"poor": 0.5, "the": 0.46},
    ("poor",): {"people": 0.55, "folk": 0.3},
    ("poor", "people"): {"are": 0.5, "have": 0.4},
    ("poor", "people", "are"): {"destitute": 0.35, "needy": 0.3, "poor": 0.3},
    ("poor", "people", "have"): {"nothing": 0.6, "no": 0.3},
    ("poor", "people", "have", "no"): {"money": 0.9},
    ("poor", "folk"): {"have": 0.6, "are": 0.3},
    ("poor", "folk", "have"): {"nothing": 0.6, "no": 0.3},
    ("the",): {"poor": 0.95},
    ("the", "poor"): {"don't": 0.7, "have": 0.25},
    ("the", "poor", "don't"): {"have": 0.97},
    ("the", "poor", "don't", "have"): {"any": 0.7, "money": 0.25},
    ("the", "poor", "don't", "have", "any"): {"money": 0.95},
    ("the", "poor", "have"): {"no": 0.6, "nothing": 0.35},
    ("the", "poor", "have", "no"): {"money": 0.95},
}

WORDS, TAGS = "I shot an elephant in my pajamas".split(), "PRP VBD DT NN IN PRP$ NNS".split()
LABELS = ("S", "VP", "NP", "PP")
# The scores of constituents by their first word, the word after them and their label.
CONSTITUENTS = {
    (0, 7, "S"): 3.0,
    (0, 1, "NP"): 2.0,
    (1, 7, "VP"): 2.0,
    (2, 4, "NP"): 2.0,
    (4, 7, "PP"): 2.0,
    (5, 7, "NP"): 2.0,
}
UNLIKELY = -9.0  # of every other constituent


def next_word(temperature: float = 1.0, top_k: int = 12, top_p: float = 1.0) -> Picture:
    """The distribution after a sentence, as the filters of sampling leave it."""
    scores = torch.tensor([list(LOGITS.values())], dtype=torch.float64)
    filters = (Temperature(temperature), TopK(top_k), TopP(top_p))
    left = apply(filters, scores, Prefix(torch.empty(1, 0, dtype=torch.long), 0))
    probabilities = left.softmax(-1)[0]
    title = f"after “{SENTENCE} …”"
    shown = Distribution.of(probabilities, list(LOGITS), len(LOGITS), title)
    numbers = {"probabilities": probabilities}
    return Illustration((shown,), "The next word", numbers=numbers)


def beam_tree(beams: int = 2) -> Picture:
    """The search for a translation in a table of probabilities, as a tree."""
    model, trace = PrefixTable(TRANSLATIONS), BeamTrace(beams)
    search = Beam(size=beams, length_penalty=Power(0.0), max_tokens=10)
    (best,) = search.run(model, None, trace)[0]
    words = " ".join(model.words[number] for number in best.tokens)
    title = f"{beams} beams" if beams > 1 else "one beam: greedy search"
    tree = trace.tree(lambda number: model.words[number], best, title)
    found = Note((f"Found: “{words}”, with probability {math.exp(best.log_prob):.3f}.",))
    numbers = {"words": words, "log_prob": best.log_prob}
    return Illustration((found, tree), "Beam search", numbers=numbers)


def parses(noun: float = 0.5, count: int = 2) -> Picture:
    """The best trees of a chart whose score of "an elephant in my pajamas" is given."""
    chart = torch.full((1, len(WORDS), len(WORDS), len(LABELS)), UNLIKELY, dtype=torch.float64)
    for (start, stop, label), score in {**CONSTITUENTS, (2, 7, "NP"): noun}.items():
        chart[0, start, stop - start - 1, LABELS.index(label)] = score
    (found,) = k_best_trees(chart, torch.tensor([len(WORDS)]), count)
    trees = [
        (tree_of(WORDS, TAGS, [(a, b, LABELS[label]) for a, b, label in one.spans]), one.score)
        for one in found
    ]
    numbers = {"trees": [(str(tree), score) for tree, score in trees]}
    return Illustration((n_best_picture(trees),), "The best trees", numbers=numbers)


LESSONS = (
    Lesson(
        "next-word",
        "The next word",
        (
            "A language model gives each entry of its vocabulary a probability to be the next "
            "word.",
            "  p(w) = exp(s_w / T) / sum_v exp(s_v / T)",
            f"The bars are the probabilities of twelve words after “{SENTENCE} …”, from scores s "
            "that were made up for this lesson. The temperature T divides the scores; top-k keeps "
            "the k most probable words, top-p the smallest set of words whose probabilities sum to "
            "at least p. The probabilities of the words that are kept are scaled to sum to 1.",
        ),
        next_word,
        (
            Control("temperature", "temperature T", 1.0, 0.1, 5.0, 0.1),
            Control("top_k", "top-k", 12, 1, 12),
            Control("top_p", "top-p", 1.0, 0.05, 1.0, 0.05),
        ),
        (
            "At which temperature does the probability of “school” fall below one half?",
            "Which words does top-p 0.9 keep at temperature 1, and which at temperature 2?",
        ),
        (Link("next", "The next words of a model", "/ui/next", {"text": SENTENCE}),),
    ),
    Lesson(
        "beam-search",
        "Beam search as a tree",
        (
            "Greedy search takes the most probable word at each step, which need not lead to the "
            "most probable sentence. Beam search keeps the k most probable prefixes instead.",
            "  log p(y) = sum_t log p(y_t | y_1 … y_(t-1))",
            "The tree is the search for a translation of “les pauvres sont démunis”, in a small "
            "table of probabilities made up for this lesson. Each node has the logarithm of the "
            "probability of all words up to it. “…” stands for all other words together, and "
            f"{END} for the end of the sentence.",
        ),
        beam_tree,
        (Control("beams", "number of beams k", 2, 1, 6),),
        (
            "With one beam the search ends in another sentence. Where does it go wrong?",
            "The first word of the best sentence is not the most probable first word. Why is that "
            "no contradiction?",
        ),
        (Link("beam", "The search of a model", "/ui/beam", {"beams": "3"}),),
    ),
    Lesson(
        "parses",
        "Two trees of one sentence",
        (
            "“I shot an elephant in my pajamas”: who wears them? A chart parser scores every "
            "constituent (group of words, such as a noun phrase, NP) of a sentence; the score of a "
            "tree is the sum of the scores of its constituents, and dynamic programming finds the "
            "best trees.",
            "Change the score of “an elephant in my pajamas” as one constituent: with it the "
            "elephant wears the pajamas, without it “in my pajamas” belongs to “shot”. In the "
            "other trees the constituents that the best tree lacks are marked.",
        ),
        parses,
        (
            Control("noun", "score of “an elephant in my pajamas”", 0.5, -5.0, 5.0, 0.5),
            Control("count", "number of trees", 2, 1, 4),
        ),
        (
            "Below which score is the best tree the one in which the speaker wears the pajamas?",
            "How do the third and the fourth tree differ from the first?",
        ),
    ),
)
