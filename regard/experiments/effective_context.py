"""How much context helps a language model: relative effective context length (Dai et al. 2019,
section 4.4 and appendix C).

With l_i(c, t) the loss of model i at token t after a context of c tokens, and of a group of models

    b(c, t) = min over i of l_i(c, t)              T(c): the tokens with the largest b(c, t)
    f_i(c, c') = mean over T(c) of min(b(c, t), l_i(c', t))
    g_i(c, c') = (f_i(c, c) - f_i(c, c')) / f_i(c, c)

the relative effective context length of model i is the smallest of the contexts from which on the
next longer one gains less than a threshold: g_i(c, next) < 0.01.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from regard import ops
from regard.decoding.steps import evaluating
from regard.errors import ConfigError, RegardError
from regard.models.protocols import LanguageModel

ROWS = 64  # contexts that are read together


@torch.no_grad()
def losses_by_context(
    model: LanguageModel, ids: Sequence[int], contexts: Sequence[int], targets: Sequence[int]
) -> np.ndarray:
    """l(c, t) in nats, (contexts, targets): each target after the c tokens before it.

    A model that reads fewer tokens than a context reads the last of them.

    Args:
        ids: a text.
        targets: positions in it, each with the longest context before it.

    Raises:
        ConfigError: a context is shorter than one token, or a target has not as many before it.
    """
    if min(contexts, default=0) < 1 or min(targets, default=0) < max(contexts):
        raise ConfigError(
            f"`targets` must have the longest context, {max(contexts, default=1)} tokens, before "
            "them, and `contexts` be at least 1."
        )
    text, found = torch.tensor(ids), np.zeros((len(contexts), len(targets)))
    assert isinstance(model, nn.Module)
    device = next(model.parameters()).device
    with evaluating(model):
        for row, context in enumerate(contexts):
            read = min(context, model.config.max_length or context)
            starts = torch.tensor(targets) - read
            windows = text[starts[:, None] + torch.arange(read)]  # (N, c)
            parts = zip(windows.split(ROWS), text[torch.tensor(targets)].split(ROWS), strict=True)
            losses = [_last_losses(model, w.to(device), n.to(device)) for w, n in parts]
            found[row] = torch.cat(losses).cpu().numpy()
    return found


def _last_losses(model: LanguageModel, windows: Tensor, following: Tensor) -> Tensor:
    """-log p of the token after each window: (N, c) and (N,) -> (N,)."""
    hidden = model(windows).hidden[:, -1]
    return ops.negative_log_likelihood(model.head.logits(hidden), following)


def relative_effective_context(
    losses: Mapping[str, np.ndarray],
    contexts: Sequence[int],
    *,
    share: float = 0.1,
    threshold: float = 0.01,
) -> dict[str, int]:
    """The relative effective context length of each model of a group, in tokens.

    Args:
        losses: l_i(c, t) of each model, (contexts, tokens).
        contexts: ascending.
        share: of the tokens, those that are hardest to predict; the paper's r.
        threshold: of the relative gain.

    Raises:
        RegardError: the arrays have other shapes, or the contexts do not ascend.
    """
    shapes = {array.shape for array in losses.values()}
    ascending = all(a < b for a, b in zip(contexts, contexts[1:], strict=False))
    if len(shapes) != 1 or next(iter(shapes))[0] != len(contexts) or not ascending:
        raise RegardError(
            "`losses` must be an array (contexts, tokens) for each model, of one shape, and "
            f"`contexts` ascend, but the shapes are {sorted(shapes)} and there are {len(contexts)}."
        )
    best = np.min(list(losses.values()), axis=0)  # b(c, t)
    count = max(1, round(share * best.shape[1]))
    return {name: _effective(one, best, contexts, count, threshold) for name, one in losses.items()}


def _effective(
    own: np.ndarray, best: np.ndarray, contexts: Sequence[int], count: int, threshold: float
) -> int:
    for at in range(len(contexts) - 1):
        hardest = np.argsort(-best[at], kind="stable")[:count]
        before, after = (np.minimum(best[at], own[n])[hardest].mean() for n in (at, at + 1))
        if (before - after) / before < threshold:
            return contexts[at]
    return contexts[-1]
