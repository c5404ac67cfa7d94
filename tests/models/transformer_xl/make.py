"""Makes the files beside it: tiny Transformer-XLs, and what transformers 4.35.2 computes with them.

    python tests/models/transformer_xl/make.py

Later releases of transformers have no Transformer-XL. Each file holds config.json in its metadata,
the weights, three segments of ids, what the model says of them while its memory is carried on, the
memory after the last, and of some the gradients of the second segment's loss in training mode.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import (
    TransfoXLConfig,
    TransfoXLForSequenceClassification,
    TransfoXLLMHeadModel,
    __version__,
)

SMALL = dict(
    vocab_size=24, d_model=8, d_embed=8, n_head=2, d_head=4, d_inner=10, n_layer=2, mem_len=5,
    cutoffs=[7, 15], div_val=2, clamp_len=-1, same_length=False, dropout=0.0, dropatt=0.0,
    init_std=0.3, proj_init_std=0.3,
)  # fmt: skip
CASES = {
    "shared_biases": dict(untie_r=False),
    "no_clusters": dict(cutoffs=[], div_val=1),
    "one_projected_cluster": dict(cutoffs=[], div_val=2),
    "one_width": dict(div_val=1),
    "narrow": dict(div_val=1, d_embed=6, tie_projs=[True, False, True]),
    "odd_clusters": dict(cutoffs=[3, 4, 17], tie_projs=[True, False, True, False]),
    "clamped": dict(clamp_len=3),
    "same_length": dict(same_length=True),
    "no_memory": dict(mem_len=0),
    "long_memory": dict(mem_len=30, same_length=True, clamp_len=7),
    "pre_norm": dict(pre_lnorm=True, n_head=3, d_head=5),
    "untied": dict(tie_word_embeddings=False, tie_projs=[False, False, False]),
}
WITH_GRADIENTS = {"shared_biases", "narrow", "odd_clusters", "clamped", "pre_norm"}
SEGMENTS = 3, 6, 2  # tokens: fewer, and more, than the memory has


def made(kind: type, **options: object) -> torch.nn.Module:
    torch.manual_seed(7)
    model = kind(TransfoXLConfig(**{**SMALL, **options}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


def language_model(**options: object) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    model, mems, found = made(TransfoXLLMHeadModel, **options), None, {}
    for n, count in enumerate(SEGMENTS):
        ids = torch.randint(0, SMALL["vocab_size"], (2, count))
        model.train(n == 1)
        model.zero_grad()
        out = model(ids, mems=mems)
        mems, found[f"ids_{n}"], found[f"log_probs_{n}"] = out.mems, ids, out.prediction_scores
        if n == 1:
            targets = (torch.arange(ids.numel()).view_as(ids) * 5 + 3) % SMALL["vocab_size"]
            found["targets"] = targets
            (-out.prediction_scores.gather(2, targets[..., None])).sum().backward()
            gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
            found |= {f"gradient.{name}": gradient for name, gradient in gradients.items()}
    if mems is not None:  # (L, M, B, D) -> (B, L, M, D)
        found["memory"] = torch.stack(mems).permute(2, 0, 1, 3)
    return model, found


def classifier() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    model = made(TransfoXLForSequenceClassification, pad_token_id=1, num_labels=3)
    ids = torch.tensor([[4, 5, 6, 7], [8, 9, 1, 1], [10, 1, 1, 1]])
    return model, {"ids": ids, "logits": model(ids).logits}


def write(name: str, model: torch.nn.Module, found: dict[str, torch.Tensor]) -> None:
    weights = {f"model.{key}": value for key, value in model.state_dict().items()}
    both = {key: value.detach().clone().contiguous() for key, value in {**weights, **found}.items()}
    config = model.config.to_dict() | {"architectures": [type(model).__name__]}
    path = Path(__file__).with_name(f"{name}.safetensors")
    save_file(both, path, {"config": json.dumps(config)})
    print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    assert __version__ == "4.35.2"
    for name, options in CASES.items():
        model, found = language_model(**options)
        kept = name in WITH_GRADIENTS
        write(name, model, {n: t for n, t in found.items() if kept or "gradient" not in n})
    write("classifier", *classifier())
