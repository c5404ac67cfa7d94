"""Rows with a common prefix: the same hidden states, from fewer computed positions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import regard
from regard.data import Sequences
from regard.models.gpt import GPT, GPTConfig
from regard.models.gpt2 import GPT2, GPT2Config
from regard.tasks.shared_prefix import encode_with_shared_prefixes, prefix_groups

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
def test_a_prefix_is_computed_once(model):
    texts, computed = questions((40, 3, 5, 1), (38, 6, 2, 2), (44, 1)), []
    wanted = list(model.eval().states(texts))[-1]
    model.dropout.register_forward_hook(
        lambda module, given, out: computed.append(out.size(0) * out.size(1))
    )
    found = encode_with_shared_prefixes(model, texts)
    assert torch.allclose(found[texts.keep], wanted[texts.keep], atol=1e-5)
    assert sum(computed) < 0.6 * texts.ids.numel()


@given(st.data())
@settings(max_examples=40, deadline=None)
@torch.no_grad()
def test_any_groups_give_the_same_hidden_states(data):
    torch.manual_seed(1)
    model = GPT2(GPT2Config(**SIZES)).eval()
    size, rest = st.integers(0, 50), st.lists(st.integers(1, 15), min_size=1, max_size=4)
    groups = data.draw(st.lists(st.tuples(size, rest), min_size=1, max_size=4))
    texts = questions(*((shared, *rests) for shared, rests in groups))
    found, wanted = encode_with_shared_prefixes(model, texts), model.encode(texts)
    assert (found is None) == (prefix_groups(texts) is None)
    if found is None:
        return
    assert torch.allclose(found[texts.keep], wanted[texts.keep], atol=1e-5)


def test_training_and_attention_capture_share_no_prefixes():
    model, texts = GPT2(GPT2Config(**SIZES)).eval(), questions((40, 3, 5, 1))
    assert encode_with_shared_prefixes(model, texts) is None  # gradients may be asked for
    with torch.no_grad():
        assert encode_with_shared_prefixes(model, texts) is not None
        with regard.look(model):
            assert encode_with_shared_prefixes(model, texts) is None
        assert encode_with_shared_prefixes(model.train(), texts) is None
