"""What a sweep searches: for each option a list of values, or a range from which they are drawn.

    in Python                        on the command line
    [128, 256]                       128,256        these values
    LogUniform(1e-4, 1e-2)           1e-4..1e-2     any value between the two
    Uniform(0.0, 0.5)                0.0..0.5
                                     1e-4..1e-2:5   five values at equal distances, with both ends

A range of the command line whose ends are positive and differ by a factor of 10 or more is searched
on a logarithmic scale, others on a linear scale. Values of an option that must be an integer are
integers.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from random import Random
from typing import Any

import numpy as np

from regard.errors import ConfigError
from regard.executors import Json
from regard.toml_text import toml_value

LOGARITHMIC = 10  # a range with ends that differ by this factor is searched on a logarithmic scale
DIGITS = 4  # significant digits of values that are drawn
MAX_POINTS = 10_000  # of a range
EXAMPLES = (
    "Examples: 128,256 (these values); 1e-4..1e-2 (any value between the two); 1e-4..1e-2:5 (five "
    "values from end to end)."
)
_RANGE = re.compile(r"(?P<low>[^.:]*(?:\.\d[^.:]*)?)\.\.(?P<high>[^:]+)(?::(?P<points>\d{1,18}))?")

Values = dict[str, Json]  # of the swept options, by their dotted names


@dataclass(frozen=True)
class Uniform:
    """Any value from `min` to `max`: equal differences are equally probable.

    whole: whole numbers alone.
    """

    min: float
    max: float
    whole: bool = False
    scale = "linear"

    def at(self, share: float) -> float:
        """The value at a share of the way from `min` to `max`, with few digits."""
        return self._rounded((1 - share) * self.min + share * self.max)

    def draw(self, random: Random) -> float:
        """A random value."""
        if self.whole:
            return random.randint(int(self.min), int(self.max))
        return self.at(random.random())

    def suggest(self, trial: Any, name: str) -> float:
        """The value that a trial of Optuna suggests."""
        log = self.scale == "logarithmic"
        if self.whole:
            return trial.suggest_int(name, int(self.min), int(self.max), log=log)
        return self._rounded(trial.suggest_float(name, self.min, self.max, log=log))

    def _rounded(self, value: float) -> float:
        rounded = round(value) if self.whole else float(f"{value:.{DIGITS}g}")
        return min(self.max, max(self.min, rounded))

    def __str__(self) -> str:
        kind = ", integers" if self.whole else ""
        return f"{self.min:g} to {self.max:g} on a {self.scale} scale{kind}"


@dataclass(frozen=True)
class LogUniform(Uniform):
    """Any value from `min` to `max`: equal factors are equally probable."""

    scale = "logarithmic"

    def at(self, share: float) -> float:
        return self._rounded(self.min ** (1 - share) * self.max**share)

    def draw(self, random: Random) -> float:
        return self.at(random.random())


@dataclass(frozen=True)
class ValueList:
    """A list of values."""

    values: tuple[Json, ...]

    def draw(self, random: Random) -> Json:
        """A random value."""
        return random.choice(self.values)

    def suggest(self, trial: Any, name: str) -> Json:
        """The value that a trial of Optuna suggests; to Optuna each is a TOML text."""
        by_text = {toml_value(value): value for value in self.values}
        return by_text[trial.suggest_categorical(name, [*by_text])]

    def __str__(self) -> str:
        return ", ".join(v if isinstance(v, str) else json.dumps(v) for v in self.values)


Axis = ValueList | Uniform


@dataclass(frozen=True)
class Space:
    """The swept options by their dotted names."""

    axes: Mapping[str, Axis]

    def grid(self) -> list[Values]:
        """Every configuration; the last option changes fastest.

        Raises:
            ConfigError: an option has a range without points.
        """
        lists: dict[str, tuple[Json, ...]] = {}
        for name, axis in self.axes.items():
            if not isinstance(axis, ValueList):
                raise ConfigError(
                    f"`{name}` is a range, and a grid needs values. List them, write LOW..HIGH:5 "
                    'for five points, or draw them: strategy="random" (--strategy random).'
                )
            lists[name] = axis.values
        return [dict(zip(lists, values, strict=True)) for values in product(*lists.values())]

    def drawn(self, count: int, seed: int) -> list[Values]:
        """So many configurations, drawn at random; all of them where there are no more.

        They depend on the seed alone; with a range, the first ones not on how many follow.
        """
        random = Random(seed)
        if all(isinstance(axis, ValueList) for axis in self.axes.values()):
            points = self.grid()
            return points if len(points) <= count else random.sample(points, count)
        return [{name: axis.draw(random) for name, axis in self.axes.items()} for _ in range(count)]

    def suggested(self, trial: Any) -> Values:
        """The configuration that a trial of Optuna suggests."""
        return {name: axis.suggest(trial, name) for name, axis in self.axes.items()}

    def lines(self) -> list[str]:
        """What is searched, one option a line."""
        return [f"{name}: {axis}" for name, axis in self.axes.items()]


def axis_of(name: str, given: Any, real: bool) -> Axis:
    """A range or a list, as the command line or Python has it.

    Args:
        given: a `Uniform`, a `LogUniform`, a list or an array of values; or a text, "1e-4..1e-2" or
            "128,256".
        real: whether the option takes numbers that are not whole.

    Raises:
        ConfigError: it is neither.
    """

    def malformed(expected: str) -> ConfigError:
        return ConfigError(f"`param_space` {name} {expected}, but is {given!r:.80}. {EXAMPLES}")

    axis, points, values = given, None, _plain(given)
    if isinstance(values, str):
        match = _RANGE.fullmatch(values.strip())
        ends = [_value(match[end]) for end in ("low", "high")] if match else []
        if match and all(type(end) in (int, float) for end in ends):
            low, high = ends
            axis = (LogUniform if 0 < LOGARITHMIC * low <= high else Uniform)(low, high)
            points = match["points"]
        else:
            values = [*_listed(values), *[""] * values.rstrip().endswith(",")]
    if isinstance(axis, Uniform):
        if not axis.min < axis.max or isinstance(axis, LogUniform) and axis.min <= 0:
            raise malformed("must be a range from a lower to a higher number (positive in logs)")
        if not real and (axis.min != int(axis.min) or axis.max != int(axis.max)):
            raise malformed("must be a range of integers")
        axis = replace(axis, whole=not real)
        if points is None:
            return axis
        if not 2 <= int(points) <= MAX_POINTS:
            raise malformed(f"must have 2 to {MAX_POINTS:,} points")
        shares = [n / (int(points) - 1) for n in range(int(points))]
        return ValueList(tuple(dict.fromkeys(map(axis.at, shares))))
    if not isinstance(values, list | tuple) or not values or "" in values:
        raise malformed("must be a range, such as LogUniform(1e-4, 1e-2), or a list of values")
    try:
        texts = [toml_value(value) for value in values]
    except ConfigError as error:
        raise malformed(f"cannot have such a value: {error}") from None
    if len(set(texts)) < len(texts):
        raise malformed("must have different values")
    return ValueList(tuple(values))


def _plain(values: Any) -> Any:
    """Arrays and numbers of NumPy as Python has them."""
    if isinstance(values, np.ndarray | np.generic):
        return values.tolist()
    if isinstance(values, list | tuple):
        return type(values)(map(_plain, values))
    return values


def _listed(text: str) -> Iterator[Any]:
    """The values of a list; commas inside brackets and quotes separate nothing."""
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
