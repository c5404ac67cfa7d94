"""The recurrent language model: its sizes, its state, its prompts."""

from __future__ import annotations

import pytest
import torch

from regard.data.batches import Sequences
from regard.decoding.steps import start
from regard.models.recurrent import RecurrentConfig, RecurrentLanguageModel

WORDS = 13


def tiny(cell="lstm", **options):
    torch.manual_seed(0)
    config = RecurrentConfig(WORDS, cell=cell, d_model=8, layers=2, init_range=0.5, **options)
    return RecurrentLanguageModel(config).eval()


def test_a_tied_output_layer_is_the_embedding():
    model = tiny(tied=True)
    assert model.head.weight is model.embedding.weight
    found = sum(p.numel() for p in tiny().parameters()) - sum(p.numel() for p in model.parameters())
    assert found == WORDS * 8


def test_initial_parameters_are_within_the_range_of_the_config():
    for parameter in tiny().parameters():
        assert 0.2 < parameter.abs().max() <= 0.5


@pytest.mark.parametrize("prompt", [None, Sequences.of([[]], pad=0)])
def test_an_empty_prompt_starts_with_eos_and_a_zero_state(prompt):
    model = tiny()
    state, tokens = start(model, prompt)
    assert tokens.tolist() == [[model.config.eos]]
    assert state.rows == 1 and not state.hidden.any() and not state.cell.any()
