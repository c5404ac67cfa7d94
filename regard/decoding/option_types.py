"""Types and ranges of the decoding options, for files, recipes, flags and keyword arguments.

    check("num_beams", 0)     ConfigError: `beams` must be at least 1, but is 0.

Options have the names of generation_config.json here; `NAMES` translates ours. Each method and
filter checks its fields when it is created. The fields of a file keep the names of the file.
"""

from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, TypeAdapter, ValidationError, create_model

from regard.errors import ConfigError, shown
from regard.schema import Fields, type_error_message

MAX_TOKENS = 2**31 - 1  # of a sequence, a batch or a vocabulary
MAX_SEQUENCES = 10_000  # in parallel for one source: beams, samples
MIN_TEMPERATURE = 1e-30  # a log-probability divided by it is a finite float32
MAX_EXPONENT = 30.0  # length^30 is a finite float64 for every possible length

# our name -> the name in generation_config.json
NAMES = {
    "beams": "num_beams",
    "n_best": "num_return_sequences",
    "samples": "num_return_sequences",
    "length_penalty": "length_penalty",
    "early_stopping": "early_stopping",
    "min_tokens": "min_new_tokens",
    "no_repeat_ngram": "no_repeat_ngram_size",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "max_tokens": "max_new_tokens",
    "seed": "seed",
    "max_length_a": "max_length_a",
    "max_length_b": "max_length_b",
    "eos": "eos_token_id",
}
OUR_NAMES = {theirs: ours for ours, theirs in NAMES.items()}


Count = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
CountOrZero = Annotated[int, Field(ge=0, le=MAX_TOKENS)]
SequenceCount = Annotated[int, Field(ge=1, le=MAX_SEQUENCES)]
Token = CountOrZero
Tokens = list[Token]
Exponent = Annotated[float, Field(ge=-MAX_EXPONENT, le=MAX_EXPONENT, allow_inf_nan=False)]
Temperature = Annotated[float, Field(ge=MIN_TEMPERATURE, allow_inf_nan=False)]
Penalty = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Probability = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Ratio = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Name = Annotated[str, Field(min_length=1)]
EarlyStopping = bool | Literal["never"]

OPTION_TYPES: dict[str, Any] = {
    "max_new_tokens": Count,
    "max_length": Count,
    "max_length_a": Ratio,
    "max_length_b": Count,
    "min_new_tokens": CountOrZero,
    "min_length": CountOrZero,
    "num_beams": SequenceCount,
    "num_return_sequences": SequenceCount,
    "length_penalty": Exponent,
    "length_penalty_formula": Name,
    "early_stopping": EarlyStopping,
    "no_repeat_ngram_size": Count,
    "repetition_penalty": Penalty,
    "temperature": Temperature,
    "top_k": Count,
    "top_p": Probability,
    "seed": Seed,
    "eos_token_id": Token | Tokens,
    "bad_words_ids": list[Annotated[Tokens, Field(min_length=1)]],
    "suppress_tokens": Tokens,
    "forced_bos_token_id": Token,
    "forced_eos_token_id": Token | Tokens,
    "renormalize_logits": bool,
    "do_sample": bool,
}
ZERO_IS_OFF = ("no_repeat_ngram_size", "top_k")  # in a file, 0 turns these options off


@lru_cache(maxsize=1)
def schema() -> type[BaseModel]:
    """The schema of generation_config.json: null means "not given"; unknown fields are stored."""
    fields = {
        name: (CountOrZero | None if name in ZERO_IS_OFF else kind | None, None)
        for name, kind in OPTION_TYPES.items()
    }
    return create_model("GenerationConfig", __base__=Fields, **fields)  # type: ignore


@lru_cache(maxsize=64)
def _adapter(name: str) -> TypeAdapter[Any]:
    return TypeAdapter(OPTION_TYPES[name])


def check(name: str, value: Any, called: str | None = None, hint: str = "") -> None:
    """Check the value of an option.

    Args:
        name: as in generation_config.json.
        called: the name in the message; None: our name of the option.
        hint: a sentence that says what to do instead.

    Raises:
        ConfigError: the type is wrong, or the value is out of range.
    """
    try:
        _adapter(name).validate_python(value, strict=True)
    except ValidationError as error:
        errors = error.errors()
        inside = [str(part) for part in errors[0]["loc"] if isinstance(part, int)]
        path = ".".join([called or OUR_NAMES.get(name, name), *inside])
        raise ConfigError(f"{type_error_message(path, errors, shown)} {hint}".rstrip()) from None
