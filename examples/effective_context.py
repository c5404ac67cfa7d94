"""How much context helps trained models: python examples/effective_context.py RUNS TEXT MODEL...

RUNS is a folder of runs, such as runs/long-memory-ptb of examples/long_memory.py, TEXT a file of
lines and MODEL the name of a run. The table has the perplexity of 3,000 tokens after contexts of
8 to 256 tokens; then the relative effective context length of each model (Dai et al. 2019, section
4.4 and appendix C).

With l_i(c, t) the loss of model i at token t after a context of c tokens, and of a group of models

    b(c, t) = min over i of l_i(c, t)              T(c): the tokens with the largest b(c, t)
    f_i(c, c') = mean over T(c) of min(b(c, t), l_i(c', t))
    g_i(c, c') = (f_i(c, c) - f_i(c, c')) / f_i(c, c)

the relative effective context length of model i is the smallest of the contexts from which on the
next longer one gains less than a threshold: g_i(c, next) < 0.01.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import regard
from regard import ops
from regard.data import encode_texts
from regard.decoding.steps import evaluating
from regard.errors import ConfigError, RegardError
from regard.models.protocols import LanguageModel

CONTEXTS = (8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)
SHOWN = (8, 16, 32, 64, 128, 256)

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


def main(runs: str, text: str, *names: str) -> None:
    """Print the table and the lengths."""
    tasks = {name: regard.load(Path(runs) / name / "model") for name in names}
    tokenizer = tasks[names[0]].tokenizer
    lines = Path(text).read_text(encoding="utf-8").splitlines()
    ids = encode_texts(lines, tokenizer, after=tokenizer.required_ids("eos")).ids.tolist()
    targets = random.Random(0).sample(range(max(CONTEXTS), len(ids)), 3000)
    losses = {
        name: losses_by_context(task.module, ids, CONTEXTS, sorted(targets))
        for name, task in tasks.items()
    }
    print(f"{'context':28}", *(f"{one:7}" for one in SHOWN))
    for name, found in losses.items():
        means = dict(zip(CONTEXTS, np.exp(found.mean(1)), strict=True))
        print(f"{name:28}", *(f"{means[one]:7.1f}" for one in SHOWN))
    for threshold in (0.01, 0.002):
        for share in (0.1, 1.0):
            found = relative_effective_context(losses, CONTEXTS, share=share, threshold=threshold)
            print(f"{share:.0%} of the tokens, gains of {threshold:.1%}:", found)


if __name__ == "__main__":
    main(*sys.argv[1:])
