"""Completions, chat and embeddings as OpenAI's clients ask for them."""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from regard import decoding
from regard.data.token_arrays import TokenArray
from regard.decoding.steps import eos_tokens
from regard.decoding.streaming import GeneratedText, text_of
from regard.errors import ConfigError, TextError
from regard.serving.models import Continued, generation_of
from regard.serving.requests import Chat, Completion, Fields, OpenAIEmbedding, Sampled
from regard.serving.work import NUMBER, Piece, Work, check_answer_size, most_generated, tokens_of
from regard.tasks.batching import decode_in_order
from regard.tasks.embedder import EmbedsTexts, VectorBatches
from regard.tasks.inputs import checked_text, too_long_error
from regard.tasks.language_modeling import TextGenerator
from regard.tasks.log_likelihoods import TokenLogProbs, token_log_probs
from regard.tasks.pair_tasks import DialogueModel

if TYPE_CHECKING:
    from regard.serving.models import ServedModel
    from regard.tasks.task import Task


# ------------------------------------------------------------------------------------ completions


@dataclass(frozen=True)
class Completed:
    """The completions of one prompt. log_probs: of each, of its tokens and those of the prompt."""

    prompt: list[int]
    texts: list[GeneratedText]
    log_probs: Sequence[TokenLogProbs] = ()


def completion(served: ServedModel, request: Completion) -> Work:
    """The continuations of prompts.

    Raises:
        ConfigError: options are wrong.
    """
    task = cast(TextGenerator, served.task)
    method = decoding.with_options(task.method, **decoding_options(request))
    limit, stops = request.limit, stops_of(request)
    check_streams(request)
    ids = _prompt_ids(task, request)
    prompts = task.fitted(ids, "error", False, {"max_tokens": limit or None})
    generation = generation_of(served, prompts, prompts, method, stops) if limit else None

    def run(items: list[Any]) -> list[Completed]:
        if not limit:
            return scored(task, [Completed(ids, []) for ids in items], request)
        return scored(task, completed(task, items, method, stops), request)

    costs = [len(ids) + (most_generated(task, method, len(ids)) if limit else 0) for ids in prompts]
    if request.logprobs is not None:
        size = 2 * NUMBER * sum(costs) * (2 + request.logprobs)
        check_answer_size(size, "Send fewer prompts, or ask for fewer `logprobs`.")
    wants = (request.echo, request.logprobs, limit == 0, generation is None)
    key = (served.name, "completion", repr(method), tuple(stops), wants)
    body = CompletionBody(served.name, request, task=task)
    return Work(key, prompts, costs, run, body.whole, generation, body)


def check_streams(request: Completion | Chat) -> None:
    """Check that no field is without effect.

    Raises:
        ConfigError: log-probabilities or no tokens are asked of a stream; or there are options of a
            stream, but no stream.
    """
    if not request.stream:
        if request.stream_options is not None:
            raise ConfigError("`stream_options` are for a stream: set `stream`, or leave them out.")
    elif request.limit == 0 or not request.items():
        empty = f"`{request.ITEMS}` is an empty list"
        nothing = "`max_tokens` is 0" if request.limit == 0 else empty
        raise ConfigError(f"{nothing}: there is no token to stream. Leave out `stream`.")
    elif request.logprobs is not None or (isinstance(request, Completion) and request.echo):
        raise ConfigError("`logprobs` and `echo` are not streamed. Leave out one of both.")


def continues_texts(task: Task) -> bool:
    """Whether a task continues texts from left to right."""
    return isinstance(task, TextGenerator) and not task.module.reads_backward


def decoding_options(request: Sampled) -> Fields:
    """How to decode, by the names of the library; the model's own way where nothing says it. Of no
    tokens, a completion's method has one.

    Raises:
        ConfigError: several samples of one text are asked for.
    """
    named: Fields = {} if request.limit is None else {"max_tokens": request.limit or 1}
    if request.temperature == 0:
        if request.n > 1:
            raise ConfigError(
                f"`n` is {request.n}, but at `temperature` 0 all completions are the same. Ask for "
                "one, or set a temperature above 0."
            )
        return named | {"beams": 1}
    sampling = {"temperature": request.temperature, "top_p": request.top_p, "seed": request.seed}
    if request.n > 1:
        sampling["samples"] = request.n
    return named | {name: value for name, value in sampling.items() if value is not None}


