"""Which weights decay, what an update computes, and that an optimizer's memory travels."""

from __future__ import annotations

import pytest
import torch
from toy import Toy

from regard import ops
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.recurrent import AwdLstm, AwdLstmConfig
from regard.ops import WeightCopies, cast, weight_copies
from regard.training.optimizers import (
    clip,
    decayed,
    layer_groups,
    named_state,
    optimizer,
    restore_state,
    trained,
)
from regard.training.optimizers import gradients as gradients_of
from regard.training.options import OptimizerOptions


def undecayed(model):
    return {name: p for name, p in model.named_parameters() if name not in decayed(model)}


def gradients(model, seed):
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator)


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
@pytest.mark.parametrize("limit", [0.0, 0.5, 1e6])
def test_three_clipped_updates_equal_those_of_torch(limit, name, kernels, request):
    if not kernels:
        request.getfixturevalue("no_kernels")
    model, theirs = Toy().module, Toy().module
    theirs.load_state_dict(model.state_dict())
    momentum = 0.9 if name == "sgd" else 0.0
    options = OptimizerOptions(name, 0.01, (0.9, 0.98), weight_decay=0.1, momentum=momentum)
    mine, other = optimizer(model, options), torch_s(theirs, options)
    for seed in range(3):
        gradients(model, seed), gradients(theirs, seed)
        norm = ops.gradient_norm(gradients_of(mine))
        clip(mine, float(norm), limit)
        expected = torch.nn.utils.clip_grad_norm_(theirs.parameters(), limit or torch.inf)
        torch.testing.assert_close(norm, expected)
        mine.step(), other.step()
    for ours, expected in zip(model.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(ours, expected)


def torch_s(model, o):
    """The published rules, which torch has in a plain form."""
    kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    groups = [
        {"params": list(decayed(model).values()), "weight_decay": o.weight_decay},
        {"params": list(undecayed(model).values()), "weight_decay": 0.0},
    ]
    more = dict(momentum=o.momentum) if o.name == "sgd" else dict(betas=o.betas, eps=o.eps)
    return kinds[o.name](groups, o.learning_rate, foreach=False, **more)


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_low_precision_copies_follow_their_weights(name):
    """Torch's fused updates leave no trace in a parameter's version: they would be missed."""
    model = Toy().module
    rule = optimizer(model, OptimizerOptions(name, 0.1))
    weight = dict(model.named_parameters())["lstm.weight_ih_l0"]
    with weight_copies(WeightCopies()):
        for seed in range(3):
            before = cast(weight, torch.bfloat16)
            assert torch.equal(before, weight.bfloat16()) and cast(weight, torch.bfloat16) is before
            gradients(model, seed)
            rule.step()
        assert torch.equal(cast(weight, torch.bfloat16), weight.bfloat16())


def test_the_state_of_adam_has_the_names_of_torch():
    """A checkpoint of torch's optimizer goes on in ours, and the other way round."""
    model, theirs = Toy().module, Toy().module
    theirs.load_state_dict(model.state_dict())
    options = OptimizerOptions("adamw", 0.01, (0.9, 0.98), weight_decay=0.0)
    mine, other = optimizer(model, options), torch_s(theirs, options)
    for seed in range(4):
        gradients(model, seed), gradients(theirs, seed)
        mine.step(), other.step()
        states = mine.state_dict(), other.state_dict()
        mine.load_state_dict(states[1]), other.load_state_dict(states[0])
    for ours, expected in zip(model.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_the_optimizer_state_is_restored_by_name(name):
    options = OptimizerOptions(name, 0.01, (0.9, 0.98), weight_decay=0.1, momentum=0.9)
    model, other = Toy().module, Toy(seed=2).module
    first, second = optimizer(model, options), optimizer(other, options)
    gradients(model, 0)
    first.step()
    state = {name: one.clone() for name, one in named_state(first, trained(model)).items()}
    restore_state(second, trained(other), state)
    other.load_state_dict(model.state_dict())
    for one, rule in ((model, first), (other, second)):
        gradients(one, 1)
        rule.step()
    assert all(map(torch.equal, model.state_dict().values(), other.state_dict().values()))


# ---- layer groups


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
