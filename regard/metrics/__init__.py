"""Scores of text, labels and likelihoods, each with what must be known to compare it.

A metric is fed batch by batch with `add` and gives its score with `result`; its memory does not
grow with the data. A new metric is one file and one line in `METRICS`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

METRICS = {
    "accuracy": "labels:Accuracy",
    "bleu": "text:BLEU",
    "chrf": "text:CHRF",
    "perplexity": "perplexity:PerplexityMeter",
}

_PUBLIC = {
    "Accuracy": "labels:Accuracy",
    "BLEU": "text:BLEU",
    "CHRF": "text:CHRF",
    "Metric": "score:Metric",
    "Perplexity": "perplexity:Perplexity",
    "PerplexityMeter": "perplexity:PerplexityMeter",
    "Protocol": "perplexity:Protocol",
    "Score": "score:Score",
    "bleu": "text:bleu",
    "chrf": "text:chrf",
    "cross_entropy": "distributions:cross_entropy",
    "entropy": "distributions:entropy",
    "jensen_shannon": "distributions:jensen_shannon",
    "kl_divergence": "distributions:kl_divergence",
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
