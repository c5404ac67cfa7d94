"""Scores of text, labels and likelihoods, each with what must be known to compare it.

A metric is fed batch by batch with `add` and gives its score with `result`; its memory does not
grow with the data, except where it says why. A new metric is one file and one line in `METRICS`;
`regard.metrics.glue` names those of GLUE's tasks.
"""

from __future__ import annotations

from typing import Any

from regard.lazy import entry, names_of

METRICS = {
    "accuracy": "labels:Accuracy",
    "bleu": "text:BLEU",
    "chrf": "text:CHRF",
    "entity-f1": "entities:EntityF1",
    "f1": "labels:F1",
    "macro-f1": "labels:MacroF1",
    "matthews": "labels:Matthews",
    "pearson": "correlation:Pearson",
    "perplexity": "perplexity:PerplexityMeter",
    "spearman": "correlation:Spearman",
    "squad": "squad:SQuAD",
    "squad2": "squad:SQuAD2",
}

_PUBLIC = {
    "Accuracy": "labels:Accuracy",
    "BLEU": "text:BLEU",
    "CHRF": "text:CHRF",
    "EntityF1": "entities:EntityF1",
    "EntityScore": "entities:EntityScore",
    "F1": "labels:F1",
    "MacroF1": "labels:MacroF1",
    "Matthews": "labels:Matthews",
    "Metric": "score:Metric",
    "Pearson": "correlation:Pearson",
    "Perplexity": "perplexity:Perplexity",
    "PerplexityMeter": "perplexity:PerplexityMeter",
    "Protocol": "perplexity:Protocol",
    "SQuAD": "squad:SQuAD",
    "SQuAD2": "squad:SQuAD2",
    "Score": "score:Score",
    "Span": "tags:Span",
    "Spearman": "correlation:Spearman",
    "SquadScore": "squad:SquadScore",
    "bleu": "text:bleu",
    "chrf": "text:chrf",
    "convert_tags": "tags:convert",
    "cross_entropy": "distributions:cross_entropy",
    "entropy": "distributions:entropy",
    "jensen_shannon": "distributions:jensen_shannon",
    "kl_divergence": "distributions:kl_divergence",
    "spans": "tags:spans",
}

__all__ = sorted([*_PUBLIC, "METRICS", "metric_class"])


def metric_class(name: str) -> Any:
    """The class of a metric, imported now.

    Raises:
        ConfigError: there is no such metric; the nearest one is offered.
    """
    return entry(METRICS, name, "metric", __name__)


__getattr__ = names_of(__name__, _PUBLIC)
