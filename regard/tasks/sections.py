"""Sections of a recipe that several tasks share, and what they are turned into."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

from pydantic import Field, field_validator

from regard import decoding
from regard.decoding import option_types
from regard.errors import ConfigError
from regard.recipe import Options, RecipePath
from regard.suggest import nearest
from regard.text import KINDS, Tokenizer
from regard.text.training import train


class TokenizerSection(Options):
    """[tokenizer]: learned from the training text, or read from `path`, which then says all."""

    kind: str = "bpe"
    vocab_size: int = Field(default=8000, ge=1, le=1 << 24)
    path: RecipePath | None = None
    lowercase: bool = False
    unicode_form: Literal["none", "nfc", "nfd", "nfkc", "nfkd"] = "none"

    @field_validator("kind")
    @classmethod
    def _known(cls, kind: str) -> str:
        if kind not in KINDS:
            raise ValueError(f"is {kind!r}, which is no kind of tokenizer. {nearest(kind, KINDS)}")
        return kind

    def build(self, texts: Callable[[], Iterable[str]]) -> Tokenizer:
        """Read the tokenizer that `path` names, or learn one from `texts()`."""
        if self.path is not None:
            learned = ("kind", "vocab_size", "lowercase", "unicode_form")
            if unused := [key for key, _ in differing(self, "tokenizer", learned, "")]:
                warnings.warn(
                    f"{', '.join(unused)} are not used: `tokenizer.path` names a tokenizer that is "
                    "learned already.",
                    stacklevel=2,
                )
            return Tokenizer.load(self.path)
        handling: dict[str, Any] = self.model_dump(include={"lowercase", "unicode_form"})
        return train(self.kind, texts(), self.vocab_size, **handling)


class DecodingSection(Options):
    """[decoding]: the method is the one that the options belong to, greedy search without any."""

    beams: option_types.SequenceCount | None = None
    n_best: option_types.SequenceCount | None = None
    length_penalty: option_types.Exponent | str | None = None
    stopping: str | None = None
    temperature: option_types.Temperature | None = None
    top_k: option_types.Count | None = None
    top_p: option_types.Probability | None = None
    no_repeat_ngram: option_types.Count | None = None
    min_tokens: option_types.CountOrZero | None = None
    max_tokens: option_types.Count | str | None = None
    seed: option_types.Seed | None = None
    draft: option_types.Name | None = None
    draft_tokens: option_types.Count | None = None

    def build(self, default_max_tokens: int | str) -> Any:
        """The decoding method; `default_max_tokens` where the recipe sets no limit."""
        named = {"max_tokens": default_max_tokens} | self.model_dump(exclude_none=True)
        return decoding.options(**named)

    def problems(self) -> Iterator[tuple[str, str]]:
        """What no decoding method takes; a draft is a folder, which is not read for this."""
        named = self.model_dump(exclude_none=True, exclude={"draft", "draft_tokens"})
        try:
            decoding.options(**{"max_tokens": 1, **named})
        except ConfigError as error:
            yield "decoding", f"cannot be used: {error}"


def differing(
    section: Options, where: str, names: Sequence[str], why: str
) -> Iterator[tuple[str, str]]:
    """Those of the options that differ from their default although they are without effect."""
    for name in names:
        if getattr(section, name) != type(section).model_fields[name].default:
            yield f"{where}.{name}", f"{why}, so it is without effect here. Leave it out."
