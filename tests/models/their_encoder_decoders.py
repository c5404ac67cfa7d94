"""What encoder-decoders of `transformers` and ours compute from the same weights, both ways."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.checkpoints.formats import from_published, layout_of
from regard.data.batches import Sequences

transformers = pytest.importorskip("transformers")
CLOSE = dict(atol=1e-5, rtol=1e-5)


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


def ours_of(model: nn.Module) -> Any:
    return from_published(model.config.to_dict(), weights(model)).eval()


def batch(pad: int, start: int, eos: int) -> tuple[Sequences, Tensor, Tensor]:
    """Sources of all lengths, targets, and the labels of these."""
    rows = [[4, 5, 6, 7, 8, 30, 22, 20, 5, eos], [9, eos], [eos], [13, 3, 8, eos]]
    target = torch.tensor([[5, 6, 7], [9, 4, 4], [3, 4, 4], [20, 22, 4]])
    labels = torch.cat([target, torch.full((4, 1), eos)], 1)
    labels[1, 1:], labels[2, 1:] = torch.tensor([eos, -100, -100]), -100
    return Sequences.of(rows, pad), nn.functional.pad(target, (1, 0), value=start), labels


def their_logits(model: nn.Module, source: Sequences, target: Tensor) -> Tensor:
    mask = source.keep.long()
    return model(input_ids=source.ids, attention_mask=mask, decoder_input_ids=target).logits


def our_logits(model: Any, source: Sequences, target: Tensor) -> Tensor:
    return model.head.logits(model(source, Sequences.full(target)).hidden)


def assert_same_logits_and_gradients(model: nn.Module, ours: Any, kind: str, rows: Any) -> None:
    source, target, labels = rows
    expected, found = their_logits(model, source, target), our_logits(ours, source, target)
    torch.testing.assert_close(found, expected, **CLOSE)
    assert expected.std() > 0.1  # there was something to compare
    F.cross_entropy(expected.flatten(0, 1), labels.flatten(), reduction="sum").backward()
    hidden = ours(source, Sequences.full(target)).hidden.flatten(0, 1)
    ours.head.loss(hidden, labels.flatten())[0].backward()
    grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    if "final_logits_bias" in model.state_dict():  # theirs is a constant; ours is learned
        grads["final_logits_bias"] = torch.zeros(1, ours.config.vocab_size)
    converted = layout_of(kind).names_of(ours).read(grads, weights(ours))
    for name, parameter in ours.named_parameters():
        if name != "head.bias" or "final_logits_bias" not in grads:
            found, wanted = parameter.grad, converted[name]
            torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4, msg=name)
