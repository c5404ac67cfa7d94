"""What a sweep searches: for each option a list of values, or a range from which they are drawn.

    in Python                        on the command line
    Choice([128, 256]), [128, 256]   128,256        these values
    LogUniform(1e-4, 1e-2)           1e-4..1e-2     any value between the two
    Uniform(0.0, 0.5)                0.0..0.5
                                     1e-4..1e-2:5   five values at equal distances, with both ends

A range of the command line whose ends are positive and differ by a factor of 10 or more is searched
on a logarithmic scale, others on a linear scale. {"min": 1e-4, "max": 1e-2, "log": True} is the
same as LogUniform(1e-4, 1e-2). Values of an option that must be an integer are integers.
"""

from __future__ import annotations

import json
import math
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.errors import ConfigError
from regard.executors import Json
from regard.toml_text import toml_value

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

LOGARITHMIC = 10  # a range with ends that differ by this factor is searched on a logarithmic scale
DIGITS = 4  # significant digits of values that are drawn
MOST_POINTS = 10_000  # of a range
EXAMPLES = (
    "Examples: 128,256 (these values); 1e-4..1e-2 (any value between the two); 1e-4..1e-2:5 (five "
    "values from end to end)."
)
_RANGE = re.compile(r"(?P<low>[^.:]*(?:\.\d[^.:]*)?)\.\.(?P<high>[^:]+)(?::(?P<points>\d{1,18}))?")

Values = dict[str, Json]  # of the swept options, by their dotted names


@dataclass(frozen=True)
class Uniform:
    """Any value from `min` to `max`: equal differences are equally probable."""

    min: float
    max: float


@dataclass(frozen=True)
class LogUniform(Uniform):
    """Any value from `min` to `max`: equal factors are equally probable."""


@dataclass(frozen=True)
class Choice:
    """One of these values."""

    values: Sequence[Any]


@dataclass(frozen=True)
class ValueList:
    """A list of values."""

    values: tuple[Json, ...]

    def distribution(self) -> BaseDistribution:
        """Each of the values with the same probability; a list or a table is its TOML text."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution([*map(self.plain, self.values)])

    def plain(self, value: Json) -> None | bool | int | float | str:
        """A value as Optuna has it."""
        is_plain = value is None or isinstance(value, bool | int | float | str)
        return value if is_plain else toml_value(value)  # type: ignore[return-value]

    def value(self, suggested: Any) -> Json:
        """The value that Optuna has suggested."""
        return next(v for v in self.values if self.plain(v) == suggested)

    def __str__(self) -> str:
        return ", ".join(one if isinstance(one, str) else json.dumps(one) for one in self.values)


@dataclass(frozen=True)
class Range:
    """Every value from `low` to `high`, both included; `whole`: whole numbers alone.

    log: whether equal factors, not equal differences, are equally probable; None: as the ends say.
    """

    low: float
    high: float
    whole: bool
    log: bool | None = None

    @property
    def logarithmic(self) -> bool:
        """`log`, decided."""
        if self.log is not None:
            return self.log
        return self.low > 0 and self.high >= LOGARITHMIC * self.low

    def at(self, share: float) -> float:
        """The value at a share of the way from `low` to `high`."""
        if self.logarithmic:
            value = math.exp((1 - share) * math.log(self.low) + share * math.log(self.high))
        else:
            value = (1 - share) * self.low + share * self.high
        rounded = round(value) if self.whole else float(f"{value:.{DIGITS}g}")
        return min(self.high, max(self.low, rounded))

    def distribution(self) -> BaseDistribution:
        """Every value with the same probability, on the scale of the range."""
        from optuna.distributions import FloatDistribution, IntDistribution

        if self.whole:
            return IntDistribution(int(self.low), int(self.high), log=self.logarithmic)
        return FloatDistribution(self.low, self.high, log=self.logarithmic)

    def plain(self, value: Any) -> Any:
        """A value as Optuna has it."""
        return value

    def value(self, suggested: Any) -> Json:
        """The value that Optuna has suggested, with few digits."""
        if self.whole:
            return int(suggested)
        return min(self.high, max(self.low, float(f"{suggested:.{DIGITS}g}")))

    def points(self, count: int) -> ValueList:
        """`count` values from end to end; fewer where rounding makes integers equal."""
        found = [self.at(n / (count - 1)) for n in range(count)]
        return ValueList(tuple(dict.fromkeys(found)))

    def __str__(self) -> str:
        scale = "logarithmic" if self.logarithmic else "linear"
        kind = ", integers" if self.whole else ""
        return f"{self.low:g} to {self.high:g} on a {scale} scale{kind}"


Axis = ValueList | Range


@dataclass(frozen=True)
class Space:
    """The swept options by their dotted names."""

    axes: Mapping[str, Axis]

    @property
    def size(self) -> int | None:
        """How many configurations there are; None: any number."""
        lists = [axis for axis in self.axes.values() if isinstance(axis, ValueList)]
        if len(lists) < len(self.axes):
            return None
        return math.prod(len(axis.values) for axis in lists)

    def grid(self) -> list[Values]:
        """Every configuration; the last option changes fastest.

        Raises:
            ConfigError: an option has a range without points.
        """
        lists = {
            name: axis.values for name, axis in self.axes.items() if isinstance(axis, ValueList)
        }
        for name in self.axes:
            if name not in lists:
                raise ConfigError(
                    f"`{name}` is a range, and a grid needs values. List them, write LOW..HIGH:5 "
                    'for five points, or draw them: strategy="random" (--strategy random).'
                )
        return [dict(zip(lists, one, strict=True)) for one in product(*lists.values())]

    def drawn(self, count: int, seed: int) -> list[Values]:
        """So many configurations, drawn at random; all of them where there are no more.

        They depend on the seed alone, and the first ones not on how many follow.
        """
        import optuna

        if self.size is not None:
            points = self.grid()
            return points if self.size <= count else Random(seed).sample(points, count)
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed))
        trials = [study.ask(self.distributions()) for _ in range(count)]
        return [self.values(trial.params) for trial in trials]

    def distributions(self) -> dict[str, BaseDistribution]:
        """What Optuna suggests values from."""
        return {name: axis.distribution() for name, axis in self.axes.items()}

    def values(self, suggested: Mapping[str, Any]) -> Values:
        """The values that Optuna has suggested."""
        return {name: axis.value(suggested[name]) for name, axis in self.axes.items()}

    def plain(self, values: Values) -> dict[str, Any]:
        """Values as Optuna has them."""
        return {name: self.axes[name].plain(value) for name, value in values.items()}

    def lines(self) -> list[str]:
        """What is searched, one option a line."""
        return [f"{name}: {axis}" for name, axis in self.axes.items()]


def axis_of(name: str, given: Any, real: bool) -> Axis:
    """A range or a list, as the command line or Python has it.

    Args:
        given: a `Uniform`, a `LogUniform`, a mapping with "min" and "max", a `Choice`, a list or an
            array of values; or a text, "1e-4..1e-2" or "128,256".
        real: whether the option takes numbers that are not whole.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(given, Uniform):
        log = isinstance(given, LogUniform)
        return axis_of(name, {"min": given.min, "max": given.max, "log": log}, real)
    given = _plain(given.values if isinstance(given, Choice) else given)
    if isinstance(given, str):
        return _from_text(name, given, real)
    if isinstance(given, Mapping) and {"min", "max"} <= {*given} <= {"min", "max", "log"}:
        low, high, log = given["min"], given["max"], bool(given.get("log"))
        if not (_is_number(low) and _is_number(high)) or log and low <= 0:
            raise _malformed(name, given, "must have two numbers, for `log` positive ones")
        return _range(name, low, high, real, given, log)
    if isinstance(given, Sequence) and given:
        return _choices(name, given, given)
    raise _malformed(name, given, "must be a range, such as LogUniform(1e-4, 1e-2), or a list")


