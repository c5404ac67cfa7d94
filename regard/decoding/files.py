"""generation_config.json: how a model is decoded, stored beside it under the conventional names."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.checkpoints import write_text
from regard.decoding.settings import (
    BELONGS,
    FILTERS,
    FORMULA,
    NAMES,
    PLUS,
    RATIO,
    build,
    options,
)
from regard.errors import ConfigError, DataError

FILE = "generation_config.json"
LOOKUP = "prompt_lookup_num_tokens"  # a draft of n-grams
ASSISTED = "num_assistant_tokens"  # without a draft that is named, it is for a model given later

# Values that change nothing, some of which other libraries always write.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "min_new_tokens": (0,),
    "no_repeat_ngram_size": (0,),
    "temperature": (1,),
    "top_k": (0,),
    "top_p": (1,),
}
# Whoever does not sample still writes this one.
UNUSED_TOP_K = 50

KNOWN = {
    *FILTERS,
    *("length_penalty", "length_penalty_formula", "filter_order", "early_stopping", "seed"),
    *("num_beams", "num_return_sequences"),
    *("draft", "num_assistant_tokens"),
    *("max_new_tokens", RATIO, PLUS),
}
# Not about the choice of tokens; the ids are in the model's own configuration.
IGNORED = ("use_cache", "cache_implementation", "max_length", "transformers_version")
IGNORED_PREFIXES = ("output_", "return_", "_", "bos_", "eos_", "pad_", "decoder_start_")


def save(
    method: Any,
    path: str | Path,
    ids: Mapping[str, int] | None = None,
    max_length: int | None = None,
) -> None:
    """Writes the method's options to a file, or to generation_config.json in a folder.

    ids: `eos_token_id` and the like, for other libraries that read the file.
    max_length: what the model reads at most; no fixed limit that is written for others is above.
    """
    values = method.settings()
    if max_length is not None and RATIO in values:
        values["max_new_tokens"] = min(values["max_new_tokens"], max_length)
    text = json.dumps(values | dict(ids or {}), indent=2, sort_keys=True, default=_refuse)
    write_text(_file(path), text + "\n")


def load(path: str | Path) -> Any:
    """The decoding method that a file, ours or another library's, asks for.

    A beam of one comes back as greedy search, its equal.

    Raises:
        DataError: no such file, or not JSON.
        ConfigError: values out of range, or of two methods at once.
    """
    file = _file(path)
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(file, None, "there is no such file.") from None
    except json.JSONDecodeError as error:
        raise DataError(file, error.lineno, f"this is not JSON: {error.msg}.") from None
    if not isinstance(values, dict):
        raise DataError(file, 1, "a JSON object is expected.")
    return from_config(values)


def from_config(values: Mapping[str, Any]) -> Any:
    """The method that conventional names and values describe; null means not given.

    Options that we do not have, and that would change the tokens, are named in a warning.
    """
    wanted = {name: value for name, value in values.items() if value is not None}
    sample, beams = wanted.pop("do_sample", False), wanted.get("num_beams", 1)
    if sample and beams > 1:
        raise ConfigError(f"`do_sample` must be false for `num_beams` of {beams}, but is true.")
    method = "sampling" if sample else "beam" if beams > 1 else "greedy"
    guesses = wanted.pop(LOOKUP, None)
    if guesses is not None and "draft" not in wanted:
        wanted |= {"draft": "ngram", "num_assistant_tokens": guesses}
    if "max_length" in wanted:  # it counts the first token too
        wanted.setdefault("max_new_tokens", max(wanted.pop("max_length") - 1, 1))
    drafted = "draft" in wanted
    known = {k: v for k, v in wanted.items() if k in KNOWN and (drafted or k != ASSISTED)}
    _warn(wanted.keys() - known.keys())
    meant = _meant(known, method)
    if drafted and method != "beam":
        return build("speculative", meant | {"do_sample": sample})
    return build(method, meant)


ONLY_SAMPLING = ("temperature", "top_k", "top_p")
DRAFTED = ("draft", "num_assistant_tokens")
ONLY_BEAMS = ("num_beams", "early_stopping")


def changed(method: Any, **named: Any) -> Any:
    """`method` with some options changed, by their names in `options`.

    Options that belong to another method choose that one; what both know is kept.
    """
    named = {name: value for name, value in named.items() if value is not None}
    asked = options(**named)  # refuses what is wrong by itself
    values = method.settings()
    if any(name in named for name in BELONGS["sampling"]):
        values = {k: v for k, v in values.items() if k not in ONLY_BEAMS}
        values |= {"do_sample": True}
    elif any(name in named for name in BELONGS["beam"]):
        values = {k: v for k, v in values.items() if k not in (*ONLY_SAMPLING, *DRAFTED, "seed")}
        values |= {"do_sample": False, "num_beams": getattr(method, "size", None) or asked.size}
    elif values.get("num_beams", 1) > 1 and any(name in named for name in BELONGS["speculative"]):
        several = "num_return_sequences"
        values = {k: v for k, v in values.items() if k not in (*ONLY_BEAMS, several)}
    if "draft_tokens" in named:
        values.setdefault("draft", "ngram")
    if "max_tokens" in named:
        values = {k: v for k, v in values.items() if k not in (RATIO, PLUS)}
    if "length_penalty" in named:
        values.pop(FORMULA, None)
    return from_config(values | {NAMES.get(name, name): value for name, value in named.items()})


def _meant(values: dict[str, Any], method: str) -> dict[str, Any]:
    """Without the values that change nothing."""
    kept = {k: v for k, v in values.items() if v not in NEUTRAL.get(k, ())}
    if method != "sampling" and kept.get("top_k") == UNUSED_TOP_K:
        del kept["top_k"]
    if method != "beam":
        kept.pop("early_stopping", None)
        kept.pop("num_beams", None)
    if method == "greedy" and kept.get("num_return_sequences") == 1:
        del kept["num_return_sequences"]
    return kept


def _warn(names: set[str]) -> None:
    lost = sorted(n for n in names if n not in IGNORED and not n.startswith(IGNORED_PREFIXES))
    if lost:
        warnings.warn(
            f"Decoding will not do what {FILE} asks for under {', '.join(lost)}: "
            "there is no such option here.",
            stacklevel=4,
        )


def _refuse(part: Any) -> Any:
    raise ConfigError(
        f"A draft that lies in no folder cannot be stored in {FILE}: {type(part).__name__}. Give "
        "the folder of the draft's model."
    )


def _file(path: str | Path) -> Path:
    path = Path(path)
    return path / FILE if path.is_dir() else path
