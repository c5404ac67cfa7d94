"""The model and the tokenizer that a recipe describes."""

import warnings
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from torch import nn

from regard.checkpoints.adapters import add_adapters
from regard.checkpoints.hub import folder_of
from regard.checkpoints.model_folder import open_folder, read_model
from regard.errors import ConfigError
from regard.experiments.recipe_options import FineTuneSection, LoraSection
from regard.models import model_class, name_of
from regard.models.composed import Features
from regard.models.conversions import exchange_vocabulary, keep_layers
from regard.tasks.encoding import headed
from regard.text import Tokenizer


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
    options |= _vocabularies(tokenizer, options)
    try:
        return model(model.Config(**options, **special))
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
    special = {role: getattr(tokenizer, f"{role}_id") for role in {"pad", "bos", "eos"} & {*config}}
    for role, number in special.items():
        if number is None and config[role] is not None:
            raise ConfigError(f"The tokenizer has no {role} token, which the model needs.")
    return special


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
    options["feature_layers"] = options.pop("layers")
    encoder = headed(model).encoder
    try:
        return Features.over(encoder, name_of(encoder), options)
    except ConfigError as error:
        raise ConfigError(f"[model.features] {error}") from None


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


def for_vocabulary(model: nn.Module, path: str, tokenizer: Tokenizer) -> nn.Module:
    """The model of a folder for the words of another tokenizer; a warning tells how many are known.

    Tokens are matched by their role, such as end of text, then by their text.

    Raises:
        CheckpointError: the folder has no tokenizer.
        ConfigError: the tokens are no words, or the model has no row for each of them.
    """
    stored = open_folder(path).tokenizer()
    if stored.vocab() == tokenizer.vocab() and stored.roles == tokenizer.roles:
        return model
    if not stored.kind == tokenizer.kind == "words":
        raise ConfigError(
            f"[tokenizer] has another vocabulary than {path}, and only words can be exchanged, "
            f"not the kinds {stored.kind!r} and {tokenizer.kind!r}. Leave [tokenizer] out: the "
            "folder has its own."
        )
    ids_of_folder = stored.vocab()
    roles = {
        name: stored.roles[role] for role, name in tokenizer.roles.items() if role in stored.roles
    }
    tokens = map(tokenizer.token, range(tokenizer.vocab_size))
    rows = [ids_of_folder.get(roles.get(token, token), -1) for token in tokens]
    new = sum(row < 0 for row in rows)
    warnings.warn(
        f"[tokenizer]: {new:,} of {len(rows):,} words are not in the vocabulary of {path}. They "
        f"start from the mean of its {stored.vocab_size:,} vectors; its other words are dropped.",
        stacklevel=4,
    )
    config: Any = model.config
    return exchange_vocabulary(model, rows, **special_ids(tokenizer, asdict(config)))


def adapt(task: Any, section: LoraSection | None, base: Any) -> None:
    """Add the adapters of a recipe to the model of a task; without the section, do nothing.

    base: the model from which the task was made. If the task has added special tokens to its
        vocabulary, the embedding is trained too.

    Raises:
        ConfigError: the model cannot have these adapters.
    """
    if section is None:
        return
    model: Any = task.module
    has_new_tokens = model.config.vocab_size != base.config.vocab_size
    try:
        add_adapters(
            model,
            section.options(),
            [*model.encoder.embedding.parameters()] if has_new_tokens else (),
        )
    except ConfigError as error:
        raise ConfigError(f"[model.lora] {error}") from None
