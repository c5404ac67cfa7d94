"""Logits -> tokens: decoding methods. They know states and steps, and no model's name.

    generate(model, source, Beam(size=5, n_best=3))
    generate(model, source, beams=5, n_best=3)        the same, by name

A new method is one file and one line in `METHODS`; see `regard.decoding.method`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from regard.errors import ConfigError
from regard.lazy import entry, imported, names_of

if TYPE_CHECKING:
    from regard.data.batches import Sequences
    from regard.decoding.hypothesis import Hypothesis
    from regard.decoding.method import Method
    from regard.models.protocols import Generator

METHODS = {
    "greedy": "greedy:Greedy",
    "beam": "beam:Beam",
    "sampling": "sampling:Sampling",
    "speculative": "speculative.method:Speculative",
}

_PUBLIC = {
    "AcceptanceStats": "speculative.method:AcceptanceStats",
    "BadWords": "constraints:BadWords",
    "Beam": "beam:Beam",
    "BeamFinished": "stopping:BeamFinished",
    "CurrentLength": "stopping:CurrentLength",
    "ExactBound": "stopping:ExactBound",
    "ForcedEnd": "constraints:ForcedEnd",
    "ForcedFirst": "constraints:ForcedFirst",
    "GNMT": "length_penalty:GNMT",
    "Greedy": "greedy:Greedy",
    "Hypothesis": "hypothesis:Hypothesis",
    "MinLength": "constraints:MinLength",
    "MinTokens": "filters:MinTokens",
    "NGrams": "speculative.drafts:NGrams",
    "NoRepeatNGram": "filters:NoRepeatNGram",
    "Power": "length_penalty:Power",
    "Prefixes": "prefix_cache:Prefixes",
    "RelativeLimit": "length_penalty:RelativeLimit",
    "Renormalize": "constraints:Renormalize",
    "Sampling": "sampling:Sampling",
    "SmallModel": "speculative.drafts:SmallModel",
    "Speculative": "speculative.method:Speculative",
    "Streaming": "streaming:Streaming",
    "Suppress": "constraints:Suppress",
    "SuppressFirst": "constraints:SuppressFirst",
    "Temperature": "filters:Temperature",
    "TopK": "filters:TopK",
    "TopP": "filters:TopP",
    "TotalLimit": "length_penalty:TotalLimit",
    "count_acceptance": "speculative.method:count_acceptance",
    "keep_prefixes": "prefix_cache:keep_prefixes",
    "load": "generation_config:load",
    "options": "settings:options",
    "save": "generation_config:save",
    "unfinished": "hypothesis:unfinished",
    "with_options": "generation_config:with_options",
}

__all__ = sorted([*_PUBLIC, "METHODS", "generate", "method_class"])


def method_class(name: str) -> Any:
    """The options class of a method, imported now.

    Raises:
        ConfigError: there is no such method; the nearest one is offered.
    """
    return entry(METHODS, name, "decoding method", __name__)


def generate(
    model: Generator, source: Sequences | None, method: Method | None = None, **named: Any
) -> list[list[Hypothesis]]:
    """Decodes a batch.

    Args:
        model: see `regard.models.protocols.Generator`.
        source: B sources to answer or prompts to continue; None: one empty prompt.
        method: `Greedy()`, `Beam(…)`, `Sampling(…)` or `Speculative(…)`.
        named: its options, where no method is given; see `options`.

    Returns:
        For each source its hypotheses, best first.

    Raises:
        ConfigError: both or a wrong `method` are given, or options that do not fit together.
        RegardError: the model's scores are NaN.
    """
    if method is not None and named:
        raise ConfigError(f"Give `method` or options by name, but not both: {', '.join(named)}.")
    if method is None:
        method = imported("settings:options", __name__)(**named)
    if not isinstance(method, imported("method:Method", __name__)):
        raise ConfigError(
            f"`method` must be Greedy(), Beam(...), Sampling(...) or Speculative(...), but is "
            f"{method!r:.80}. Options by name are given as they are: beams=4."
        )
    return [] if source is not None and len(source) == 0 else method.run(model, source)


__getattr__ = names_of(__name__, _PUBLIC)
