"""Options by name, as recipes and the command line give them.

    options(beams=5, length_penalty=0.6)         -> Beam(size=5, length_penalty=Power(0.6))
    options(top_k=40, temperature=0.8)           -> Sampling((Temperature(0.8), TopK(40)))
    options(length_penalty="gnmt:0.6", beams=4, max_tokens="1.5x+10")

The method is the one to which the names belong, or greedy search. Names that belong to different
methods are an error. Inside, and in files, the names are those of generation_config.json.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from regard.decoding.constraints import (
    BadWords,
    ForcedEnd,
    ForcedFirst,
    MinLength,
    Renormalize,
    Suppress,
    SuppressFirst,
)
from regard.decoding.filters import Filter, MinTokens, NoRepeatNGram, Temperature, TopK, TopP
from regard.decoding.length_penalty import (
    PENALTIES,
    LengthPenalty,
    Limit,
    Power,
    RelativeLimit,
    TotalLimit,
)
from regard.decoding.option_types import MAX_TOKENS, check, shown
from regard.decoding.stopping import STOPPING, Stopping
from regard.errors import ConfigError
from regard.suggest import nearest

# our name -> the name in generation_config.json
NAMES = {
    "beams": "num_beams",
    "n_best": "num_return_sequences",
    "samples": "num_return_sequences",
    "length_penalty": "length_penalty",
    "stopping": "early_stopping",
    "min_tokens": "min_new_tokens",
    "no_repeat_ngram": "no_repeat_ngram_size",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "max_tokens": "max_new_tokens",
    "seed": "seed",
    "draft": "draft",
    "draft_tokens": "num_assistant_tokens",
    "eos": "eos_token_id",
}
BELONGS = {
    "sampling": ("temperature", "top_k", "top_p", "samples", "seed"),
    "beam": ("beams", "n_best", "stopping"),
    "speculative": ("draft", "draft_tokens"),
}
# What says that tokens are drawn, under conventional names.
SAMPLED = ("temperature", "top_k", "top_p", "num_return_sequences", "seed")


# conventional name -> (filter, its field), in the order in which they are applied
FILTERS: dict[str, tuple[type, str]] = {
    "min_new_tokens": (MinTokens, "count"),
    "no_repeat_ngram_size": (NoRepeatNGram, "size"),
    "bad_words_ids": (BadWords, "sequences"),
    "min_length": (MinLength, "count"),
    "forced_bos_token_id": (ForcedFirst, "token"),
    "forced_eos_token_id": (ForcedEnd, "tokens"),
    "suppress_tokens": (Suppress, "tokens"),
    "begin_suppress_tokens": (SuppressFirst, "tokens"),
    "temperature": (Temperature, "value"),
    "top_k": (TopK, "count"),
    "top_p": (TopP, "mass"),
    "renormalize_logits": (Renormalize, "on"),
}
EARLY: dict[Any, str] = {True: "beam-finished", False: "current-length", "never": "exact"}
RATIO, PLUS = "max_new_tokens_per_source_token", "max_new_tokens_beside_source"
LONG = 256  # tokens of a source; other libraries, which know no such limit, get that of this one
FORMULA = "length_penalty_formula"
ORDER = "filter_order"


def options(method: str | None = None, **named: Any) -> Any:
    """The decoding method with these options; None means not given.

    eos: the token, or the tokens, that end a sequence, in place of the model's own.

    Raises:
        ConfigError: an unknown name, a value out of range, or names of different methods.
    """
    named = {name: value for name, value in named.items() if value is not None}
    method = method or _method(named)
    values = {NAMES.get(name, name): value for name, value in named.items()}
    given = {NAMES.get(name, name): name for name in named}
    return build(method, values, given)


def build(method: str, values: Mapping[str, Any], given: Mapping[str, str] | None = None) -> Any:
    """The method of this name from conventional names; `given`: how the user called them."""
    from regard.decoding import method_class

    settings = Settings(values, given or {})
    made = method_class(method).from_settings(settings)
    settings.refuse_rest(method)
    return made


def _method(named: Mapping[str, Any]) -> str:
    owners = {
        method: [name for name in names if name in named] for method, names in BELONGS.items()
    }
    sampling, beam, drafted = owners["sampling"], owners["beam"], owners["speculative"]
    for other, what in ((sampling, "sampling"), (drafted, "speculative decoding")):
        if other and beam:
            raise ConfigError(
                f"`{other[0]}` belongs to {what} and `{beam[0]}` to beam search. "
                "Leave one of them out."
            )
    if drafted:  # greedy search and sampling both can have a draft
        return "speculative"
    return "sampling" if sampling else "beam" if beam else "greedy"


def check_eos(eos: Any) -> None:
    """Check the field `eos` of a method.

    Raises:
        ConfigError: it is neither None nor a tuple of tokens.
    """
    if eos is not None:
        check("eos_token_id", list(eos) if isinstance(eos, tuple) else (eos,), "eos")


def refuse_sampling(filters: Sequence[Filter], method: str) -> None:
    """Refuses filters that reshape a distribution where nothing is drawn from it."""
    for part in filters:
        if isinstance(part, Temperature | TopK | TopP):
            raise ConfigError(
                f"{part} has a meaning only for sampling, but the method is {method}. "
                "Leave it out, or sample."
            )


class Settings:
    """Values by their conventional names; each method takes what it knows."""

    def __init__(self, values: Mapping[str, Any], given: Mapping[str, str]):
        self._values, self._given = dict(values), given

    def take(self, name: str, default: Any) -> Any:
        """The value, or `default`; whoever takes it checks it."""
        return self._values.pop(name, default)

    def has(self, *names: str) -> bool:
        """Whether one of them is given."""
        return any(name in self._values for name in names)

    def eos(self) -> tuple[int, ...] | None:
        """The tokens that end a sequence; None: those of the model."""
        return self._tokens("eos_token_id")

    def filters(self) -> tuple[Filter, ...]:
        """The filters that are named, in their usual order or the one under `filter_order`."""
        order = self._values.pop(ORDER, list(FILTERS))
        check(ORDER, order, ORDER)
        parts: list[Any] = []
        for name in dict.fromkeys([*order, *FILTERS]):
            if name not in FILTERS:
                raise ConfigError(f"`{ORDER}` names {name!r}. {nearest(name, FILTERS)}")
            if name in self._values:
                kind, field = FILTERS[name]
                parts.append(kind(**{field: self._of_filter(name, field)}))
        if any(isinstance(part, ForcedFirst) for part in parts):
            parts = [replace(p, forced=True) if isinstance(p, SuppressFirst) else p for p in parts]
        _refuse_contradictions(parts)
        return tuple(parts)

    def length_penalty(self) -> LengthPenalty:
        """A number is `Power`; "gnmt:0.6" or `length_penalty_formula` name another formula."""
        value = self._values.pop("length_penalty", 1.0)
        formula = self._values.pop(FORMULA, "power")
        if callable(value):
            return value
        if isinstance(value, str) and ":" in value:
            formula, value = value.split(":", 1)
        check(FORMULA, formula, FORMULA)
        if formula not in PENALTIES:
            known = nearest(formula, PENALTIES)
            raise ConfigError(f"There is no length penalty {formula!r}. {known}")
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                wanted = "a number, or a formula and a number: gnmt:0.6"
                self._refuse("length_penalty", wanted, value)
        return PENALTIES[formula](value)

    def stopping(self) -> Stopping:
        """True, False or "never" as in transformers, or a name of `STOPPING`."""
        value = self._values.pop("early_stopping", False)
        if callable(value):
            return value
        name = EARLY.get(value, value) if isinstance(value, bool | str) else None
        if name not in STOPPING:
            self._refuse("early_stopping", f"one of {', '.join(STOPPING)}", value)
        return STOPPING[name]

    def max_tokens(self) -> Limit:
        """A number, "1.5x+10" (1.5 tokens for each source token and 10 more), or `max_length`."""
        total = self._values.pop("max_length", None)
        if total is not None and "max_new_tokens" not in self._values:
            return TotalLimit(total)
        value = self._values.pop("max_new_tokens", 256)
        ratio, plus = self._values.pop(RATIO, None), self._values.pop(PLUS, value)
        if ratio is not None:
            return RelativeLimit(ratio, plus)
        if not isinstance(value, str):
            return value
        if re.fullmatch("[0-9]{1,19}", value):
            return int(value)
        found = re.fullmatch(r"([0-9]{1,19}(?:\.[0-9]+)?)x\+([0-9]{1,19})", value)
        if found is None:
            self._refuse("max_new_tokens", 'a whole number, or like "1.5x+10"', value)
        return RelativeLimit(float(found[1]), int(found[2]))

    def refuse_rest(self, method: str) -> None:
        """Refuses what nobody took."""
        for name in self._values:
            name = self._given.get(name, name)
            for owner, names in BELONGS.items():
                if name in names:
                    raise ConfigError(f"`{name}` belongs to {owner}, but the method is {method}.")
            raise ConfigError(f"There is no option `{name}` for {method}. {nearest(name, NAMES)}")

    def _of_filter(self, name: str, field: str) -> Any:
        """The field of a filter: lists become tuples."""
        if field == "tokens":
            return self._tokens(name)
        value = self._values.pop(name)
        if field != "sequences":
            return value
        check(name, value, self._given.get(name, name))
        return tuple(map(tuple, value))

    def _tokens(self, name: str) -> tuple[int, ...] | None:
        """One token or a list of them."""
        value = self._values.pop(name, None)
        if value is None:
            return None
        several = list(value) if isinstance(value, list | tuple) else value
        check(name, several, self._given.get(name, name))
        return tuple(several) if isinstance(several, list) else (several,)

    def _refuse(self, name: str, wanted: str, value: Any) -> NoReturn:
        called = self._given.get(name, name)
        raise ConfigError(f"`{called}` must be {wanted}, but is {shown(value)}.")


def _refuse_contradictions(filters: Sequence[Filter]) -> None:
    """Refuses to force tokens none of which is allowed."""
    never = {i for part in filters if isinstance(part, Suppress) for i in part.tokens}
    for part in filters:
        forced = {part.token} if isinstance(part, ForcedFirst) else set[int]()
        name = "forced_bos_token_id" if forced else "forced_eos_token_id"
        forced |= {*part.tokens} if isinstance(part, ForcedEnd) else set()
        if forced and forced <= never:
            raise ConfigError(
                f"`{name}` forces {', '.join(map(str, sorted(forced)))}, which `suppress_tokens` "
                "forbids. Leave one of them out."
            )


def common_settings(method: Any) -> dict[str, Any]:
    """What every method stores: filters, length penalty, limit, ends, under conventional names."""
    stored: dict[str, Any] = {}
    for part in method.filters:
        name = next((n for n, (kind, _) in FILTERS.items() if type(part) is kind), None)
        if name is None or name in stored:
            raise _homeless(part)
        stored[name] = _as_lists(getattr(part, FILTERS[name][1]))
    if list(stored) != [name for name in FILTERS if name in stored]:
        stored[ORDER] = list(stored)
    if method.eos is not None:
        stored["eos_token_id"] = method.eos[0] if len(method.eos) == 1 else list(method.eos)
    return stored | _penalty_settings(method.length_penalty) | _limit_settings(method.max_tokens)


def _as_lists(value: Any) -> Any:
    """As JSON has it."""
    return [_as_lists(part) for part in value] if isinstance(value, tuple) else value


def stopping_settings(stopping: Stopping) -> dict[str, Any]:
    """`early_stopping` as transformers writes it."""
    for value, name in EARLY.items():
        if STOPPING[name] == stopping:
            return {"early_stopping": value}
    raise _homeless(stopping)


def _penalty_settings(penalty: LengthPenalty) -> dict[str, Any]:
    known: dict[str, Any] = {"length_penalty": penalty.alpha}
    for name, formula in PENALTIES.items():
        if type(penalty) is formula:
            return known if formula is Power else known | {FORMULA: name}
    raise _homeless(penalty)


def _limit_settings(limit: Limit) -> dict[str, Any]:
    if isinstance(limit, TotalLimit):
        return {"max_length": limit.count}
    if isinstance(limit, RelativeLimit):
        fixed = int(limit.ratio * LONG) + limit.plus
        fixed = min(fixed, MAX_TOKENS)
        return {"max_new_tokens": fixed, RATIO: limit.ratio, PLUS: limit.plus}
    return {"max_new_tokens": limit}


def _homeless(part: Any) -> ConfigError:
    return ConfigError(f"{part} cannot be stored: generation_config.json has no place for it.")
