"""The fields of requests: names, types and ranges. A field that is not listed is an error.

The first line of a class is what the documentation says of its route.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from regard import habit_names
from regard.call_options import DecodingFields, LanguageFields, VectorFields, with_fields
from regard.errors import ConfigError
from regard.serving.problems import Problem
from regard.suggest import nearest

Fields = dict[str, Any]  # by name: what a request asks for, or what an answer has
Count = Annotated[int, Field(ge=1)]
Outputs = Annotated[int, Field(ge=1, le=128)]  # of one text: they take memory and time together
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
TooLong = Literal["error", "truncate"]
Zero = Annotated[float, Field(ge=0, le=0)]
Value = TypeVar("Value")
Listed = Annotated[
    list[Value], Field(fail_fast=True)
]  # an error for the first wrong value, not for each
Stop = str | Annotated[Listed[str], Field(max_length=16)]
Ids = Listed[Annotated[int, Field(ge=0)]]


class RequestFields(BaseModel):
    """A JSON object with these fields alone; null is a field that is not given."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        use_attribute_docstrings=True,
    )
    own_names: ClassVar[Callable[[Fields], Fields]] = dict
    """From the fields of a body to fields with our names."""

    @model_validator(mode="before")
    @classmethod
    def known_fields(cls, fields: Any) -> Any:
        """The fields that are given, by our names.

        Raises:
            Problem: 400 for an unknown field. Pydantic would keep an error for each of them, of a
                kilobyte.
        """
        if not isinstance(fields, dict):
            return fields
        try:
            fields = cls.own_names({k: v for k, v in fields.items() if v is not None})
        except ConfigError as error:
            raise Problem(400, str(error), "invalid_body") from None
        if unknown := next((name for name in fields if name not in cls.model_fields), None):
            unknown = f"{unknown:.200}"
            hint = nearest(unknown, cls.model_fields)
            raise Problem(400, f"`{unknown}` is an unknown field. {hint}", "invalid_body", unknown)
        return fields


class Request(RequestFields):
    """What every request has.

    ITEMS: the field with what is answered: one item, or a list of them.
    BESIDE: a field with a further part of each item.
    """

    ITEMS: ClassVar[str] = "texts"
    BESIDE: ClassVar[str] = ""

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
        items = getattr(self, self.ITEMS)
        return [items] if self.one else items

    def options(self) -> Fields:
        """The other fields, by the names of the task's method."""
        return self.model_dump(exclude={"model", self.ITEMS, self.BESIDE}, exclude_none=True)


class WithLimit(Request):
    """Inputs that may be too long."""

    too_long: TooLong = "error"
    """Inputs beyond the model's limit."""


class Texts(Request):
    """Texts."""

    texts: str | Listed[str]
    """One text, or a list of texts."""


class Tokenize(Request):
    """The tokens of texts: ids, names and offsets.

    Also in the form in which vLLM and evaluation harnesses ask.
    """

    texts: str | Listed[str] | None = None
    """One text, or a list of texts."""
    prompt: str | None = None
    """One text, or the name of a special token; the answer has its ids alone, as `tokens`."""
    add_special_tokens: Literal[False] = False
    """Tokens that the model adds to a text are never among these."""

    def items(self) -> list[Any]:
        """The texts, or the prompt as one of them."""
        if (self.texts is None) == (self.prompt is None):
            raise ConfigError("Give one of `texts` and `prompt`.")
        return super().items() if self.prompt is None else [self.prompt]

    def options(self) -> Fields:
        """None: no field changes what is computed."""
        return {}


class ScoreTexts(Texts):
    """Log-likelihoods of texts, in nats."""


class TextsWithLimit(Texts, WithLimit):
    """Texts that may be too long."""


class Embed(with_fields(TextsWithLimit, VectorFields)):  # type: ignore[misc]
    """Vectors of texts, words or tokens."""

    own_names = habit_names.embedding


class Search(WithLimit):
    """The texts of an index, or of the request, that are most similar to a query."""

    ITEMS: ClassVar[str] = "query"

    query: str | Listed[str]
    """One query, or a list of queries."""
    texts: Listed[str] | None = None
    """What is searched; without them the index that is served."""
    top_k: Annotated[int, Field(ge=1, le=1000)] = 10
    """How many texts are found."""


