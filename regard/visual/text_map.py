"""Texts as points of a plane: the two directions in which their vectors differ most.

task = regard.load("runs/minilm")
found = TextMap.of(task.embed(texts), texts, labels)
found.points[0]; found.nearest(found.vectors[0], 5)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.errors import ConfigError
from regard.tasks.embedder import best_matches, products
from regard.tasks.predictions import TextMatch


@dataclass(frozen=True, eq=False, repr=False)
class TextMap:
    """Texts with vectors and points; make it with `of`.

    labels: of the texts; () where they have none.
    vectors: (N, D) in float32, of length 1.
    mean: (D,) of the vectors.  directions: (2, D), orthonormal.
    points: (N, 2), (vectors - mean) directions^T.
    shares: of the vectors' variance, how much lies in each direction.
    """

    texts: tuple[str, ...]
    labels: tuple[str, ...]
    vectors: Tensor
    mean: Tensor
    directions: Tensor
    points: Tensor
    shares: tuple[float, float]

    def __repr__(self) -> str:
        return f"<TextMap of {len(self.texts):,} texts>"

    @classmethod
    def of(cls, vectors: Any, texts: Sequence[str], labels: Sequence[str] = ()) -> Self:
        """The map of texts by their principal components (Pearson 1901; Hotelling 1933).

        The directions are the eigenvectors of the covariance of the vectors, each scaled to length
        1 before, with the largest eigenvalues. In each of them the entry of largest size is
        positive, so that the same vectors always give the same map.

        Args:
            vectors: (N, D), an array or a tensor.
            texts: N of them.
            labels: N of them, or none.

        Raises:
            ConfigError: there are no texts, or vectors that are short or not finite.
        """
        array = torch.as_tensor(np.asarray(vectors), dtype=torch.float32)
        if array.dim() != 2 or not len(array) or array.size(1) < 2:
            shape = tuple(array.shape)
            raise ConfigError(f"`vectors` must be (texts, 2 or more dimensions), but is {shape}.")
        if not array.isfinite().all():
            raise ConfigError("The vectors are infinite or NaN: use another model.")
        unit = F.normalize(array, dim=1)
        mean, directions, shares = principal_directions(unit)
        points = (unit - mean) @ directions.T
        return cls(tuple(texts), tuple(labels), unit, mean, directions, points, shares)

    def nearest(self, vector: Any, k: int) -> list[TextMatch]:
        """The `k` texts with the largest cosines with a vector (D,), best first.

        Raises:
            ConfigError: the vector has another size.
        """
        unit = self._unit(vector)[None].numpy()
        (cosines,) = products(unit, self.vectors.numpy())
        return best_matches(cosines, self.texts, k)

    def place(self, vector: Any) -> tuple[float, float]:
        """The point of another vector (D,) in this map.

        Raises:
            ConfigError: the vector has another size.
        """
        x, y = (self.directions @ (self._unit(vector) - self.mean)).tolist()
        return x, y

    def _unit(self, vector: Any) -> Tensor:
        query = torch.as_tensor(vector, dtype=torch.float32)
        if query.shape != self.mean.shape:
            raise ConfigError(
                f"`vector` must have {self.mean.numel()} numbers, but has {query.numel()}."
            )
        return F.normalize(query, dim=0)


def principal_directions(vectors: Tensor) -> tuple[Tensor, Tensor, tuple[float, float]]:
    """The mean (D,) of vectors (N, D), their two principal directions (2, D), and the shares of
    the variance that lie in these; 0 where all vectors are equal."""
    wide = vectors.double()
    mean = wide.mean(0)
    centred = wide - mean
    variances, columns = torch.linalg.eigh(centred.T @ centred)  # ascending
    directions = columns.T[-2:].flip(0)
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    directions = directions * largest.sign()
    total = float(variances.clamp(min=0).sum())
    first, second = (float(value) / total if total > 1e-9 else 0.0 for value in variances[[-1, -2]])
    return mean.float(), directions.float(), (first, second)
