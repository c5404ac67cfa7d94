"""The model and the tokenizer that a recipe describes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import nn

from regard.checkpoints.filling import on_meta
from regard.checkpoints.hub import folder_of
from regard.checkpoints.model_folder import open_folder, read_model
from regard.errors import ConfigError
from regard.experiments.recipe_options import FineTuneSection
from regard.models import model_class, name_of
from regard.models.config import MOST_LAYERS
from regard.models.features import Features
from regard.models.resizing import keep_layers
from regard.tasks.encoding import headed
from regard.text import Tokenizer
from regard.training.flops import bytes_of


def build_model(section: Any, tokenizer: Tokenizer) -> nn.Module:
    """The model of a section [model], for the vocabulary of this tokenizer.

    Raises:
        ConfigError: the tokenizer lacks a special token, or options contradict each other.
    """
    if isinstance(section, FineTuneSection):
        return _model_to_fine_tune(section)
    model: Any = model_class(section.name)
    special = special_ids(tokenizer, {field.name: field.default for field in fields(model.Config)})
    options = section.model_dump(exclude={"name", "size"})
    _check_layers(options)
    options |= _vocabularies(tokenizer, options)
    try:
        config = model.Config(**options, **special)
        if torch.get_default_device().type != "meta":  # there, no model takes memory
            _check_memory(lambda: model(config))
        return model(config)
    except (ValueError, OverflowError, RuntimeError) as error:  # torch's own have the last type
        raise ConfigError(f"[model] {str(error).removeprefix('[model] ')}") from None


def _vocabularies(tokenizer: Tokenizer, options: Mapping[str, Any]) -> dict[str, int]:
    """The sizes of a model's vocabularies.

    Raises:
        ConfigError: sources have their own, and the model has no place for it; or the special
            tokens of both, which the model has once, differ.
    """
    targets = tokenizer.for_targets
    if targets is tokenizer:
        return {"vocab_size": tokenizer.vocab_size}
    if "source_vocab_size" not in options:
        raise ConfigError("[model] has one vocabulary, but the tokenizer has one for each side.")
    roles = ("pad", "bos", "eos")
    if any(getattr(tokenizer, f"{r}_id") != getattr(targets, f"{r}_id") for r in roles):
        raise ConfigError("[tokenizer] the ids of pad, bos and eos differ between both sides.")
    return {"vocab_size": targets.vocab_size, "source_vocab_size": tokenizer.vocab_size}


def special_ids(tokenizer: Tokenizer, config: Mapping[str, Any]) -> dict[str, int | None]:
    """The ids of the special tokens that a model's configuration has: `pad`, `bos`, `eos`.

    config: the fields of the configuration with their values; None: the token may be missing.

    Raises:
        ConfigError: the tokenizer lacks a token that the model needs.
    """
    found = {role: getattr(tokenizer, f"{role}_id") for role in {"pad", "bos", "eos"} & {*config}}
    for role, number in found.items():
        if number is None and config[role] is not None:
            raise ConfigError(f"The tokenizer has no {role} token, which the model needs.")
    return found


def _model_to_fine_tune(section: FineTuneSection) -> nn.Module:
    """The model of a folder, with the options that [model] changes."""
    folder_of(section.path)  # a missing folder is the first error
    if section.features and section.lora:
        raise ConfigError("[model.lora] cannot stand beside [model.features]: leave one out.")
    model = read_model(section.path, section.changes())
    if section.layers is not None:
        model = keep_layers(headed(model), section.layers)
    if section.features is None:
        return model
    options = section.features.model_dump()
    _check_layers(options, "model.features")
    options["feature_layers"] = options.pop("layers")
    encoder = headed(model).encoder
    try:
        return Features.over(encoder, name_of(encoder), options)
    except ConfigError as error:
        raise ConfigError(f"[model.features] {error}") from None


def _check_layers(options: Mapping[str, Any], section: str = "model") -> None:
    """Raises ConfigError where there are more layers than any machine builds in a sensible time."""
    for name, value in options.items():
        if name.endswith("layers") and type(value) is int and value > MOST_LAYERS:
            said = f"[{section}] `{name}` must be at most {MOST_LAYERS:,}, but is {value}."
            raise ConfigError(said)


def _check_memory(make: Callable[[], nn.Module]) -> None:
    """Build the model on the meta device, and compare its size with this machine's memory.

    Raises:
        ConfigError: weights and gradients do not fit into it, or are too large for torch.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if torch.cuda.is_available():
        memory = torch.cuda.get_device_properties(0).total_memory
    try:
        with on_meta():
            weights = bytes_of(make())
    except RuntimeError as error:
        said = str(error).split("\n")[0]
        raise ConfigError(f"[model] is too large to be built: {said}.") from None
    if 2 * weights > memory:
        raise ConfigError(
            f"[model] has weights of {weights / 1e9:,.1f} GB. With their gradients they need twice "
            f"of that, but this machine has {memory / 1e9:,.1f} GB of memory. Make it smaller."
        )


def build_tokenizer(recipe: Any) -> Tokenizer:
    """The tokenizer that [tokenizer] describes, or that of the folder that [model] names.

    Raises:
        ConfigError: there is neither [tokenizer] nor [model] path.
    """
    if recipe.tokenizer is not None:
        return recipe.tokenizer.build(recipe.data.texts)
    if not isinstance(recipe.model, FineTuneSection):
        raise ConfigError(
            "A model with random weights needs a new tokenizer: describe it in [tokenizer], or "
            "fine-tune the model of a folder: [model] path."
        )
    return open_folder(recipe.model.path).tokenizer()
