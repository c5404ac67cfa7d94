"""What `regard.attention` gives is what it gave before: tests/results/attention.json."""

from __future__ import annotations

import torch
from captured_weights import heard_by
from stored_results import check, digest, each_section
from test_models_results import TARGET, Case, begun, cases, passes, registry
from torch import Tensor

from regard.attention.capture import CapturePoint
from regard.data.batches import Sequences
from regard.decoding.steps import start


class Weights(registry.Recorder):
    """Keeps the attention weights of a pass."""

    def take(self, point: CapturePoint, weights: Tensor) -> None:
        super().take(point, weights)
        self.kept.append(weights)


@torch.no_grad()
def numbers_of(case: Case) -> dict[str, float]:
    """Attention weights and states of a pass, in use and in training; logits step by step."""
    model, numbers = begun(case)[0], {}
    for mode in ("train", "eval"):
        listener = Weights(getattr(model, mode)())
        listener.kept = []
        torch.manual_seed(5)
        with heard_by(listener):
            numbers[mode] = digest([*passes(model), *listener.kept])
    if hasattr(model, "step"):
        prompts = Sequences.of([[4, 5, 6, 7], [8], [9, 10]], registry.PAD)
        state, scores = start(model, prompts if model.continues else registry.source())[0], []
        for tokens in TARGET.split((4, 1, 4), 1):
            logits, state = model.step(tokens, state.select(torch.tensor([2, 0, 1])))
            scores.append(logits.log_softmax(-1))
        numbers["steps"] = digest(scores)
    return numbers


def of_attention(name: str) -> dict[str, dict[str, float]]:
    """The numbers of all tiny configurations of a model."""
    return {registry.name_of(case): numbers_of(case) for case in cases(name)}


@each_section("attention")
def test_statements_give_what_they_gave_before(section):
    check("attention", section)
