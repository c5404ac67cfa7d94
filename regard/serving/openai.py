"""Completions and embeddings as OpenAI's clients ask for them."""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from regard import decoding
from regard.data.token_arrays import TokenArray
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.streaming import IncrementalDetokenizer
from regard.errors import ConfigError, TextError
from regard.serving.requests import Completion, OpenAIEmbedding
from regard.serving.work import Work, generated, tokens_of
from regard.tasks.batching import decode_in_order
from regard.tasks.embedder import Embedder, EmbedsTexts
from regard.tasks.inputs import checked_text, too_long_error
from regard.tasks.language_modeling import LanguageModeling
from regard.tasks.log_likelihoods import TokenLogProbs, token_log_probs
from regard.tasks.prompts import fitted_prompts

if TYPE_CHECKING:
    from regard.serving.models import ServedModel


# ------------------------------------------------------------------------------------ completions


@dataclass(frozen=True)
class Completed:
    """The completions of one prompt. log_probs: of each, of its tokens and those of the prompt."""

    prompt: list[int]
    hypotheses: list[Hypothesis]
    log_probs: list[TokenLogProbs]


def completion(served: ServedModel, request: Completion) -> Work:
    """The continuations of prompts.

    Raises:
        ConfigError: the model does not continue texts, or options are wrong.
    """
    task = _language_model(served)
    method = _method(task, request)
    prompts = _prompt_ids(task, request)
    wants = (request.echo, request.logprobs)
    most = request.max_tokens

    def run(items: list[list[int]]) -> list[Completed]:
        return _completed(task, items, method, most, wants)

    def render(results: list[Completed]) -> dict[str, Any]:
        return _completion_body(served, request, results)

    costs = [len(ids) + (generated(task, method, len(ids)) if most else 0) for ids in prompts]
    key = (served.name, "completion", repr(method), most, wants)
    return Work(key, prompts, costs, run, render)


def _language_model(served: ServedModel) -> LanguageModeling:
    task = served.task
    if not isinstance(task, LanguageModeling) or task.model.reads_backward:
        raise ConfigError(
            f"{served.name} is a model of {task.name}, which does not continue a text from left "
            "to right: completions are for language models."
        )
    return task


def _method(task: LanguageModeling, request: Completion) -> Any:
    """How to decode; the model's own way where the request does not say it."""
    named: dict[str, Any] = {"max_tokens": request.max_tokens or 1}
    if request.temperature == 0:
        if request.n > 1:
            raise ConfigError(
                f"`n` is {request.n}, but at `temperature` 0 all completions are the same. Ask for "
                "one, or set a temperature above 0."
            )
        return decoding.with_options(task.method, beams=1, **named)
    named |= {"temperature": request.temperature, "top_p": request.top_p, "seed": request.seed}
    if request.n > 1:
        named["samples"] = request.n
    return decoding.with_options(task.method, **named)


def _prompt_ids(task: LanguageModeling, request: Completion) -> list[list[int]]:
    """The ids of prompts that are texts, or ids.

    Raises:
        TextError: an id is not in the vocabulary.
    """
    given = cast(list[Any], [request.prompt] if request.one else request.prompt)
    size = task.model.config.vocab_size
    found = []
    for index, one in enumerate(given):
        if not one and not isinstance(one, str):
            raise TextError(index, "has no token.", what="Prompt")
        if isinstance(one, str):
            found.append(task.prompt_ids([checked_text(one, index)])[0])
            continue
        if wrong := next((number for number in one if number >= size), None):
            problem = f"has the id {wrong}, but the vocabulary has {size:,} tokens."
            raise TextError(index, problem, what="Prompt")
        found.append(list(one))
    return found


def _completed(
    task: LanguageModeling,
    prompts: list[list[int]],
    method: Any,
    most: int,
    wants: tuple[bool, int | None],
) -> list[Completed]:
    """The completions of prompts; in an echo the prompt has log-probabilities, too."""
    fitted = fitted_prompts(prompts, task.context, "error", {"max_tokens": most or None})
    found = [[Hypothesis([], 0.0, 0.0, False)] for _ in fitted]
    if most:
        found = decode_in_order(task.generator, TokenArray.of(fitted), method)
    echo, top = wants
    if top is None:
        return [Completed(*both, []) for both in zip(fitted, found, strict=True)]
    rows, counts = [], []
    for ids, several in zip(fitted, found, strict=True):
        for one in several:
            rows.append([*ids, *one.tokens])
            counts.append(len(rows[-1]) - 1 if echo else len(one.tokens))
    scored = iter(token_log_probs(task.generator, rows, counts, top))
    return [
        Completed(ids, several, [next(scored) for _ in several])
        for ids, several in zip(fitted, found, strict=True)
    ]


