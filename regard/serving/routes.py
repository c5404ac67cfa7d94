"""The routes of a server that are asked by POST: one entry each.

A route of a task names the method that a task must have, the fields of a request, and what answers
it. `/openapi.json`, the error for an unknown path and the reference come from this table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from regard.lazy import on_first_call
from regard.serving import calls, requests, tokens
from regard.serving.work import search_work, work_maker

if TYPE_CHECKING:
    from regard.serving.models import ServedModel
    from regard.serving.work import Work
    from regard.tasks.task import Task


def any_task(task: Task) -> bool:
    """True."""
    return True


def reads_images(task: Task) -> bool:
    """Whether a task is on images."""
    return task.reads_images


def gives_predictions(task: Task) -> bool:
    """Whether the task predicts something else than texts that it generates."""
    return not task.decodes


def reads_texts(task: Task) -> bool:
    """Whether the task reads texts, not questions with their choices."""
    return not task.has("choose")


has_attention = on_first_call("regard.visual.attention_maps:has_attention")
continues_texts = on_first_call("regard.serving.openai:continues_texts")


@dataclass(frozen=True)
class Route:
    """A route that is asked by POST and answered by a model.

    summary: what it does, in a few words.
    request: the fields of the body.  example: of a body.
    work: what the engine does for a request to a model.
    method: of `regard.tasks.methods.METHODS`, which the task of a model must have; "": any task.
    condition: what a task must fulfil besides.
    """

    path: str
    summary: str
    method: str
    request: type[requests.Request]
    work: Callable[[ServedModel, Any], Work]
    example: dict[str, Any]
    condition: Callable[[Task], bool] = any_task

    def available_for(self, task: Task) -> bool:
        """Whether a model of this task has the route. Tasks on images read names of files, which
        clients must not give: they have those to which images are sent.
        """
        images = task.reads_images == (self.method == "caption")
        return self.condition(task) and (not self.method or (images and task.has(self.method)))


CAT, PAIR = "the cat sat", {"question": "Who sat?", "context": "The cat sat on the mat."}
CHOICES = {"context": "The cat sat.", "question": "Who sat?", "choices": ["the cat", "the dog"]}

ROUTES = {
    route.path: route
    for route in (
        Route(
            "/embed",
            "Vectors of texts, words or tokens.",
            "embed",
            requests.Embed,
            work_maker(calls.embed),
            {"texts": [CAT, "the dog ran"], "granularity": "sentence"},
        ),
        Route(
            "/search",
            "The texts of an index, or of the request, that are most similar to a query.",
            "search",
            requests.Search,
            search_work,
            {"query": "a cat", "texts": [CAT, "the dog ran"], "top_k": 1},
        ),
        Route(
            "/classify",
            "The label or labels of texts, with probabilities.",
            "predict_proba",
            requests.Predict,
            work_maker(calls.predict),
            {"texts": [CAT, "the dog ran"]},
            reads_texts,
        ),
        Route(
            "/tag",
            "A tag for each word, and the entities.",
            "tag",
            requests.Words,
            work_maker(calls.predict),
            {"texts": CAT},
        ),
        Route(
            "/answer",
            "Answers to questions from contexts.",
            "answer",
            requests.Answer,
            work_maker(calls.predict),
            PAIR,
        ),
        Route(
            "/choose",
            "The best of several choices.",
            "choose",
            requests.Choose,
            work_maker(calls.predict),
            {"questions": [CHOICES]},
        ),
        Route(
            "/predict",
            "The prediction of any task that does not generate text.",
            "predict",
            requests.Predict,
            work_maker(calls.predict),
            {"texts": [[CAT, "it slept"]]},
            gives_predictions,
        ),
        Route(
            "/translate",
            "Translations, with their scores.",
            "translate",
            requests.Translate,
            work_maker(calls.decode),
            {"texts": ["die Katze sitzt"], "beams": 4},
        ),
        Route(
            "/summarize",
            "Summaries, with their scores.",
            "summarize",
            requests.DecodedTexts,
            work_maker(calls.decode),
            {"texts": [CAT], "max_tokens": 20},
        ),
        Route(
            "/generate",
            "Continuations of prompts, or the texts generated for sources.",
            "generate",
            requests.Generate,
            work_maker(calls.decode),
            {"texts": CAT, "max_tokens": 20, "temperature": 0.8, "seed": 1},
        ),
        Route(
            "/fill",
            "The best words for masks.",
            "fill",
            requests.Fill,
            work_maker(calls.fill),
            {"texts": "the cat [MASK]", "top": 3},
        ),
        Route(
            "/score",
            "Log-likelihoods of texts, in nats.",
            "log_likelihoods",
            requests.Texts,
            work_maker(calls.score),
            {"texts": [CAT, "cat the sat"]},
        ),
        Route(
            "/parse",
            "Constituency trees of sentences.",
            "parse",
            requests.Words,
            work_maker(calls.parse),
            {"texts": [CAT]},
        ),
        Route(
            "/caption",
            "Descriptions of images.",
            "caption",
            requests.Caption,
            work_maker(calls.caption),
            {"images": ["iVBORw0KGgo="]},
        ),
        Route(
            "/regions",
            "Descriptions of images, and the attention of each word to the regions.",
            "",
            requests.Regions,
            work_maker(calls.region_weights),
            {"images": ["iVBORw0KGgo="]},
            reads_images,
        ),
        Route(
            "/look",
            "The attention weights of texts: the mean of the heads that are chosen.",
            "",
            requests.Look,
            work_maker(calls.attention_weights),
            {"texts": CAT, "layer": 1, "head": 1},
            has_attention,
        ),
        Route(
            "/tokenize",
            "The tokens of texts: ids, names and offsets.",
            "",
            requests.Tokenize,
            tokens.tokenize,
            {"texts": [CAT]},
        ),
        Route(
            "/v1/completions",
            "OpenAI's completions, of language models that read from left to right.",
            "generate",
            requests.Completion,
            on_first_call("regard.serving.openai:completion"),
            {"model": "gpt2", "prompt": CAT, "max_tokens": 8, "temperature": 0},
            continues_texts,
        ),
        Route(
            "/v1/chat/completions",
            "OpenAI's chat completions, of models of dialogues.",
            "reply",
            requests.Chat,
            on_first_call("regard.serving.chat:chat"),
            {"model": "dialogue", "messages": [{"role": "user", "content": CAT}]},
        ),
        Route(
            "/v1/embeddings",
            "OpenAI's embeddings.",
            "embed",
            requests.OpenAIEmbedding,
            on_first_call("regard.serving.openai:embeddings"),
            {"model": "minilm", "input": [CAT]},
        ),
    )
}
GETS = {
    "/health": "200 when the models are loaded; 503 before, and while the server stops.",
    "/metrics": "What the server counts, in Prometheus' text format.",
    "/v1/models": "The models and the routes that each has.",
    "/tokenizer_info": "The kind, the size and the special tokens of a model's tokenizer.",
    "/openapi.json": "This table with the fields of all requests.",
}
