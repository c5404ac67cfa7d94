"""Searches in one compiled call against the same search step by step."""

from __future__ import annotations

import pytest
import torch

from regard.data.batches import Sequences
from regard.decoding import Greedy
from regard.decoding.beam import Beam, SearchListener
from regard.decoding.filters import NoRepeatNGram
from regard.decoding.length_penalty import GNMT, Power, RelativeLimit
from regard.errors import RegardError
from regard.kernels.compiled_models import CompiledGenerator
from regard.models.conversions import prepare
from regard.models.transformer import PreNormTransformer, Transformer, TransformerConfig
from regard.models.wrappers import generator

SOURCES = [[3 + (7 * i + j) % 90 for j in range(1 + i % 7)] + [2] for i in range(12)]


def ending(kind=Transformer, words=9001, often=17.0):
    """A model whose hypotheses end after different numbers of tokens."""
    torch.manual_seed(5)
    sizes = dict(d_model=64, d_ff=64, heads=2, encoder_layers=1, decoder_layers=2, max_length=60)
    model = kind(TransformerConfig(words, **sizes)).eval()
    model.embedding.weight.data.normal_(std=0.35)
    model.head.bias = torch.nn.Parameter(torch.zeros(words))
    model.head.bias.data[2] = often  # `</s>`
    return model


@pytest.fixture
def searches(monkeypatch):
    """What each search in one call found."""
    found, search = [], CompiledGenerator.search

    def listened(*asked):
        found.append(search(*asked))
        return found[-1]

    monkeypatch.setattr(CompiledGenerator, "search", listened)
    return found


def both(method, model, monkeypatch, sources=SOURCES):
    """What is found in one call, and step by step."""
    source = Sequences.of(sources, 0)
    at_once = method.run(generator(model), source)
    with monkeypatch.context() as change:
        change.setattr(CompiledGenerator, "search", lambda *asked: None)
        return at_once, method.run(generator(model), source)


@pytest.mark.parametrize(
    "words, rule, penalty",
    [
        *((9001, rule, GNMT(0.9)) for rule in (True, False, "never")),
        *((99, rule, Power(0.6)) for rule in (True, False, "never")),
        *((9001, "never", penalty) for penalty in (Power(0.0), Power(1.0))),
    ],
)
def test_the_compiled_search_finds_the_hypotheses_of_the_stepwise_one(
    use, searches, monkeypatch, words, rule, penalty
):
    use("fast")
    model = prepare(ending(words=words, often=17.0 if words > 99 else 14.0))
    lengths = set()
    for size, n_best, limit in [(1, 1, 15), (2, 1, 1), (4, 4, RelativeLimit(2.0, 3)), (5, 2, 30)]:
        beam = Beam(size, n_best, penalty, rule, max_tokens=limit)
        found, wanted = both(beam, model, monkeypatch)
        assert found == wanted and searches[-1] is not None
        lengths |= {len(one.tokens) for several in found for one in several if one.finished}
    assert len(lengths) > 1  # the batch shrank


@pytest.mark.parametrize(
    "kind, weights", [("fast", "int8"), ("older", "int8"), ("plain", "int8"), ("fast", "bfloat16")]
)
def test_the_compiled_search_equals_the_stepwise_one_with_every_instruction_set(
    use, searches, monkeypatch, kind, weights
):
    use(kind)
    model = prepare(ending(PreNormTransformer), weights)
    found, wanted = both(Beam(4, 3, max_tokens=40), model, monkeypatch)
    assert found == wanted and searches[-1] is not None
    beam, one = Beam(4, 3, max_tokens=40), generator(model)
    alone = [beam.run(one, Sequences.of([row], 0))[0] for row in SOURCES]
    assert alone == found


def test_searches_that_cannot_be_compiled_run_step_by_step(use, searches, monkeypatch):
    use("fast")
    model = prepare(ending())
    source = Sequences.of(SOURCES, 0)
    Beam(4, filters=(NoRepeatNGram(2),), max_tokens=5).run(generator(model), source)
    Beam(4, max_tokens=5).run(generator(model), source, SilentListener())
    Greedy(filters=(NoRepeatNGram(2),), max_tokens=5).run(generator(model), source)
    assert not searches
    few = Sequences.of(SOURCES[:3], 0)
    Beam(50, max_tokens=5).run(generator(prepare(ending(words=99))), few)  # too few words
    many = Sequences.of(SOURCES * 12, 0)
    Beam(4, max_tokens=5).run(generator(model), many)
    assert searches == [None, None]
    use(None)
    Beam(4, max_tokens=5).run(generator(model), source)
    assert len(searches) == 2


class SilentListener(SearchListener):
    def __call__(self, sentences, step, done):
        pass


def test_nan_scores_in_a_compiled_search_raise_an_error(use, searches):
    use("fast")
    model = prepare(ending())
    model.head.bias = torch.zeros(9001)
    model.head.bias[7] = torch.nan
    with pytest.raises(RegardError, match="row 0 are NaN or infinite after 1 tokens"):
        Beam(4, max_tokens=5).run(generator(model), Sequences.of(SOURCES, 0))
    assert searches == [None]
