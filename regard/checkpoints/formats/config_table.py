"""config.json of other libraries, read field by field: what we do not compute raises an error.

A table says for one `model_type` which of their fields are ours, which must have a certain value
because our model computes nothing else, and which change no result.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from regard.errors import ConfigError
from regard.models.config import Probability
from regard.schema import checked
from regard.suggest import nearest

# their activation -> ours; of several names for one of ours the first is written
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "gelu_accurate": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu_python_tanh": "gelu-tanh",
    "gelu_10": "gelu-10",
    "quick_gelu": "quick-gelu",
    "relu": "relu",
    "relu2": "relu-squared",
    "relu6": "relu6",
    "leaky_relu": "leaky-relu",
    "laplace": "laplace",
    "silu": "swish",
    "swish": "swish",
    "hardswish": "hard-swish",
    "mish": "mish",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "linear": "linear",
}
# Of every model type: what changes no result.
HARMLESS = (
    # notes about the file
    *("_name_or_path", "architectures", "finetuning_task", "language", "model_type", "name"),
    *("prefix", "regard", "tokenizer_class", "transformers.js_config", "transformers_version"),
    # how their program runs
    *("_attn_implementation", "_attn_implementation_autoset", "attn_implementation"),
    *("chunk_size_feed_forward", "dtype", "gradient_checkpointing", "initializer_factor"),
    *("output_attentions", "output_hidden_states", "output_past", "return_dict", "torch_dtype"),
    *("torchscript", "use_bfloat16", "use_cache", "xla_device"),
    # their generation, when its options were kept here
    *("max_length", "task_specific_params"),
    # the names of labels, which tasks read
    *("_num_labels", "id2label", "label2id", "num_labels", "problem_type"),
)
# Of every model type: their name -> the values under which nothing is computed otherwise.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "is_encoder_decoder": (False,),
    "cross_attention_hidden_size": (None,),
    "add_cross_attention": (False,),
    "is_decoder": (False,),
    "tie_encoder_decoder": (False,),
    "pruned_heads": ({},),
    "min_length": (0,),
    "do_sample": (False,),
    "early_stopping": (False,),
    "num_beams": (1,),
    "num_beam_groups": (1,),
    "diversity_penalty": (0.0,),
    "temperature": (1.0,),
    "top_k": (50,),
    "top_p": (1.0,),
    "typical_p": (1.0,),
    "repetition_penalty": (1.0,),
    "length_penalty": (1.0,),
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "num_return_sequences": (1,),
    "output_scores": (False,),
    "return_dict_in_generate": (False,),
    "remove_invalid_values": (False,),
}


REQUIRED: Any = object()  # as `absent`: the field must be there


@dataclass(frozen=True)
class Field:
    """One field of theirs. `absent` is what its absence means.

    kind: the type of its values and their range, one of `regard.models.config`; not needed where
        there are `names`.
    names: value of theirs -> of ours, where they are spelled differently; of several for one of
        ours the first is written, unless `back` says otherwise.
    """

    theirs: str
    absent: Any
    kind: Any = None
    names: Mapping[Any, Any] | None = None
    back: Mapping[Any, Any] | None = None

    def read(self, config: Mapping[str, Any]) -> Any:
        """Our value.

        Raises:
            ConfigError: theirs is missing, of another type, or none that our model computes.
        """
        value = config.get(self.theirs, self.absent)
        if value is REQUIRED:
            raise ConfigError(f"config.json: `{self.theirs}` is missing.")
        if self.names is None:
            return checked(value, self.kind, "config.json", ConfigError, self.theirs)
        if value is None and self.absent is None:
            return None
        # 1 is not true, though they are equal.
        if type(value) not in map(type, self.names) or value not in self.names:
            known = ", ".join(map(_spelled, self.names))
            raise unsupported(self.theirs, f"one of {known}", value)
        return self.names[value]

    def write(self, value: Any) -> Any:
        """Their value for one that `can_write`."""
        return value if self.names is None or value is None else self._theirs()[value]

    def can_write(self, value: Any) -> bool:
        """Whether they have a value for ours."""
        return self.names is None or value is None or value in self._theirs()

    def _theirs(self) -> dict[Any, Any]:
        """value of ours -> of theirs"""
        names = self.names or {}
        return {ours: theirs for theirs, ours in [*names.items()][::-1]} | dict(self.back or {})


def activation(theirs: str, absent: Any) -> Field:
    """A field that names an activation."""
    return Field(theirs, absent, names=ACTIVATIONS)


def dropout(theirs: str, absent: float | None) -> Field:
    """A dropout probability; None, for that of another field, only where it is the default."""
    return Field(theirs, absent, Probability if absent is not None else Probability | None)


def _spelled(value: Any) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class ConfigTable:
    """fields: ours -> theirs.

    fixed: theirs -> the values that our model computes; the first is written.
    harmless: further names of theirs that change no result of this model type.
    """

    fields: Mapping[str, Field]
    fixed: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    harmless: Sequence[str] = ()

    @property
    def theirs(self) -> dict[str, str]:
        """Our name of each field -> theirs."""
        return {ours: one.theirs for ours, one in self.fields.items()}

    def read(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The options of our configuration.

        Raises:
            ConfigError: a field has a value that our model does not compute, or is unknown.
        """
        known = {one.theirs for one in self.fields.values()}
        fixed = {**NEUTRAL, **self.fixed}
        free = {*known, *HARMLESS, *self.harmless}
        for name, value in config.items():
            if name in free:
                continue
            if name in fixed:
                if value not in fixed[name]:
                    wanted = " or ".join(repr(one) for one in fixed[name])
                    raise unsupported(name, wanted, value)
            elif value is not None:
                raise ConfigError(
                    f"config.json: `{name}` (here {value!r:.60}) is a field that this library does "
                    f"not know for this model type. {nearest(name, sorted({*known, *self.fixed}))} "
                    "Remove it if it changes nothing."
                )
        return {ours: one.read(config) for ours, one in self.fields.items()}

    def can_write(self, config: Any) -> bool:
        """Whether they have a value for each of our options."""
        return all(one.can_write(getattr(config, ours)) for ours, one in self.fields.items())

    def write(self, config: Any) -> dict[str, Any]:
        """Their fields for our configuration."""
        table = {one.theirs: one.write(getattr(config, ours)) for ours, one in self.fields.items()}
        return {**table, **{name: values[0] for name, values in self.fixed.items()}}


