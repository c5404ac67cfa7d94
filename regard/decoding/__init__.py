"""Logits -> tokens. Decoding knows `start`, `step` and `select`, and no model's name.

    generate(model, source, Beam(size=5, n_best=3))
    generate(model, source, beams=5, n_best=3)        the same, by name

A new method is one file and one line in `METHODS`: a frozen dataclass of its options with
`run(model, source)`, `from_settings` and `settings`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from regard.errors import ConfigError
from regard.suggest import nearest

if TYPE_CHECKING:
    from regard.data.batches import Sequences
    from regard.decoding.hypothesis import Hypothesis

METHODS = {
    "greedy": "greedy:Greedy",
    "beam": "beam:Beam",
    "sampling": "sampling:Sampling",
}

_PUBLIC = {
    "Beam": "beam:Beam",
    "BeamFinished": "stopping:BeamFinished",
    "CurrentLength": "stopping:CurrentLength",
    "ExactBound": "stopping:ExactBound",
    "GNMT": "lengths:GNMT",
    "Greedy": "greedy:Greedy",
    "Hypothesis": "hypothesis:Hypothesis",
    "MinTokens": "filters:MinTokens",
    "NoRepeatNGram": "filters:NoRepeatNGram",
    "Power": "lengths:Power",
    "Relative": "lengths:Relative",
    "Sampling": "sampling:Sampling",
    "Streaming": "streaming:Streaming",
    "Temperature": "filters:Temperature",
    "TopK": "filters:TopK",
    "TopP": "filters:TopP",
    "changed": "files:changed",
    "load": "files:load",
    "options": "settings:options",
    "save": "files:save",
    "unfinished": "hypothesis:unfinished",
}

__all__ = sorted([*_PUBLIC, "METHODS", "generate", "method_class"])


def method_class(name: str) -> Any:
    """The options class of a method, imported now.

    Raises:
        ConfigError: there is no such method; the nearest one is offered.
    """
    if name not in METHODS:
        raise ConfigError(f"There is no decoding method {name!r}. {nearest(name, METHODS)}")
    return _find(METHODS[name])


def generate(
    model: Any, source: Sequences | None, method: Any = None, **named: Any
) -> list[list[Hypothesis]]:
    """Decodes a batch: for each sentence its hypotheses, best first.

    model: anything with `start`, `step` and `config` (`regard.models.interfaces`).
    source: B sentences to answer or prompts to continue; None: one sequence from nothing.
    method: `Greedy()`, `Beam(…)`, `Sampling(…)`; or `named` options, see `options`.
    """
    if method is not None and named:
        raise ConfigError(f"Give `method` or options by name, but not both: {', '.join(named)}.")
    if source is not None and len(source) == 0:
        return []
    return (method or _find("settings:options")(**named)).run(model, source)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'regard.decoding' has no attribute {name!r}")
    return _find(_PUBLIC[name])


def _find(place: str) -> Any:
    module, _, attribute = place.partition(":")
    return getattr(import_module(f"regard.decoding.{module}"), attribute)
