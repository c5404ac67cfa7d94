"""config.json of other libraries, read field by field: what we do not compute raises an error.

A table says for one `model_type` which of their fields are ours, and which must have a certain
value because our model computes nothing else. Any other field cannot change a result: the class of
`transformers` for this model type does not read it. It is ignored, and a warning names it.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from regard.errors import ConfigError, warn
from regard.models.config import Probability, TokenId
from regard.schema import check_same, checked

ConfigJson = Mapping[str, Any]  # the contents of a config.json
Values = dict[str, Any]  # of our options or of their fields, by name
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
# Fields of generation, which models that generate read from config.json where a folder has no
# generation_config.json.
GENERATION = (
    *("do_sample", "early_stopping", "output_scores", "return_dict_in_generate"),
    *("remove_invalid_values", "min_length", "no_repeat_ngram_size", "diversity_penalty"),
    *("encoder_no_repeat_ngram_size", "num_beams", "num_beam_groups", "num_return_sequences"),
    *("temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty"),
    *("bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "renormalize_logits"),
    *("forced_bos_token_id", "forced_eos_token_id", "penalty_alpha", "max_new_tokens"),
    *("min_new_tokens", "decoder_start_token_id"),
)
# Of every model type: fields without effect that need no mention.
SILENT = (
    *GENERATION,
    # notes about the file
    *("_name_or_path", "architectures", "finetuning_task", "language", "model_type", "name"),
    *("prefix", "regard", "tokenizer_class", "transformers.js_config", "transformers_version"),
    # how their program runs
    *("_attn_implementation", "_attn_implementation_autoset", "attn_implementation"),
    *("chunk_size_feed_forward", "dtype", "gradient_checkpointing", "initializer_factor"),
    *("output_attentions", "output_hidden_states", "output_past", "return_dict", "torch_dtype"),
    *("tf_legacy_loss", "tie_encoder_decoder", "torchscript", "use_bfloat16", "use_cache"),
    "xla_device",
    # of their generation
    *("max_length", "task_specific_params"),
    # the names of labels and the activation of a cross-encoder, which tasks read
    *("_num_labels", "id2label", "label2id", "num_labels", "problem_type"),
    *("sentence_transformers", "sbert_ce_default_activation_function"),
)
# Of every model type: fields that change results -> the values that our models compute. null, and
# what is as empty, means that a field is not used.
DECISIVE: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("is_encoder_decoder", "add_cross_attention", "is_decoder"), (False,)),
    **dict.fromkeys(("pruned_heads", "quantization_config", "per_layer_config"), ({},)),
    "configuration_files": ([],),
}


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

    def read(self, config: ConfigJson) -> Any:
        """Our value.

        Raises:
            ConfigError: theirs is of another type, or none that our model computes.
        """
        value = config.get(self.theirs, self.absent)
        if self.names is None:
            return checked(value, self.kind, "config.json", ConfigError, self.theirs)
        if value is None and self.absent is None:
            return None
        # 1 is not true, though they are equal.
        if type(value) not in map(type, self.names) or value not in self.names:
            values = ", ".join(map(_spelled, self.names))
            raise unsupported(self.theirs, f"one of {values}", value)
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


@dataclass(frozen=True)
class TokenField(Field):
    """A field with the id of a token. As for `transformers`, -1 is the id of no token, and of
    several ids, which end a text, the first one is the model's own.
    """

    several: bool = False  # whether it may be a list

    def read(self, config: ConfigJson) -> Any:
        value = config.get(self.theirs, self.absent)
        if self.several and isinstance(value, list):
            ids = checked(value, list[TokenId], "config.json", ConfigError, self.theirs)
            value = ids[0] if ids else None
        optional = self.kind == TokenId | None
        return super().read({self.theirs: None if value == -1 and optional else value})


def of_kind(kind: Any, **rows: tuple[str, Any]) -> dict[str, Field]:
    """Fields with values of one kind, from our names and (theirs, what its absence means)."""
    return {ours: Field(theirs, absent, kind) for ours, (theirs, absent) in rows.items()}


def special_tokens(pad: int | None, bos: int | None, eos: int | None) -> dict[str, Field]:
    """The ids of a decoder's special tokens, with their defaults; it may have none."""
    return {
        "pad": TokenField("pad_token_id", pad, TokenId | None),
        "bos": TokenField("bos_token_id", bos, TokenId | None),
        "eos": TokenField("eos_token_id", eos, TokenId | None, several=True),
    }


def activation(theirs: str, absent: Any) -> Field:
    """A field that names an activation."""
    return Field(theirs, absent, names=ACTIVATIONS)


def dropout(theirs: str, absent: float | None) -> Field:
    """A dropout probability; None, for that of another field, only where it is the default."""
    return Field(theirs, absent, Probability if absent is not None else Probability | None)


def output(tied: bool) -> Field:
    """Whether the output of a decoder is the embedding; `tied` is what an absent field means."""
    names = {True: "tied", False: "own"}
    return Field("tie_word_embeddings", tied, names=names, back={"none": False})