def label_names(config: Mapping[str, Any]) -> dict[int, str]:
    """The names of labels by their numbers, in the order of these; empty where none are given.

    Raises:
        ConfigError: `id2label` is no table of names.
    """
    given = config.get("id2label")
    if given is None:
        return {}
    wanted = 'names by their numbers, such as {"0": "no"}'
    if not isinstance(given, Mapping) or not all(map(_is_name, given.values())):
        raise unsupported("id2label", wanted, given)
    numbers = [str(number) for number in given]
    if not all(re.fullmatch("0|[1-9][0-9]{0,8}", number) for number in numbers):
        raise unsupported("id2label", wanted, given)
    named = {int(number): str(given[number]) for number in sorted(given, key=int)}
    _check_label2id(config.get("label2id"), named)
    return named


def _is_name(value: Any) -> bool:
    """A text, or a number that some files have in its place."""
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _check_label2id(given: Any, named: Mapping[int, str]) -> None:
    """The way back must not contradict `id2label`; names of its own beside it are let be."""
    if given is None:
        return
    wanted = 'numbers by their names, such as {"no": 0}'
    if not isinstance(given, Mapping):
        raise unsupported("label2id", wanted, given)
    for number, name in named.items():
        if name in given and str(given[name]) != str(number):
            must = f"the inverse of `id2label`, which gives {name!r} the number {number}"
            raise unsupported("label2id", must, given)


def unsupported(name: str, must: str, value: Any) -> ConfigError:
    """For a value that our model does not compute."""
    return ConfigError(
        f"config.json: `{name}` must be {must}, but is {value!r:.200}: "
        "this model has no part that computes it otherwise."
    )
