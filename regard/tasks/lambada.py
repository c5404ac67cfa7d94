"""LAMBADA: predict the last word of a passage (Paperno et al. 2016).

The word can be guessed from the whole passage but not from its last sentence alone, so it measures
the use of long contexts. The word is all that follows the last space, of any number of tokens; each
of them must be the most probable one after the right tokens before it.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from regard.data import TokenArray, sorted_batches
from regard.decoding.steps import evaluating
from regard.errors import RegardError
from regard.metrics import Score
from regard.models.protocols import Generator
from regard.tasks.batching import watched
from regard.tasks.embedder import batch_budget
from regard.tasks.finite_checks import check_finite, check_likelihood
from regard.tasks.log_likelihoods import ending_log_likelihoods
from regard.text import Tokenizer


@torch.no_grad()
def lambada_scores(model: Generator, tokenizer: Tokenizer, passages: Sequence[str]) -> list[Score]:
    """Accuracy of the last word, and its perplexity: exp of the mean of -log p(word).

    Passages beyond the model's context lose their beginning; the signature counts them, and words
    with unknown tokens.

    Raises:
        RegardError: there is no passage, or one has no word before its last.
    """
    if not passages:
        raise RegardError("There must be at least one passage, but there is none.")
    split = [_split(tokenizer, text, number) for number, text in enumerate(passages, 1)]
    limit = model.text_limit
    longest = math.inf if limit is None else limit + 1  # the last token is not read
    rows = TokenArray.of([ids[-int(min(longest, len(ids))) :] for ids, _ in split])
    counts = np.array([count for _, count in split])
    if limit is not None and counts.max() > limit:
        raise RegardError(
            f"Passage {int(counts.argmax()) + 1} ends in a word of {counts.max()} tokens, but this "
            f"model's context is {limit}."
        )
    nats, right = torch.zeros(len(rows), dtype=torch.float64), torch.zeros(len(rows))
    budget, pads = batch_budget(model), (model.config.pad,)
    batches = sorted_batches((rows,), pads, max_tokens=budget, make=lambda sequences: sequences)
    with evaluating(model):
        for numbers, batch in zip(batches.indices, watched(batches), strict=True):
            log_probs, best = ending_log_likelihoods(
                model, batch, torch.from_numpy(counts[numbers])
            )
            nats[numbers], right[numbers] = -log_probs, best.float()
    check_finite(nats.isfinite(), range(len(rows)), "scores of its last word")
    truncated = sum(len(ids) > longest for ids, _ in split)
    unknown = sum(tokenizer.unk_id in ids[-count:] for ids, count in split)
    return _scores(tokenizer, nats, right, truncated, unknown)


def _split(tokenizer: Tokenizer, text: str, number: int) -> tuple[list[int], int]:
    """The tokens of a passage, and how many of them belong to its last word."""
    text = text.strip()
    space, encoding = text.rfind(" "), tokenizer.encode(text)
    # Tokens may include the space before a word, so their ends decide.
    count = sum(end > space + 1 for _, end in encoding.offsets)
    if space < 0 or not 0 < count < len(encoding):
        raise RegardError(
            f"Passage {number} must have a word before its last one, but is {text!r:.80}."
        )
    return encoding.ids, count


def _scores(
    tokenizer: Tokenizer, nats: Tensor, right: Tensor, truncated: int, unknown: int
) -> list[Score]:
    signature = (
        f"word:after-last-space|match:greedy|tok:{tokenizer.kind}-{tokenizer.vocab_size}"
        f"|count:{len(nats)}"
    )
    signature += f"|cut:{truncated}" if truncated else ""
    signature += f"|unk:{unknown}" if unknown else ""
    mean = float(nats.mean())
    perplexity = math.exp(mean) if mean < 709 else math.inf
    check_likelihood(float(nats.sum()), perplexity)
    return [
        Score("last-word accuracy", float(right.mean()), signature, len(nats), 4),
        Score("last-word perplexity", perplexity, signature, len(nats)),
    ]
