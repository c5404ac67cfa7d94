"""The recurrent language model: its sizes, its state, its prompts."""

from __future__ import annotations

import pytest
import torch

from regard.data.batches import Sequences
from regard.decoding.start import start
from regard.models import model_class
from regard.models.recurrent import SIZES, RecurrentConfig, RecurrentLanguageModel

KINDS = ["rnn", "gru", "lstm"]
WORDS = 13


def tiny(cell="lstm", **options):
    torch.manual_seed(0)
    config = RecurrentConfig(WORDS, cell=cell, d_model=8, layers=2, init_range=0.5, **options)
    return RecurrentLanguageModel(config).eval()


def ids(*shape):
    return torch.randint(3, WORDS, shape, generator=torch.Generator().manual_seed(1))


# Counted by hand, and in millions as Merity et al. 2016 (table 1) print them.
@pytest.mark.parametrize(
    ("size", "count", "published"),
    [("small", 4_651_600, None), ("medium", 19_775_200, 20), ("large", 66_022_000, 66)],
)
def test_the_named_sizes_have_the_parameters_of_the_paper(size, count, published):
    with torch.device("meta"):
        model = RecurrentLanguageModel(RecurrentConfig(10_000, **SIZES[size]))
    found = sum(p.numel() for p in model.parameters())
    width = model.config.d_model
    lstm = 4 * width * (2 * width + 1)
    assert found == 10_000 * width + 2 * lstm + 10_000 * (width + 1) == count
    assert published is None or round(found / 1e6) == published


def test_a_tied_output_layer_is_the_embedding():
    model = tiny(tied=True)
    assert model.head.weight is model.embedding.weight
    found = sum(p.numel() for p in tiny().parameters()) - sum(p.numel() for p in model.parameters())
    assert found == WORDS * 8


def test_initial_parameters_are_within_the_range_of_the_config():
    for parameter in tiny().parameters():
        assert 0.2 < parameter.abs().max() <= 0.5


@pytest.mark.parametrize("kind", KINDS)
def test_windows_with_a_carried_state_equal_one_long_pass(kind):
    model, stream = tiny(kind), ids(3, 12)
    whole = model(stream)
    state, parts = None, []
    for window in stream.split(5, 1):
        output = model(window, state)
        parts.append(output.hidden)
        state = output.state.detach()
    torch.testing.assert_close(torch.cat(parts, 1), whole.hidden, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(state.tensors(), whole.state.tensors(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_steps_equal_the_full_pass(kind):
    model, rows = tiny(kind), ids(3, 7)
    expected = model.head.logits(model(rows).hidden)
    state = model.stack.empty(3, expected)
    for at in range(7):
        scores, state = model.step(rows[:, at : at + 1], state)
        torch.testing.assert_close(scores[:, 0], expected[:, at], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_of_different_lengths_continue_as_each_alone(kind):
    model, rows = tiny(kind), [[3, 4, 5, 6], [7], [8, 9], []]
    state, tokens = start(model, Sequences.of(rows, pad=0))
    assert tokens.tolist() == [[6], [7], [9], [model.config.eos]]
    scores, _ = model.step(tokens, state)
    for row, prompt in enumerate(rows):
        whole = torch.tensor([prompt or [model.config.eos]])
        expected = model.head.logits(model(whole).hidden)[0, -1]
        torch.testing.assert_close(scores[row, 0], expected, atol=1e-5, rtol=1e-5)


def test_padding_and_order_of_prompts_do_not_change_states():
    model, rows = tiny(), [[3, 4, 5, 6], [7], [8, 9]]
    prompts = Sequences.of(rows, pad=0)
    state, tokens = start(model, prompts)
    wider = torch.cat([prompts.ids, ids(3, 4)], 1)
    again, same = start(model, Sequences(wider, prompts.lengths))
    assert torch.equal(tokens, same)
    torch.testing.assert_close(state.tensors(), again.tensors(), atol=1e-6, rtol=1e-6)
    order = torch.tensor([2, 0, 1])
    turned, _ = start(model, prompts.select(order))
    torch.testing.assert_close(
        turned.tensors(), state.select(order).tensors(), atol=1e-6, rtol=1e-6
    )


@pytest.mark.parametrize("prompt", [None, Sequences.of([[]], pad=0)])
def test_an_empty_prompt_starts_with_eos_and_a_zero_state(prompt):
    model = tiny()
    state, tokens = start(model, prompt)
    assert tokens.tolist() == [[model.config.eos]]
    assert state.rows == 1 and not state.hidden.any() and not state.cell.any()


@pytest.mark.parametrize("kind", KINDS)
def test_select_commutes_with_step(kind):
    model, rows = tiny(kind), torch.tensor([2, 2, 0])
    state, tokens = start(model, Sequences.of([[3, 4], [5], [6, 7, 8]], pad=0))
    scores, after = model.step(tokens, state.copy())
    chosen, other = model.step(tokens[rows], state.select(rows))
    torch.testing.assert_close(chosen, scores[rows], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(other.tensors(), after.select(rows).tensors(), atol=1e-6, rtol=1e-6)


def test_later_tokens_do_not_change_earlier_states():
    model, rows = tiny(), ids(2, 6)
    changed = rows.clone()
    changed[:, 4:] = 3
    before, after = model(rows).hidden, model(changed).hidden
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.equal(before[:, 4:], after[:, 4:])


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_gets_a_gradient_from_one_window(kind):
    model, rows = tiny(kind).train(), ids(3, 7)
    total, count = model.head.loss(model(rows[:, :-1]).hidden.flatten(0, 1), rows[:, 1:].flatten())
    total.backward()
    assert count == 18
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.any(), name


def test_dropout_is_between_layers_and_not_between_steps():
    """With all but the recurrent path set to zero, two windows still share their state."""
    torch.manual_seed(0)
    model = tiny(dropout=0.5).train()
    dropped = []
    hook = lambda module, args, out: dropped.append(tuple(out.shape))  # noqa: E731
    for module in (model.dropout, model.stack.dropout):
        module.register_forward_hook(hook)
    model(ids(2, 5))
    assert dropped == [(2, 5, 8)] * 3  # the embedding, between the two layers, the output


def test_the_recurrent_model_is_registered():
    assert model_class("lstm-lm") is RecurrentLanguageModel
