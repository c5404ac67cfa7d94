"""What the options of decoding may be: one table for files, recipes, flags and keywords.

    check("num_beams", 0, "beams")     ConfigError: `beams` must be at least 1, but is 0.

The names are those of generation_config.json. Each method and filter checks its own fields by this
table when it is made, and the fields of a file are checked by it under the names that stand there.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError, create_model

from regard.errors import ConfigError
from regard.schema import Fields, refusal

MOST_TOKENS = 2**31 - 1  # of a sequence, a batch or a vocabulary
MOST_SEQUENCES = 10_000  # side by side for one sentence: beams, samples
COLDEST = 1e-30  # a log-probability divided by it is a finite float32
STEEPEST = 30.0  # length^30 is a finite float64 for every possible length


def _between(least: float, most: float) -> AfterValidator:
    def within(value: Any) -> Any:
        if value < least:
            raise ValueError(f"must be at least {least:,}")
        if value > most:
            raise ValueError(f"must be at most {most:,}")
        return value

    return AfterValidator(within)


def _temperature(value: float) -> float:
    if not value > 0:
        raise ValueError("must be above 0")
    if value < COLDEST:
        raise ValueError(f"must be at least {COLDEST}")
    return value


def _share(value: float) -> float:
    if not 0 < value <= 1:
        raise ValueError("must be above 0 and at most 1")
    return value


def _filled(value: Any) -> Any:
    if not value:
        raise ValueError("must be non-empty")
    return value


Finite = Field(allow_inf_nan=False)
Count = Annotated[int, _between(1, MOST_TOKENS)]
CountOrNone = Annotated[int, _between(0, MOST_TOKENS)]
Sequences = Annotated[int, _between(1, MOST_SEQUENCES)]
Token = Annotated[int, _between(0, MOST_TOKENS)]
Tokens = list[Token]
Exponent = Annotated[float, Finite, _between(-STEEPEST, STEEPEST)]
Temperature = Annotated[float, Finite, AfterValidator(_temperature)]
Share = Annotated[float, Finite, AfterValidator(_share)]
Ratio = Annotated[float, Finite, _between(0, 1e6)]
Seed = Annotated[int, _between(-(2**63), 2**63 - 1)]
Name = Annotated[str, AfterValidator(_filled)]

KINDS: dict[str, Any] = {
    "max_new_tokens": Count,
    "max_length": Count,
    "max_new_tokens_per_source_token": Ratio,
    "max_new_tokens_beside_source": Count,
    "min_new_tokens": CountOrNone,
    "min_length": CountOrNone,
    "num_beams": Sequences,
    "num_return_sequences": Sequences,
    "length_penalty": Exponent,
    "length_penalty_formula": Name,
    "early_stopping": bool | Literal["never"],
    "no_repeat_ngram_size": Count,
    "temperature": Temperature,
    "top_k": Count,
    "top_p": Share,
    "seed": Seed,
    "draft": Name,
    "num_assistant_tokens": Count,
    "prompt_lookup_num_tokens": Count,
    "eos_token_id": Token | Tokens,
    "bad_words_ids": list[Annotated[Tokens, AfterValidator(_filled)]],
    "suppress_tokens": Tokens,
    "begin_suppress_tokens": Tokens,
    "forced_bos_token_id": Token,
    "forced_eos_token_id": Token | Tokens,
    "renormalize_logits": bool,
    "do_sample": bool,
    "filter_order": list[str],
}
OFF = ("no_repeat_ngram_size", "top_k")  # in a file 0 turns them off


@lru_cache(maxsize=1)
def schema() -> Any:
    """The type of generation_config.json: null is "not given", and other fields are kept."""

    fields = {
        name: (CountOrNone | None if name in OFF else kind | None, None)
        for name, kind in KINDS.items()
    }
    return create_model("GenerationConfig", __base__=Fields, **fields)  # type: ignore


@lru_cache(maxsize=64)
def _adapter(name: str) -> TypeAdapter[Any]:
    return TypeAdapter(KINDS[name])


def check(name: str, value: Any, called: str, hint: str = "") -> None:
    """Check the value of an option, which the user knows as `called`; `hint`: what to do else.

    Raises:
        ConfigError: its type is wrong, or it is out of range.
    """
    try:
        _adapter(name).validate_python(value, strict=True)
    except ValidationError as wrong:
        errors = wrong.errors()
        inside = [str(part) for part in errors[0]["loc"] if isinstance(part, int)]
        problem = refusal(".".join([called, *inside]), errors, shown)
        raise ConfigError(f"{problem} {hint}".rstrip()) from None


def shown(value: Any) -> str:
    """A value for a message: short, whatever it is."""
    try:
        text = repr(value)
    except ValueError:  # a number of thousands of digits
        text = f"a {type(value).__name__} beyond all bounds"
    return text if len(text) <= 80 else f"{text[:77]}..."