def _prompt_ids(task: TextGenerator, request: Completion) -> list[list[int]]:
    """The ids of prompts that are texts, or ids.

    Raises:
        TextError: an id is not in the vocabulary.
    """
    prompts = [request.prompt] if request.one else request.prompt
    return [
        task.prompt_ids([checked_text(prompt, index)])[0]
        if isinstance(prompt, str)
        else _checked_ids(prompt, index, task.module.config.vocab_size)
        for index, prompt in enumerate(cast(list[Any], prompts))
    ]


def _checked_ids(ids: list[int], index: int, size: int, what: str = "Prompt") -> list[int]:
    """The ids of a prompt or text.

    Raises:
        TextError: there is none, or one is not in the vocabulary.
    """
    if not ids:
        raise TextError(index, "has no token.", what=what)
    if wrong := next((number for number in ids if number >= size), None):
        problem = f"has the id {wrong}, but the vocabulary has {size:,} tokens."
        raise TextError(index, problem, what=what)
    return list(ids)


def completed(
    task: TextGenerator, items: list[Any], method: Any, stops: Sequence[str]
) -> list[Completed]:
    """Prompts with their texts, as a batch has continued them; or where the method or the model
    needs all prompts at once, from their ids.
    """
    if items and isinstance(items[0], Continued):
        return [Completed(item.prompt, item.texts) for item in items]
    hypotheses = decode_in_order(task.generator, TokenArray.of(items), method)
    ends = eos_tokens(method.eos, task.generator)
    return [
        Completed(ids, [text_of(task.tokenizer, ids, one, ends, stops) for one in several])
        for ids, several in zip(items, hypotheses, strict=True)
    ]


def scored(
    task: TextGenerator,
    done: list[Completed],
    request: Completion,
) -> list[Completed]:
    """With the log-probabilities that are asked for; of an echo the prompt has them, too."""
    if request.logprobs is None:
        return done
    rows, counts = [], []
    for one in done:
        for tokens in [text.scored_tokens for text in one.texts] or [[]]:
            rows.append([*one.prompt, *tokens])
            counts.append(len(rows[-1]) - 1 if request.echo else len(tokens))
    log_probs = iter(token_log_probs(task.generator, rows, counts, request.logprobs))
    return [
        replace(one, log_probs=[next(log_probs) for _ in range(len(one.texts) or 1)])
        for one in done
    ]


@dataclass(frozen=True)
class Body:
    """What answers have in common.

    id, created: of the answer, and of all events of a stream.
    """

    name: str
    request: Any
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))
    prefix: ClassVar[str]
    kind: ClassVar[str]  # of a chunk

    def of(self, choices: list[Fields], **more: Any) -> Fields:
        """The body with these choices."""
        return {
            "id": f"{self.prefix}-{self.id}",
            "object": self.kind,
            "created": self.created,
            "model": self.name,
            "choices": choices,
            **more,
        }

    def end(self, results: Sequence[Completed]) -> Fields | None:
        """The last chunk of a stream, which counts tokens, where it is asked for."""
        options = self.request.stream_options
        if options is None or not options.include_usage:
            return None
        return self.of([], usage=self.usage(results))

    def pieces(self, results: Sequence[Completed]) -> Iterator[Piece]:
        """All choices, each as one piece."""
        for prompt, one in enumerate(results):
            for row, text in enumerate(one.texts[: self.request.n]):
                yield prompt, row, text.text, text.reason

    def usage(self, results: Sequence[Completed]) -> dict[str, int]:
        """How many tokens were read and written."""
        read = sum(len(one.prompt) for one in results)
        texts = [text for one in results for text in one.texts[: self.request.n]]
        written = sum(len(text.tokens) for text in texts)
        counts = {"prompt_tokens": read, "completion_tokens": written}
        return {**counts, "total_tokens": read + written}


