"""How far the gradient of a loss reaches back through time: an RNN and an LSTM.

    norms = {name: gradient_norms(task.module, task.tokenizer, text, length=100)
             for name, task in {"RNN": rnn, "LSTM": lstm}.items()}
    gradient_curves(norms).save("gradients.png")

For the loss of the last token alone, L_T, the norm of dL_T / dh_t falls (or grows) with every step
back, by the product of the Jacobians between t and T (Bengio et al. 1994; Pascanu et al. 2013,
eq. 5). Every hidden state is taken with all that depends on it: the steps after it, and the layers
above it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from regard.decoding.steps import evaluating
from regard.errors import ConfigError
from regard.models.elmo import Elmo
from regard.models.protocols import LanguageModel, Recurrent
from regard.text import Tokenizer
from regard.visual.curves import Curves, Series
from regard.visual.picture import Illustration, PictureRow
from regard.visual.recurrent_cells import encoded, recurrent_part


def gradient_norms(
    model: nn.Module, tokenizer: Tokenizer, text: str, length: int | None = None
) -> Tensor:
    """The norm of dL_T / dh_t in each layer and step, (L, T): L_T is the loss after T tokens.

    Args:
        model: a language model of recurrent layers.
        length: T. The text is cut into windows of T + 1 tokens, each read from a state of zeros;
            the norms are the means over them, and tokens after the last window are left out. None:
            one window, the whole text.

    Raises:
        ConfigError: the model is another one; the text has less than two tokens, or than a window.
    """
    part = recurrent_part(model)
    if not (isinstance(part, Recurrent) and isinstance(part, LanguageModel)):
        kind = "ELMo" if isinstance(part, Elmo) else type(part).__name__
        raise ConfigError(f"{kind} does not predict the next token from hidden states alone.")
    ids = encoded(model, tokenizer, text).ids
    ids = ids[::-1] if part.reads_backward else ids
    width = len(ids) if length is None else length + 1
    if not 2 <= width <= len(ids):
        raise ConfigError(
            f"The text has {len(ids):,} tokens: `length` must be from 1 to one less, but is "
            f"{width - 1}."
        )
    count = len(ids) // width
    windows = torch.tensor(ids[: count * width]).view(count, width)
    windows = windows.to(next(model.parameters()).device)
    hidden, loss = _loss_of_last(part, windows[:, :-1], windows[:, -1])
    flat = [state for layer in hidden for state in layer]
    grads = torch.autograd.grad(loss, flat)  # of each window its own: no window reads another
    norms = torch.stack([grad.double().norm(dim=-1).mean() for grad in grads])
    return norms.view(len(hidden), -1).cpu()  # (L T,) -> (L, T)


def _loss_of_last(
    model: Recurrent, ids: Tensor, targets: Tensor
) -> tuple[list[list[Tensor]], Tensor]:
    """The hidden states of each layer after each of the ids (B, T), and the sum of the losses of
    the targets (B,).
    """
    found = []
    with torch.enable_grad(), evaluating(model):
        x = model.embedded(ids)
        x = x if x.requires_grad else x.detach().requires_grad_()  # frozen weights, too
        for layer in model.recurrent_layers:
            states = [hidden for hidden, _ in layer.steps(x, *layer.empty(len(x), x))]
            x = torch.stack(states, 1)  # T x (B, D) -> (B, T, D)
            found.append(states)
        loss, _ = model.head.loss(found[-1][-1], targets)
    return found, loss


def gradient_curves(norms: Mapping[str, Tensor]) -> Illustration:
    """The norms of several models side by side, on a logarithmic scale.

    Args:
        norms: of each model (L, T), from `gradient_norms`.

    Returns:
        The last layers of all models in one chart, then a chart for each model with all its
        layers; `numbers` are the norms. A norm of 0 has no logarithm and no point. In the last
        layer a gradient goes back through time alone; from the others it also goes up at every
        step, to a layer that reaches further.

    Raises:
        ConfigError: there are none.
    """
    if not norms:
        raise ConfigError("`norms` must have those of at least one model.")
    last = tuple(_series(name, one[-1]) for name, one in norms.items())
    charts = tuple(
        _chart([_series(f"layer {n}", row) for n, row in enumerate(one, 1)], name)
        for name, one in norms.items()
    )
    title = "Gradient of the last loss by the hidden state of each step"
    together = (_chart(last, "last layer"),) if len(norms) > 1 else ()
    return Illustration((*together, PictureRow(charts)), title, numbers=dict(norms))


def _series(name: str, norms: Tensor) -> Series:
    back = range(1 - len(norms), 1)  # the last step is 0
    return Series(name, tuple(zip(map(float, back), norms.log10().tolist(), strict=True)))


def _chart(series: tuple[Series, ...] | list[Series], title: str) -> Curves:
    return Curves(tuple(series), title, "step before the last", "log10 of the norm")
