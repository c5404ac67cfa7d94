"""EleutherAI's lm-evaluation-harness (0.4.13), which asks a language model of this library.

    from lm_eval import simple_evaluate
    from regard.tasks.evaluation_harness import harness_model

    simple_evaluate(harness_model(regard.load("runs/gpt")), tasks=["lambada_standard", "blimp"])

Prompts are encoded as for `generate`; a text without one begins as in `log_likelihoods`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from regard.data.bucketing import sorted_batches
from regard.data.token_arrays import TokenArray
from regard.decoding.steps import evaluating
from regard.errors import ConfigError, RegardError, TextError, check_at_least
from regard.tasks.batching import watched
from regard.tasks.embedder import batch_budget
from regard.tasks.finite_checks import check_finite
from regard.tasks.language_modeling import TextGenerator
from regard.tasks.log_likelihoods import ending_log_likelihoods

SAMPLING = ("temperature", "top_k", "top_p")  # named as ours
# The same option; the first one that is given counts.
LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
KNOWN = (*SAMPLING, "do_sample", "until", *LENGTHS)
ONE_BEAM = ("num_beams", 1)  # what is meant without it
ANSWER_TOKENS = 256  # the harness's own default


class HarnessRequest(Protocol):
    """An `Instance` of the harness.

    args: (context, continuation), (text,), or (context, options of generation).
    """

    args: tuple[Any, ...]


def harness_model(task: TextGenerator) -> Any:
    """A model that `lm_eval.simple_evaluate` takes.

    Raises:
        ConfigError: the model reads backward.
        RegardError: lm_eval is not installed.
    """
    try:
        from lm_eval.api.model import LM
    except ImportError:
        raise RegardError(
            "The evaluation harness is not installed. Install it with: pip install lm_eval==0.4.13"
        ) from None
    return type("HarnessModel", (HarnessAnswers, LM), {})(task)


class HarnessAnswers:
    """Answers the three kinds of requests of the harness.

    Raises:
        ConfigError: the model reads backward.
    """

    def __init__(self, task: TextGenerator):
        super().__init__()
        if task.module.reads_backward:
            raise ConfigError("This model reads texts from their end: it continues no context.")
        self.task = task

    def loglikelihood(
        self, requests: Sequence[HarnessRequest], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """log p of each continuation behind its context in nats, and whether it is what greedy
        search gives. A context that is too long loses its beginning.

        Raises:
            TextError: a continuation has no token, or is longer than the model's context.
        """
        rows, counts = [], []
        for number, request in enumerate(requests):
            ids, count = self._continued(request.args[0], request.args[1], number)
            rows.append(ids)
            counts.append(count)
        return self._endings(rows, counts, range(len(rows)))

    def loglikelihood_rolling(
        self, requests: Sequence[HarnessRequest], disable_tqdm: bool = False
    ) -> list[float]:
        """log p of each text in nats. One that is longer than the model's context is read in
        windows, of which the last overlaps the one before, so that it is whole. A model that
        carries a state reads a text as in `log_likelihoods`.
        """
        texts = [request.args[0] for request in requests]
        if self.task.context is None:
            return self.task.log_likelihoods(texts)
        rows, counts, owners = [], [], []
        for number, (begin, ids) in enumerate(self.task.text_ids(texts)):
            for row, count in windows(begin, ids, self.task.context):
                rows.append(row)
                counts.append(count)
                owners.append(number)
        totals = [0.0] * len(requests)
        for number, (nats, _) in zip(owners, self._endings(rows, counts, owners), strict=True):
            totals[number] += nats
        return totals

    def generate_until(
        self, requests: Sequence[HarnessRequest], disable_tqdm: bool = False
    ) -> list[str]:
        """What follows each context, up to the first of its `until`; a long context loses its
        beginning.

        Raises:
            ConfigError: an option is not known, or as many tokens are asked for as the model reads.
        """
        alike: dict[str, list[int]] = {}  # requests with equal options, by these
        for number, request in enumerate(requests):
            alike.setdefault(repr(request.args[1]), []).append(number)
        texts = [""] * len(requests)
        for numbers in alike.values():
            contexts = [requests[number].args[0] for number in numbers]
            found = self._generated(contexts, requests[numbers[0]].args[1])
            for number, text in zip(numbers, found, strict=True):
                texts[number] = text
        return texts

    def _generated(self, contexts: Sequence[str], options: Mapping[str, Any]) -> list[str]:
        """What follows each context, by the same options."""
        options = {
            name: value
            for name, value in options.items()
            if value is not None and (name, value) != ONE_BEAM
        }
        if unknown := sorted({*options} - {*KNOWN}):
            raise ConfigError(
                f"Generation has no option {unknown[0]!r}. Known: {', '.join(KNOWN)}."
            )
        named = next((name for name in LENGTHS if name in options), LENGTHS[0])
        most = options.get(named, ANSWER_TOKENS)
        check_at_least(0, **{named: most})
        if self.task.context is not None and most >= self.task.context:
            raise ConfigError(
                f"Up to {most:,} tokens are asked for, but this model's context is "
                f"{self.task.context:,}, and what is before them must fit, too. Ask for fewer: "
                "simple_evaluate(..., gen_kwargs={'max_gen_toks': 16})."
            )
        # The harness leaves room for one token more: it does not say that the last one is not read.
        chosen = {"max_tokens": most + 1, **_method_options(options)}
        stops = options.get("until") or []
        stops = list(filter(None, [stops] if isinstance(stops, str) else stops))
        found = self.task.hypotheses(contexts, too_long="truncate", stop=stops, **chosen)
        texts = self.task.tokenizer.decode_many(ranked[0].tokens[:most] for ranked in found)
        return [_before(text, stops) for text in texts]

    def _continued(self, context: str, continuation: str, number: int) -> tuple[list[int], int]:
        """The ids of a context and its continuation, and how many belong to the latter; spaces at
        the end of the context do.

        They are, as in the harness, those of both together behind as many as the context has alone,
        and stand behind those of the context. Where there are none, since its last token has become
        one with the continuation, it is that one.
        """
        prompt, whole = context.rstrip(), context + continuation
        before, ids = self.task.tokenizer.encode_many([prompt, whole])
        if before and len(ids) > len(before):
            (prompt_ids,) = self.task.prompt_ids([prompt])
            ids, count = [*prompt_ids, *ids[len(before) :]], len(ids) - len(before)
        else:
            ids, count = self._merged(prompt, whole)
        if not count:
            raise TextError(number, "has no token.", what="Continuation")
        limit = self.task.context
        if limit is not None and count > limit:
            problem = f"has {count:,} tokens, but this model reads at most {limit:,}."
            raise TextError(number, problem, what="Continuation")
        return ids if limit is None else ids[-limit - 1 :], count

    def _merged(self, prompt: str, whole: str) -> tuple[list[int], int]:
        """The ids of a text, and how many of its tokens reach beyond the prompt; before them stands
        what precedes any text, if these are all.
        """
        offsets = self.task.tokenizer.encode(whole).offsets
        count = sum(end > len(prompt) for _, end in offsets)
        if count < len(offsets):
            return self.task.prompt_ids([whole])[0], count
        ((begin, ids),) = self.task.text_ids([whole])
        return [*begin, *ids], len(ids)

    @torch.no_grad()
    def _endings(
        self, rows: Sequence[list[int]], counts: Sequence[int], owners: Sequence[int]
    ) -> list[tuple[float, bool]]:
        """See `ending_log_likelihoods`, of rows of any lengths.

        owners: the number of the request that each row belongs to.

        Raises:
            NonFiniteScores: a log-probability is infinite or NaN.
        """
        if not rows:
            return []
        model, sizes = self.task.generator, np.array(counts)
        total, best = torch.zeros(len(rows), dtype=torch.float64), torch.ones(len(rows)).bool()
        batches = sorted_batches(
            (TokenArray.of(rows),),
            (model.config.pad,),
            max_tokens=batch_budget(model),
            make=lambda sequences: sequences,
        )
        with evaluating(model):
            for numbers, batch in zip(batches.indices, watched(batches), strict=True):
                here = torch.from_numpy(sizes[numbers])
                total[numbers], best[numbers] = ending_log_likelihoods(model, batch, here)
        check_finite(total.isfinite(), owners, "log-probabilities")
        return list(zip(total.tolist(), best.tolist(), strict=True))


def _method_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Greedy search, or sampling where `do_sample` asks for it or, without it, a temperature,
    whatever the model's own method is; a temperature of 0 is greedy search.
    """
    temperature = options.get("temperature", 1.0)
    asked = options.get("do_sample")
    if not ("temperature" in options if asked is None else asked) or temperature == 0:
        return {"beams": 1}
    sampling = {name: options[name] for name in SAMPLING if name in options}
    return {"temperature": temperature, **sampling}


def _before(text: str, stops: Sequence[str]) -> str:
    """The text up to the first of the stops that it has."""
    for stop in stops:
        text = text.split(stop)[0]
    return text


def windows(
    begin: Sequence[int], ids: Sequence[int], limit: int | None
) -> Iterator[tuple[list[int], int]]:
    """The rows in which a text is read, and how many tokens at the end of each are predicted there;
    each token is predicted once, but the first one where nothing precedes the text.

    Args:
        begin: what precedes the text.
        limit: the most tokens that are read; None: any number.
    """
    text = [*begin, *ids]
    if limit is None or len(text) <= limit + 1:
        if len(text) > max(1, len(begin)):
            yield text, len(text) - max(1, len(begin))
        return
    text, done = [*begin[-1:], *ids], 1
    while done < len(text):
        end = min(len(text), done + limit)
        start = max(0, end - limit - 1)
        yield text[start:end], end - done
        done = end
