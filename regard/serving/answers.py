"""The types of answers, as `/openapi.json` describes them."""

from __future__ import annotations

from typing import Any, Generic, Literal, NotRequired, TypeVar

from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

Item = TypeVar("Item")


class Results(TypedDict, Generic[Item]):
    """What a model computed: `result` for one item, `results` for a list of them."""

    model: str
    result: NotRequired[Item]
    results: NotRequired[list[Item]]


class Vector(TypedDict):
    """The vector of a text."""

    vector: list[float]


class LabelledVectors(TypedDict):
    """The vectors of words or tokens, which are the labels."""

    labels: list[str]
    vectors: list[list[float]]


class FoundText(TypedDict):
    """A text that was found: its index among those searched, its cosine, and the text."""

    index: int
    score: float
    text: str


class DecodedHypothesis(TypedDict):
    """A decoded text. finished: it was not cut by the limit on its length."""

    text: str
    score: float
    log_prob: float
    finished: bool


class Decoded(TypedDict):
    """The best text, and all hypotheses."""

    text: str
    hypotheses: list[DecodedHypothesis]


class LogLikelihood(TypedDict):
    """Of a text, in nats."""

    log_likelihood: float


class ParseTree(TypedDict):
    """A tree in brackets."""

    tree: str


class AttentionWeights(TypedDict):
    """The mean of the chosen heads: the weights of rows for columns."""

    source: Any
    answer: Any
    kind: str
    layers: list[int]
    head: int | None
    rows: list[str]
    columns: list[str]
    weights: list[list[float]]


class RegionWeights(TypedDict):
    """A caption, and for each of its words the weights of the regions of the image."""

    answer: str
    words: list[str]
    weights: list[Any]


class Tokens(TypedDict):
    """The tokens of a text; offsets: where each stands in it, in characters."""

    ids: list[int]
    tokens: list[str]
    offsets: list[tuple[int, int]]


class TokenIds(TypedDict):
    """The ids of a prompt."""

    count: int
    tokens: list[int]


class TokenizerInfo(TypedDict):
    """The kind, the size and the special tokens of a tokenizer."""

    model: str
    kind: str
    vocab_size: int
    special_tokens: dict[str, Any]
    max_length: int | None
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None


class ModelCard(TypedDict):
    """A model that is served, with the routes that it has."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    task: str
    routes: list[str]


class ModelList(TypedDict):
    """All models."""

    object: Literal["list"]
    data: list[ModelCard]


class Health(TypedDict):
    """The names of the models that are loaded."""

    status: Literal["ok"]
    models: list[str]


class Usage(TypedDict):
    """How many tokens were read and generated."""

    prompt_tokens: int
    completion_tokens: NotRequired[int]
    total_tokens: int


class LogProbs(TypedDict):
    """The log-probabilities of tokens."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(TypedDict):
    """A continuation of a prompt."""

    index: int
    text: str
    finish_reason: str | None
    logprobs: LogProbs | None


class CompletionAnswer(TypedDict):
    """The continuations of prompts."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: NotRequired[Usage]


class Turn(TypedDict):
    """A reply."""

    role: Literal["assistant"]
    content: str


class ChatChoice(TypedDict):
    """A reply to a dialogue."""

    index: int
    message: Turn
    finish_reason: str | None


class ChatAnswer(TypedDict):
    """The replies to a dialogue."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class EmbeddingItem(TypedDict):
    """The vector of a text; as base64 it is a string."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingAnswer(TypedDict):
    """The vectors of texts."""

    object: Literal["list"]
    data: list[EmbeddingItem]
    model: str
    usage: Usage
