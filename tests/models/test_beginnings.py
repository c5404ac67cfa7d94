"""Rows that begin alike: the same hidden states, from fewer places."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import regard
from regard.data import Sequences
from regard.models import beginnings
from regard.models.gpt import GPT, GPTConfig
from regard.models.gpt2 import GPT2, GPT2Config
from regard.models.quantize import prepare

SIZES = dict(vocab_size=50, d_model=32, heads=4, layers=2, max_length=70)


def questions(*groups):
    """For each (shared, rest, rest, ...) rows with `shared` tokens of their own question."""
    draw, rows = torch.Generator().manual_seed(1), []
    for shared, *rests in groups:
        some = torch.randint(50, (shared,), generator=draw).tolist()
        rows += [some + torch.randint(50, (n,), generator=draw).tolist() for n in rests]
    return Sequences.of(rows, 0)


@pytest.mark.parametrize("model", [GPT(GPTConfig(**SIZES)), GPT2(GPT2Config(**SIZES))])
@torch.no_grad()
def test_choices_read_their_question_once(model):
    texts, places = questions((40, 3, 5, 1), (38, 6, 2, 2), (44, 1)), []
    wanted = list(model.eval().layers(texts))[-1]
    model.dropout.register_forward_hook(
        lambda module, given, out: places.append(out.size(0) * out.size(1))
    )
    found = model.encode(texts)
    assert torch.allclose(found[texts.keep], wanted[texts.keep], atol=1e-5)
    assert sum(places) < 0.6 * texts.ids.numel()


@given(st.data())
@settings(max_examples=40, deadline=None)
@torch.no_grad()
def test_however_they_are_grouped(data):
    torch.manual_seed(1)
    model = GPT2(GPT2Config(**SIZES)).eval()
    size, rest = st.integers(0, 50), st.lists(st.integers(1, 15), min_size=1, max_size=4)
    groups = data.draw(st.lists(st.tuples(size, rest), min_size=1, max_size=4))
    texts = questions(*((shared, *rests) for shared, rests in groups))
    found, wanted = model.encode(texts), list(model.layers(texts))[-1]
    assert torch.allclose(found[texts.keep], wanted[texts.keep], atol=1e-5)


def test_where_little_is_shared_nothing_is_grouped():
    assert beginnings.beginnings(questions((40, 3, 5))) is not None
    for groups in [((10, 30, 30),), ((40, 3), (40, 3)), ((20, 40, 40),), ((64, 1),)]:
        assert beginnings.beginnings(questions(*groups)) is None


def test_who_learns_or_looks_reads_everything():
    model, texts = GPT2(GPT2Config(**SIZES)).eval(), questions((40, 3, 5, 1))
    assert beginnings.read_once(model, texts) is None  # gradients may be asked for
    with torch.no_grad():
        assert beginnings.read_once(model, texts) is not None
        with regard.look(model):
            assert beginnings.read_once(model, texts) is None
        assert beginnings.read_once(model.train(), texts) is None


@pytest.mark.usefixtures("some_kernels")
@torch.no_grad()
def test_quantized_weights():
    torch.manual_seed(2)
    model, texts = GPT2(GPT2Config(**SIZES)).eval(), questions((40, 3, 5, 1), (38, 6, 2, 2))
    wanted = list(model.layers(texts))[-1]
    found = prepare(model, "bfloat16").encode(texts)
    assert torch.cosine_similarity(found, wanted, dim=-1)[texts.keep].min() > 0.999
