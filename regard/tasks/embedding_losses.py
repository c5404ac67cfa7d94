"""Losses of vectors of texts, by which an encoder learns from pairs, triplets and scored pairs.

An example is an anchor a with its positive p, and any number of negatives n; or two texts a and p
with a number y. cos is the cosine of two vectors, s a scale, m a margin, d a distance. Each loss is
that of sentence-transformers, with its defaults.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, Literal, Self

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from regard.checkpoints.sentence_transformers import Kind
from regard.data.batches import moved
from regard.models.config import Size
from regard.recipe import Options

Loss = Literal["multiple-negatives-ranking", "triplet", "cosine-similarity", "cosent", "angle"]
Distance = Literal["cosine", "euclidean"]


@dataclass(frozen=True)
class ExampleVectors:
    """The vectors of a batch of B examples with M negatives in all.

    anchors, positives: (B, D).  negatives: (M, D).
    owners: (M,) int64, the example of each negative.
    known: (B, B + M) bool, which of all positives and negatives are no negatives of each anchor:
        those with the text of one of its positives, or its own.
    scores: (B,), the number of each pair; zeros where there are none.
    """

    anchors: Tensor
    positives: Tensor
    negatives: Tensor
    owners: Tensor
    known: Tensor
    scores: Tensor

    @classmethod
    def of(cls, vectors: Tensor, sizes: Tensor, numbers: Tensor, scores: Tensor) -> Self:
        """From vectors (N, D) of all texts: of each example the anchor, the positive, negatives.

        sizes: (B,), texts of each example.  numbers: (N,), equal ones for equal texts.
        """
        owners = torch.arange(len(sizes)).repeat_interleave(sizes)  # (N,)
        places = torch.arange(len(owners)) - (sizes.cumsum(0) - sizes)[owners]
        indices = [
            where.nonzero()[:, 0] for where in (places == 0, places == 1, places > 1)
        ]  # of anchors, positives and negatives
        anchors, positives, negatives = (numbers[index] for index in indices)
        candidates = torch.cat([positives, negatives])
        same_anchor = (anchors[:, None] == anchors).float()  # (B, B)
        is_positive = (positives[:, None] == candidates).float()  # (B, B + M)
        known = (same_anchor @ is_positive > 0) | (anchors[:, None] == candidates)
        rest = owners[indices[2]], known.fill_diagonal_(False), scores
        return cls(
            *(vectors[moved(index, vectors.device)] for index in indices),
            *(moved(tensor, vectors.device) for tensor in rest),
        )

    def truncated(self, size: int) -> Self:
        """The first `size` dimensions of each vector, scaled to length 1."""
        cut = {
            name: F.normalize(getattr(self, name)[:, :size], dim=-1)
            for name in ("anchors", "positives", "negatives")
        }
        return replace(self, **cut)

    def cosines(self) -> Tensor:
        """cos(a, p) of each example, (B,)."""
        return F.cosine_similarity(self.anchors, self.positives)


def distances(first: Tensor, second: Tensor, kind: Distance) -> Tensor:
    """The distances of two rows of vectors, (B, D) and (B, D) -> (B,)."""
    if kind == "cosine":
        return 1 - F.cosine_similarity(first, second)
    return F.pairwise_distance(first, second)


def multiple_negatives_ranking(examples: ExampleVectors, scale: float = 20.0) -> Tensor:
    """-1/B sum_i log(exp(s cos(a_i, p_i)) / sum_c exp(s cos(a_i, c))), in-batch negatives: c is
    p_i, the other positives and all negatives (Henderson et al. 2017, section 4.4; InfoNCE: van den
    Oord et al. 2018, equation 4). Texts that are known positives of a_i are left out of the sum.
    """
    anchors = F.normalize(examples.anchors, dim=-1)
    candidates = F.normalize(torch.cat([examples.positives, examples.negatives]), dim=-1)
    logits = scale * anchors @ candidates.T  # (B, B + M)
    logits = logits.masked_fill(examples.known, -torch.inf)
    return F.cross_entropy(logits, torch.arange(len(logits), device=logits.device))


def triplet(
    examples: ExampleVectors, margin: float = 5.0, distance: Distance = "euclidean"
) -> Tensor:
    """The mean over triplets of max(0, d(a, p) - d(a, n) + m) (Schroff et al. 2015, equation 3)."""
    anchors, positives = examples.anchors[examples.owners], examples.positives[examples.owners]
    near, far = (distances(anchors, x, distance) for x in (positives, examples.negatives))
    return F.relu(near - far + margin).mean()


def cosine_similarity(examples: ExampleVectors) -> Tensor:
    """1/B sum (cos(a, p) - y)^2 (Reimers and Gurevych 2019, section 3)."""
    return F.mse_loss(examples.cosines(), examples.scores)


def cosent(examples: ExampleVectors, scale: float = 20.0) -> Tensor:
    """log(1 + sum over y_i < y_j of exp(s (cos_i - cos_j))): the order of the numbers is learned
    (CoSENT: Su 2022; Huang et al. 2024).
    """
    return _order_loss(scale * examples.cosines(), examples.scores)


def angle(examples: ExampleVectors, scale: float = 20.0) -> Tensor:
    """As `cosent`, of the angle between a and p as complex vectors in place of the cosine (AnglE:
    Li and Li 2024, equation 8, without its two other losses).
    """
    a, p = (F.normalize(x, dim=-1) for x in (examples.anchors, examples.positives))
    (a_real, a_imaginary), (p_real, p_imaginary) = (
        F.pad(x, (0, x.size(1) % 2)).chunk(2, 1) for x in (a, p)
    )
    sines = (a_imaginary * p_real - a_real * p_imaginary).sum(1)
    return _order_loss(scale * ((a * p).sum(1) + sines).abs(), examples.scores)


def _order_loss(similarities: Tensor, scores: Tensor) -> Tensor:
    """log(1 + sum over y_i < y_j of exp(x_i - x_j)) of similarities x and numbers y, (B,)."""
    differences = similarities[:, None] - similarities  # (B, B)
    wrong = differences.masked_fill(scores[:, None] >= scores, -torch.inf)
    return torch.cat([wrong.new_zeros(1), wrong.flatten()]).logsumexp(0)


LOSSES: dict[str, Callable[..., Tensor]] = {
    function.__name__.replace("_", "-"): function
    for function in (multiple_negatives_ranking, triplet, cosine_similarity, cosent, angle)
}
# Losses of scored pairs -> the least and the largest number that they take.
SCORED = {
    "cosine-similarity": (-1.0, 1.0),
    "cosent": (-torch.inf, torch.inf),
    "angle": (-torch.inf, torch.inf),
}


class EmbeddingObjective(Options):
    """[objective]: what is learned from pairs, triplets and scored pairs."""

    loss: Loss | None = None
    """multiple-negatives-ranking and triplet learn from texts, the others from pairs with a number;
    without it multiple-negatives-ranking, or cosent where each pair has a number."""
    scale: float | None = Field(default=None, gt=0)
    """What cosines are multiplied by, the inverse of a temperature; without it 20."""
    margin: float | None = Field(default=None, ge=0)
    """That of triplet; without it 5."""
    distance: Distance | None = None
    """That of triplet; without it euclidean."""
    matryoshka: tuple[Size, ...] = ()
    """The loss is the sum of those of the first so many dimensions, such as [384, 128, 32], so that
    vectors can be truncated (Kusupati et al. 2022)."""
    pooling: Kind | None = None
    """How the states of the tokens of a text become its vector; without it as the folder that
    training starts from says, otherwise the mean."""
    normalize: bool | None = None
    """Vectors have length 1; without it as that folder says, otherwise they have."""

    def options(self) -> dict[str, Any]:
        """The options of losses that are set."""
        return self.model_dump(include={"scale", "margin", "distance"}, exclude_none=True)

    def unused(self, loss: str) -> list[str]:
        """Options that are set and that the loss does not have."""
        return [name for name in self.options() if name not in signature(LOSSES[loss]).parameters]

    def value(self, examples: ExampleVectors) -> Tensor:
        """`loss` of a batch; the sum over the sizes of `matryoshka`, where there are some."""
        assert self.loss is not None
        loss, options = LOSSES[self.loss], self.options()
        if not self.matryoshka:
            return loss(examples, **options)
        losses = [loss(examples.truncated(size), **options) for size in self.matryoshka]
        return torch.stack(losses).sum()
