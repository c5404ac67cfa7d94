"""The mean of several classifiers, such as ULMFiT's forward and backward ones.

both = ClassifierEnsemble([regard.load("runs/forward"), regard.load("runs/backward")])
both.predict(["a film with a heart"])
both.evaluate(rows)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.data import RowReader
from regard.errors import ConfigError
from regard.metrics import Scores
from regard.tasks.batching import TooLong
from regard.tasks.classification import LabelPrediction, TextClassifier
from regard.tasks.inputs import as_list
from regard.tasks.methods import Methods
from regard.tasks.texts import probabilities_of_labels


class ClassifierEnsemble(Methods):
    """p(label) = mean over the classifiers of theirs (Howard & Ruder 2018, section 4.4).

    Raises:
        ConfigError: there are none, or their labels differ.
    """

    def __init__(self, tasks: Sequence[TextClassifier]):
        if not tasks:
            raise ConfigError("An ensemble needs at least one classifier.")
        for task in tasks[1:]:
            if set(task.labels) != set(tasks[0].labels):
                raise ConfigError(
                    f"The classifiers must have the same labels, but have {list(tasks[0].labels)} "
                    f"and {list(task.labels)}."
                )
        self.tasks, self.labels = tuple(tasks), tasks[0].labels

    predict_proba = probabilities_of_labels

    def probabilities(self, texts: Sequence[Any], *, too_long: TooLong = "error") -> Tensor:
        """(N, O), in the order of `labels`."""
        texts = as_list(texts)
        probabilities = torch.zeros(len(texts), len(self.labels))
        for task in self.tasks:
            shares = task.text_scores(task.encoded(texts, too_long)).softmax(-1)
            probabilities += shares[:, [task.labels.index(label) for label in self.labels]]
        return probabilities / len(self.tasks)

    def _predictions(
        self, texts: Sequence[Any], *, too_long: TooLong = "error"
    ) -> list[LabelPrediction]:
        """The label of each text or pair, with the probabilities of all labels."""
        all_probabilities = [
            dict(zip(self.labels, row, strict=True))
            for row in self.probabilities(texts, too_long=too_long).tolist()
        ]
        return [
            LabelPrediction(max(probabilities, key=probabilities.__getitem__), probabilities)
            for probabilities in all_probabilities
        ]

    def is_one(self, texts: Any) -> bool:
        """Whether this is one text, or one pair."""
        return self.tasks[0].is_one(texts)

    def evaluate(
        self, rows: RowReader | Iterable[Sequence[str]], *, too_long: TooLong = "truncate"
    ) -> Scores:
        """The metrics of the first classifier, for rows of one text or two and their label.

        Raises:
            DataError: a row is malformed, or has a label that the classifiers do not know.
        """
        texts, targets = self.tasks[0].read_to_evaluate(rows)
        labels = [self.labels[index] for index in targets.tolist()]
        predicted = self.predict(texts, too_long=too_long)
        return Scores(self.tasks[0].metrics.scores(predicted, labels))
