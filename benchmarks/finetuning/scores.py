"""The measures, as scikit-learn, SciPy and seqeval compute them; fractions, not percent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from scipy.stats import pearsonr, spearmanr
from seqeval.metrics import f1_score as entity_f1
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

# name -> f(gold, guesses)
MEASURES: dict[str, Callable[[Any, Any], Any]] = {
    "accuracy": accuracy_score,
    "f1": lambda gold, guesses: f1_score(gold, guesses, pos_label="1"),
    "matthews": matthews_corrcoef,
    "pearson": lambda gold, guesses: pearsonr(gold, guesses).statistic,
    "spearman": lambda gold, guesses: spearmanr(gold, guesses).statistic,
    "entity f1": entity_f1,
}


def score(measures: Sequence[str], gold: Sequence[Any], guesses: Sequence[Any]) -> dict[str, float]:
    """Each measure of the guesses: class names, numbers, or lists of tags."""
    return {name: float(MEASURES[name](gold, guesses)) for name in measures}
