"""The log-likelihoods of texts in nats, and what they measure: LAMBADA and minimal pairs.

a causal model      log p(x) = sum over t of log p(x_t | x_1 ... x_(t-1))
a masked model      PLL(x) = sum over t of log p(x_t | all other tokens), the
                    pseudo-log-likelihood (Salazar et al. 2020, equation 2), in one pass a token
XLNet               either: in the order of the text, or with t last in the order

LAMBADA: predict the last word of a passage (Paperno et al. 2016). The word can be guessed from the
whole passage but not from its last sentence alone, so it measures the use of long contexts. The
word is all that follows the last space, of any number of tokens; each of them must be the most
probable one after the right tokens before it.

Minimal pairs: how often a model prefers the grammatical sentence (BLiMP, Warstadt et al. 2020),
the one with the larger log-likelihood. It is the sum over its tokens, not their mean: the sentences
of a pair may differ in length. Equal ones, to the rounding of float32, are half a right answer,
which is what a guess would get.

A causal model of lines is scored in two ways: with the end of the line, as it was trained, and
without it, as the evaluation pipeline of the BabyLM challenge does.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from regard.data.batches import Sequences
from regard.data.datasets.records import MinimalPair
from regard.data.encoder_inputs import EncodedInputs
from regard.data.sampler import sorted_batches
from regard.data.token_arrays import TokenArray
from regard.decoding.steps import evaluating
from regard.errors import RegardError, TextError
from regard.layers.softmax import MIN_ROWS, slice_on, token_losses
from regard.metrics import Score
from regard.metrics.score import ScoreReport, ScoreTable, check_any
from regard.models.protocols import Generator
from regard.ops import at_least_float32
from regard.tasks.batching import check_finite, check_likelihood, device_of, watched
from regard.tasks.embedder import batch_budget
from regard.tasks.task import Task
from regard.text import Tokenizer
from regard.text.templates import EncoderInput

if TYPE_CHECKING:
    from regard.tasks.encoding import EncoderTask


def causal_log_likelihoods(
    model: Generator, texts: Sequence[Sequence[int]], steps: int | None = None
) -> list[float]:
    """Of the tokens of each text but the first, which is what precedes it.

    Args:
        steps: tokens that a model without a limit reads at a time.

    Raises:
        TextError: a text is longer than the model's context.
        RegardError: a likelihood is not finite.
    """
    counts = [len(ids) - 1 for ids in texts]
    return [math.fsum(text.own) for text in token_log_probs(model, texts, counts, steps=steps)]


def hidden_states(model: Generator, ids: Tensor, steps: int | None = None) -> Tensor:
    """The states (B, T, D) that predict the token after each of the ids (B, T).

    steps: tokens that a model without a limit reads at a time; None: all.
    """
    if steps is None or ids.size(1) <= steps or model.config.max_length is not None:
        return model(ids).hidden
    state, parts = model.empty(len(ids)), []
    for part in ids.split(steps, 1):
        output = model(part, state)
        state = output.state
        parts.append(output.hidden)
    return torch.cat(parts, 1)


def check_lengths(lengths: Sequence[int], limit: int | None) -> None:
    """Check that the tokens of texts are not more than a model reads.

    Raises:
        TextError: one has more.
    """
    for index, length in enumerate(lengths):
        if limit is not None and length > limit:
            problem = f"has {length:,} tokens, but this model reads at most {limit:,}."
            raise TextError(index, problem, "Shorten it.")


def nats_of(
    logits: Callable[[Tensor], Tensor], hidden: Tensor, targets: Tensor, vocab_size: int
) -> Tensor:
    """-log p(target) on the CPU: (N, D) and (N,) -> (N,) float64."""
    if not len(targets):
        return torch.zeros(0, dtype=torch.float64)
    parts = token_losses(hidden, targets.to(hidden.device), logits, vocab_size)
    return torch.cat([*parts]).double().cpu()


@dataclass(frozen=True)
class TokenLogProbs:
    """The log-probabilities of tokens, each given those before: `own` of the tokens, and of each
    position the most probable tokens, (id, log-probability), best first.
    """

    own: list[float]
    top: list[list[tuple[int, float]]]


@torch.no_grad()
def token_log_probs(
    model: Generator,
    rows: Sequence[Sequence[int]],
    counts: Sequence[int],
    top: int = 0,
    texts: Sequence[int] | None = None,
    steps: int | None = None,
) -> list[TokenLogProbs]:
    """Of the last `counts` tokens of each row; at least one token precedes them.

    Args:
        top: how many of the most probable tokens.
        texts: the index of the text of each row, for errors; None: row i is of text i.
        steps: tokens that a model without a limit reads at a time; None: all.

    Raises:
        TextError: a row is longer than the model's context.
        RegardError: a log-probability is not finite.
    """
    if not rows:
        return []
    limit = model.text_limit if steps is None else model.config.max_length
    check_lengths([len(ids) - 1 for ids in rows], limit)
    results, device = [TokenLogProbs([], [])] * len(rows), device_of(model)
    arrays, pads = (TokenArray.of(rows),), (model.config.pad,)
    batches: Any = sorted_batches(
        arrays, pads, max_tokens=batch_budget(model), make=lambda sequences: sequences
    )
    with evaluating(model):
        for numbers, batch in zip(batches.indices, watched(batches), strict=True):
            sizes = [counts[number] for number in numbers.tolist()]
            last = batch.lengths[:, None] - 1  # behind the position that predicts the last token
            # The last token is predicted, not read: a row may have one more than the context.
            ids = batch.ids[:, : max(1, batch.width - 1)]
            positions = torch.arange(ids.size(1))
            predicting = (positions < last) & (positions >= last - torch.tensor(sizes)[:, None])
            hidden = hidden_states(model, ids.to(device), steps)[predicting.to(device)]  # (N, D)
            targets = batch.ids.roll(-1, 1)[:, : ids.size(1)][predicting].to(device)
            parts = (part.split(sizes) for part in _of_targets(model, hidden, targets, top))
            for number, own, values, best_ids in zip(numbers.tolist(), *parts, strict=True):
                best = zip(best_ids.tolist(), values.tolist(), strict=True)
                pairs = [list(zip(*both, strict=True)) for both in best]
                results[number] = TokenLogProbs(own.tolist(), pairs)
    finite = torch.tensor([all(map(math.isfinite, result.own)) for result in results])
    check_finite(finite, range(len(rows)) if texts is None else texts, "log-probabilities")
    return results


def _of_targets(
    model: Generator, states: Tensor, targets: Tensor, top: int
) -> tuple[Tensor, Tensor, Tensor]:
    """log p of targets (N,) behind hidden states (N, D); of the `top` most probable tokens the
    log-probabilities and the ids, (N, top): on the CPU, logits computed slice by slice.
    """
    size = max(MIN_ROWS, slice_on(device_of(model)) // model.config.vocab_size)
    parts = []
    for state, target in zip(states.split(size), targets.split(size), strict=True):
        logits = model.head.logits(state)  # (N, V)
        log_probs = logits.log_softmax(-1, dtype=at_least_float32(logits.dtype))
        best = log_probs.topk(min(top, log_probs.size(1)))
        parts.append((log_probs.gather(1, target[:, None])[:, 0].cpu(), *(x.cpu() for x in best)))
    own, values, ids = map(torch.cat, zip(*parts, strict=True))
    return own, values, ids


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
def two_sided_log_likelihoods(
    task: Any, texts: Sequence[str], states_of: Callable[[Sequences, Tensor], Tensor]
) -> list[float]:
    """The pseudo-log-likelihood of each text, alone, in nats, of a language model that can predict
    a token from those behind it, too: each token from all others, with the end of a line before
    and behind them.

    Args:
        task: a `TextGenerator`.
        states_of: from texts (B, T) and a position in each (B, 1), which it must not see, the
            states (B, D) that predict the token there.

    Raises:
        TextError: a text has no token, or is longer than the model reads.
        RegardError: a likelihood is not finite.
    """
    rows, owners, positions = list[list[int]](), list[int](), list[int]()
    end, model = len(task.line_end()), task.module
    for index, (before, ids) in enumerate(task.text_ids(texts)):
        if len(ids) == end:
            raise TextError(index, "is empty, or has no token.", "Leave it out.")
        rows.append([*before, *ids])
        owners += [index] * (len(ids) - end)
        positions += range(len(before), len(before) + len(ids) - end)
    check_lengths(list(map(len, rows)), model.text_limit)
    likelihoods = torch.zeros(len(rows), dtype=torch.float64)
    if not rows:
        return likelihoods.tolist()
    batches = sorted_batches(
        (TokenArray.of(rows[owner] for owner in owners), TokenArray.of([at] for at in positions)),
        (model.config.pad, 0),
        max_tokens=batch_budget(model),
        make=lambda tokens, at: (tokens, at.ids),
    )
    device = device_of(model)
    with evaluating(model):
        for numbers, (tokens, at) in zip(batches.indices, watched(batches), strict=True):
            labels = tokens.ids.gather(1, at)[:, 0]
            hidden = states_of(tokens.to(device), at.to(device))
            nats = nats_of(model.head.logits, hidden, labels, model.config.vocab_size)
            likelihoods.index_add_(0, torch.tensor(owners)[numbers], -nats)
    check_finite(likelihoods.isfinite(), range(len(rows)), "pseudo-log-likelihood")
    return likelihoods.tolist()


def _masked(item: EncoderInput, mask: int) -> Iterator[list[int]]:
    """The input once for each of its tokens, with a mask in its place."""
    first = item.starts[0]
    for at in range(first, first + item.counts[0]):
        yield [*item.ids[:at], mask, *item.ids[at + 1 :]]


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
    rows = [ids[-int(min(longest, len(ids))) :] for ids, _ in split]
    counts = [count for _, count in split]
    if limit is not None and max(counts) > limit:
        number = counts.index(max(counts))
        raise RegardError(
            f"Passage {number + 1} ends in a word of {counts[number]} tokens, but this model's "
            f"context is {limit}."
        )
    words = token_log_probs(model, rows, counts, 1)
    nats = [-math.fsum(word.own) for word in words]
    right = [
        [best[0][0] for best in word.top] == list(ids[-count:])
        for word, (ids, count) in zip(words, split, strict=True)
    ]
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
        raise RegardError(f"Passage {number} must have two words, but is {text!r:.80}.")
    return encoding.ids, count


def _scores(
    tokenizer: Tokenizer, nats: list[float], right: list[bool], truncated: int, unknown: int
) -> list[Score]:
    signature = (
        f"word:after-last-space|match:greedy|tok:{tokenizer.kind}-{tokenizer.vocab_size}"
        f"|count:{len(nats)}"
    )
    signature += f"|cut:{truncated}" if truncated else ""
    signature += f"|unk:{unknown}" if unknown else ""
    mean = fmean(nats)
    perplexity = math.exp(mean) if mean < 709 else math.inf
    check_likelihood(math.fsum(nats), perplexity)
    return [
        Score("last-word accuracy", fmean(right), signature, len(nats), 4),
        Score("last-word perplexity", perplexity, signature, len(nats)),
    ]


EQUAL = 1e-6  # the relative difference of likelihoods up to which they are equal


@dataclass(frozen=True)
class MinimalPairReport(ScoreReport):
    """The scores of each set: accuracy, pairs with equal likelihoods, and pairs. And the mean
    accuracy of the sets of each phenomenon, where the pairs name it.
    """

    sets: dict[str, tuple[float, int, int]]
    phenomena: dict[str, float]

    def facts(self) -> dict[str, Any]:
        """As JSON has it."""
        names = ("accuracy", "ties", "pairs")
        sets = {name: dict(zip(names, row, strict=True)) for name, row in self.sets.items()}
        return {"sets": sets, "phenomena": self.phenomena}

    def table(self) -> ScoreTable:
        """A row for each phenomenon, then for each set."""
        rows = [(name, f"{accuracy:.4f}", "", "") for name, accuracy in self.phenomena.items()]
        rows += [
            (name, f"{accuracy:.4f}", str(ties), f"{pairs:,}")
            for name, (accuracy, ties, pairs) in self.sets.items()
        ]
        return ScoreTable("Minimal pairs", "", ("name", "accuracy", "ties", "pairs"), rows)


def minimal_pair_scores(task: Task, pairs: Sequence[MinimalPair]) -> list[Score]:
    """The mean of the accuracies of all sets, by each of the likelihoods that the task gives, with
    a report of each set.

    Raises:
        NotSupportedError: the task gives no log-likelihoods.
        RegardError: there is no pair.
    """
    check_any(len(pairs), "Minimal-pair accuracy")
    texts = [text for pair in pairs for text in (pair.good, pair.bad)]
    tokenizer, scores = task.tokenizer, list[Score]()
    ids = tokenizer.encode_many(texts)
    unknown = 0 if tokenizer.unk_id is None else sum(tokenizer.unk_id in row for row in ids)
    for kind, log_likelihoods in task.likelihoods_by_kind.items():
        report = _report_of(pairs, log_likelihoods(texts))
        signature = (
            f"likelihood:{kind}|tok:{tokenizer.kind}-{tokenizer.vocab_size}"
            f"|sets:{len(report.sets)}|count:{len(pairs)}"
            f"|ties:{sum(ties for _, ties, _ in report.sets.values())}"
        )
        signature += f"|unk:{unknown}" if unknown else ""
        mean = fmean(accuracy for accuracy, *_ in report.sets.values())
        name = f"minimal-pair accuracy, {kind}" if scores else "minimal-pair accuracy"
        scores.append(Score(name, mean, signature, len(pairs), 4, report=report))
    return scores


def _report_of(pairs: Sequence[MinimalPair], likelihoods: Sequence[float]) -> MinimalPairReport:
    """The outcomes of pairs, from the likelihoods of the good and of the bad sentence of each."""
    by_set, phenomena = defaultdict[str, list[float]](list), defaultdict[str, set[str]](set)
    for pair, good, bad in zip(pairs, likelihoods[::2], likelihoods[1::2], strict=True):
        equal = math.isclose(good, bad, rel_tol=EQUAL)
        by_set[pair.name].append(0.5 if equal else float(good > bad))
        if pair.phenomenon:
            phenomena[pair.phenomenon].add(pair.name)
    sets = {name: (fmean(row), row.count(0.5), len(row)) for name, row in by_set.items()}
    means = {name: fmean(sets[s][0] for s in of_it) for name, of_it in phenomena.items()}
    return MinimalPairReport(sets, means)
