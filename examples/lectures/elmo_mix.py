"""The embedding of a word by ELMo, step by step: two directions, weights of a task, their sum.

Step 1  concatenate the hidden states of both directions, layer by layer
Step 2  multiply each layer by its weight for the task
Step 3  sum the weighted vectors                                   (Peters et al. 2018, eq. 1)
"""

from __future__ import annotations

from typing import Any

import torch
from contextual_words import occurrences
from torch import Tensor, nn

from regard.decoding.steps import evaluating
from regard.errors import ConfigError
from regard.layers.pooling import ScalarMix
from regard.models.composed import Features
from regard.models.elmo import Elmo
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.visual.attention_record import as_encoder
from regard.visual.charts import Heatmap
from regard.visual.picture import Illustration, Note, Table


def elmo_steps(
    model: Any,
    text: str,
    word: str,
    input_format: Any = None,
    dimensions: int = 6,
) -> Illustration:
    """How the vector of the first occurrence of a word in a text is made.

    The weights are those of the mix that the model's task has learned, before any training equal.

    Args:
        model: a task on an ELMo, or on features of one with the layers "mix"; or such an encoder
            with `input_format`.
        word: without white space.
        dimensions: how many of each direction are shown.

    Returns:
        A picture; `numbers` has "layers" (L + 1, D), "shares" (L + 1,), which are the softmax of
        the scalars, "gamma", "weighted" (L + 1, D) and "sum" (D,).

    Raises:
        ConfigError: the model is no ELMo, or the word does not occur.
    """
    module, input_format = as_encoder(model, input_format)
    elmo, mix = _parts(module)
    (row,) = input_format.encode([(text,)])
    found = occurrences(text, word, input_format.tokenizer)
    if not found:
        raise ConfigError(f"{word!r} does not occur in {text!r:.80}.")
    position = row.starts[0] + found[0][0]
    batch = elmo.complete(input_format.batch([row]), input_format.tokenizer)
    with torch.no_grad(), evaluating(elmo):
        states = elmo.states(batch.to(next(elmo.parameters()).device))
        layers = torch.stack([hidden[0, position] for hidden in states]).cpu()  # (L + 1, D)
        shares, gamma = mix.scalars.softmax(0).cpu(), mix.gamma.detach().cpu()
    weighted = gamma * shares[:, None] * layers
    numbers = {"layers": layers, "shares": shares, "gamma": gamma, "weighted": weighted}
    return _picture(text, word, numbers | {"sum": weighted.sum(0)}, dimensions)


def _parts(module: nn.Module) -> tuple[Elmo, ScalarMix]:
    """The ELMo of a model, and the mix of its layers that the task reads."""
    encoder: Any = module.encoder if isinstance(module, EncoderWithHeads) else module
    if isinstance(encoder, Elmo):
        return encoder, encoder.mix
    if isinstance(encoder, Features) and isinstance(encoder.encoder, Elmo):
        if isinstance(encoder.choice, ScalarMix):
            return encoder.encoder, encoder.choice
        raise ConfigError(
            "The layers that this model reads have no learned weights. Train it with "
            'combine = "mix" in [model.features].'
        )
    raise ConfigError(f"{type(encoder).__name__} is no ELMo, whose layers have weights for a task.")


def _picture(text: str, word: str, numbers: dict[str, Tensor], dimensions: int) -> Illustration:
    layers, weighted, shares = numbers["layers"], numbers["weighted"], numbers["shares"]
    names = ["characters", *(f"layer {n}" for n in range(1, len(layers)))]
    columns = _columns(layers.size(1) // 2, dimensions)
    labels = [f"{'→' if n < layers.size(1) // 2 else '←'}{n}" for n in columns]
    rows = [
        [name, f"{share:.3f}", f"{float(numbers['gamma'] * share):.3f}"]
        for name, share in zip(names, shares.tolist(), strict=True)
    ]
    total = numbers["sum"][None, columns]
    parts = (
        Note((text, f"→ reads from the left up to “{word}”, ← from the right."), word),
        Heatmap.of(layers[:, columns], names, labels, "Step 1: both directions of each layer"),
        Table.of(["layer", "share s_j", "gamma · s_j"], rows, "Step 2: the weights of the task"),
        Heatmap.of(weighted[:, columns], names, labels, "each layer times its weight"),
        Heatmap.of(total, [word], labels, "Step 3: their sum, ELMo's embedding"),
    )
    return Illustration(parts, f"ELMo's embedding of “{word}”", numbers=dict(numbers))


def _columns(width: int, dimensions: int) -> list[int]:
    """The first dimensions of either direction."""
    shown = min(width, dimensions)
    return [*range(shown), *range(width, width + shown)]