class TextsOrPairs(Request):
    """Texts, or pairs of texts."""

    texts: str | Fields | Listed[str | Listed[Any] | Fields]
    """One input, or a list of them: a text; a list such as a pair of texts; an object."""

    def items(self) -> list[Any]:
        """Inputs as the task takes them: lists are tuples."""
        return [tuple(text) if isinstance(text, list) else text for text in super().items()]


class Predict(TextsOrPairs, WithLimit):
    """The prediction of any task that does not generate text."""


class ClassifyTexts(Predict):
    """The label or labels of texts, with probabilities."""


class Words(Request):
    """Texts, each a string or a list of words."""

    texts: str | Listed[str | Listed[str]]
    """One text, or a list of texts, each a string or a list of words."""


class TagTexts(Words):
    """A tag for each word, and the entities."""


class ParseTexts(Words):
    """Constituency trees of sentences."""


class Answer(WithLimit):
    """Answers to questions from contexts."""

    ITEMS: ClassVar[str] = "question"
    BESIDE: ClassVar[str] = "context"

    question: str | Listed[str]
    """One question, or a list of them."""
    context: str | Listed[str]
    """Where the answer is: one for all questions, or as many as questions."""
    n_best: Annotated[int, Field(ge=1, le=100)] = 1
    """How many passages to give with each answer."""

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


class ChoiceQuestionFields(RequestFields):
    """A question with its choices."""

    context: str = ""
    question: str = ""
    choices: Annotated[Listed[str], Field(min_length=1)]


class Choose(WithLimit):
    """The best of several choices."""

    ITEMS: ClassVar[str] = "questions"

    questions: ChoiceQuestionFields | Listed[ChoiceQuestionFields]
    """One question, or a list of them."""

    def items(self) -> list[Any]:
        """Questions as mappings."""
        return [question.model_dump() for question in super().items()]


class Fill(TextsWithLimit):
    """The best words for masks."""

    top: Annotated[int, Field(ge=1, le=1000)] = 5
    """How many words to give for each mask."""


class Decoding(with_fields(Request, DecodingFields)):  # type: ignore[misc]
    """How to decode, where it differs from the model's own settings."""

    own_names = habit_names.decoding

    beams: Outputs | None = None
    """Decode with beam search and this many beams."""
    n_best: Outputs | None = None
    """Return this many hypotheses, the best first."""
    samples: Outputs | None = None
    """Sample this many outputs for each text."""


class DecodedTexts(Decoding):
    """Texts for which others are generated."""

    texts: str | Listed[str]
    """One text or prompt, or a list of them."""
    too_long: TooLong = "error"
    """Texts beyond the model's limit."""


class SummarizeTexts(DecodedTexts):
    """Summaries, with their scores."""


class Translate(with_fields(DecodedTexts, LanguageFields)):  # type: ignore[misc]
    """Translations, with their scores."""


class Generate(Translate):
    """Continuations of prompts, or the texts generated for sources."""

    stop: Stop | None = None
    """Stop sequences: a continuation ends before the first one. Language models only."""
    window: Literal[True] | None = None
    """Go on beyond the context: the last tokens that fit are read. Language models only."""


class Look(TextsOrPairs):
    """The attention weights of texts: the mean of the heads that are chosen."""

    kind: Literal["encoder", "decoder", "cross", "query"] | None = None
    """Of attention; the model's main kind where not given."""
    layer: Count | None = None
    """From 1; the mean of all layers where not given."""
    head: Count | None = None
    """From 1; the mean of all heads where not given."""
    tokens: bool = False
    """Whether subwords are rows and columns, and not the words that they are merged to."""


class Caption(Decoding):
    """Descriptions of images."""

    ITEMS: ClassVar[str] = "images"

    images: str | Listed[str]
    """One image, or a list of them: the bytes of a file (PNG, JPEG) in base64."""


class Regions(Caption):
    """Descriptions of images, and the attention of each word to the regions."""

    layer: str | None = None
    """The attention to the regions that is shown, by its name; the last where not given."""


class StreamOptions(RequestFields):
    """What a stream has beside the text."""

    include_usage: bool = False
    """Whether the last event counts tokens."""
    include_obfuscation: Literal[False] | None = None
    """Accepted, since it changes nothing."""


class OpenAIRequest(Request):
    """Fields of OpenAI's that change nothing here are accepted, since their clients send them."""

    user: str | None = None
    """Who asks; it is not used."""


