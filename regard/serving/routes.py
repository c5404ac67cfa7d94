"""The routes that a model answers, one entry each: the fields of a request, what computes it, the
type of an answer, and which models have the route.

What `/openapi.json`, `/docs` and the reference say comes from this table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from regard.lazy import on_first_call
from regard.serving import answers, calls, requests
from regard.serving.work import search_work, tokenize, work_maker

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

    method: of `regard.tasks.methods.METHODS`, which the task of a model must have; "": any task.
    request: the fields of the body; its docstring says what the route does.
    work: what the engine does for a request to a model.
    answer: the type of the body of the answer.
    example: of a body.
    condition: what a task must fulfil besides.
    """

    path: str
    method: str
    request: type[requests.Request]
    work: Callable[[ServedModel, Any], Work]
    answer: Any
    example: dict[str, Any]
    condition: Callable[[Task], bool] = any_task

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
    call: calls.Call,
    answer: Any,
    condition: Callable[[Task], bool] = any_task,
    **example: Any,
) -> Route:
    """A route whose items are answered one by one: `Results` of the type `answer`."""
    results = answers.Results[answer]  # type: ignore[valid-type]
    return Route(path, method, request, work_maker(call), results, example, condition)


CAT, MAT, IMAGE = "the cat sat", "The cat sat on the mat.", "iVBORw0KGgo="
CHOICES = {"context": MAT, "question": "Who sat?", "choices": ["the cat", "the dog"]}
VECTORS = answers.Vector | answers.LabelledVectors
LABELLED, DECODED = dict[str, Any], answers.Decoded  # the fields of a prediction differ by task

ALL = (
    task_route("/embed", "embed", requests.Embed, calls.embed, VECTORS, texts=[CAT, MAT]),
    Route(
        "/search",
        "search",
        requests.Search,
        search_work,
        answers.Results[list[answers.FoundText]],
        {"query": "a cat", "texts": [CAT, "the dog ran"], "top_k": 1},
    ),
    task_route(
        "/classify",
        "predict_proba",
        requests.ClassifyTexts,
        calls.predict,
        LABELLED,
        reads_texts,
        texts=CAT,
    ),
    task_route("/tag", "tag", requests.TagTexts, calls.predict, LABELLED, texts=CAT),
    task_route(
        "/answer", "answer", requests.Answer, calls.predict, LABELLED, question="Who?", context=MAT
    ),
    task_route("/choose", "choose", requests.Choose, calls.predict, LABELLED, questions=[CHOICES]),
    task_route(
        "/predict",
        "predict",
        requests.Predict,
        calls.predict,
        LABELLED,
        gives_predictions,
        texts=[[CAT, "it slept"]],
    ),
    task_route("/translate", "translate", requests.Translate, calls.decode, DECODED, texts=[CAT]),
    task_route(
        "/summarize", "summarize", requests.SummarizeTexts, calls.decode, DECODED, texts=MAT
    ),
    task_route(
        "/generate", "generate", requests.Generate, calls.decode, DECODED, texts=CAT, max_tokens=20
    ),
    task_route("/fill", "fill", requests.Fill, calls.fill, LABELLED, texts="the cat [MASK]", top=3),
    task_route(
        "/score",
        "log_likelihoods",
        requests.ScoreTexts,
        calls.score,
        answers.LogLikelihood,
        texts=[CAT, MAT],
    ),
    task_route("/parse", "parse", requests.ParseTexts, calls.parse, answers.ParseTree, texts=CAT),
    task_route("/caption", "caption", requests.Caption, calls.caption, DECODED, images=IMAGE),
    task_route(
        "/regions",
        "",
        requests.Regions,
        calls.region_weights,
        answers.RegionWeights,
        reads_images,
        images=IMAGE,
    ),
    task_route(
        "/look",
        "",
        requests.Look,
        calls.attention_weights,
        answers.AttentionWeights,
        has_attention,
        texts=CAT,
    ),
    Route(
        "/tokenize",
        "",
        requests.Tokenize,
        tokenize,
        answers.Results[answers.Tokens] | answers.TokenIds,
        {"texts": [CAT]},
    ),
    Route(
        "/v1/completions",
        "generate",
        requests.Completion,
        on_first_call("regard.serving.openai:completion"),
        answers.CompletionAnswer,
        {"model": "gpt2", "prompt": CAT, "max_tokens": 8, "temperature": 0},
        continues_texts,
    ),
    Route(
        "/v1/chat/completions",
        "reply",
        requests.Chat,
        on_first_call("regard.serving.openai:chat"),
        answers.ChatAnswer,
        {"model": "dialogue", "messages": [{"role": "user", "content": CAT}]},
    ),
    Route(
        "/v1/embeddings",
        "embed",
        requests.OpenAIEmbedding,
        on_first_call("regard.serving.openai:embeddings"),
        answers.EmbeddingAnswer,
        {"model": "minilm", "input": [CAT]},
    ),
)
ROUTES = {route.path: route for route in ALL}
