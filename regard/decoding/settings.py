"""Options by name, as recipes and the command line give them.

    options(beams=5, length_penalty=0.6)         -> Beam(size=5, length_penalty=Power(0.6))
    options(top_k=40, temperature=0.8)           -> Sampling((Temperature(0.8), TopK(40)))
    options(length_penalty="gnmt:0.6", beams=4, max_length_a=1.5, max_length_b=10)

The names choose the method: greedy search where they belong to none. Names that belong to different
methods raise an error. Inside, and in files, the names are those of generation_config.json.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from regard import habit_names
from regard.decoding.filters import (
    BadWords,
    Filter,
    ForcedEnd,
    ForcedFirst,
    MinLength,
    MinTokens,
    NoRepeatNGram,
    OptionFilter,
    Renormalize,
    RepetitionPenalty,
    Suppress,
    Temperature,
    TokenIds,
    TopK,
    TopP,
    as_tuples,
)
from regard.decoding.length_penalty import (
    PENALTIES,
    LengthPenalty,
    Limit,
    RelativeLimit,
    TotalLimit,
)
from regard.decoding.option_types import MAX_TOKENS, NAMES, OUR_NAMES, check
from regard.errors import ConfigError, check_choice
from regard.lazy import entry
from regard.suggest import nearest

Stored = dict[str, Any]  # options under the names of generation_config.json
METHOD_OPTIONS = {
    "sampling": ("temperature", "top_k", "top_p", "samples", "seed"),
    "beam": ("beams", "n_best", "early_stopping"),
}
OWNERS = {name: method for method, names in METHOD_OPTIONS.items() for name in names}

# The filters in the order in which they are applied.
FILTERS: dict[str, type[OptionFilter]] = {
    kind.option: kind
    for kind in (
        *(RepetitionPenalty, MinTokens, NoRepeatNGram, BadWords, MinLength, ForcedFirst),
        *(ForcedEnd, Suppress, Temperature, TopK, TopP, Renormalize),
    )
}
FORMULA = "length_penalty_formula"
DEFAULT_MAX_TOKENS = 256
LONG_SOURCE = 256  # tokens; other libraries know no relative limit and get that of such a source


def options(method: str | None = None, **named: Any) -> Any:
    """The decoding method with these options; None means not given.

    Args:
        method: a name of `METHODS`; None: the method to which the options belong.
        named: see docs/concepts/decoding.md; `eos`: the token, or the tokens, that end a sequence,
            in place of the model's own.

    Raises:
        ConfigError: an unknown name, a value out of range, names of different methods, or
            `min_tokens` above `max_tokens`.
    """
    named = habit_names.decoding(named)
    built = method_of(method, **named)
    check_least(named.get("min_tokens"), named.get("max_tokens") or DEFAULT_MAX_TOKENS)
    return built


def method_of(method: str | None = None, **named: Any) -> Any:
    """As `options`, for options that change those of another method: its limit may be another."""
    method = method or _method_of(named)
    _check_names(named, method)
    return build(method, {NAMES.get(name, name): value for name, value in named.items()})


def build(method: str, values: Mapping[str, Any]) -> Any:
    """The method of this name, from options under the names of generation_config.json.

    Raises:
        ConfigError: an option that the method does not have, or a value out of range.
    """
    from regard.decoding import METHODS

    settings = Settings(values)
    built = entry(METHODS, method, "decoding method", __package__).from_settings(settings)
    settings.check_all_taken(method)
    return built


def _check_names(named: Mapping[str, Any], method: str) -> None:
    """Check that no name is for another method; a method that a user adds may take any option.

    Raises:
        ConfigError: a name is for another method, or two limits are given.
    """
    allowed = {"greedy": (), **METHOD_OPTIONS}.get(method, tuple(OWNERS))
    for name in named:
        if name in OWNERS and name not in allowed:
            chosen_by = (f"`{n}` to {method}" for n in named if OWNERS.get(n) == method)
            other = next(chosen_by, f"the method is {method}")
            raise ConfigError(f"`{name}` belongs to {OWNERS[name]}, but {other}.")
    relative = next((name for name in ("max_length_a", "max_length_b") if name in named), None)
    if "max_tokens" in named and relative:  # a file has both, for other libraries
        raise ConfigError(f"`max_tokens` and `{relative}` are two limits. Leave one of them out.")


def _method_of(named: Mapping[str, Any]) -> str:
    """The first method to which one of these names belongs."""
    owners = {OWNERS[name] for name in named if name in OWNERS}
    return next((m for m in METHOD_OPTIONS if m in owners), "greedy")


class Settings:
    """Options under the names of generation_config.json; each method takes those that it knows."""

    def __init__(self, values: Mapping[str, Any]):
        self._values = dict(values)

    def take(self, name: str, default: Any) -> Any:
        """The value, or `default`; the method checks it."""
        return self._values.pop(name, default)

    def common(self) -> Stored:
        """The fields that greedy search, beam search and sampling share."""
        return dict(
            length_penalty=self._length_penalty(),
            filters=self._filters(),
            max_tokens=self._max_tokens(),
            eos=self._tokens("eos_token_id") if "eos_token_id" in self._values else None,
        )

    def check_all_taken(self, method: str) -> None:
        """Check that the method of this name has taken every option.

        Raises:
            ConfigError: it does not have one of them.
        """
        for name in self._values:
            name = OUR_NAMES.get(name, name)
            raise ConfigError(f"There is no option `{name}` for {method}. {nearest(name, NAMES)}")

    def _filters(self) -> tuple[Filter, ...]:
        """The filters that are given, in the usual order."""
        parts: list[Any] = []
        for name, kind in FILTERS.items():
            if name in self._values:
                one_or_more = kind is ForcedEnd
                value = self._tokens(name) if one_or_more else as_tuples(self._values.pop(name))
                parts.append(kind(value))  # type: ignore[call-arg]
        return tuple(parts)

    def _length_penalty(self) -> LengthPenalty:
        """A number is `Power`; "gnmt:0.6" or `length_penalty_formula` name another formula."""
        value = self._values.pop("length_penalty", 1.0)
        formula = self._values.pop(FORMULA, None)
        if formula is not None and isinstance(value, str):
            raise ConfigError(f"`length_penalty` has a formula: leave `{FORMULA}` out.")
        formula = "power" if formula is None else formula
        if isinstance(value, str) and ":" in value:
            formula, value = value.split(":", 1)
        check(FORMULA, formula)
        check_choice(FORMULA, formula, PENALTIES)
        try:
            value = float(value) if isinstance(value, str) else value
        except ValueError:
            pass  # which is no number, as its type says then
        return PENALTIES[formula](value)

    def _max_tokens(self) -> Limit:
        """A number; `max_length_a` tokens for each source token and `max_length_b` more; or
        `max_length`, which counts the prompt.
        """
        total = self._values.pop("max_length", None)
        if total is not None:
            for name in ("max_new_tokens", "max_length_a", "max_length_b"):
                if name in self._values:
                    name = OUR_NAMES[name]
                    raise ConfigError(f"`max_length` and `{name}` are two limits: leave one out.")
            return TotalLimit(total)
        fixed = self._values.pop("max_new_tokens", DEFAULT_MAX_TOKENS)
        parts = {"ratio": "max_length_a", "plus": "max_length_b"}
        relative = {
            field: self._values.pop(name) for field, name in parts.items() if name in self._values
        }
        if "plus" in relative and "ratio" not in relative:
            raise ConfigError("`max_length_b` needs `max_length_a`: tokens for each source token.")
        return RelativeLimit(**relative) if relative else fixed

    def _tokens(self, name: str) -> TokenIds:
        """One token or a list of them."""
        value = self._values.pop(name)
        value = list(value) if isinstance(value, tuple) else value
        check(name, value)
        return tuple(value) if isinstance(value, list) else (value,)


def check_least(min_tokens: int | None, max_tokens: Any) -> None:
    """Check that an output can have as many tokens as it must have.

    max_tokens: a number; another limit depends on the source, and wins.

    Raises:
        ConfigError: `min_tokens` is above it.
    """
    if min_tokens is not None and isinstance(max_tokens, int) and min_tokens > max_tokens:
        raise ConfigError(f"`min_tokens` exceeds `max_tokens`: {min_tokens:,}, {max_tokens:,}.")


def check_common(max_tokens: Limit, eos: TokenIds | None) -> None:
    """Check the fields that every method has.

    Raises:
        ConfigError: a limit below one token, or `eos` is neither None nor a tuple of tokens.
    """
    if not isinstance(max_tokens, RelativeLimit | TotalLimit):
        check("max_new_tokens", max_tokens)
    if eos is not None:
        check("eos_token_id", list(eos) if isinstance(eos, tuple) else (eos,))


def check_no_sampling(filters: Sequence[Filter], method: str) -> None:
    """Check the filters of a method that draws nothing.

    Raises:
        ConfigError: a filter reshapes the distribution.
    """
    for part in filters:
        if isinstance(part, Temperature | TopK | TopP):
            raise ConfigError(f"{part} is for sampling alone, but the method is {method}.")


def common_settings(
    filters: Sequence[Filter],
    length_penalty: LengthPenalty,
    max_tokens: Limit,
    eos: TokenIds | None,
) -> Stored:
    """The options that `Settings.common` reads, under the names of generation_config.json.

    Raises:
        ConfigError: a filter of a user, which the file has no option for.
    """
    stored: Stored = {}
    for part in filters:
        if not isinstance(part, OptionFilter) or part.option in stored:
            raise not_storable(part)
        stored[part.option] = part.stored
        if list(FILTERS).index(part.option) < max(map(list(FILTERS).index, stored)):
            raise ConfigError("Filters in another order than the usual one cannot be stored.")
    if eos is not None:
        stored["eos_token_id"] = eos[0] if len(eos) == 1 else list(eos)
    return stored | _penalty_settings(length_penalty) | _limit_settings(max_tokens)


def _penalty_settings(penalty: LengthPenalty) -> Stored:
    name = next(name for name, formula in PENALTIES.items() if type(penalty) is formula)
    other = {} if name == "power" else {FORMULA: name}
    return {"length_penalty": penalty.alpha} | other


def _limit_settings(limit: Limit) -> Stored:
    if isinstance(limit, TotalLimit):
        return {"max_length": limit.count}
    if isinstance(limit, RelativeLimit):
        fixed = min(int(limit.ratio * LONG_SOURCE) + limit.plus, MAX_TOKENS)
        return {"max_new_tokens": fixed, "max_length_a": limit.ratio, "max_length_b": limit.plus}
    return {"max_new_tokens": limit}


def not_storable(part: Any) -> ConfigError:
    return ConfigError(f"{part} cannot be stored: generation_config.json has no option for it.")
