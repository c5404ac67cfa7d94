"""Logits -> tokens: decoding methods. They know states and steps, and no model's name.

    generate(model, source, Beam(size=5, n_best=3))
    generate(model, source, beams=5, n_best=3)        the same, by name

A new method is one file and one line in `METHODS`; see `regard.decoding.loop`.

Internal: names that `regard` itself does not have may change with every version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from regard.errors import ConfigError
from regard.lazy import imported, names_of

if TYPE_CHECKING:
    from regard.data.batches import Sequences
    from regard.decoding.steps import Hypothesis, Method
    from regard.models.protocols import Generator

METHODS = {
    "greedy": "loop:Greedy",
    "beam": "beam:Beam",
    "sampling": "loop:Sampling",
}

_names, __getattr__ = names_of(
    __name__,
    {
        "beam": "Beam",
        "filters": "BadWords ForcedEnd ForcedFirst MinLength MinTokens NoRepeatNGram Renormalize "
        "RepetitionPenalty Suppress Temperature TopK TopP",
        "generation_config": "load load_from_model_config save with_options",
        "length_penalty": "GNMT Power RelativeLimit TotalLimit",
        "loop": "Greedy Sampling TokenMethod",
        "prefix_cache": "PrefixCache",
        "settings": "options",
        "steps": "Hypothesis unfinished",
        "streaming": "Streaming",
    },
)
__all__ = sorted([*_names, "METHODS", "generate"])


def generate(
    model: Generator, source: Sequences | None, method: Method | None = None, **named: Any
) -> list[list[Hypothesis]]:
    """Decodes a batch: answers sources, or continues prompts.

    Args:
        model: see `regard.models.protocols.Generator`; or a `PrefixCache` around it.
        source: the sources to answer or prompts to continue; None: one empty prompt.
        method: `Greedy()`, `Beam(…)` or `Sampling(…)`.
        named: the options of the method by name, where none is given; see `options`.

    Returns:
        For each source its hypotheses, best first.

    Raises:
        ConfigError: both or a wrong `method` are given, or options that do not fit together.
        RegardError: the model's scores are infinite or NaN.
    """
    if method is not None and named:
        raise ConfigError(f"Give `method` or options by name, but not both: {', '.join(named)}.")
    if method is None:
        method = imported("settings:options", __name__)(**named)
    if not isinstance(method, imported("steps:Method", __name__)):
        raise ConfigError(f"`method` must be such as Greedy() or Beam(4), but is {method!r:.80}.")
    if source is not None and len(source) == 0:
        return []
    wrapped = imported("wrappers:generator", "regard.models")(model)  # compiled where it can be
    return method.run(wrapped, source)
