"""config.json of other libraries, honoured field by field: what we do not compute is refused.

A table says for one `model_type` which of their fields are ours, which must have a certain value
because our model computes nothing else, and which change no result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from regard.errors import ConfigError
from regard.suggest import nearest

# their activation -> ours
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
ACTIVATIONS_BACK = {
    "gelu": "gelu",
    "gelu-tanh": "gelu_new",
    "gelu-10": "gelu_10",
    "quick-gelu": "quick_gelu",
    "relu": "relu",
    "relu-squared": "relu2",
    "relu6": "relu6",
    "leaky-relu": "leaky_relu",
    "laplace": "laplace",
    "swish": "silu",
    "hard-swish": "hardswish",
    "mish": "mish",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "linear": "linear",
}

# Of every model type: notes about the file, how their program runs, and what tasks read for
# themselves (the names of labels).
HARMLESS = (
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_name_or_path",
    "_num_labels",
    "architectures",
    "attn_implementation",
    "chunk_size_feed_forward",  # the same numbers with less memory
    "dtype",
    "finetuning_task",
    "gradient_checkpointing",
    "id2label",
    "initializer_factor",
    "label2id",
    "language",  # notes of who published the file, like `name`
    "max_length",  # of their generation, when it was kept here
    "model_type",
    "name",
    "num_labels",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "prefix",
    "problem_type",
    "regard",
    "return_dict",
    "task_specific_params",  # what a pipeline of theirs begins with
    "tokenizer_class",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "use_bfloat16",
    "use_cache",
    "xla_device",
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


@dataclass(frozen=True)
class Field:
    """One field of theirs. `absent` is what its absence means.

    kind: the type of its values; None: that of `absent`.
    least, below: numbers must not be under the first and must be under the second. Counts must be
        at least 1 unless this says otherwise, and no other number may be negative.
    names: value of theirs -> of ours, where they are spelled differently; `back`: the way back.
    """

    theirs: str
    absent: Any
    optional: bool = False  # null is a value too
    kind: type | None = None
    least: float | None = None
    below: float | None = None
    names: Mapping[Any, str] | None = None
    back: Mapping[str, Any] | None = None

    def read(self, config: Mapping[str, Any]) -> Any:
        """Our value.

        Raises:
            ConfigError: theirs is of another type, or none that our model computes.
        """
        value = config.get(self.theirs, self.absent)
        if value is None and (self.optional or self.absent is None):
            return None
        if self.names is not None:
            if not isinstance(value, str) or value not in self.names:
                known = ", ".join(self.names)
                raise refusal(self.theirs, f"one of {known}", value)
            return self.names[value]
        kind = self.kind or type(self.absent)
        if kind is float and type(value) is int:
            value = float(value)
        if self.absent is not None or self.kind is not None:
            self._check(value, kind)
        return value

    def _check(self, value: Any, kind: type) -> None:
        if type(value) is not kind:
            raise refusal(self.theirs, f"of type {kind.__name__}", value)
        if not isinstance(value, int | float):
            return
        least = self.least if self.least is not None else (1 if kind is int else 0)
        if not value >= least:
            raise refusal(self.theirs, f"at least {least}", value)
        if self.below is not None and not value < self.below:
            raise refusal(self.theirs, f"less than {self.below:g}", value)

    def write(self, value: Any) -> Any:
        """Their value."""
        return value if self.back is None or value is None else self.back[value]


def activation(theirs: str, absent: str) -> Field:
    """A field that names an activation."""
    return Field(theirs, absent, names=ACTIVATIONS, back=ACTIVATIONS_BACK)


def dropped(theirs: str, absent: float | None) -> Field:
    """The probability of a dropout; something must be left."""
    return Field(theirs, absent, kind=float, below=1)


@dataclass(frozen=True)
class ConfigTable:
    """fields: ours -> theirs.

    fixed: theirs -> the values that our model computes; the first is written.
    harmless: further names of theirs that change no result of this model type.
    """

    fields: Mapping[str, Field]
    fixed: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    harmless: Sequence[str] = ()

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
                    raise refusal(name, wanted, value)
            elif value is not None:
                raise ConfigError(
                    f"config.json: `{name}` (here {value!r:.60}) is a field that this library does "
                    f"not know for this model type. {nearest(name, sorted({*known, *self.fixed}))} "
                    "Remove it if it changes nothing."
                )
        return {ours: one.read(config) for ours, one in self.fields.items()}

    def write(self, config: Any) -> dict[str, Any]:
        """Their fields for our configuration."""
        table = {one.theirs: one.write(getattr(config, ours)) for ours, one in self.fields.items()}
        return {**table, **{name: values[0] for name, values in self.fixed.items()}}


def label_names(config: Mapping[str, Any]) -> dict[int, str]:
    """The names of labels by their numbers, in the order of these; empty where none are given.

    Raises:
        ConfigError: `id2label` is no table of names.
    """
    given = config.get("id2label") or {}
    try:
        return {int(number): str(given[number]) for number in sorted(given, key=int)}
    except (TypeError, ValueError):
        raise refusal("id2label", 'names by their numbers, such as {"0": "no"}', given) from None


def refusal(name: str, must: str, value: Any) -> ConfigError:
    """For a value that our model does not compute."""
    return ConfigError(
        f"config.json: `{name}` must be {must}, but is {value!r:.200}: "
        "this model has no part that computes it otherwise."
    )
