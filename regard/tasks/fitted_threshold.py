"""A threshold that is fitted on validation data, together with the weights that it was fitted for.

The weights that a training saves at its end need not be those that were validated last.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn


class FittedThreshold:
    """The thresholds of a training by the weights of the head, which identify those of the model.

    used: whether the threshold is fitted at all.
    """

    def __init__(self) -> None:
        self.used = False
        self._found: dict[bytes, float] = {}

    def keep(self, head: nn.Module, threshold: float) -> float:
        """Keep the threshold for the weights that the head has now, and return it."""
        self._found[_key(head)] = threshold
        return threshold

    def fit(self, head: nn.Module, validate: Callable[[], object]) -> float:
        """The threshold for the weights that the head has now; `validate` fits it where needed.

        It is 0.5 where it cannot be fitted, since scores are not finite.
        """
        if _key(head) not in self._found:
            validate()
        return self._found.get(_key(head), 0.5)


def _key(head: nn.Module) -> bytes:
    return b"".join(w.detach().float().cpu().numpy().tobytes() for w in head.parameters())
