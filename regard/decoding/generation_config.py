"""generation_config.json: how a model is decoded, stored beside it under the conventional names."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from regard import habit_names
from regard.decoding import settings
from regard.decoding.beam import Beam
from regard.decoding.loop import TokenMethod
from regard.decoding.option_types import NAMES, OPTION_TYPES, check, schema
from regard.decoding.steps import Method, eos_tokens
from regard.errors import ConfigError, DataError, shown, warn
from regard.file_writing import write_text
from regard.models.protocols import Generator
from regard.schema import checked, data_error, read_json

FILE = "generation_config.json"
RELATIVE = ("max_length_a", "max_length_b")  # a limit of so many tokens for each source token
ONLY_SAMPLING = ("temperature", "top_k", "top_p", "seed")
ONLY_BEAMS = ("num_beams", "early_stopping")
# Of sampling, too, which are not supported here.
SAMPLING_OF_OTHERS = ("epsilon_cutoff", "eta_cutoff", "min_p", "top_h", "typical_p")

# Values without effect, some of which other libraries always write.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("min_new_tokens", "min_length", "no_repeat_ngram_size", "top_k"), (0,)),
    **dict.fromkeys(("bad_words_ids", "suppress_tokens"), ([],)),
    **dict.fromkeys(("temperature", "top_p", "repetition_penalty"), (1,)),
    "forced_eos_token_id": ([],),
    "renormalize_logits": (False,),
}
# The default of transformers: a file for sampling without a value means it, and files for other
# methods have it without effect.
DEFAULT_TOP_K = 50

# Fields of other libraries that change tokens and that are not supported here, with the values
# that have no effect there. Any other value is an error.
WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("diversity_penalty", "epsilon_cutoff", "eta_cutoff"), (0,)),
    **dict.fromkeys(("encoder_no_repeat_ngram_size", "min_p", "penalty_alpha"), (0,)),
    **dict.fromkeys(("encoder_repetition_penalty", "guidance_scale"), (1,)),
    **dict.fromkeys(("num_beam_groups", "typical_p"), (1,)),
    **dict.fromkeys(("is_assistant", "remove_invalid_values"), (False,)),
    **dict.fromkeys(("token_healing", "use_mtp"), (False,)),
    **dict.fromkeys(("assistant_early_exit", "assistant_ensemble_weight", "constraints"), ()),
    **dict.fromkeys(("dola_layers", "exponential_decay_length_penalty", "force_words_ids"), ()),
    **dict.fromkeys(("max_time", "sequence_bias", "speculation_type", "top_h"), ()),
    **dict.fromkeys(("stop_strings", "begin_suppress_tokens"), ([],)),
    "watermarking_config": (),
}
# Fields that do not change tokens: how they are computed, what is returned beside them, and drafts,
# which change the speed alone.
IGNORED = {
    *("use_cache", "cache_implementation", "cache_config", "max_cache_len", "prefill_chunk_size"),
    *("transformers_version", "compile_config", "disable_compile", "low_memory"),
    *("continuous_batching_config", "assistant_confidence_threshold"),
    *("num_assistant_tokens", "num_assistant_tokens_schedule"),
    *("prompt_lookup_num_tokens", "max_matching_ngram_size"),
    *("assistant_lookbehind", "target_lookbehind"),
    *("pad_token_id", "transformers.js_config"),
}
IGNORED_PREFIXES = ("output_", "return_", "_")
# Fields that must agree with the model's configuration, and their names there.
MODEL_FIELDS = {"bos_token_id": "bos", "decoder_start_token_id": "bos"}


def save(
    method: Method,
    path: str | Path,
    ids: Mapping[str, int] | None = None,
    max_length: int | None = None,
) -> None:
    """Write the options of a method to generation_config.json.

    Args:
        path: the file, or a folder for its generation_config.json.
        ids: `eos_token_id` and the like of the model, for other libraries that read the file; the
            method's own `eos` replaces them.
        max_length: the most tokens that the model reads; the fixed limit that is written for other
            libraries is not above it.

    Raises:
        ConfigError: a filter or a rule that the file has no option for.
    """
    if isinstance(method, TokenMethod) and method.ends:
        raise settings.not_storable(method.ends[0])
    values = method.settings()
    if max_length is not None and "max_length_a" in values:
        values["max_new_tokens"] = min(values["max_new_tokens"], max_length)
    text = json.dumps({**(ids or {}), **values}, indent=2, sort_keys=True)
    write_text(_file(path), text + "\n")


def load(path: str | Path, model: Generator | None = None) -> Any:
    """The decoding method of a generation_config.json, ours or another library's.

    It means what it means in transformers: `eos_token_id` overrides the model's own, `max_length`
    counts the prompt, sampling without `top_k` takes the best 50. Two things differ: without
    `eos_token_id` the model's own is used, and without a limit our default is used. A beam of one
    becomes greedy search, its equal.

    Args:
        path: the file or its folder.
        model: fields that must agree with its configuration are compared with it.

    Raises:
        DataError: no such file, or not JSON.
        ConfigError: a field of a wrong type, values out of range, or of two methods at once.
    """
    file = _file(path)
    try:
        values = read_json(file, error=data_error(file))
    except FileNotFoundError:
        raise DataError(file, None, "there is no such file.") from None
    return _method_of(values, file, model)


def load_from_model_config(config: Mapping[str, Any], file: Path, model: Generator) -> Any:
    """The decoding method that the fields of config.json describe, where folders had it before
    there was generation_config.json; None: it has no such field, or all have the default value.

    file: that config.json, for errors.

    Raises:
        ConfigError: see `load`.
    """
    eos = config.get("eos_token_id")
    # A single one is a field of the model's configuration.
    ignored = set() if isinstance(eos, list) and len(eos) > 1 else {"eos_token_id"}
    names = ({*OPTION_TYPES, *WITHOUT_EFFECT} - ignored) & config.keys()
    defaults = {"max_length": (20,), "do_sample": (False,), "num_beams": (1,), **WITHOUT_EFFECT}
    fields = {
        name: config[name]
        for name in names
        if config[name] not in (None, *defaults.get(name, NEUTRAL.get(name, ())))
    }
    has_default_top_k = fields.get("top_k") == DEFAULT_TOP_K
    changed = fields.keys() - ({"top_k"} if has_default_top_k else set())
    return _method_of(fields, file, model) if changed else None


def _method_of(values: Any, file: Path, model: Generator | None) -> Any:
    """The method that the fields of a file describe; see `load`."""
    checked(values := _of_one_method(values), schema(), file, ConfigError)
    values = {name: value for name, value in values.items() if value is not None}
    if values.get("do_sample"):
        values.setdefault("top_k", DEFAULT_TOP_K)
    try:
        if model is not None:
            _check_model_fields(values, model)
        method = from_config(values)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None
    return method if model is None else _with_own_eos(method, model)


def _of_one_method(values: Any) -> Any:
    """The fields of a file without those of sampling, where it does not sample: `transformers` has
    fields of all methods in one file, and one method reads its own.
    """
    if not isinstance(values, dict) or values.get("do_sample") is True:
        return values
    neutral = {**NEUTRAL, **WITHOUT_EFFECT, "top_k": (0, DEFAULT_TOP_K)}
    unread = {*ONLY_SAMPLING, *SAMPLING_OF_OTHERS} & values.keys()
    _warn(
        {name for name in unread if values[name] not in (None, *neutral.get(name, ()))},
        "only sampling reads them, and `do_sample` is not true",
    )
    return {name: value for name, value in values.items() if name not in unread}


def _with_own_eos(method: Any, model: Generator) -> Any:
    """The method with `eos` None, if it equals the model's own."""
    same = method.eos is not None and method.eos == eos_tokens(None, model)
    return replace(method, eos=None) if same else method


