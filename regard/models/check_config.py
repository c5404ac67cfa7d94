"""Checks a configuration by the types of its fields and against the weights.

config = config_of(BertConfig, {"vocab_size": 100, "heads": 4}, "config.json")
"""

from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.errors import CheckpointError
from regard.recipe import Options, options_of
from regard.schema import ErrorOf, checked

SPECIAL_TOKENS = ("pad", "bos", "eos")  # fields that are token ids
LAYERS = ("layers", "encoder_layers", "decoder_layers", "lstm_layers", "sets")
SHARED_LAYERS = ("groups", "layers_per_group")  # of models whose `layers` share their parameters
# Each is a dimension of some weight.
SIZES = (
    *("vocab_size", "d_model", "d_ff", "decoder_d_ff", "heads", "decoder_heads", "segments"),
    *("d_embedding", "source_vocab_size", "position_buckets"),
)


def config_of(
    kind: Any,
    values: Mapping[str, Any],
    where: str | Path,
    error: ErrorOf = CheckpointError,
    section: str = "",
) -> Any:
    """A configuration of this class with these values of a file.

    where: the file that errors name. section: the field of the file that contains the values.

    Raises:
        RegardError: the one that `error` makes. A field is unknown, missing, of a wrong type or out
            of range, or two fields contradict each other.
    """
    options = checked(dict(values), _schema(kind), where, error, section)
    config = kind(**dict(options))
    names = {name: f"{section}.{name}" for name in vars(config)} if section else {}
    check_consistent(config, where, error, names)
    return config


@lru_cache
def _schema(kind: Any) -> type[Options]:
    return options_of(kind)


def check_consistent(
    config: Any, where: str | Path, error: ErrorOf, names: Mapping[str, str] | None = None
) -> None:
    """Check fields against each other: heads divide the width, ids are below the vocabulary size.

    names: our field -> its name in the file, where that differs.

    Raises:
        RegardError: the one that `error` makes.
    """
    values, names = vars(config), names or {}
    width, vocab_size = config.d_model, values["vocab_size"]
    for field in ("heads", "decoder_heads"):
        heads = values.get(field)
        if heads is not None and values.get("head_dim") is None and width % heads:
            must = f"divide `{names.get('d_model', 'd_model')}` ({width})"
            raise error(f"{where}: `{names.get(field, field)}` must {must}, but is {heads}.")
    for role in SPECIAL_TOKENS:
        if values.get(role) is not None and values[role] >= vocab_size:
            must = f"an id below `{names.get('vocab_size', 'vocab_size')}` ({vocab_size})"
            name = names.get(role, role)
            raise error(f"{where}: `{name}` must be {must}, but is {values[role]}.")


def _largest_cluster(values: Mapping[str, Any]) -> int:
    """Words of the largest part of the vocabulary that has a matrix of its own."""
    ends = [0, *values.get("cutoffs", ()), values["vocab_size"]]
    return max(end - start for start, end in pairwise(ends))


def check_sizes(
    config: Any,
    tensors: Mapping[str, Tensor],
    where: str | Path,
    error: ErrorOf = CheckpointError,
    names: Mapping[str, str] | None = None,
) -> None:
    """Compare sizes with the weights before a model is built, which could need too much memory.

    names: our field -> its name in the file, where that differs.

    Raises:
        RegardError: the one that `error` makes. There are more layers than tensors, or a size is
            larger than any dimension of any tensor.
    """
    values, names = vars(config), names or {}
    for name in SHARED_LAYERS if "groups" in values else LAYERS:
        if values.get(name, 0) > len(tensors):
            raise error(
                f"{where}: `{names.get(name, name)}` is {values[name]:,}, but the "
                f"weights have only {len(tensors):,} tensors."
            )
    largest = max((size for tensor in tensors.values() for size in tensor.shape), default=0)
    for name in SIZES:
        size = values.get(name) or 0
        if name == "vocab_size":
            size = _largest_cluster(values)
            if values.get("output") == "none" and "filters" in values:
                continue  # words enter by their characters, and no matrix has rows of words
        if size > largest:
            raise error(
                f"{where}: `{names.get(name, name)}` must be at most {largest:,}, the largest "
                f"dimension of the weights, but is {values[name]:,}."
            )
    if "base_model" in values:  # the configuration of an encoder inside this model
        inner = config.inner()
        check_sizes(
            inner, tensors, where, error, {name: f"base_model.{name}" for name in vars(inner)}
        )
