"""Discriminative rates, gradual unfreezing and slanted triangles against their equations."""

from __future__ import annotations

import pytest
import torch
from toy import Toy

from regard.errors import ConfigError
from regard.models import model_class
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.recurrent import AwdLstm, AwdLstmConfig
from regard.training import OptimizerOptions, TrainingOptions
from regard.training.optimizers import (
    frozen_groups,
    layer_groups,
    optimizer,
    set_rate,
    without_gradients,
)


def classifier() -> EncoderWithHeads:
    torch.manual_seed(0)
    encoder = AwdLstm(AwdLstmConfig(vocab_size=9, d_model=4, d_hidden=6, layers=3, inner=5))
    return EncoderWithHeads(encoder, {"classes": encoder.new_head("classes", 2)})


def firsts(groups) -> list[set[str]]:
    return [{".".join(name.split(".")[:3]) for name in group} for group in groups]


def test_the_groups_of_a_classifier_are_embedding_layers_and_head():
    """As fastai's `awd_lstm_clas_split` has them; the unused output over words comes first."""
    assert firsts(layer_groups(classifier())) == [
        {"encoder.embedding.weight", "encoder.head.bias"},
        {"encoder.layers.0"}, {"encoder.layers.1"},
        {"encoder.last.input", "encoder.last.recurrent"},
        {"heads.classes.inner", "heads.classes.output"},
    ]  # fmt: skip


def test_the_groups_of_a_language_model_end_with_the_tied_output():
    """As fastai's `awd_lstm_lm_split`: the embedding is the output's matrix."""
    groups = [set(group) for group in layer_groups(classifier().encoder)]
    assert groups[-1] == {"embedding.weight", "head.bias"} and len(groups) == 4
    assert all(name.startswith("layers.0") for name in groups[0])


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5-encoder"])
def test_other_encoders_have_their_blocks_as_layers(name):
    kind = model_class(name)
    sizes = dict(d_model=8, heads=2, layers=3)
    encoder = kind(kind.Config(vocab_size=11, **sizes))
    whole = EncoderWithHeads(encoder, {"classes": encoder.new_head("classes", 2)})
    groups = layer_groups(whole)
    assert len(groups) == 5 and all(one.startswith("heads.") for one in groups[-1])
    every = [name for group in groups for name in group]
    assert sorted(every) == sorted(name for name, _ in whole.named_parameters())


def test_rates_fall_by_the_factor_from_layer_to_layer():
    model = classifier()
    made = optimizer(
        model, OptimizerOptions("adamw", 0.5, weight_decay=0.1, layerwise_lr_decay=1 / 2.6)
    )
    set_rate(made, 0.5)
    rates = {id(p): group["lr"] for group in made.param_groups for p in group["params"]}
    decays = {id(p): group["weight_decay"] for group in made.param_groups for p in group["params"]}
    for n, group in enumerate(layer_groups(model)):
        for name, parameter in group.items():
            assert rates[id(parameter)] == pytest.approx(0.5 / 2.6 ** (4 - n))
            matrix = parameter.dim() > 1 and "embedding" not in name
            assert decays[id(parameter)] == (0.1 if matrix else 0.0)
    assert len(rates) == len(list(model.parameters()))


def test_layers_unfreeze_from_above():
    assert [frozen_groups(5, epoch, 1) for epoch in range(7)] == [4, 3, 2, 1, 0, 0, 0]
    assert [frozen_groups(5, epoch, 2) for epoch in range(5)] == [4, 4, 3, 3, 2]
    assert frozen_groups(5, 0, 0) == 0
    model = classifier()
    groups = layer_groups(model)
    with without_gradients(groups[:4]):
        learning = {name for name, p in model.named_parameters() if p.requires_grad}
        assert learning == set(groups[4])
    assert all(p.requires_grad for p in model.parameters())


def test_a_model_without_layers_raises_an_error():
    for chosen in (
        dict(optimizer=OptimizerOptions(layerwise_lr_decay=0.385)),
        dict(gradual_unfreezing_interval=1),
    ):
        with pytest.raises(ConfigError, match="has no layers with rates of their own"):
            from regard.training.range_test import GrowingRate

            GrowingRate(Toy(), TrainingOptions(max_steps=9, **chosen))
