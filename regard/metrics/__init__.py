"""Scores of text, labels and likelihoods, each with what must be known to compare it.

A metric is fed batch by batch with `add` and gives its score with `result`; its memory does not
grow with the data, except where it says why. A new metric is a class, a line in `METRICS` and,
where recipes may choose it, its name among those of the task (`CLASS_METRICS`).

Internal: names that `regard` itself does not have may change with every version.
"""

from typing import Any

from regard.lazy import entry, names_of

METRICS = {
    "accuracy": "labels:Accuracy",
    "bleu": "text:BLEU",
    "bracket-f1": "brackets:BracketF1",
    "chrf": "text:CHRF",
    "cider": "text:CIDEr",
    "entity-f1": "entities:EntityF1",
    "f1": "labels:F1",
    "macro-f1": "labels:MacroF1",
    "matthews": "labels:Matthews",
    "pearson": "labels:Pearson",
    "relation-f1": "labels:RelationF1",
    "relation-micro-f1": "labels:MicroRelationF1",
    "rouge": "text:ROUGE",
    "spearman": "labels:Spearman",
    "squad": "squad:SQuAD",
    "squad2": "squad:SQuAD2",
}

_names, __getattr__ = names_of(
    __name__,
    {
        "brackets": "BracketF1 BracketScore",
        "entities": "EntityF1 EntityScore Span convert_tags spans",
        "labels": "Accuracy F1 MacroF1 Matthews MicroRelationF1 Pearson RelationF1 Spearman",
        "perplexity": "Perplexity Protocol cross_entropy entropy jensen_shannon kl_divergence",
        "score": "Metric Score Scores",
        "squad": "SQuAD SQuAD2 SquadScore",
        "text": "BLEU CHRF CIDEr ROUGE",
    },
)
__all__ = sorted([*_names, "METRICS", "metric_class"])


def metric_class(name: str) -> Any:
    """The class of a metric, imported now.

    Raises:
        ConfigError: there is no such metric; the nearest one is offered.
    """
    return entry(METRICS, name, "metric", __name__)
