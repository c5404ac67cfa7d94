"""Whether a higher or a lower score is better, of every score that the library has."""

from __future__ import annotations

import pytest

from regard.metrics.perplexity import UNITS, Perplexity, Protocol
from regard.metrics.score import better_direction
from regard.tasks.bidirectional_language_modeling import DIRECTIONS

HIGHER = (
    "accuracy",
    "accuracy per byte",
    "accuracy per token",
    "BLEU",
    "bracket F1",
    "chrF2",
    "chrF2++",
    "CIDEr-D",
    "entity F1",
    "exact match",
    "F1",
    "GLUE average",
    "last-word accuracy",
    "macro-F1",
    "masked accuracy",
    "Matthews correlation",
    "micro-F1",
    "minimal-pair accuracy",
    "Pearson correlation",
    "ROUGE-L",
    "Spearman correlation",
    "SQuAD F1",
    "subset accuracy",
)
LOWER = (
    "last-word perplexity",
    "masked perplexity",
    "reply perplexity",
    "reply perplexity without history",
    *(Perplexity(1.0, 1, Protocol(unit, "words")).name for unit in UNITS),
    *(Perplexity(1.0, 1, Protocol("word", "words", direction=way)).name for way in DIRECTIONS),
)
DIRECTION_OF = {
    **dict.fromkeys(HIGHER, "max"),
    **dict.fromkeys(LOWER, "min"),
}


@pytest.mark.parametrize("goal", [("a goal of another name", "min"), ("another goal", "max")])
def test_every_score_of_the_library_has_its_direction(goal):
    assert {name: better_direction(name, goal) for name in DIRECTION_OF} == DIRECTION_OF


@pytest.mark.parametrize(
    ("name", "goal", "better"),
    [
        ("WER", ("loss", "min"), "min"),
        ("CER", ("accuracy", "max"), "min"),
        ("word error rate", ("accuracy", "max"), "min"),
        ("edit distance", ("accuracy", "max"), "min"),
        ("log-loss", ("accuracy", "max"), "min"),
        ("valid losses", ("accuracy", "max"), "min"),
        ("nats per token", ("accuracy", "max"), "min"),
        ("mean rank", ("rank", "min"), "min"),
        ("distance", ("distance", "max"), "max"),  # the goal says it
        ("error-free sentences", ("error", "min"), "max"),
        ("lossless sentences", ("loss", "min"), "max"),
    ],
)
def test_scores_of_ones_own_have_the_direction_of_the_goal_or_of_their_words(name, goal, better):
    assert better_direction(name, goal) == better
