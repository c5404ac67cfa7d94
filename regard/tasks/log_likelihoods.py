"""The log-likelihoods of texts, each alone, in nats.

a causal model      log p(x) = sum over t of log p(x_t | x_1 ... x_(t-1))
a masked model      PLL(x) = sum over t of log p(x_t | all other tokens), the
                    pseudo-log-likelihood (Salazar et al. 2020, equation 2), in one pass a token
XLNet               either: in the order of the text, or with t last in the order
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from regard.data.batches import Sequences
from regard.data.encoder_inputs import EncodedInputs
from regard.data.sampler import sorted_batches
from regard.data.token_arrays import TokenArray
from regard.decoding.steps import evaluating
from regard.errors import TextError
from regard.layers.softmax import MIN_ROWS, slice_on, token_losses
from regard.models.protocols import Generator
from regard.tasks.batching import device_of, watched
from regard.tasks.embedder import batch_budget
from regard.tasks.finite_checks import check_finite
from regard.text.templates import EncoderInput

if TYPE_CHECKING:
    from regard.models.xlnet import Xlnet
    from regard.tasks.encoding import EncoderTask


@torch.no_grad()
def causal_log_likelihoods(
    model: Generator, texts: Sequence[Sequence[int]], steps: int
) -> list[float]:
    """Of the tokens of each text but the first, which is what precedes it.

    Args:
        steps: tokens that a model without a limit reads at a time.

    Raises:
        TextError: a text is longer than the model's context.
        RegardError: a likelihood is not finite.
    """
    if not texts:
        return []
    if (limit := model.config.max_length) is not None:
        steps = limit  # a text is read at once
        check_lengths([len(ids) - 1 for ids in texts], limit)
    rows = TokenArray.of(texts)
    likelihoods = torch.zeros(len(rows), dtype=torch.float64)
    batches = sorted_batches(
        (rows,),
        (model.config.pad,),
        max_tokens=batch_budget(model),
        make=lambda sequences: sequences,
    )
    with evaluating(model):
        for numbers, batch in zip(batches.indices, watched(batches), strict=True):
            likelihoods[numbers] = _causal(model, batch, steps)
    check_finite(likelihoods.isfinite(), range(len(rows)), "log-likelihood")
    return likelihoods.tolist()


def check_lengths(lengths: Sequence[int], limit: int | None) -> None:
    """Check that the tokens of texts are not more than a model reads.

    Raises:
        TextError: one has more.
    """
    for index, length in enumerate(lengths):
        if limit is not None and length > limit:
            problem = f"has {length:,} tokens, but this model reads at most {limit:,}."
            raise TextError(index, problem, "Shorten it.")


def _causal(model: Generator, batch: Sequences, steps: int) -> Tensor:
    """log p of each row behind its first token, (B,) float64."""
    inputs, targets = batch.ids[:, :-1], batch.ids[:, 1:]  # (B, T - 1)
    predicted = torch.arange(inputs.size(1)) < batch.lengths[:, None] - 1
    likelihoods, device = torch.zeros(len(batch), dtype=torch.float64), device_of(model)
    state = model.empty(len(batch)) if inputs.size(1) > steps else None
    for start in range(0, inputs.size(1), steps):
        part = slice(start, start + steps)
        output, chosen = model(inputs[:, part].to(device), state), predicted[:, part]
        state, hidden = output.state, output.hidden[chosen.to(device)]  # (N, D)
        nats = nats_of(model.head.logits, hidden, targets[:, part][chosen], model.config.vocab_size)
        likelihoods -= likelihoods.new_zeros(len(batch)).index_add(0, chosen.nonzero()[:, 0], nats)
    return likelihoods


def nats_of(
    logits: Callable[[Tensor], Tensor], hidden: Tensor, targets: Tensor, vocab_size: int
) -> Tensor:
    """-log p(target) on the CPU: (N, D) and (N,) -> (N,) float64."""
    if not len(targets):
        return torch.zeros(0, dtype=torch.float64)
    parts = token_losses(hidden, targets.to(hidden.device), logits, vocab_size)
    return torch.cat([*parts]).double().cpu()


@torch.no_grad()
def ending_log_likelihoods(
    model: Generator, texts: Sequences, counts: Tensor
) -> tuple[Tensor, Tensor]:
    """log p of the last tokens of each text given those before, (B,) float64, and whether each of
    them is the most probable one, (B,) bool.

    Of a model with a key/value cache a prefix that neighbours share is read once.

    Args:
        model: in evaluation mode.
        counts: (B,) how many tokens; at least one precedes them.
    """
    last = texts.lengths[:, None] - 1  # one beyond the position that predicts the last token
    positions, device = torch.arange(texts.ids.size(1) - 1), device_of(model)
    predicting = (positions < last) & (positions >= last - counts[:, None])  # (B, T - 1)
    # The last token is predicted, not read: a text may have one more than the model's context.
    hidden = model(texts.ids[:, :-1].to(device)).hidden  # (B, T - 1, D)
    states = hidden[predicting.to(device)]  # (N, D)
    rows, targets = predicting.nonzero()[:, 0], texts.ids[:, 1:][predicting]
    total = torch.zeros(len(texts), dtype=torch.float64)
    best, size = torch.ones(len(texts), dtype=torch.bool), rows_of_slice(model)
    for row, state, target in zip(
        *(tensor.split(size) for tensor in (rows, states, targets)), strict=True
    ):
        log_probs = model.head.logits(state).float().log_softmax(-1).cpu()
        total.index_add_(0, row, log_probs.gather(1, target[:, None])[:, 0].double())
        best[row[log_probs.argmax(-1) != target]] = False
    return total, best


@dataclass(frozen=True)
class TokenLogProbs:
    """The log-probabilities of tokens, each given those before: `own` of the tokens, and of each
    position the most probable tokens, (id, log-probability), best first.
    """

    own: list[float]
    top: list[list[tuple[int, float]]]


@torch.no_grad()
def token_log_probs(
    model: Generator, rows: Sequence[Sequence[int]], counts: Sequence[int], top: int
) -> list[TokenLogProbs]:
    """Of the last `counts` tokens of each row; at least one token precedes them.

    Args:
        top: how many of the most probable tokens.

    Raises:
        TextError: a row is longer than the model's context.
        RegardError: a log-probability is not finite.
    """
    check_lengths([len(ids) - 1 for ids in rows], model.text_limit)
    results = [TokenLogProbs([], []) for _ in rows]
    batches = sorted_batches(
        (TokenArray.of(rows),),
        (model.config.pad,),
        max_tokens=batch_budget(model),
        make=lambda sequences: sequences,
    )
    device = device_of(model)
    with evaluating(model):
        for numbers, batch in zip(batches.indices, batches, strict=True):
            hidden = model(batch.ids[:, :-1].to(device)).hidden  # (B, T - 1, D)
            for row, number in enumerate(numbers.tolist()):
                end = len(rows[number]) - 1
                span = slice(end - counts[number], end)
                targets = torch.tensor(list(rows[number][1:]), device=device)[span]
                results[number] = _of_tokens(model, hidden[row, span], targets, top)
    check_finite(
        torch.tensor([all(map(math.isfinite, result.own)) for result in results]),
        range(len(results)),
        "log-probabilities",
    )
    return results


def _of_tokens(model: Generator, hidden: Tensor, targets: Tensor, top: int) -> TokenLogProbs:
    """Of targets (T,) behind hidden states (T, D), slice by slice."""
    own: list[float] = []
    best: list[list[tuple[int, float]]] = []
    size = rows_of_slice(model)
    for states, target_ids in zip(hidden.split(size), targets.split(size), strict=True):
        log_probs = model.head.logits(states).float().log_softmax(-1)  # (N, V)
        own += log_probs.gather(1, target_ids[:, None])[:, 0].tolist()
        values, ids = log_probs.topk(min(top, log_probs.size(1)))
        pairs = zip(ids.tolist(), values.tolist(), strict=True)
        best += [list(zip(*row, strict=True)) for row in pairs]
    return TokenLogProbs(own, best)


def rows_of_slice(model: Generator) -> int:
    """Of how many tokens the logits are computed at a time."""
    rows: int = slice_on(device_of(model)) // model.config.vocab_size
    return max(MIN_ROWS, rows)


@torch.no_grad()
def pseudo_log_likelihoods(task: EncoderTask, inputs: Sequence[EncoderInput]) -> list[float]:
    """Of the tokens of each input that are not special ones, none of which may be a mask.

    Args:
        task: whose model has the head "masked_lm".

    Raises:
        RegardError: a likelihood is not finite.
    """
    mask: int = task.tokenizer.mask_id  # type: ignore[assignment]
    owners = np.repeat(np.arange(len(inputs)), [item.counts[0] for item in inputs])
    likelihoods = torch.zeros(len(inputs), dtype=torch.float64)
    if not len(owners):
        return likelihoods.tolist()
    tokens = [item.ids[item.starts[0] :][: item.counts[0]] for item in inputs]
    targets = torch.from_numpy(np.concatenate(tokens))
    copies = EncodedInputs(
        TokenArray.of(ids for item in inputs for ids in _masked(item, mask)),
        TokenArray.of((inputs[owner].segments for owner in owners.tolist()), 256),
        TokenArray.of([number] for number in range(len(owners))),
    )
    vocab_size, most = task.module.config.vocab_size, batch_budget(task.encoder)
    with evaluating(task.module):
        for batch in watched(copies.longest_first(task.input_format.pad, max_tokens=most)):
            texts = task.completed(batch).texts
            hidden = task.encoder.encode(texts)[texts.ids == mask]  # (B, D)
            nats = nats_of(task.module.masked_lm.logits, hidden, targets[batch.numbers], vocab_size)
            likelihoods.index_add_(0, torch.from_numpy(owners)[batch.numbers], -nats)
    check_finite(likelihoods.isfinite(), range(len(inputs)), "pseudo-log-likelihood")
    return likelihoods.tolist()


@torch.no_grad()
def query_stream_log_likelihoods(
    model: Xlnet, texts: Sequence[Sequence[int]], scored: Sequence[range]
) -> list[float]:
    """Pseudo-log-likelihoods of the tokens at the positions `scored` of each text.

    A token comes last in the order of a text; the others see each other, as in pre-training.

    Raises:
        TextError: a text is longer than the model reads.
        RegardError: a likelihood is not finite.
    """
    check_lengths(list(map(len, texts)), model.text_limit)
    owners = np.repeat(np.arange(len(texts)), [len(positions) for positions in scored])
    likelihoods = torch.zeros(len(texts), dtype=torch.float64)
    if not len(owners):
        return likelihoods.tolist()
    batches = sorted_batches(
        (
            TokenArray.of(texts[owner] for owner in owners.tolist()),
            TokenArray.of([at] for positions in scored for at in positions),
        ),
        (model.config.pad, 0),
        max_tokens=batch_budget(model),
        make=_last_in_order,
    )
    device = device_of(model)
    with evaluating(model):
        for numbers, batch in zip(batches.indices, watched(batches), strict=True):
            *_, (_, query) = model.streams(batch.to(device))
            assert query is not None
            labels = batch.ids.gather(1, batch.extras["targets"])[:, 0]
            nats = nats_of(model.head.logits, query[:, 0], labels, model.config.vocab_size)
            likelihoods.index_add_(0, torch.from_numpy(owners[numbers]), -nats)
    check_finite(likelihoods.isfinite(), range(len(texts)), "pseudo-log-likelihood")
    return likelihoods.tolist()


def _last_in_order(tokens: Sequences, targets: Sequences) -> Sequences:
    """The tokens (B, T) with the target (B, 1) of each row, which no other token sees."""
    hidden = torch.arange(tokens.width) == targets.ids  # (B, T)
    allowed = ~hidden[:, None].expand(-1, tokens.width, -1)  # (B, T, T)
    return replace(tokens, extras={"allowed": allowed, "targets": targets.ids})


def _masked(item: EncoderInput, mask: int) -> Iterator[list[int]]:
    """The input once for each of its tokens, with a mask in its place."""
    first = item.starts[0]
    for at in range(first, first + item.counts[0]):
        yield [*item.ids[:at], mask, *item.ids[at + 1 :]]