@dataclass(frozen=True)
class CompletionBody(Body):
    """What a completion answers: at once, or in chunks."""

    task: TextGenerator = field(kw_only=True)
    prefix = "cmpl"
    kind = "text_completion"

    def whole(self, results: Sequence[Completed]) -> Fields:
        """With all choices."""
        numbers = [(one, number) for one in results for number in range(self.request.n)]
        choices = [self._choice(*both) | {"index": at} for at, both in enumerate(numbers)]
        return self.of(choices, usage=self.usage(results))

    def chunk(self, prompt: int, row: int, piece: str, reason: str | None) -> Fields:
        """With what is new of one choice."""
        index = prompt * self.request.n + row
        choice = {"text": piece, "index": index, "finish_reason": reason, "logprobs": None}
        return self.of([choice])

    def _choice(self, completed: Completed, number: int) -> Fields:
        """One completion of a prompt."""
        echo, text = self.request.echo, completed.texts[number] if completed.texts else None
        before = self.task.tokenizer.decode(completed.prompt) if echo else ""
        logprobs = None
        if self.request.logprobs is not None:
            ids, parts = (text.scored_tokens, text.parts) if text else ([], [])
            if echo:
                ids = [*completed.prompt, *ids]
                parts = [*text_parts(self.task, completed.prompt), *parts]
            scored = completed.log_probs[number if text else 0]  # all have the same prompt
            logprobs = _log_probs_body(self.task, ids, parts, scored, echo)
        return {
            "text": before + (text.text if text else ""),
            "finish_reason": text.reason if text else "length",
            "logprobs": logprobs,
        }


def stops_of(request: Sampled) -> list[str]:
    """The texts that end a completion; empty ones end none."""
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    return [stop for stop in stops if stop]


def text_parts(task: TextGenerator, ids: Sequence[int]) -> list[str]:
    """The text that each token adds to those before; what is left at the end is the last one's."""
    text = GeneratedText(task.tokenizer, [])
    for number in ids:
        text.add(number)
    text.end()
    return text.parts


def _log_probs_body(
    task: TextGenerator,
    ids: Sequence[int],
    pieces: Sequence[str],
    scored: TokenLogProbs,
    echo: bool,
) -> Fields:
    """The log-probabilities of tokens, of which `pieces` are the texts, as OpenAI names them."""
    first: list[None] = [None] if echo else []  # nothing precedes the first token of a prompt
    offsets = [*accumulate(map(len, pieces), initial=0)]
    top = [{_name(task, i): p for i, p in best} for best in scored.top]
    return {
        "tokens": [_name(task, i) for i in ids],
        "token_logprobs": [*first, *scored.own][: len(ids)],
        "top_logprobs": [*first, *top][: len(ids)],
        "text_offset": offsets[: len(ids)],
    }


def _name(task: TextGenerator, id: int) -> str:
    """A token; a model may have more of them than its tokenizer."""
    tokenizer = task.tokenizer
    return tokenizer.token(id) if id < tokenizer.vocab_size else tokenizer.label(id)


# ------------------------------------------------------------------------------------------- chat


def replies(task: Task) -> bool:
    """Whether a task replies to messages."""
    return task.has("reply") or (continues_texts(task) and bool(task.tokenizer.chat_template))


def chat(served: ServedModel, request: Chat) -> Work:
    """The reply to messages.

    Raises:
        ConfigError: options of decoding are wrong, or the model has no place for a message.
    """
    check_streams(request)
    if isinstance(served.task, DialogueModel):
        return _reply(served, served.task, request)
    return _chat_completion(served, cast(TextGenerator, served.task), request)


def _chat_completion(served: ServedModel, task: TextGenerator, request: Chat) -> Work:
    """What continues the prompt that the model's chat template makes of messages."""
    messages = [message.turn for message in request.messages]
    prompt = task.tokenizer.encode(task.tokenizer.apply_chat_template(messages)).ids
    prompts = task.fitted([prompt], "error", False, {"max_tokens": request.limit})
    options = decoding_options(request)
    if request.limit is None and task.context is not None:
        options["max_tokens"] = max(1, task.context - len(prompt))
    method, stops = decoding.with_options(task.method, **options), stops_of(request)
    generation = generation_of(served, prompts, prompts, method, stops)

    def run(items: list[Any]) -> list[Completed]:
        return completed(task, items, method, stops)

    costs = [len(prompt) + most_generated(task, method, len(prompt))]
    body = ChatBody(served.name, request)
    key = (served.name, "chat", repr(method), tuple(stops), generation is None)
    return Work(key, prompts, costs, run, body.whole, generation, body)


