"""Filters against those of transformers, and against scores computed by hand."""

import pytest
import torch

from regard.decoding.filters import (
    BadWords,
    ForcedEnd,
    ForcedFirst,
    MinLength,
    MinTokens,
    NoRepeatNGram,
    Prefix,
    Renormalize,
    RepetitionPenalty,
    Suppress,
    Temperature,
    TopK,
    TopP,
    apply,
)

NO = float("-inf")


def prefix(tokens, new=None, eos=(2,)):
    tokens = torch.as_tensor(tokens)
    generated = tokens.size(1) - 1 if new is None else new
    return Prefix(tokens, generated, eos, torch.full((len(tokens),), 9))


@pytest.fixture(scope="module")
def processors():
    return pytest.importorskip("transformers.generation.logits_process")


@pytest.mark.parametrize("seed", range(5))
def test_filters_equal_those_of_transformers(processors, seed):
    random = torch.Generator().manual_seed(seed)
    scores = torch.randn(6, 50, generator=random) * 3
    scores[0] = scores[0].round()  # equal scores
    tokens = torch.randint(0, 6, (6, 9), generator=random)
    p, last = processors, tuple(tokens[1, -2:].tolist())
    bad_words = [[3], [2], [*last, 8], [last[1]]]
    for ours, theirs in [
        (Temperature(0.7), p.TemperatureLogitsWarper(0.7)),
        (TopK(7), p.TopKLogitsWarper(7)),
        (TopK(500), p.TopKLogitsWarper(500)),
        (TopP(0.8), p.TopPLogitsWarper(0.8)),
        (TopP(0.05), p.TopPLogitsWarper(0.05)),
        (TopP(1.0), p.TopPLogitsWarper(1.0)),
        (NoRepeatNGram(1), p.NoRepeatNGramLogitsProcessor(1)),
        (NoRepeatNGram(2), p.NoRepeatNGramLogitsProcessor(2)),
        (NoRepeatNGram(3), p.NoRepeatNGramLogitsProcessor(3)),
        (NoRepeatNGram(12), p.NoRepeatNGramLogitsProcessor(12)),
        (MinTokens(9), p.MinNewTokensLengthLogitsProcessor(1, 9, 2)),
        (MinTokens(8), p.MinNewTokensLengthLogitsProcessor(1, 8, 2)),
        (MinLength(9), p.MinLengthLogitsProcessor(9, 2)),
        (MinLength(10), p.MinLengthLogitsProcessor(10, 2)),
        (BadWords(((3,), (2,), (*last, 8), last[1:])), p.NoBadWordsLogitsProcessor(bad_words, 2)),
        (Suppress((0, 7)), p.SuppressTokensLogitsProcessor([0, 7])),
        (RepetitionPenalty(1.3), p.RepetitionPenaltyLogitsProcessor(1.3)),
        (Renormalize(), p.LogitNormalization()),
        (ForcedFirst(4), p.ForcedBOSTokenLogitsProcessor(4)),
        (ForcedEnd((2,)), p.ForcedEOSTokenLogitsProcessor(10, 2)),
    ]:
        before = scores.clone()
        assert torch.equal(ours(scores, prefix(tokens)), theirs(tokens, scores.clone())), ours
        assert torch.equal(scores, before)  # what was given is not changed
    chain = (NoRepeatNGram(2), MinTokens(20), Temperature(1.7), TopK(20), TopP(0.9))
    expected = scores
    for part in (
        p.NoRepeatNGramLogitsProcessor(2),
        p.MinNewTokensLengthLogitsProcessor(1, 20, 2),
        p.TemperatureLogitsWarper(1.7),
        p.TopKLogitsWarper(20),
        p.TopPLogitsWarper(0.9),
    ):
        expected = part(tokens, expected)
    assert torch.equal(apply(chain, scores, prefix(tokens)), expected)


@pytest.mark.parametrize("mass", [1e-6, 0.3, 0.9, 1.0])
def test_top_p_is_the_same_with_and_without_sorting_all_tokens(monkeypatch, mass):
    random = torch.Generator().manual_seed(0)
    scores = torch.randn(6, 3000, generator=random) * torch.tensor([[9, 5, 3, 1, 0.1, 0]]).T
    scores[1, ::7] = scores[1, 0]  # equally probable
    scores[2, 500:] = NO
    found = TopP(mass)(scores, prefix([[1]] * 6))

    monkeypatch.setattr(TopP, "_threshold", lambda self, probs: 0.0)
    assert torch.equal(TopP(mass)(scores, prefix([[1]] * 6)), found)
    for row, alone in zip(scores, found, strict=True):
        assert torch.equal(TopP(mass)(row[None], prefix([[1]]))[0], alone)


def test_top_p_of_a_large_vocabulary_sorts_few_tokens(monkeypatch):
    random = torch.Generator().manual_seed(0)
    scores = torch.randn(3, 20_000, generator=random) * torch.tensor([[4, 1, 0.2]]).T
    wanted = TopP(0.8)(scores.double(), prefix([[1]] * 3)) > NO
    monkeypatch.setattr(TopP, "_by_sorting", None)
    assert torch.equal(TopP(0.8)(scores, prefix([[1]] * 3)) > NO, wanted)
    wrong = scores.index_fill(1, torch.tensor([7]), torch.nan)
    monkeypatch.undo()
    assert TopP(0.8)(wrong, prefix([[1]] * 3)).shape == wrong.shape


def test_filters_keep_the_type_of_the_scores():
    for scores in (torch.randn(2, 30), torch.randn(2, 30).double()):
        tokens = prefix([[1, 5, 5], [1, 5, 6]])
        for part in (NoRepeatNGram(2), MinTokens(5), Temperature(2.0), TopK(3), TopP(0.5)):
            assert part(scores, tokens).dtype == scores.dtype
