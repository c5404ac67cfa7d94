"""Sections of a recipe that several tasks share, and what they are turned into."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

from pydantic import Field, field_validator

from regard import decoding
from regard.recipe import Options, RecipePath
from regard.suggest import nearest
from regard.text import KINDS, Tokenizer, train


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
            return Tokenizer.load(self.path)
        handling: dict[str, Any] = self.model_dump(include={"lowercase", "unicode_form"})
        return train(self.kind, texts(), self.vocab_size, **handling)


class DecodingSection(Options):
    """[decoding]: the method is the one that the options belong to, greedy search without any."""

    beams: int | None = None
    n_best: int | None = None
    length_penalty: float | str | None = None
    stopping: str | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    no_repeat_ngram: int | None = None
    min_tokens: int | None = None
    max_tokens: int | str | None = None
    seed: int | None = None
    draft: str | None = None
    draft_tokens: int | None = None

    def build(self, default_max_tokens: int | str) -> Any:
        """The decoding method; `default_max_tokens` where the recipe sets no limit."""
        named = {"max_tokens": default_max_tokens} | self.model_dump(exclude_none=True)
        return decoding.options(**named)
