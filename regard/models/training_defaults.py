"""How models are trained where a recipe is silent, by the family of the model.

docs/reports/training-defaults.md has the sweep behind these values.
"""

from __future__ import annotations

from dataclasses import dataclass

NARROW, LARGE = 256, 1024  # widths; between them lie the published base and small models
BASE_WIDTH = 128  # the width that the rates of random weights are for
WIDTH_EXPONENT = -0.8  # of the rate over the width; fitted to table 2.1 of Brown et al. 2020
ADAPTERS = 10  # the rate of low-rank adapters, divided by that of all weights


@dataclass(frozen=True)
class TrainingDefaults:
    """The options of a training that depend on the model and on where its weights come from."""

    learning_rate: float
    weight_decay: float
    epochs: int


@dataclass(frozen=True)
class TrainingFamily:
    """What models of a family have in common.

    learning_rate: from random weights, for a width of 128 and less; wider models learn at a rate
        that is lower by (width / 128) ** -0.8.
    weight_decay: from random weights.
    fine_tuning_rate: of weights that were trained before, of a base or small published model;
        2/5 of it from a width of 1024 on, 4 times it below a width of 256.
    """

    learning_rate: float
    weight_decay: float
    fine_tuning_rate: float

    def of_random_weights(self, width: int) -> TrainingDefaults:
        """The defaults of a model that is so wide."""
        rate = self.learning_rate * (max(width, BASE_WIDTH) / BASE_WIDTH) ** WIDTH_EXPONENT
        return TrainingDefaults(float(f"{rate:.1e}"), self.weight_decay, epochs=10)

    def of_trained_weights(self, width: int, *, adapters: bool = False) -> TrainingDefaults:
        """The defaults of a model that is so wide; adapters: whether these alone are trained."""
        factor = 0.4 if width >= LARGE else 1.0 if width >= NARROW else 4.0
        rate = self.fine_tuning_rate * factor * (ADAPTERS if adapters else 1)
        return TrainingDefaults(float(f"{rate:.1e}"), 0.01, epochs=3)


TRANSFORMER = TrainingFamily(2e-3, 0.01, fine_tuning_rate=5e-5)
RECURRENT = TrainingFamily(1e-2, 0.0, fine_tuning_rate=5e-4)
CONVOLUTIONAL = TrainingFamily(5e-3, 0.0, fine_tuning_rate=5e-4)
