"""Replies as OpenAI's clients ask for them, by models of dialogues."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any, cast

from regard import decoding
from regard.decoding.generated_text import GeneratedText, text_of
from regard.decoding.steps import eos_tokens
from regard.serving.openai import decoding_options, stops_of, usage
from regard.serving.requests import Chat
from regard.serving.work import Work, most_generated, tokens_of
from regard.tasks.dialogue import DialogueModel

if TYPE_CHECKING:
    from regard.serving.models import ServedModel


def chat(served: ServedModel, request: Chat) -> Work:
    """The reply to the turns of a dialogue, of which the model reads as many as it was trained for;
    a longer history loses its beginning, as in `DialogueModel.reply`.

    Raises:
        ConfigError: options of decoding are wrong.
    """
    task, options, stops = (
        cast(DialogueModel, served.task),
        decoding_options(request),
        stops_of(request),
    )
    method = decoding.with_options(task.method, **options)
    history = task.history_of([message.content for message in request.messages])

    def run(items: list[str]) -> list[list[GeneratedText]]:
        found = task.hypotheses(items, too_long="truncate", **options)
        tokenizer, ends = task.tokenizer.for_targets, eos_tokens(method.eos, task.generator)
        return [[text_of(tokenizer, [], one, ends, stops) for one in row] for row in found]

    def render(results: list[list[GeneratedText]]) -> dict[str, Any]:
        texts = results[0][: request.n]
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": text.text},
                "finish_reason": text.reason,
            }
            for index, text in enumerate(texts)
        ]
        read = len(task.tokenizer.encode(history).ids)
        return {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": served.name,
            "choices": choices,
            "usage": usage(read, sum(len(text.tokens) for text in texts)),
        }

    read = tokens_of(history)
    key = (served.name, "chat", repr(method), tuple(stops))
    return Work(key, [history], [read + most_generated(task, method, read)], run, render)
