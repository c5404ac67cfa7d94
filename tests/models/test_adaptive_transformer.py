"""The Transformer with adaptive input against GPT-2, of which it changes one part."""

from __future__ import annotations

import torch

from regard.checkpoints.formats import to_published
from regard.models.adaptive_transformer import AdaptiveTransformer, AdaptiveTransformerConfig
from regard.models.gpt2 import GPT2, GPT2Config

SIZES = dict(vocab_size=30, d_model=16, heads=2, layers=2, d_ff=24, max_length=20)


def test_with_one_cluster_it_is_gpt2_with_a_scaled_embedding():
    torch.manual_seed(0)
    model = AdaptiveTransformer(AdaptiveTransformerConfig(**SIZES, divisor=1)).double().eval()
    plain = GPT2(GPT2Config(**SIZES, positions="sinusoidal", activation="relu", output="own"))
    plain = plain.double().eval()
    weights = model.state_dict()
    words = weights.pop("embedding.tables.0.weight")
    others = {name: one for name, one in weights.items() if not name.startswith("head.")}
    plain.load_state_dict({**others, "embedding.weight": words * 4, "head.weight": words})
    ids = torch.randint(0, 30, (3, 11))
    found, expected = (one.head.logits(one(ids).hidden) for one in (model, plain))
    torch.testing.assert_close(found, expected.log_softmax(-1))


def test_inputs_and_outputs_share_matrices_and_projections():
    config = AdaptiveTransformerConfig(**SIZES, cutoffs=(5, 12), divisor=2)
    model = AdaptiveTransformer(config)
    assert [table.weight.shape for table in model.embedding.tables] == [(5, 16), (7, 8), (18, 4)]
    for mine, theirs in (
        (model.head.weights, [table.weight for table in model.embedding.tables]),
        (model.head.projections, model.embedding.projections),
    ):
        assert all(one is other for one, other in zip(mine, theirs, strict=True))
    assert to_published(model) is None


def test_the_printed_size_is_that_of_the_papers_cut_offs():
    with torch.device("meta"):
        config = AdaptiveTransformerConfig(267_744, cutoffs=(20_000, 60_000))
        model = AdaptiveTransformer(config)
    assert sum(one.numel() for one in model.parameters()) == 247_203_298  # 247M
