"""generation_config.json: how a model is decoded, stored beside it under the conventional names."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from regard.decoding.option_types import check, schema, shown
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
from regard.decoding.speculative.drafts import draft_of
from regard.decoding.speculative.method import Speculative
from regard.decoding.steps import ends_of
from regard.errors import ConfigError, DataError
from regard.file_writing import write_text
from regard.schema import checked, data_error, read_json

FILE = "generation_config.json"
LOOKUP = "prompt_lookup_num_tokens"  # a draft of n-grams
ASSISTED = "num_assistant_tokens"  # without a draft that is named, it is for a model given later

# Values that change nothing, some of which other libraries always write.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "min_new_tokens": (0,),
    "min_length": (0,),
    "no_repeat_ngram_size": (0,),
    "bad_words_ids": ([],),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "forced_eos_token_id": ([],),
    "renormalize_logits": (False,),
    "temperature": (1,),
    "top_k": (0,),
    "top_p": (1,),
}
# Whoever does not sample still writes this one; whoever does and writes none has this one.
UNUSED_TOP_K = 50

KNOWN = {
    *FILTERS,
    *("length_penalty", "length_penalty_formula", "filter_order", "early_stopping", "seed"),
    *("num_beams", "num_return_sequences", "eos_token_id"),
    *("draft", "num_assistant_tokens"),
    *("max_new_tokens", "max_length", RATIO, PLUS),
}
# Fields of other libraries that change tokens and that we do not have, with the values that do
# nothing there. Any other value of theirs is named in a warning, as is a field nobody knows.
WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "assistant_confidence_threshold": (0.4,),
    "assistant_early_exit": (),
    "assistant_ensemble_weight": (),
    "constraints": (),
    "diversity_penalty": (0,),
    "dola_layers": (),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "exponential_decay_length_penalty": (),
    "force_words_ids": (),
    "guidance_scale": (1,),
    "max_time": (),
    "min_p": (0,),
    "num_beam_groups": (1,),
    "penalty_alpha": (0,),
    "remove_invalid_values": (False,),
    "repetition_penalty": (1,),
    "sequence_bias": (),
    "speculation_type": (),
    "stop_strings": ([],),
    "token_healing": (False,),
    "top_h": (),
    "typical_p": (1,),
    "use_mtp": (False,),
    "watermarking_config": (),
}
# Not about the choice of tokens: how they are computed, what is given back beside them, and how far
# a draft looks, which decides on the time alone.
IGNORED = {
    *("use_cache", "cache_implementation", "cache_config", "max_cache_len", "prefill_chunk_size"),
    *("transformers_version", "compile_config", "disable_compile", "low_memory"),
    *("continuous_batching_config", "is_assistant", "num_assistant_tokens_schedule"),
    *("max_matching_ngram_size", "assistant_lookbehind", "target_lookbehind"),
    *("pad_token_id", "transformers.js_config"),
}
IGNORED_PREFIXES = ("output_", "return_", "_")
# These are the model's own, so that they are compared with those of its configuration.
OWN = {"bos_token_id": "bos", "decoder_start_token_id": "bos"}


def save(
    method: Any,
    path: str | Path,
    ids: Mapping[str, int] | None = None,
    max_length: int | None = None,
) -> None:
    """Writes the method's options to a file, or to generation_config.json in a folder.

    ids: `eos_token_id` and the like of the model, for other libraries that read the file; ends
        that the method has are written instead.
    max_length: what the model reads at most; no fixed limit that is written for others is above.
    """
    values = method.settings()
    if max_length is not None and RATIO in values:
        values["max_new_tokens"] = min(values["max_new_tokens"], max_length)
    if "draft" in values:
        values["draft"] = values["draft"].stored()
    text = json.dumps({**(ids or {}), **values}, indent=2, sort_keys=True, default=_refuse)
    write_text(_file(path), text + "\n")


def load(path: str | Path, model: Any = None) -> Any:
    """The decoding method that a file, ours or another library's, asks for.

    It means what it means in transformers: `eos_token_id` wins over the model's own, `max_length`
    counts the prompt, sampling without `top_k` takes the best 50. Two things differ: without
    `eos_token_id` texts end as the model's configuration says, and without a limit there is ours.
    A beam of one comes back as greedy search, its equal. The name of a draft is a folder, seen from
    that of the file.

    model: for which it is; fields that must agree with its configuration are compared with it.

    Raises:
        DataError: no such file, or not JSON.
        ConfigError: a field of a wrong type, values out of range, or of two methods at once.
    """
    file = _file(path)
    try:
        values = read_json(file, error=data_error(file))
    except FileNotFoundError:
        raise DataError(file, None, "there is no such file.") from None
    checked(values, schema(), file, ConfigError)
    values = {name: value for name, value in values.items() if value is not None}
    if values.get("do_sample"):
        values.setdefault("top_k", UNUSED_TOP_K)
    if isinstance(draft := values.get("draft"), str):
        values["draft"] = draft_of(draft, file)
    try:
        if model is not None:
            _check_own(values, model)
        found = from_config(values)
    except ConfigError as wrong:
        raise ConfigError(f"{file}: {wrong}") from None
    return found if model is None else _with_own_ends(found, model)


def _with_own_ends(method: Any, model: Any) -> Any:
    """The method, which leaves the ends to the model where they are the same."""
    if isinstance(method, Speculative):
        return replace(method, method=_with_own_ends(method.method, model))
    same = method.eos is not None and method.eos == ends_of(None, model)
    return replace(method, eos=None) if same else method


def _check_own(values: dict[str, Any], model: Any) -> None:
    """Compares the tokens of a file with those of the model.

    Raises:
        ConfigError: the model has no such token, or begins an answer with another one.
    """
    for name in ("bad_words_ids", "forced_bos_token_id", "forced_eos_token_id"):
        if wrong := [i for i in _flat(values.get(name, [])) if i >= model.config.vocab_size]:
            raise ConfigError(
                f"`{name}` must be tokens of the model, 0 to {model.config.vocab_size - 1:,}, but "
                f"one is {wrong[0]:,}."
            )
    own = model.config.bos
    if model.continues:
        first = values.get("bos_token_id", own)
        if first != own and own is not None:
            _warn({"bos_token_id"}, f"config.json has {own}, and that is what is used")
        return
    name = "decoder_start_token_id" if "decoder_start_token_id" in values else "bos_token_id"
    if values.get(name, own) != own:
        raise ConfigError(
            f"`{name}` must be {own}, with which config.json has the decoder start, but is "
            f"{shown(values[name])}. Make them equal."
        )


def _flat(value: Any) -> list[int]:
    return [i for part in value for i in _flat(part)] if isinstance(value, list) else [value]


def from_config(values: Mapping[str, Any]) -> Any:
    """The method that conventional names and values describe; null means not given.

    Options that we do not have, and that would change the tokens, are named in a warning.
    """
    wanted = {name: value for name, value in values.items() if value is not None}
    sample, beams = wanted.pop("do_sample", False), wanted.get("num_beams", 1)
    check("num_beams", beams, "num_beams")
    if sample and beams > 1:
        raise ConfigError(f"`do_sample` must be false for `num_beams` of {beams}, but is true.")
    method = "sampling" if sample else "beam" if beams > 1 else "greedy"
    guesses = wanted.pop(LOOKUP, None)
    if guesses is not None and method == "beam":
        _warn({LOOKUP}, "beam search has no draft")
    elif guesses is not None and "draft" not in wanted:
        wanted |= {"draft": "ngram", "num_assistant_tokens": guesses}
    for other, ours in (("max_length", "max_new_tokens"), ("min_length", "min_new_tokens")):
        if other in wanted and ours in wanted:
            if wanted[other] not in NEUTRAL.get(other, ()):
                _warn({other}, f"`{ours}` is there too, and wins")
            del wanted[other]
    drafted = "draft" in wanted
    known = {k: v for k, v in wanted.items() if k in KNOWN and (drafted or k != ASSISTED)}
    _warn({k for k in wanted.keys() - known.keys() if _matters(k, wanted[k])})
    meant = _meant(known, method)
    if drafted and method != "beam":
        return build("speculative", meant | {"do_sample": sample})
    return build(method, meant)


ONLY_SAMPLING = ("temperature", "top_k", "top_p")
DRAFTED = ("draft", "num_assistant_tokens")
ONLY_BEAMS = ("num_beams", "early_stopping")


def with_options(method: Any, /, **named: Any) -> Any:
    """`method` with some options changed, by their names in `options`.

    Options that belong to another method choose that one; what both know is kept.

    Raises:
        ConfigError: an unknown name, a value out of range, or names of different methods.
    """
    if "method" in named:
        raise ConfigError(
            "There is no option `method`: the options choose it. `beams` is beam search, "
            "`temperature`, `top_k`, `top_p`, `samples` and `seed` sample, `draft` guesses ahead."
        )
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
        values = {k: v for k, v in values.items() if k not in (RATIO, PLUS, "max_length")}
    if "min_tokens" in named:
        values.pop("min_length", None)
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


def _matters(name: str, value: Any) -> bool:
    """Whether a field that we do not have would change the tokens, or may do so."""
    if name in IGNORED or name in OWN or name.startswith(IGNORED_PREFIXES):
        return False
    return value not in WITHOUT_EFFECT.get(name, ())


def _warn(names: set[str], why: str = "there is no such option here") -> None:
    if names:
        warnings.warn(
            f"Decoding will not do what {FILE} asks for under {', '.join(sorted(names))}: {why}.",
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
