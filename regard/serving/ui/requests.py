"""The fields of what views ask for. As everywhere, a field that is not listed is an error."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from regard.serving.requests import Count, Ids, Listed, Request, RequestFields, Seed

ShownText = Annotated[str, Field(max_length=20_000)]
Kind = Literal["encoder", "decoder", "cross", "query"]
Number = Annotated[int, Field(ge=1)]  # of a layer, a head or a cell


class ShownTexts(Request):
    """The steps in which the words of a text become tokens."""

    texts: ShownText
    """The text."""


class MaskedHead(RequestFields):
    """A head that is masked."""

    kind: Kind
    layer: Number
    head: Number


class MaskedHeads(ShownTexts):
    """The answer to a text with all heads, and with some of them masked."""

    second: ShownText | None = None
    """The second text of a pair."""
    masked_heads: Annotated[Listed[MaskedHead], Field(max_length=1000)] = []
    """Heads that are masked meanwhile."""

    def items(self) -> list[Any]:
        """A text or a pair."""
        return [self.texts] if self.second is None else [(self.texts, self.second)]

    def options(self) -> dict[str, Any]:
        """Without the second text, which is an item."""
        return {name: value for name, value in super().options().items() if name != "second"}


class AttentionOfAll(MaskedHeads):
    """Small maps of the attention of all heads while a text is read."""

    unit: Literal["words", "tokens"] = "words"
    """Whether the subwords of a word are merged."""


class AttentionOfHead(AttentionOfAll):
    """The attention weights of one head, or the mean of a layer's heads."""

    kind: Kind
    """Which attention."""
    layer: Number
    """From 1."""
    head: Number | None = None
    """From 1; the mean of the layer's heads where not given."""


class NextTokens(ShownTexts):
    """The most probable next tokens, before and after temperature, top-k and top-p."""

    chosen: Annotated[Ids, Field(max_length=2000)] = []
    """Tokens that were chosen after the text, or as the beginning of its target."""
    most: Annotated[int, Field(ge=1, le=200)] = 20
    """How many tokens to give."""
    temperature: float | None = None
    """Divides the scores."""
    top_k: Count | None = None
    """Only the K most probable tokens."""
    top_p: float | None = None
    """Only the fewest most probable tokens whose probabilities sum to this."""
    seed: Seed = 0
    """Of the token that sampling draws."""


class BeamSearch(ShownTexts):
    """Every token that a beam search tries, as a tree."""

    beams: Annotated[int, Field(ge=2, le=12)] = 3
    """Running hypotheses."""
    max_tokens: Annotated[int, Field(ge=1, le=80)] = 20
    """Of an output at most."""
    length_penalty: float | str | None = None
    """A: score / length^A; or gnmt:A."""
    no_repeat_ngram: Count | None = None
    """No n-gram of this size twice."""

    def options(self) -> dict[str, Any]:
        """Beams and tokens always, since the defaults are not those of the library."""
        return {"beams": self.beams, "max_tokens": self.max_tokens, **super().options()}


class OneCell(ShownTexts):
    """A text coloured by one cell of a recurrent model, and the model's layers."""

    layer: Number
    """From 1."""
    number: Number
    """Of the cell, from 1."""


class CellSearch(ShownTexts):
    """The cells of a recurrent model that follow properties of a text most closely."""

    properties: Literal["text", "python"] = "text"
    """Which properties."""
    best: Annotated[int, Field(ge=1, le=20)] = 3
    """How many cells of each property."""

    def options(self) -> dict[str, Any]:
        """Properties and the number of cells."""
        return {"properties": self.properties, "best": self.best}


class OneImage(Request):
    """What each word of the description of an image attends to, over the image."""

    ITEMS: ClassVar[str] = "images"

    images: str
    """The bytes of a file (PNG, JPEG) in base64."""
    beams: Count | None = None
    """Beam search with this many beams."""
