"""A model for another vocabulary: known tokens keep their rows, new ones start from the mean.

So ULMFiT starts on the words of a new text (Howard & Ruder 2018, in its code): the vectors and
output biases of words that the model has not met are the means of those that it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.layers.adaptive_softmax import AdaptiveSoftmax
from regard.models.encoder_with_heads import EncoderWithHeads, assembled


def exchange_vocabulary(model: nn.Module, rows: Sequence[int], **ids: int | None) -> nn.Module:
    """The same model for a vocabulary whose token n has row `rows[n]` of the model, -1 for none.

    ids: the options of the configuration that name tokens (bos, eos, pad), where they change.

    Raises:
        ConfigError: the rows of its vocabulary are divided, as in an adaptive softmax, or stand
            for more than tokens.
    """
    of_tokens = _tensors_of_tokens(model)
    exchanged = _like(model, len(rows), **ids)
    index = torch.tensor(rows)
    tensors = {
        name: _exchanged(old, index) if name in of_tokens else old
        for name, old in model.state_dict().items()
    }
    exchanged.load_state_dict(tensors)
    exchanged.train(model.training)
    return exchanged.to(next(model.parameters()).device)


def _exchanged(old: Tensor, index: Tensor) -> Tensor:
    """(V, ...) -> (V', ...)"""
    rows = old[index.clamp(min=0).to(old.device)]
    new = (index < 0).to(old.device).view(-1, *[1] * (old.dim() - 1))
    return torch.where(new, old.mean(0, keepdim=True), rows)


def _tensors_of_tokens(model: nn.Module) -> set[str]:
    """The names of tensors that have a row for each token.

    Raises:
        ConfigError: others depend on the size of the vocabulary, too.
    """
    config: Any = model.config
    size = config.vocab_size
    if any(isinstance(part, AdaptiveSoftmax) and part.clusters.cutoffs for part in model.modules()):
        raise _divided(model, "it is divided into clusters by the order of its tokens")
    with torch.device("meta"):
        shapes, larger = (
            {name: tensor.shape for name, tensor in _like(model, count).state_dict().items()}
            for count in (size, size + 1)
        )
    names = {name for name, shape in shapes.items() if larger.get(name) != shape}
    for name in names:
        if shapes[name][:1] != (size,) or larger.get(name) != (size + 1, *shapes[name][1:]):
            raise _divided(model, f"{name} has no row for each token")
    return names


def _divided(model: nn.Module, why: str) -> ConfigError:
    return ConfigError(
        f"The vocabulary of {type(model).__name__} cannot be exchanged: {why}. Leave [tokenizer] "
        "out."
    )


def _like(model: nn.Module, vocab_size: int, **ids: int | None) -> nn.Module:
    """A new model with the same options but for those of the vocabulary."""
    config: Any = replace(model.config, vocab_size=vocab_size, **ids)  # type: ignore[type-var]
    if not isinstance(model, EncoderWithHeads):
        plain: nn.Module = type(model)(config)
        return plain
    kind: Any = type(model.encoder)
    grown = assembled(kind(config), model.outputs())
    grown.labels, grown.architecture = model.labels, model.architecture
    return grown