def _check_model_fields(values: dict[str, Any], model: Generator) -> None:
    """Compare the tokens of a file with those of the model.

    Raises:
        ConfigError: the model has no such token, or starts an answer with another one.
    """
    size = model.config.vocab_size
    words = values.get("bad_words_ids", [])
    possible = [word for word in words if all(token < size for token in word)]
    if possible != words:
        _warn({"bad_words_ids"}, f"the model has only the tokens 0 to {size - 1:,}")
        values["bad_words_ids"] = possible
    for name in ("forced_bos_token_id", "forced_eos_token_id"):
        tokens = values.get(name, [])
        if wrong := [i for i in ([tokens] if isinstance(tokens, int) else tokens) if i >= size]:
            raise ConfigError(f"`{name}` must be tokens below {size:,}, but one is {wrong[0]:,}.")
    bos = model.config.bos
    if model.continues:
        first = values.get("bos_token_id", bos)
        if first != bos and bos is not None:
            _warn({"bos_token_id"}, f"config.json has {bos}, and that is what is used")
        return
    name = "decoder_start_token_id" if "decoder_start_token_id" in values else "bos_token_id"
    if values.get(name, bos) != bos:
        value = shown(values[name])
        raise ConfigError(f"`{name}` must be {bos} as in config.json, but is {value}.")


