"""Scores of searches: nDCG, the reciprocal rank and recall."""

import math
from collections.abc import Mapping, Sequence

from regard.metrics.score import Score, check_any

CUTOFF = 10  # ranks of nDCG and of the reciprocal rank
RECALLS = (1, 10, 100)


class Retrieval:
    """nDCG@10, MRR@10 and recall@k, each the mean over queries, in float64."""

    def __init__(self) -> None:
        self._sums = dict.fromkeys(["nDCG@10", "MRR@10", *(f"recall@{k}" for k in RECALLS)], 0.0)
        self._count = 0

    def add(self, ranked: Sequence[str], gains: Mapping[str, float]) -> None:
        """Count a query.

        ranked: what was found, best first; at least the first `max(RECALLS)` of them.
        gains: of what is relevant, of which there is something; above 0.

            nDCG@10 = DCG / the largest DCG, DCG = sum over ranks r of gain_r / log2(r + 1)
                (Järvelin and Kekäläinen 2002, with the discount and the gains of trec_eval)
            MRR@10 = 1 / the rank of the first relevant one, 0 beyond 10
            recall@k = the share of the relevant ones among the first k
        """
        ranking = [gains.get(item, 0.0) for item in ranked]
        first = next((rank for rank, gain in enumerate(ranking[:CUTOFF], 1) if gain > 0), math.inf)
        values = [_dcg(ranking) / _dcg(sorted(gains.values(), reverse=True)), 1 / first]
        values += [sum(gain > 0 for gain in ranking[:k]) / len(gains) for k in RECALLS]
        for name, value in zip(self._sums, values, strict=True):
            self._sums[name] += value
        self._count += 1

    def results(self, signature: str = "") -> list[Score]:
        """The scores, between 0 and 1.

        Raises:
            RegardError: nothing was added.
        """
        check_any(self._count, "A search")
        return [
            Score(name, total / self._count, signature, self._count, 4)
            for name, total in self._sums.items()
        ]


def _dcg(gains: Sequence[float]) -> float:
    return math.fsum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains[:CUTOFF], 1))