class Sampled(OpenAIRequest):
    """The fields that OpenAI's completions of prompts and of dialogues have in common."""

    temperature: Annotated[float, Field(ge=0)] | None = None
    """0: the most probable token at each step. Not given: the model's own settings."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Sample among the fewest most probable tokens whose probabilities sum to this."""
    n: Outputs = 1
    """Completions of each prompt."""
    seed: Seed | None = None
    """The seed of sampling; 0 where not given."""
    stop: Stop | None = None
    """Where the text ends, without these."""
    stream: bool = False
    """Whether the text is sent as it is generated, as server-sent events."""
    stream_options: StreamOptions | None = None
    """Of a stream."""
    presence_penalty: Zero | None = None
    """Accepted where it changes nothing."""
    frequency_penalty: Zero | None = None
    """Accepted where it changes nothing."""
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] | None = None
    """Accepted where it changes nothing."""

    @property
    def streams(self) -> bool:
        """Whether the answer is sent while it is made."""
        return self.stream

    @property
    @abstractmethod
    def limit(self) -> int | None:
        """The most tokens to generate; None: the task's own."""


class TextPart(RequestFields):
    """A part of a turn."""

    type: Literal["text"]
    text: str


class Message(RequestFields):
    """A turn of a dialogue, or what a chat model is told before it."""

    role: Literal["system", "developer", "user", "assistant"]
    """A developer's turn is read as that of the system."""
    content: str | Listed[TextPart]
    name: str | None = None
    """Of who speaks; it is not used."""

    @property
    def text(self) -> str:
        """The text of all parts."""
        parts = self.content
        return parts if isinstance(parts, str) else "".join(part.text for part in parts)

    @property
    def turn(self) -> dict[str, str]:
        """As a chat template reads it."""
        return {"role": "system" if self.role == "developer" else self.role, "content": self.text}


class Chat(Sampled):
    """OpenAI's chat completions, of models of dialogues and of those with a chat template."""

    ITEMS: ClassVar[str] = "messages"

    messages: Annotated[Listed[Message], Field(min_length=1)]
    """The turns before the reply."""
    max_tokens: Count | None = None
    """The most tokens to generate. Not given: 40 in dialogues, what fits after a chat's prompt."""
    max_completion_tokens: Count | None = None
    """Another name of `max_tokens`."""
    logprobs: Literal[False] | None = None
    """Accepted where it changes nothing."""
    response_format: dict[Literal["type"], Literal["text"]] | None = None
    """Accepted where it changes nothing."""
    tools: Annotated[list[Any], Field(max_length=0)] | None = None
    """Accepted where it changes nothing."""

    @property
    def limit(self) -> int | None:
        """The most tokens to generate."""
        return self.max_completion_tokens or self.max_tokens


class Completion(Sampled):
    """OpenAI's completions, of language models that read from left to right."""

    ITEMS: ClassVar[str] = "prompt"

    prompt: str | Listed[str] | Ids | Listed[Ids]
    """One prompt, or a list of them, as text or as ids of tokens."""
    max_tokens: Annotated[int, Field(ge=0)] = 16
    """The most tokens to generate."""
    echo: bool = False
    """Whether the prompt comes back before its completion."""
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    """So many of the most probable tokens at each position, and the log-probabilities."""
    best_of: Annotated[int, Field(ge=1, le=1)] | None = None
    """Accepted where it changes nothing."""
    suffix: Literal[""] | None = None
    """Accepted where it changes nothing."""

    @property
    def limit(self) -> int:
        """The most tokens to generate."""
        return self.max_tokens

    @property
    def one(self) -> bool:
        """Whether there is one prompt: a list of ids is one."""
        return is_one(self.prompt)


class OpenAIEmbedding(OpenAIRequest):
    """OpenAI's embeddings."""

    ITEMS: ClassVar[str] = "input"

    input: str | Listed[str] | Ids | Listed[Ids]
    """One text, or a list of texts, as text or as ids of the model's tokens."""
    encoding_format: Literal["float", "base64"] = "float"
    """base64: the bytes of little-endian float32."""
    dimensions: Count | None = None
    """The length of a vector, which is the model's own."""

    @property
    def one(self) -> bool:
        """Whether there is one text: a list of ids is one."""
        return is_one(self.input)


def is_one(given: Any) -> bool:
    """Whether texts, each a string or a list of ids, are one."""
    return isinstance(given, str) or (bool(given) and isinstance(given[0], int))