def from_config(values: Mapping[str, Any]) -> Any:
    """The method that conventional names and values describe; None means not given.

    Unknown fields, which `transformers` does not read either, are named in a warning.

    Raises:
        ConfigError: values out of range, or of two methods at once; or an option that would change
            the tokens is not supported.
    """
    fields = {name: value for name, value in values.items() if value is not None}
    sample, beams = fields.pop("do_sample", False), fields.get("num_beams", 1)
    check("num_beams", beams, "num_beams")
    if sample and beams > 1:
        raise ConfigError(f"`do_sample` must be false for `num_beams` of {beams}, but is true.")
    method = "sampling" if sample else "beam" if beams > 1 else "greedy"
    if method == "greedy" and (count := fields.get("num_return_sequences", 1)) != 1:
        names = "`num_return_sequences` (`n_best`, `samples`)"
        raise ConfigError(f"{names} must be 1 for greedy search, but is {shown(count)}.")
    for other, ours in (("max_length", "max_new_tokens"), ("min_length", "min_new_tokens")):
        if other in fields and ours in fields:
            if fields[other] not in NEUTRAL.get(other, ()):
                _warn({other}, f"`{ours}` is there too, and wins")
            del fields[other]
    for name, neutral in WITHOUT_EFFECT.items():
        if name in fields and fields[name] not in neutral:
            value = shown(fields[name])
            raise ConfigError(f"`{name}` is {value}: there is no such option. Remove it.")
    supported = {name: value for name, value in fields.items() if name in OPTION_TYPES}
    unknown = fields.keys() - OPTION_TYPES.keys() - WITHOUT_EFFECT.keys() - IGNORED
    _warn({name for name in unknown - {*MODEL_FIELDS} if not name.startswith(IGNORED_PREFIXES)})
    return settings.build(method, _relevant(supported, method))


def with_options(method: Method, /, **named: Any) -> Any:
    """`method` with some options changed, by their names in `options`.

    Options that belong to another method choose that one, and the options that both have stay. A
    `max_tokens` below the `min_tokens` that the method had wins.

    Raises:
        ConfigError: an unknown name, a value out of range, names of different methods, or
            `min_tokens` above the limit.
    """
    named = habit_names.decoding(named)
    if "method" in named:
        raise ConfigError("There is no option `method`: beams= searches, temperature= samples.")
    values, dropped = method.settings(), set[str]()
    if "max_length_b" in named and "max_length_a" in values and "max_tokens" not in named:
        named.setdefault("max_length_a", values["max_length_a"])
    named_alone = settings.method_of(
        **named
    )  # raises the errors of the names and values themselves
    sampling, beam = (
        any(name in named for name in names) for names in settings.METHOD_OPTIONS.values()
    )
    if sampling:
        dropped |= {*ONLY_BEAMS}
        values["do_sample"] = True
    elif beam:
        dropped |= {*ONLY_SAMPLING}
        size = method.size if isinstance(method, Beam) else named_alone.size
        values |= {"do_sample": False, "num_beams": size}
    if "max_tokens" in named:
        dropped |= {*RELATIVE, "max_length"}
    if "max_length_a" in named:
        dropped |= {"max_new_tokens", "max_length"}
    if "min_tokens" in named:
        dropped.add("min_length")
    if "length_penalty" in named:
        dropped.add(settings.FORMULA)
    values = {name: value for name, value in values.items() if name not in dropped}
    fixed = None if "max_length_a" in {*values, *named} else values.get("max_new_tokens")
    settings.check_least(named.get("min_tokens"), named.get("max_tokens", fixed))
    changed = from_config(values | {NAMES.get(name, name): value for name, value in named.items()})
    return _with_ends_of(method, changed) if isinstance(method, TokenMethod) else changed


def _with_ends_of(method: TokenMethod, changed: Any) -> Any:
    """The method that options have made of another one, with the `ends` of that."""
    if not method.ends:
        return changed
    if not isinstance(changed, TokenMethod):
        raise ConfigError("The model has `ends`, which greedy search and sampling alone follow.")
    return replace(changed, ends=method.ends)  # type: ignore[type-var]


def _relevant(values: dict[str, Any], method: str) -> dict[str, Any]:
    """The values that have an effect on this method."""
    relevant = {k: v for k, v in values.items() if v not in NEUTRAL.get(k, ())}
    if method != "sampling" and relevant.get("top_k") == DEFAULT_TOP_K:
        del relevant["top_k"]
    if method != "beam":
        relevant = {k: v for k, v in relevant.items() if k not in ONLY_BEAMS}
    if method == "greedy" and relevant.get("num_return_sequences") == 1:
        del relevant["num_return_sequences"]
    return relevant


def _warn(names: set[str], why: str = "there is no such option here") -> None:
    """Warn of options of the file that decoding does not follow, if there are some."""
    if names:
        warn(
            f"Decoding will not do what {FILE} asks for under {', '.join(sorted(names))}: {why}.",
        )


def _file(path: str | Path) -> Path:
    path = Path(path)
    return path / FILE if path.is_dir() else path
