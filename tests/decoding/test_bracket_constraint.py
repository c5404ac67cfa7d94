"""Decoding of trees: what is allowed, against an enumeration of all trees; always well-formed."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from regard.data.batches import Sequences
from regard.decoding import generate, options
from regard.decoding.filters import Prefix, TreeVocabulary, WellFormedTree
from regard.errors import RegardError
from regard.models.seq2seq import Seq2Seq
from regard.models.transformer import Transformer
from regard.text.trees import from_linearized

NAMES = ["<pad>", "<s>", "</s>", "word", "(A", ")A", "(B", ")B", "XX"]
EOS, START = 2, 1
VOCABULARY = TreeVocabulary({"A": 4, "B": 6}, {"A": 5, "B": 7}, word=8)


def is_tree(tokens: list[str], words: int, most_open: int) -> bool:
    """Whether the tokens are a tree of so many words without too many brackets in a row."""
    runs = [
        len(list(run)) for opens, run in itertools.groupby(tokens, lambda t: t[0] == "(") if opens
    ]
    if not tokens or tokens[0][0] != "(" or max(runs) > most_open:
        return False
    try:
        from_linearized(tokens, ["w"] * words, ["T"] * words)
    except RegardError:
        return False
    return True


def all_trees(words: int, most: int, most_open: int) -> set[tuple[str, ...]]:
    """All trees of at most `most` tokens, with the end, by trying all sequences."""
    found = set()
    for length in range(1, most):
        for tokens in itertools.product(NAMES[4:], repeat=length):
            if is_tree(list(tokens), words, most_open):
                found.add(tokens)
    return found


@pytest.mark.parametrize("words, limit, most_open", [(1, 7, 12), (2, 7, 12), (2, 7, 1), (1, 6, 2)])
def test_all_trees_and_nothing_else_are_allowed(words, limit, most_open):
    trees = all_trees(words, limit, most_open)
    constraint = WellFormedTree(VOCABULARY, words, most_open)
    pending, found = [()], set()
    for generated in range(limit):
        if not pending:
            break
        tokens = torch.tensor([[START, *map(NAMES.index, one)] for one in pending])
        limits = torch.full((len(pending),), limit)
        scores = torch.zeros(len(pending), len(NAMES))
        allowed = constraint(scores, Prefix(tokens, generated, (EOS,), limits))
        following = []
        for prefix, row in zip(pending, allowed.tolist(), strict=True):
            names = [name for name, score in zip(NAMES, row, strict=True) if score == 0]
            assert names, prefix  # every sequence can go on
            for name in names:
                if name == "</s>":
                    found.add(prefix)
                else:
                    following.append((*prefix, name))
        pending = following
    assert not pending
    assert found == trees and trees


def test_a_limit_that_is_too_low_allows_nothing():
    constraint = WellFormedTree(VOCABULARY, 3, 5)
    prefix = Prefix(torch.tensor([[START]]), 0, (EOS,), torch.tensor([5]))
    assert not constraint(torch.zeros(1, len(NAMES)), prefix).isfinite().any()


@pytest.mark.parametrize("kind", [Seq2Seq, Transformer])
@pytest.mark.parametrize(
    "how", [{}, {"beams": 4, "n_best": 4}, {"temperature": 1.5, "samples": 3, "seed": 1}]
)
def test_every_search_of_a_random_model_gives_trees(kind, how):
    torch.manual_seed(3)
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "heads": 2, "d_ff": 16}
    known = kind.Config.__dataclass_fields__
    sizes = {name: value for name, value in sizes.items() if name in known}
    config = kind.Config(len(NAMES), d_model=16, pad=0, bos=START, eos=EOS, **sizes)
    model = kind(config).eval()
    source = Sequences.of([[3, 3, 3, 2], [3, 2], [3, 3, 2]], pad=0)
    method = options(max_tokens=14, **how)
    for words in (1, 4, 11):
        constraint = WellFormedTree(VOCABULARY, words, 4)
        constrained = replace(method, filters=(*method.filters, constraint))
        for hypotheses in generate(model, source, constrained):
            trees = [[NAMES[token] for token in one.tokens] for one in hypotheses]
            assert hypotheses and all(one.finished for one in hypotheses)
            assert all(is_tree(tree, words, 4) for tree in trees)
            if "beams" in how:  # of 11 words, 14 tokens hold two trees
                assert len(set(map(tuple, trees))) == len(trees) == (2 if words == 11 else 4)


def test_the_constraint_changes_no_probability_of_what_it_allows():
    scores = torch.randn(1, len(NAMES))
    prefix = Prefix(torch.tensor([[START, 4]]), 1, (EOS,), torch.tensor([20]))
    found = WellFormedTree(VOCABULARY, 2, 3)(scores, prefix)
    kept = found.isfinite()
    assert torch.equal(found[kept], scores[kept])
    assert [NAMES[i] for i in kept[0].nonzero()[:, 0]] == ["(A", "(B", "XX"]