def _spelled(value: Any) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class ConfigTable:
    """fields: ours -> theirs.

    fixed: theirs -> the values that our model computes; the first is written.
    silent: further names of theirs that change no result of this model type and need no mention.
    aliases: further names of fields -> the names of these.
    only: our options that they have no field for -> the value that theirs computes.
    """

    fields: Mapping[str, Field]
    fixed: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    silent: Sequence[str] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    only: Mapping[str, Any] = field(default_factory=dict)

    @property
    def theirs(self) -> dict[str, str]:
        """Our name of each field -> theirs."""
        return {ours: field.theirs for ours, field in self.fields.items()}

    def read(self, config: ConfigJson) -> Values:
        """The options of our configuration. A warning names the fields that are ignored.

        Raises:
            ConfigError: a field has a value that our model does not compute.
        """
        config = with_own_names(config, self.aliases)
        fixed = {**DECISIVE, **self.fixed}
        check_decisive(config, fixed)
        names = (field.theirs for field in self.fields.values())
        warn_ignored(config, {*names, *self.aliases, *fixed, *self.silent})
        return {ours: field.read(config) for ours, field in self.fields.items()} | dict(self.only)

    def can_write(self, config: Any) -> bool:
        """Whether they have a value for each of our options."""
        return all(
            field.can_write(getattr(config, ours)) for ours, field in self.fields.items()
        ) and all(getattr(config, ours) == value for ours, value in self.only.items())

    def write(self, config: Any) -> Values:
        """Their fields for our configuration."""
        table = {
            field.theirs: field.write(getattr(config, ours)) for ours, field in self.fields.items()
        }
        return {**table, **{name: values[0] for name, values in self.fixed.items()}}


def with_own_names(config: ConfigJson, aliases: Mapping[str, str]) -> Values:
    """The fields, those that have an alias under their own name, too.

    Raises:
        ConfigError: a field and its alias differ.
    """
    fields = dict(config)
    for alias, name in aliases.items():
        value = fields.get(alias)
        if fields.get(name) is None and value is not None:
            fields[name] = value
        check_same("config.json", alias, value, f"`{name}`", fields.get(name))
    return fields


def check_decisive(config: ConfigJson, values: Mapping[str, Sequence[Any]]) -> None:
    """Compare fields that change results with the values that our model computes.

    Raises:
        ConfigError: a field has another value.
    """
    for name, allowed in values.items():
        value = config.get(name)
        if value is not None and value not in allowed:
            wanted = " or ".join(
                repr(value) if value not in ({}, []) else "absent" for value in allowed
            )
            raise unsupported(name, wanted, value)


def warn_ignored(config: ConfigJson, known: Iterable[str]) -> None:
    """Warn of fields that are not known, once and by name."""
    silent = {*known, *SILENT}
    names = [n for n, value in config.items() if n not in silent and value is not None]
    if names:
        warn(
            f"config.json: these fields are ignored, as transformers ignores them, because models "
            f"of type {config.get('model_type')} do not read them: {', '.join(names)}.",
        )


def label_names(config: ConfigJson, outputs: int | None = None) -> dict[int, str]:
    """The names of labels by their numbers, in the order of these; empty where none are given.

    outputs: of the head, all of which are to have a name: LABEL_0 and so on where the file has
        none for it, with a warning.

    Raises:
        ConfigError: `id2label` is no table of names, another list of labels contradicts it, or it
            names more labels than the head has outputs.
    """
    labels = {} if (value := config.get("id2label")) is None else value
    wanted = 'names by their numbers, such as {"0": "no"}'
    if not isinstance(labels, Mapping) or not all(
        isinstance(name, str | int | float)  # some files have numbers
        and not isinstance(name, bool)
        and re.fullmatch("0|[1-9][0-9]{0,8}", str(number))
        for number, name in labels.items()
    ):
        raise unsupported("id2label", wanted, labels)
    names = {int(number): str(labels[number]) for number in sorted(labels, key=int)}
    numbers = config.get("label2id") or {}
    if not isinstance(numbers, Mapping) or any(
        names.get(number if type(number) is int else -1) != str(name)
        for name, number in numbers.items()
        if not re.fullmatch("LABEL_[0-9]+", str(name))
    ):
        raise unsupported("label2id", "the numbers of the names in `id2label`", numbers)
    if outputs is None:
        return names
    for name in ("num_labels", "_num_labels"):
        check_same("config.json", name, config.get(name), "the output of the head", outputs)
    if names and max(names) >= outputs:
        raise unsupported("id2label", f"names of the {outputs} outputs of the head", labels)
    if names and len(names) < outputs:
        missing = {i: f"LABEL_{i}" for i in range(outputs) if i not in names}
        warn(
            f"config.json: `id2label` names {len(names)} of {outputs} labels. The others are "
            f"{', '.join(missing.values()):.200}.",
        )
        names = dict(sorted((names | missing).items()))
    return names


def unsupported(name: str, must: str, value: Any, remedy: str | None = None) -> ConfigError:
    """For a value that our model does not compute. remedy: what to do, without the full stop."""
    why = remedy or "this model has no part that computes it otherwise"
    return ConfigError(f"config.json: `{name}` must be {must}, but is {value!r:.200}: {why}.")
