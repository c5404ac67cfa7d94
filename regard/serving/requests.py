"""The fields of requests: names, types and ranges. A field that is not listed is an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from regard import habit_names
from regard.errors import ConfigError

Count = Annotated[int, Field(ge=1)]
Outputs = Annotated[int, Field(ge=1, le=128)]  # of one text: they take memory and time together
Value = TypeVar("Value")
Listed = Annotated[
    list[Value], Field(fail_fast=True)
]  # an error for the first wrong value, not for each
Stop = str | Annotated[Listed[str], Field(max_length=16)]
Ids = Listed[Annotated[int, Field(ge=0)]]


class Request(BaseModel):
    """What every request has.

    ITEMS: the field with what is answered: one item, or a list of them.
    """

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        use_attribute_docstrings=True,
        defer_build=True,  # validators are built by the first request, not by the import
    )
    ITEMS: ClassVar[str] = "texts"
    own_names: ClassVar[Callable[[dict[str, Any]], dict[str, Any]]] = dict
    """From the fields of a body to fields with our names."""

    model: str | None = None
    """A name of /v1/models; may be left out where one model is served."""

    @property
    def one(self) -> bool:
        """Whether one item is asked for, and not a list."""
        return not isinstance(getattr(self, self.ITEMS), list)

    @property
    def streams(self) -> bool:
        """Whether the answer is sent while it is made."""
        return False

    def items(self) -> list[Any]:
        """What is answered, as the task takes it: pairs are tuples."""
        given = getattr(self, self.ITEMS)
        return [given] if self.one else given

    def options(self) -> dict[str, Any]:
        """The other fields that are given, by the names of the task's method."""
        return self.model_dump(exclude={"model", self.ITEMS}, exclude_unset=True, exclude_none=True)


class Texts(Request):
    """Texts."""

    texts: str | Listed[str]
    """One text, or a list of texts."""


class Tokenize(Request):
    """Texts; or one of them in the form in which vLLM and evaluation harnesses ask."""

    texts: str | Listed[str] | None = None
    """One text, or a list of texts."""
    prompt: str | None = None
    """One text, or the name of a special token; the answer has its ids alone, as `tokens`."""
    add_special_tokens: Literal[False] = False
    """Tokens that the model adds to a text are never among these."""

    def items(self) -> list[Any]:
        """See `Request`."""
        if (self.texts is None) == (self.prompt is None):
            raise ConfigError("Give one of `texts` and `prompt`.")
        return super().items() if self.prompt is None else [self.prompt]

    def options(self) -> dict[str, Any]:
        """See `Request`: none of them changes what is computed."""
        return {}


class TextsWithLimit(Texts):
    """Texts that may be too long."""

    too_long: Literal["error", "truncate"] = "error"
    """Texts beyond the model's limit."""


class Embed(TextsWithLimit):
    """As `embed` of a task."""

    own_names = habit_names.embedding

    layers: int | Listed[int] = -1
    """The number of a layer or several: 0 is the embeddings, -1 the last."""
    combine: str | Listed[float] = "concat"
    """How several layers become one vector: concat, sum, mean, or the weight of each."""
    pooling: str | None = None
    """mean, first, last, max; the folder's own where not given."""
    granularity: Literal["sentence", "word", "token"] = "sentence"
    """What a vector represents; sentence: a whole text."""
    normalize: bool | None = None
    """Vectors of length 1; as the folder says where not given."""


class Search(Request):
    """As `search` of a task or of an index."""

    ITEMS: ClassVar[str] = "query"

    query: str | Listed[str]
    """One query, or a list of queries."""
    texts: Listed[str] | None = None
    """What is searched; without them the index that is served."""
    top_k: Annotated[int, Field(ge=1, le=1000)] = 10
    """How many texts are found."""
    too_long: Literal["error", "truncate"] = "error"
    """Texts beyond the model's limit."""


class TextsOrPairs(Request):
    """Texts, or pairs of texts."""

    texts: str | Listed[str | Listed[str]]
    """One text, or a list: a pair of texts is a list of two."""

    def items(self) -> list[Any]:
        """See `Request`."""
        return [tuple(one) if isinstance(one, list) else one for one in super().items()]


class Predict(TextsOrPairs):
    """As `predictions` of a task."""

    too_long: Literal["error", "truncate"] = "error"
    """Texts beyond the model's limit."""


class Words(Request):
    """Texts, each a string or a list of words."""

    texts: str | Listed[str | Listed[str]]
    """One text, or a list of texts, each a string or a list of words."""


class Answer(Request):
    """As `answer` of a task."""

    ITEMS: ClassVar[str] = "question"

    question: str | Listed[str]
    """One question, or a list of them."""
    context: str | Listed[str]
    """Where the answer is: one for all questions, or as many as questions."""
    n_best: Annotated[int, Field(ge=1, le=100)] = 1
    """How many passages to give with each answer."""
    too_long: Literal["error", "truncate"] = "error"
    """Questions beyond the model's limit."""

    def items(self) -> list[Any]:
        """Pairs of question and context."""
        questions = super().items()
        contexts = self.context
        if isinstance(contexts, str):
            contexts = [contexts] * len(questions)
        if len(contexts) != len(questions):
            raise ConfigError(
                f"`context` must be one text or {len(questions):,}, one for each question, but "
                f"has {len(contexts):,}."
            )
        return list(zip(questions, contexts, strict=True))

    def options(self) -> dict[str, Any]:
        """See `Request`."""
        found = super().options()
        del found["context"]
        return found