def _completion_body(
    served: ServedModel, request: Completion, results: Sequence[Completed]
) -> dict[str, Any]:
    task = cast(LanguageModeling, served.task)
    choices = [
        _choice(task, request, one, number) for one in results for number in range(request.n)
    ]
    for index, choice in enumerate(choices):
        choice["index"] = index
    read = sum(len(one.prompt) for one in results)
    written = sum(choice.pop("tokens") for choice in choices)
    return {
        "id": f"cmpl-{uuid.uuid4().hex}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": served.name,
        "choices": choices,
        "usage": usage(read, written),
    }


def usage(read: int, written: int) -> dict[str, int]:
    """How many tokens a request had."""
    total = read + written
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": total}


def _choice(
    task: LanguageModeling, request: Completion, one: Completed, number: int
) -> dict[str, Any]:
    """One completion of a prompt; "tokens": how many were generated."""
    hypothesis = one.hypotheses[number]
    ids = hypothesis.tokens
    parts = text_parts(task, one.prompt, ids)
    text, kept, stopped = until_stop(parts, stops_of(request))
    before = task.tokenizer.decode(one.prompt) if request.echo else ""
    logprobs = None
    if request.logprobs is not None:
        shown = ids[:kept]
        if request.echo:
            shown, parts = [*one.prompt, *shown], [*text_parts(task, [], one.prompt), *parts]
        logprobs = _log_probs_body(task, shown, parts, one.log_probs[number], request.echo)
    return {
        "text": before + text,
        "index": 0,
        "finish_reason": "stop" if stopped or hypothesis.finished else "length",
        "logprobs": logprobs,
        "tokens": len(ids),
    }


def stops_of(request: Completion) -> list[str]:
    """The texts that end a completion; empty ones end none."""
    given = [request.stop] if isinstance(request.stop, str) else request.stop or []
    return [stop for stop in given if stop]


def text_parts(task: LanguageModeling, before: Sequence[int], ids: Sequence[int]) -> list[str]:
    """The text that each token adds behind others; what is left at the end is the last one's."""
    detokenizer = IncrementalDetokenizer(task.tokenizer, before)
    parts = [detokenizer.add(number) for number in ids]
    if parts:
        parts[-1] += detokenizer.rest()
    return parts


def until_stop(parts: Sequence[str], stops: Sequence[str]) -> tuple[str, int, bool]:
    """The text before the first stop, the tokens that it begins with, and whether there is a stop.

    Of several stops that end within the same token the one that begins first counts.
    """
    text = ""
    for count, part in enumerate(parts, 1):
        text += part
        found = [at for stop in stops if (at := text.find(stop)) >= 0]
        if found:
            return text[: min(found)], count, True
    return text, len(parts), False


def _log_probs_body(
    task: LanguageModeling,
    ids: Sequence[int],
    pieces: Sequence[str],
    scored: TokenLogProbs,
    echo: bool,
) -> dict[str, Any]:
    """The log-probabilities of tokens, of which `pieces` are the texts, as OpenAI names them."""
    name = task.tokenizer.token
    first: list[None] = [None] if echo else []  # nothing precedes the first token of a prompt
    offsets = [len("".join(pieces[:at])) for at in range(len(ids))]
    top = [{name(i): p for i, p in best} for best in scored.top]
    return {
        "tokens": [name(i) for i in ids],
        "token_logprobs": [*first, *scored.own][: len(ids)],
        "top_logprobs": [*first, *top][: len(ids)],
        "text_offset": offsets,
    }


# ------------------------------------------------------------------------------------- embeddings


def embeddings(served: ServedModel, request: OpenAIEmbedding) -> Work:
    """The vectors of texts, pooled as the model's folder says."""
    embedder = Embedder.of(cast(EmbedsTexts, served.task).text_encoder())

    def run(texts: list[str]) -> list[tuple[Any, int]]:
        encoded = embedder.encode(texts)
        if long := embedder.input_format.too_long(encoded.inputs):
            count = len(encoded.inputs[long[0]])
            raise too_long_error(long[0], count, embedder.input_format.max_length, "Shorten it.")
        lengths = [len(one) for one in encoded.inputs]
        return list(zip(embedder.vectors(encoded), lengths, strict=True))

    def render(results: list[tuple[Any, int]]) -> dict[str, Any]:
        coded = request.encoding_format == "base64"
        data = [
            {
                "object": "embedding",
                "index": index,
                "embedding": _base64(vector) if coded else vector.tolist(),
            }
            for index, (vector, _) in enumerate(results)
        ]
        read = sum(count for _, count in results)
        counted = {"prompt_tokens": read, "total_tokens": read}
        return {"object": "list", "data": data, "model": served.name, "usage": counted}

    texts = request.items()
    return Work((served.name, "embeddings"), texts, [*map(tokens_of, texts)], run, render)


def _base64(vector: Any) -> str:
    return base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode()
