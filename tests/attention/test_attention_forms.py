"""Scores of attention: padding has no weight, and gradients are exact."""

from __future__ import annotations

import pytest
import torch

from regard.attention.attend import (
    COSINE,
    PLAIN,
    SCALED,
    Additive,
    ContentBased,
    General,
    Location,
    attend,
)
from regard.attention.masks import padding


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(
        *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    ).requires_grad_()


# ---- scores -----------------------------------------------------------------------------------


SCORES = {
    "plain": lambda: PLAIN,
    "scaled-dot": lambda: SCALED,
    "general": lambda: General(4, 4).double(),
    "additive": lambda: Additive(4, 4, 7).double(),
    "location": lambda: Location(4, 9).double(),
    "cosine": lambda: COSINE,
    "content-based": lambda: ContentBased(4).double(),
}


@pytest.mark.parametrize("name", SCORES)
def test_weights_of_scores_have_no_padding_and_exact_gradients(name):
    torch.manual_seed(1)
    score, query, memory = SCORES[name](), normal(2, 1, 3, 4), normal(2, 5, 4, seed=1)
    lengths = torch.tensor([5, 2])
    mask = padding(lengths).resolve(3, 5, sequences=2)

    def context(query, memory):
        return attend(
            query, score.prepare(memory)[:, None], memory[:, None], score=score, mask=mask
        )

    found = context(query, memory)
    for row, length in enumerate(lengths.tolist()):
        alone = memory[row : row + 1, :length]
        expected = attend(
            query[row : row + 1], score.prepare(alone)[:, None], alone[:, None], score=score
        )
        torch.testing.assert_close(found[row : row + 1], expected)
    changed = memory.detach().clone()
    changed[1, 2:] = 7.0
    torch.testing.assert_close(context(query, changed), found)
    assert torch.autograd.gradcheck(context, (query, memory))


def test_the_cosine_of_a_zero_is_zero_and_has_finite_gradients():
    query, memory = torch.zeros(1, 1, 4, requires_grad=True), torch.zeros(1, 3, 4)
    scores = COSINE(query, COSINE.prepare(memory))
    assert not scores.any()
    scores.sum().backward()
    assert query.grad.isfinite().all()
