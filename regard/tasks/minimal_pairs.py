"""Minimal pairs: how often a model prefers the grammatical sentence (BLiMP, Warstadt et al. 2020).

The sentence with the larger log-likelihood is preferred. It is the sum over its tokens, not their
mean: the sentences of a pair may differ in length. Pairs with equal ones count as wrong.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from regard.data.datasets.records import MinimalPair
from regard.metrics import Score
from regard.metrics.score import ScoreReport, ScoreTable, check_any
from regard.models.protocols import LanguageModel
from regard.tasks.task import Task

LogLikelihoods = Callable[[Sequence[str]], list[float]]


@dataclass
class SetScore:
    """Pairs of one set: how many there are, are right, and have equal likelihoods."""

    pairs: int = 0
    right: int = 0
    ties: int = 0

    @property
    def accuracy(self) -> float:
        """The share of the right ones."""
        return self.right / self.pairs

    def add(self, good: float, bad: float) -> None:
        """Add a pair with these log-likelihoods."""
        self.pairs += 1
        self.right += good > bad
        self.ties += good == bad


@dataclass(frozen=True)
class MinimalPairReport(ScoreReport):
    """The scores of each set."""

    sets: dict[str, SetScore]

    def facts(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "sets": {
                name: {"accuracy": score.accuracy, "ties": score.ties, "pairs": score.pairs}
                for name, score in self.sets.items()
            }
        }

    def table(self) -> ScoreTable:
        """A row for each set."""
        rows = [
            (name, f"{score.accuracy:.4f}", str(score.ties), f"{score.pairs:,}")
            for name, score in self.sets.items()
        ]
        return ScoreTable("Minimal pairs", "", ("set", "accuracy", "ties", "pairs"), rows)


def minimal_pair_scores(
    task: Task, pairs: Sequence[MinimalPair], pseudo: LogLikelihoods | None = None
) -> Score:
    """The mean of the accuracies of all sets, and a report with each of them.

    Args:
        pseudo: gives pseudo-log-likelihoods, where the task has both kinds: of XLNet
            `task.pseudo_log_likelihoods`.

    Raises:
        NotSupportedError: the task gives no log-likelihoods.
        RegardError: there is no pair.
    """
    check_any(len(pairs), "Minimal-pair accuracy")
    texts = [text for pair in pairs for text in (pair.good, pair.bad)]
    likelihoods = (pseudo or task.log_likelihoods)(texts)
    sets: dict[str, SetScore] = {}
    for pair, good, bad in zip(pairs, likelihoods[::2], likelihoods[1::2], strict=True):
        sets.setdefault(pair.name, SetScore()).add(good, bad)
    tokenizer, ties = task.tokenizer, sum(score.ties for score in sets.values())
    causal = pseudo is None and isinstance(task.module, LanguageModel)
    signature = (
        f"likelihood:{'causal' if causal else 'pseudo'}|tok:{tokenizer.kind}-"
        f"{tokenizer.vocab_size}|sets:{len(sets)}|count:{len(pairs)}|ties:{ties}"
    )
    unknown = sum(tokenizer.unk_id in ids for ids in tokenizer.encode_many(texts))
    signature += f"|unk:{unknown}" if tokenizer.unk_id is not None and unknown else ""
    mean = fmean(score.accuracy for score in sets.values())
    report = MinimalPairReport(sets)
    return Score("minimal-pair accuracy", mean, signature, len(pairs), 4, report=report)
