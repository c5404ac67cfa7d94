"""Scores of text, labels and likelihoods, each with what must be known to compare it.

A metric is fed batch by batch with `add` and gives its score with `result`; its memory does not
grow with the data, except where it says why. A new metric is one file and one line in `METRICS`;
`regard.metrics.glue` names those of GLUE's tasks.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

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
    from regard.errors import ConfigError
    from regard.suggest import nearest

    if name not in METRICS:
        raise ConfigError(f"There is no metric {name!r}. {nearest(name, METRICS)}")
    return _find(METRICS[name])


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'regard.metrics' has no attribute {name!r}")
    return _find(_PUBLIC[name])


def _find(place: str) -> Any:
    module, _, attribute = place.partition(":")
    return getattr(import_module(f"regard.metrics.{module}"), attribute)