def _reply(served: ServedModel, task: DialogueModel, request: Chat) -> Work:
    """The reply to the turns of a dialogue, of which the model reads as many as it was trained for;
    a longer history loses its beginning, as in `DialogueModel.reply`.
    """
    if any(message.turn["role"] == "system" for message in request.messages):
        raise ConfigError(
            f"`messages` has one of the role system, but {served.name} reads the turns of a "
            "dialogue and has no chat template. Leave it out."
        )
    options = {"max_tokens": task.default_limit} | decoding_options(request)
    method, stops = decoding.with_options(task.method, **options), stops_of(request)
    history = task.history_of([message.text for message in request.messages])

    def run(items: list[str]) -> list[Completed]:
        (reply,) = task.hypotheses(items, too_long="truncate", **options)
        tokenizer, ends = task.tokenizer.for_targets, eos_tokens(method.eos, task.generator)
        texts = [text_of(tokenizer, [], one, ends, stops) for one in reply]
        return [Completed(task.tokenizer.encode(history).ids, texts)]

    read = tokens_of(history)
    body = ChatBody(served.name, request)
    key = (served.name, "chat", repr(method), tuple(stops))
    costs = [read + most_generated(task, method, read)]
    return Work(key, [history], costs, run, body.whole, chunks=body)


@dataclass(frozen=True)
class ChatBody(Body):
    """What a chat answers: at once, or in chunks; a reply of a dialogue is decoded as a whole.

    started: the choices of which a chunk was sent.
    """

    started: set[int] = field(default_factory=set)
    prefix = "chatcmpl"
    kind = "chat.completion.chunk"

    def whole(self, results: Sequence[Completed]) -> Fields:
        """With all choices."""
        choices = [
            {
                "index": row,
                "message": {"role": "assistant", "content": text},
                "finish_reason": reason,
            }
            for _, row, text, reason in self.pieces(results)
        ]
        return self.of(choices, usage=self.usage(results), object="chat.completion")

    def chunk(self, prompt: int, row: int, piece: str, reason: str | None) -> Fields:
        """With what is new of one reply; its first chunk has the role."""
        role = {} if row in self.started else {"role": "assistant"}
        self.started.add(row)
        delta = {**role, "content": piece}
        return self.of([{"index": row, "delta": delta, "finish_reason": reason}])


# ------------------------------------------------------------------------------------- embeddings


def embeddings(served: ServedModel, request: OpenAIEmbedding) -> Work:
    """The vectors of texts, pooled as the model's folder says.

    Raises:
        ConfigError: `dimensions` is more than the length of a vector.
    """
    task = cast(EmbedsTexts, served.task)
    embedder = VectorBatches.of(task.text_encoder(), truncate_dim=request.dimensions)
    number = 16 / 3 if request.encoding_format == "base64" else NUMBER  # bytes
    check_answer_size(number * embedder.width * len(request.items()), "Send fewer texts.")
    size = task.tokenizer.vocab_size
    texts = [
        text
        if isinstance(text, str)
        else task.tokenizer.decode(_checked_ids(text, index, size, "Text"))
        for index, text in enumerate(request.items())
    ]

    def run(texts: list[str]) -> list[tuple[Any, int]]:
        encoded = embedder.encode(texts)
        if long := embedder.input_format.too_long(encoded.inputs):
            count = len(encoded.inputs[long[0]])
            most = embedder.input_format.max_length
            raise too_long_error(long[0], count, most)
        lengths = [len(ids) for ids in encoded.inputs]
        return list(zip(embedder.vectors(encoded), lengths, strict=True))

    def render(results: list[tuple[Any, int]]) -> Fields:
        coded = request.encoding_format == "base64"
        data = [
            {
                "object": "embedding",
                "index": index,
                "embedding": base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode()
                if coded
                else vector,
            }
            for index, (vector, _) in enumerate(results)
        ]
        read = sum(count for _, count in results)
        counted = {"prompt_tokens": read, "total_tokens": read}
        return {"object": "list", "data": data, "model": served.name, "usage": counted}

    return Work((served.name, "embeddings"), texts, [*map(tokens_of, texts)], run, render)
