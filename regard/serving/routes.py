"""The routes that a model answers, one entry each: the fields of a request, what computes it, and
which models have the route.

What `/openapi.json`, `/docs` and the reference say comes from this table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from regard.lazy import on_first_call
from regard.serving import requests, work

if TYPE_CHECKING:
    from regard.serving.models import ServedModel
    from regard.serving.work import Work
    from regard.tasks.task import Task


has_attention = on_first_call("regard.visual.attention_record:has_attention")
continues_texts = on_first_call("regard.serving.openai:continues_texts")
replies = on_first_call("regard.serving.openai:replies")


@dataclass(frozen=True)
class Route:
    """A route that is asked by POST and answered by a model.

    method: of `regard.tasks.task.METHODS`, which the task of a model must have; "": any task.
    request: the fields of the body; its docstring says what the route does.
    work: what the engine does for a request to a model.
    example: of a body.
    condition: what a task must fulfil besides.
    """

    path: str
    method: str
    request: type[requests.Request]
    work: Callable[[ServedModel, Any], Work]
    example: dict[str, Any]
    condition: Callable[[Task], bool] = lambda task: True

    @property
    def summary(self) -> str:
        """What it does, in a few words."""
        return (self.request.__doc__ or "").partition("\n")[0]

    def available_for(self, task: Task) -> bool:
        """Whether a model of this task has the route. Tasks on images read names of files, which
        clients must not give: they have those to which images are sent.
        """
        images = task.reads_images == (self.method == "caption")
        return self.condition(task) and (not self.method or (images and task.has(self.method)))


def task_route(
    path: str,
    method: str,
    request: type[requests.Request],
    call: work.Call,
    condition: Callable[[Task], bool] = lambda task: True,
    **example: Any,
) -> Route:
    """A route whose items are answered one by one."""
    return Route(path, method, request, work.work_maker(call), example, condition)


CAT, MAT, IMAGE = "the cat sat", "The cat sat on the mat.", "iVBORw0KGgo="
PAIR, TURN = [CAT, "it slept"], {"role": "user", "content": CAT}
CHOICES = {"context": MAT, "question": "Who sat?", "choices": ["the cat", "the dog"]}
FOUND = {"query": "a cat", "texts": [CAT, "the dog ran"], "top_k": 1}
R = requests
predict, decode = work.predict, work.decode
ALL = (
    task_route("/embed", "embed", R.Embed, work.embed, texts=[CAT, MAT]),
    Route("/search", "search", R.Search, work.search_work, FOUND),
    task_route(
        "/classify",
        "predict_proba",
        R.ClassifyTexts,
        predict,
        lambda task: not task.has("choose"),
        texts=CAT,
    ),
    task_route("/tag", "tag", R.TagTexts, predict, texts=CAT),
    task_route("/answer", "answer", R.Answer, predict, question="Who?", context=MAT),
    task_route("/choose", "choose", R.Choose, predict, questions=[CHOICES]),
    task_route(
        "/predict", "predict", R.Predict, predict, lambda task: not task.decodes, texts=[PAIR]
    ),
    task_route("/translate", "translate", R.Translate, decode, texts=[CAT]),
    task_route("/summarize", "summarize", R.SummarizeTexts, decode, texts=MAT),
    task_route("/generate", "generate", R.Generate, decode, texts=CAT, max_tokens=20),
    task_route("/fill", "fill", R.Fill, work.fill, texts="the cat [MASK]", top=3),
    task_route("/score", "log_likelihoods", R.ScoreTexts, work.score, texts=[CAT, MAT]),
    task_route("/parse", "parse", R.ParseTexts, work.parse, texts=CAT),
    task_route("/caption", "caption", R.Caption, work.caption, images=IMAGE),
    task_route(
        "/regions",
        "",
        R.Regions,
        work.region_weights,
        lambda task: task.reads_images,
        images=IMAGE,
    ),
    task_route("/look", "", R.Look, work.attention_weights, has_attention, texts=CAT),
    Route("/tokenize", "", R.Tokenize, work.tokenize, {"texts": [CAT]}),
    Route(
        "/v1/completions",
        "generate",
        R.Completion,
        on_first_call("regard.serving.openai:completion"),
        {"model": "gpt2", "prompt": CAT, "max_tokens": 8, "temperature": 0},
        continues_texts,
    ),
    Route(
        "/v1/chat/completions",
        "",
        R.Chat,
        on_first_call("regard.serving.openai:chat"),
        {"model": "chat", "messages": [TURN]},
        replies,
    ),
    Route(
        "/v1/embeddings",
        "embed",
        R.OpenAIEmbedding,
        on_first_call("regard.serving.openai:embeddings"),
        {"model": "minilm", "input": [CAT]},
    ),
)
ROUTES = {route.path: route for route in ALL}
