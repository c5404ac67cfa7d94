"""The types and ranges of the decoding options, for files, recipes, flags and keyword arguments.

    check("num_beams", 0, "beams")     ConfigError: `beams` must be at least 1, but is 0.

The names are those of generation_config.json. Each method and filter checks its fields with this
table when it is created. The fields of a file are checked under the names in the file.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError, create_model

from regard.errors import ConfigError
from regard.schema import Fields, type_error_message

MAX_TOKENS = 2**31 - 1  # of a sequence, a batch or a vocabulary
MAX_SEQUENCES = 10_000  # in parallel for one sentence: beams, samples
MIN_TEMPERATURE = 1e-30  # a log-probability divided by it is a finite float32
MAX_EXPONENT = 30.0  # length^30 is a finite float64 for every possible length


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
    if value < MIN_TEMPERATURE:
        raise ValueError(f"must be at least {MIN_TEMPERATURE}")
    return value


def _probability(value: float) -> float:
    if not 0 < value <= 1:
        raise ValueError("must be above 0 and at most 1")
    return value


def _not_empty(value: Any) -> Any:
    if not value:
        raise ValueError("must be non-empty")
    return value


Finite = Field(allow_inf_nan=False)
Count = Annotated[int, _between(1, MAX_TOKENS)]
CountOrZero = Annotated[int, _between(0, MAX_TOKENS)]
Sequences = Annotated[int, _between(1, MAX_SEQUENCES)]
Token = Annotated[int, _between(0, MAX_TOKENS)]
Tokens = list[Token]
Exponent = Annotated[float, Finite, _between(-MAX_EXPONENT, MAX_EXPONENT)]
Temperature = Annotated[float, Finite, AfterValidator(_temperature)]
Probability = Annotated[float, Finite, AfterValidator(_probability)]
Ratio = Annotated[float, Finite, _between(0, 1e6)]
Seed = Annotated[int, _between(-(2**63), 2**63 - 1)]
Name = Annotated[str, AfterValidator(_not_empty)]

OPTION_TYPES: dict[str, Any] = {
    "max_new_tokens": Count,
    "max_length": Count,
    "max_new_tokens_per_source_token": Ratio,
    "max_new_tokens_beside_source": Count,
    "min_new_tokens": CountOrZero,
    "min_length": CountOrZero,
    "num_beams": Sequences,
    "num_return_sequences": Sequences,
    "length_penalty": Exponent,
    "length_penalty_formula": Name,
    "early_stopping": bool | Literal["never"],
    "no_repeat_ngram_size": Count,
    "temperature": Temperature,
    "top_k": Count,
    "top_p": Probability,
    "seed": Seed,
    "draft": Name,
    "num_assistant_tokens": Count,
    "prompt_lookup_num_tokens": Count,
    "eos_token_id": Token | Tokens,
    "bad_words_ids": list[Annotated[Tokens, AfterValidator(_not_empty)]],
    "suppress_tokens": Tokens,
    "begin_suppress_tokens": Tokens,
    "forced_bos_token_id": Token,
    "forced_eos_token_id": Token | Tokens,
    "renormalize_logits": bool,
    "do_sample": bool,
    "filter_order": list[str],
}
ZERO_IS_OFF = ("no_repeat_ngram_size", "top_k")  # in a file, 0 turns these options off


@lru_cache(maxsize=1)
def schema() -> Any:
    """The schema of generation_config.json: null means "not given"; unknown fields are stored."""

    fields = {
        name: (CountOrZero | None if name in ZERO_IS_OFF else kind | None, None)
        for name, kind in OPTION_TYPES.items()
    }
    return create_model("GenerationConfig", __base__=Fields, **fields)  # type: ignore


@lru_cache(maxsize=64)
def _adapter(name: str) -> TypeAdapter[Any]:
    return TypeAdapter(OPTION_TYPES[name])


def check(name: str, value: Any, called: str, hint: str = "") -> None:
    """Check the value of an option.

    called: the name that the user gave it.  hint: what to do instead.

    Raises:
        ConfigError: its type is wrong, or it is out of range.
    """
    try:
        _adapter(name).validate_python(value, strict=True)
    except ValidationError as wrong:
        errors = wrong.errors()
        inside = [str(part) for part in errors[0]["loc"] if isinstance(part, int)]
        problem = type_error_message(".".join([called, *inside]), errors, shown)
        raise ConfigError(f"{problem} {hint}".rstrip()) from None


def shown(value: Any) -> str:
    """A value as text for a message, at most 80 characters."""
    try:
        text = repr(value)
    except ValueError:  # a number of thousands of digits
        text = f"a {type(value).__name__} that is too long to print"
    return text if len(text) <= 80 else f"{text[:77]}..."
