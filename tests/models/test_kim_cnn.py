"""Kim's convolutions over words, against the formula written naively in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from regard.data.batches import Sequences
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.word_encoders import KimCNN, KimCNNConfig

SMALL = dict(d_words=5, filters=((1, 2), (2, 3), (4, 3)), dropout=0.0)
ROWS = [[3, 4, 5, 6, 7, 3], [8], [4, 4, 9]]


def build(vectors: str = "non-static") -> KimCNN:
    torch.manual_seed(1)
    model = KimCNN(KimCNNConfig(10, vectors=vectors, **SMALL)).double().eval()
    if model.frozen is not None:
        model.frozen.weight.data.normal_()
    return model


def naive(model: KimCNN, row: list[int]) -> Tensor:
    """c_t = relu(w · x_{t-(h-1)/2 : ...} + b), zeros outside of the text: (T, F)."""
    words = model.embedding.weight[row]
    if model.frozen is not None:
        words = words + model.frozen.weight[row]
    features = []
    for conv, (width, count) in zip(model.convolutions, model.config.filters, strict=True):
        for f in range(count):
            column = []
            for t in range(len(row)):
                total = conv.bias[f]
                for k in range(width):
                    at = t - (width - 1) // 2 + k
                    if 0 <= at < len(row):
                        total = total + conv.weight[f, :, k] @ words[at]
                column.append(total.clamp(min=0))
            features.append(torch.stack(column))
    return torch.stack(features, 1)


@pytest.mark.parametrize("vectors", ["non-static", "static", "multichannel"])
def test_features_and_gradients_equal_the_formula_in_any_batch(vectors):
    model, batch = build(vectors), Sequences.of(ROWS, 0)
    found = model.encode(batch)
    learned = [p for p in model.parameters() if p.requires_grad]
    assert len(learned) == (6 if vectors == "static" else 7)
    sums: list[Tensor] = []
    for one, row in zip(found, ROWS, strict=True):
        torch.testing.assert_close(one[: len(row)], naive(model, row))
        sums.append(naive(model, row).square().sum())
    ours = torch.autograd.grad((found * batch.keep[..., None]).square().sum(), learned)
    for one, other in zip(ours, torch.autograd.grad(sum(sums), learned), strict=True):
        torch.testing.assert_close(one, other)


def test_classes_read_the_maximum_over_the_text():
    model = EncoderWithHeads(build(), {"classes": build().new_head("classes", 3)}).double().eval()
    scores = model.scores("classes", Sequences.of(ROWS, 0))
    for one, row in zip(scores, ROWS, strict=True):
        pooled = naive(model.encoder, row).amax(0)
        torch.testing.assert_close(one, model.heads["classes"].output(pooled))