class ChoiceQuestionFields(BaseModel):
    """A question with its choices."""

    model_config = Request.model_config

    context: str = ""
    question: str = ""
    choices: Annotated[Listed[str], Field(min_length=1)]


class Choose(Request):
    """As `choose` of a task."""

    ITEMS: ClassVar[str] = "questions"

    questions: ChoiceQuestionFields | Listed[ChoiceQuestionFields]
    """One question, or a list of them."""
    too_long: Literal["error", "truncate"] = "error"
    """Questions beyond the model's limit."""

    def items(self) -> list[Any]:
        """Questions as mappings."""
        return [one.model_dump() for one in super().items()]


class Fill(TextsWithLimit):
    """As `fill` of a task."""

    top: Annotated[int, Field(ge=1, le=1000)] = 5
    """How many words to give for each mask."""
    among: Listed[str] | None = None
    """The only words to choose from, each of them one token."""


class Decoding(Request):
    """How to decode, where it differs from the model's own settings."""

    own_names = habit_names.decoding

    beams: Outputs | None = None
    """Beam search with this many beams."""
    n_best: Outputs | None = None
    """How many hypotheses to return."""
    length_penalty: float | str | None = None
    """A: score / length^A; or gnmt:A."""
    temperature: float | None = None
    """Sample at this temperature."""
    top_k: Count | None = None
    """Sample among the K likeliest tokens."""
    top_p: float | None = None
    """Sample among tokens of this mass."""
    samples: Outputs | None = None
    """How many samples."""
    seed: int | None = None
    """The seed of sampling."""
    no_repeat_ngram: Count | None = None
    """No n-gram of this size twice."""
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    """The least tokens of an output."""
    max_tokens: int | None = None
    """The most tokens of an output."""
    max_length_a: float | None = None
    """The most tokens of an output for each token of its source."""
    max_length_b: int | None = None
    """Added to the limit of max_length_a."""


class DecodedTexts(Decoding):
    """Texts for which others are generated."""

    texts: str | Listed[str]
    """One text or prompt, or a list of them."""
    too_long: Literal["error", "truncate"] = "error"
    """Texts beyond the model's limit."""


class Translate(DecodedTexts):
    """As `translate` of a task."""

    source_language: str | None = None
    """Of a model with several."""
    target_language: str | None = None
    """Of a model with several."""


class Generate(Translate):
    """As `generate` of a task."""

    stop: Stop | None = None
    """Stop sequences: a continuation ends before the first one. Language models only."""


class Look(TextsOrPairs):
    """As the options of `regard look`."""

    kind: Literal["encoder", "decoder", "cross", "query"] | None = None
    """Of attention; the model's main kind where not given."""
    layer: Count | None = None
    """From 1; the mean of all layers where not given."""
    head: Count | None = None
    """From 1; the mean of all heads where not given."""
    tokens: bool = False
    """Whether subwords are rows and columns, and not the words that they are merged to."""


class Caption(Decoding):
    """As `caption` of a task."""

    ITEMS: ClassVar[str] = "images"

    images: str | Listed[str]
    """One image, or a list of them: the bytes of a file (PNG, JPEG) in base64."""


class Regions(Caption):
    """As the options of `regard look --regions`."""

    layer: str | None = None
    """The attention to the regions that is shown, by its name; the last where not given."""


class StreamOptions(BaseModel):
    """What a stream has beside the text."""

    model_config = Request.model_config

    include_usage: bool = False
    """Whether the last event counts tokens."""


class Sampled(Request):
    """The fields that OpenAI's completions of prompts and of dialogues have in common."""

    max_tokens: Annotated[int, Field(ge=0)] = 16
    """The most tokens to generate."""
    temperature: Annotated[float, Field(ge=0)] | None = None
    """0: the most probable token at each step. Not given: the model's own settings."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Sample among tokens of this mass."""
    n: Outputs = 1
    """Completions of each prompt."""
    seed: int | None = None
    """The seed of sampling; 0 where not given."""
    stop: Stop | None = None
    """Where the text ends, without these."""


class Message(BaseModel):
    """A turn of a dialogue."""

    model_config = Request.model_config

    role: Literal["user", "assistant"]
    content: str


class Chat(Sampled):
    """The fields of OpenAI's chat completions that this server honours."""

    ITEMS: ClassVar[str] = "messages"

    messages: Annotated[Listed[Message], Field(min_length=1)]
    """The turns before the reply."""
    max_tokens: Annotated[int, Field(ge=1)] = 40
    """The most tokens to generate."""


class Completion(Sampled):
    """The fields of OpenAI's completions that this server honours."""

    ITEMS: ClassVar[str] = "prompt"

    prompt: str | Listed[str] | Ids | Listed[Ids]
    """One prompt, or a list of them, as text or as ids of tokens."""
    echo: bool = False
    """Whether the prompt comes back before its completion."""
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    """So many of the most probable tokens at each position, and the log-probabilities."""

    stream: bool = False
    """Whether the text is sent as it is generated, as server-sent events."""
    stream_options: StreamOptions | None = None
    """Of a stream."""

    @property
    def streams(self) -> bool:
        """See `Request`."""
        return self.stream

    @property
    def one(self) -> bool:
        """See `Request`; a list of ids is one prompt."""
        return isinstance(self.prompt, str) or (
            bool(self.prompt) and isinstance(self.prompt[0], int)
        )


class OpenAIEmbedding(Request):
    """The fields of OpenAI's embeddings that this server honours."""

    ITEMS: ClassVar[str] = "input"

    input: str | Listed[str]
    """One text, or a list of texts."""
    encoding_format: Literal["float", "base64"] = "float"
    """base64: the bytes of little-endian float32."""
