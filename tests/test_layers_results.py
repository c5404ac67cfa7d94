"""What `regard.layers` gives is what it gave before: tests/results/layers.json."""

from __future__ import annotations

from contextlib import suppress

import torch
from stored_results import check, digest, each_section
from test_models_results import TARGET, Case, begun, cases, filled, passes, registry

from regard.errors import ConfigError
from regard.models.encoder_with_heads import HEADS, EncoderWithHeads


def numbers_of(case: Case) -> dict[str, float]:
    """States and gradients of a loss in training; an encoder's heads, new and in training."""
    model = begun(case)[0].train()
    model.zero_grad()
    torch.manual_seed(3)
    states = passes(model)
    loss = states[-1].square().sum()
    if hasattr(model, "step"):
        loss = model.head.loss(states[0].flatten(0, 1), TARGET.flatten(), 0.1)[0]
    loss.backward()
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    numbers = {"gradient": digest([*states, loss[None], *gradients])}
    if not hasattr(model, "new_head") or case[1] > 0:
        return numbers
    batch = registry.read_by(model, registry.source(7))
    for kind in sorted(HEADS):
        torch.manual_seed(3)
        with suppress(ConfigError):
            head = model.new_head(kind, 3)
            numbers[f"new {kind} head"] = digest(head.parameters())
            whole = filled(EncoderWithHeads(model, {kind: head})).train()
            with torch.no_grad():
                numbers[f"{kind} head"] = digest([whole.scores(kind, batch)])
    return numbers


def of_layers(name: str) -> dict[str, dict[str, float]]:
    """The numbers of all tiny configurations of a model."""
    return {registry.name_of(case): numbers_of(case) for case in cases(name)}


@each_section("layers")
def test_statements_give_what_they_gave_before(section):
    check("layers", section)