def _plain(given: Any) -> Any:
    """Arrays and numbers of NumPy as Python has them."""
    if isinstance(given, np.ndarray | np.generic):
        return given.tolist()
    if isinstance(given, list | tuple):
        return type(given)(map(_plain, given))
    if isinstance(given, Mapping):
        return {name: _plain(one) for name, one in given.items()}
    return given


def _from_text(name: str, text: str, real: bool) -> Axis:
    match = _RANGE.fullmatch(text.strip())
    ends = [_value(match[end]) for end in ("low", "high")] if match else []
    if match and all(map(_is_number, ends)):
        found = _range(name, ends[0], ends[1], real, text)
        if match["points"] is None:
            return found
        count = int(match["points"])
        if not 2 <= count <= MOST_POINTS:
            raise _malformed(name, text, f"must have 2 to {MOST_POINTS:,} points")
        return found.points(count)
    return _choices(name, list(_listed(name, text)), text)


BETWEEN_COMMAS = "must have a value on each side of each comma"


def _listed(name: str, text: str) -> Iterator[Any]:
    """The values of a list; commas inside brackets and quotes separate nothing.

    Raises:
        ConfigError: none follows the last comma, which TOML would accept.
    """
    if text.rstrip().endswith(","):
        raise _malformed(name, text, BETWEEN_COMMAS)
    try:
        yield from tomllib.loads(f"values = [{text}]")["values"]
    except ValueError:
        yield from map(_value, text.split(","))


def _value(text: str) -> Any:
    """A value as TOML has it, or a bare text."""
    try:
        return tomllib.loads(f"value = {text.strip()}")["value"]
    except ValueError:
        return text.strip()


def _choices(name: str, values: Sequence[Any], given: object) -> ValueList:
    if not values or "" in values:
        raise _malformed(name, given, BETWEEN_COMMAS)
    for one in values:
        try:
            json.dumps(one)
        except TypeError:
            raise _malformed(name, given, f"cannot have the value {one!r:.40}") from None
    twice = [one for index, one in enumerate(values) if one in values[:index]]
    if twice:
        raise _malformed(name, given, f"must have different values, not {twice[0]!r} twice")
    return ValueList(tuple(values))


def _malformed(name: str, given: object, expected: str) -> ConfigError:
    return ConfigError(f"`param_space` {name} {expected}, but is {given!r:.80}. {EXAMPLES}")


def _range(
    name: str, low: Any, high: Any, real: bool, given: object, log: bool | None = None
) -> Range:
    if not low < high:
        raise _malformed(name, given, "must be a range from a lower to a higher number")
    fractions = [end for end in (low, high) if end != int(end)]
    if not real and fractions:
        raise _malformed(name, given, f"must be an integer, not {fractions[0]!r}")
    return Range(low, high, not real, log)


def _is_number(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return -sys.float_info.max <= value <= sys.float_info.max
