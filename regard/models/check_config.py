"""Checks a configuration by the types of its fields.

config = config_of(BertConfig, {"vocab_size": 100, "heads": 4}, "config.json")
"""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from regard.errors import CheckpointError
from regard.recipe import Options, options_of
from regard.schema import ErrorOf, checked

SPECIAL_TOKENS = ("pad", "bos", "eos")  # fields that are token ids


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
