"""The conditional random field against the enumeration of all sequences of tags, in float64."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from regard.layers.chart import CRF, Transitions

TAGS = ("B-A", "I-A", "B-B", "I-B", "O")


def field(tags: int = 3, seed: int = 1) -> CRF:
    torch.manual_seed(seed)
    made = CRF(tags).double()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter)
    return made


def drawn(lengths: list[int], tags: int = 3, seed: int = 2) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    scores = torch.randn(len(lengths), max(lengths, default=0), tags, dtype=torch.float64)
    keep = torch.arange(scores.size(1)) < torch.tensor(lengths)[:, None]
    return scores.requires_grad_(), keep


def naive(crf: CRF, scores: Tensor, path: tuple[int, ...]) -> Tensor:
    """s(x, y) of one sentence (W, O)."""
    total = crf.start[path[0]] + crf.end[path[-1]]
    for t, tag in enumerate(path):
        total = total + scores[t, tag]
        if t:
            total = total + crf.transitions[path[t - 1], tag]
    return total


def well_formed(path: tuple[int, ...]) -> bool:
    before = "O"
    for tag in (TAGS[n] for n in path):
        if tag.startswith("I-") and before[2:] != tag[2:]:
            return False
        before = tag
    return True


LENGTHS = [4, 1, 0, 3, 2]


def test_loss_and_its_gradients_equal_the_enumeration():
    crf, (scores, keep) = field(), drawn(LENGTHS)
    tags = torch.randint(0, 3, keep.shape)
    found = crf.loss(scores, tags.masked_fill(~keep, -100), keep)
    wanted: Tensor = torch.zeros((), dtype=torch.float64)
    for row, length in enumerate(LENGTHS):
        if length:
            paths = itertools.product(range(3), repeat=length)
            every = torch.stack([naive(crf, scores[row], path) for path in paths])
            wanted = wanted + every.logsumexp(0)
            wanted = wanted - naive(crf, scores[row], tuple(tags[row, :length].tolist()))
    torch.testing.assert_close(found, wanted)
    learned = [scores, *crf.parameters()]
    for one, other in zip(
        torch.autograd.grad(found, learned), torch.autograd.grad(wanted, learned), strict=True
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("constrained", [False, True])
def test_best_tags_and_their_probabilities_equal_the_enumeration(constrained):
    allowed = Transitions.of_iob2(TAGS) if constrained else None
    crf, (scores, keep) = field(len(TAGS)), drawn(LENGTHS, len(TAGS))
    best, shares = crf.best(scores, keep, allowed), crf.probabilities(scores, keep, allowed)
    assert not best[~keep].any() and not shares[~keep].any()
    for row, length in enumerate(LENGTHS):
        if not length:
            continue
        paths = [*itertools.product(range(len(TAGS)), repeat=length)]
        paths = [path for path in paths if not constrained or well_formed(path)]
        every = torch.stack([naive(crf, scores[row], path) for path in paths])
        assert tuple(best[row, :length].tolist()) == paths[int(every.argmax())]
        wanted = torch.zeros(length, len(TAGS), dtype=torch.float64)
        for path, share in zip(paths, every.softmax(0), strict=True):
            for t, tag in enumerate(path):
                wanted[t, tag] += share
        torch.testing.assert_close(shares[row, :length], wanted.detach())


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("constrained", [False, True])
def test_tags_and_probabilities_are_the_same_in_every_mode_of_autograd(mode, constrained):
    """The probabilities are gradients, which tensors of the inference mode do not have."""
    allowed = Transitions.of_iob2(TAGS) if constrained else None
    crf, (scores, keep) = field(len(TAGS)), drawn(LENGTHS, len(TAGS))
    best, shares = crf.best(scores, keep, allowed), crf.probabilities(scores, keep, allowed)
    torch.testing.assert_close(shares.sum(-1), keep.to(shares))
    with mode():
        for given in (scores, scores.detach().clone()):
            assert torch.equal(crf.best(given, keep.clone(), allowed), best)
            assert torch.equal(crf.probabilities(given, keep.clone(), allowed), shares)


def test_empty_sentences_and_empty_batches_have_empty_results():
    crf = field()
    scores, keep = torch.zeros(2, 0, 3, dtype=torch.float64), torch.zeros(2, 0, dtype=torch.bool)
    assert crf.best(scores, keep).shape == (2, 0)
    assert crf.probabilities(scores, keep).shape == (2, 0, 3)
    assert float(crf.loss(scores, torch.zeros(2, 0, dtype=torch.long), keep).detach()) == 0
    none, keep = torch.zeros(0, 4, 3, dtype=torch.float64), torch.zeros(0, 4, dtype=torch.bool)
    assert crf.best(none, keep).shape == (0, 4)
    assert crf.probabilities(none, keep).shape == (0, 4, 3)
