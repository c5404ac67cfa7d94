"""A model's folder: read as a task that can be used, and written so that others open it.

task = load("runs/demo")                        weights, tokenizer and task together
save(task, "folder")                            as other libraries publish it, where they have it
quantize("runs/demo", "small", "int8")          weights in 8 bits: smaller, there at once, faster
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

import regard
from regard import decoding, ops
from regard.checkpoints import quantized_checkpoint
from regard.checkpoints.formats.published import from_published, to_published
from regard.checkpoints.hub import resolve
from regard.checkpoints.sentence_transformers import read_pooling, write_sentence_transformers
from regard.checkpoints.store import (
    Undrawn,
    adopt,
    check_finite,
    check_fit,
    write_tensors,
    write_text,
)
from regard.checkpoints.weights import read_weights
from regard.decoding.speculative import drafts
from regard.errors import CheckpointError, ConfigError, RegardError
from regard.file_pages import releasing
from regard.layers.quantized import QuantizedMatrix, Weights
from regard.models import MODELS, is_encoder, model_class, name_of
from regard.models.config import Size, check_sizes, config_of
from regard.models.headed import Headed, assembled, with_options
from regard.models.quantize import check_dtype, prepare
from regard.schema import Fields, checked, read_json
from regard.suggest import nearest
from regard.tasks import FORMER_NAMES, TASKS, task_class
from regard.tasks.foreign import check_task, kept_settings, names_in, task_of
from regard.tasks.stored_settings import checked_settings
from regard.text import Tokenizer
from regard.text.compatibility import check_tokenizer

CONFIG, WEIGHTS = "config.json", "model.safetensors"
GENERATION = "generation_config.json"
TWO_PARTS = ("marian", "pegasus")  # an encoder and a decoder
OURS = "regard"  # the model_type of what no other library has
NOT_OURS = ("model_type", "architectures", "regard", "id2label", "label2id", "problem_type")
KINDS: tuple[str, ...] = get_args(Weights)
NOT_SETTINGS = ("task", "version", "model", "heads", "weights")


class About(Fields):
    """`regard` of config.json; its further fields are the settings of the task."""

    task: str = "translation"
    version: str = ""
    model: str = ""
    heads: dict[str, Size] | None = None
    weights: str | None = None
    labels: list[str] | None = None


TokenIds = int | list[int] | None


class ModelConfig(Fields):
    """What every config.json may have; the others are the model's."""

    model_type: str | None = None
    regard: About = About()
    architectures: list[str] | None = None
    id2label: dict[str, Any] | None = None
    label2id: dict[str, Any] | None = None
    num_labels: int | None = None
    problem_type: str | None = None
    pad_token_id: TokenIds = None
    bos_token_id: TokenIds = None
    eos_token_id: TokenIds = None
    unk_token_id: TokenIds = None
    cls_token_id: TokenIds = None
    sep_token_id: TokenIds = None
    mask_token_id: TokenIds = None
    decoder_start_token_id: TokenIds = None


def save(task: Any, folder: str | Path) -> None:
    """Write a task as a folder: config.json, model.safetensors, tokenizer, generation_config.

    Where `transformers` has the architecture, names and configuration are those it opens.

    Raises:
        CheckpointError: the weights are quantized; `quantize` writes such folders.
    """
    folder, model = Path(folder), task.model
    if any(isinstance(part, QuantizedMatrix) for part in model.modules()):
        raise CheckpointError(
            f"{folder} was not written: this model has quantized weights, and nothing publishes "
            "such. Save it from the folder that it was loaded from, without `quantize`."
        )
    published = to_published(model)
    config, tensors = published or (_ours(model), model.state_dict())
    _write(task, folder, config, tensors, {})
    if task.name == "embedding" and published is not None:
        write_sentence_transformers(folder, task.pooling, model.config.d_model)


def quantize(path: str | Path, out: str | Path, dtype: Weights = "int8") -> Path:
    """Write what a folder holds as a new folder with quantized weights, which `load` opens at once.

    They are those that `load(path, quantize=...)` makes, and take a quarter or half of the space.
    No other library reads them, and nothing can be trained from them: keep the original folder.

    dtype: "int8", a quarter of the size of float32, or "bfloat16", half of it.

    Raises:
        ConfigError: there is no such `dtype`, or the weights are quantized already.
        CheckpointError: `out` is there already.
    """
    out = Path(out)
    check_dtype(dtype)
    if out.exists():
        raise CheckpointError(f"{out} is there already. Choose another folder, or remove it.")
    folder = folder_of(path)
    config = _read_config(folder)
    if stored := stored_weights(config, folder):
        raise ConfigError(
            f"{folder} holds {stored} weights already, and to round them again would only lose "
            "more. Quantize the folder that they come from."
        )
    with _named(folder):
        task = _task_of(config, folder, _read_model(config, folder))
    config = _ours(task.model)
    tensors = quantized_checkpoint.tensors_of(task.model, dtype)
    place = out.with_name(f".{out.name}.writing")
    shutil.rmtree(place, ignore_errors=True)
    _write(task, place, config, tensors, {"weights": dtype})
    place.rename(out)
    return out


def _ours(model: Any) -> dict[str, Any]:
    """config.json of a model that only this library reads."""
    return {**asdict(model.config), "model_type": OURS, "architectures": [type(model).__name__]}


def _write(
    task: Any, folder: Path, config: dict[str, Any], tensors: Any, about: dict[str, Any]
) -> None:
    """The files that every folder has; `about` the model beside what its task says."""
    model = task.model
    about = {"version": regard.__version__, "task": task.name, "model": name_of(model), **about}
    if config["model_type"] == OURS and isinstance(model, Headed):
        about["heads"] = model.outputs()
    config = {
        **config,
        "regard": {**about, **task.settings()},
        **task.published(),
    }
    write_tensors(folder / WEIGHTS, tensors)
    write_text(folder / CONFIG, json.dumps(config, indent=2) + "\n")
    task.tokenizer.save(folder, model.config.max_length)
    if task.decodes:
        decoding.save(task.method, folder, ids_of(model.config), model.config.max_length)


def device() -> str:
    """Where models are put: a GPU where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def load(
    path: str | Path,
    *,
    quantize: Weights | None = None,
    device: str | None = None,
    weights: None = None,
) -> Any:
    """What a run, a folder of weights or a name on the hub holds, as a task that can be used.

    A folder that another library wrote is the task that its heads are for. Weights are mapped, not
    copied, where they lie as the model wants them: the file must stay as it is meanwhile.

    quantize: "int8" (on a CPU alone) or "bfloat16": faster, and cannot be trained; see
        `regard.models.quantize.prepare`. A folder with quantized weights has them in any case.
    device: "cpu", "cuda", "cuda:1". None: a GPU where there is one; the CPU for 8-bit weights.
    weights: the former name of `quantize`, which raises an error.

    Raises:
        CheckpointError: a file is missing, or weights and configuration do not fit.
        ConfigError: there is no such type to quantize to, or the folder has another; there is no
            such device, or such weights are not for it.
    """
    if weights is not None:
        raise ConfigError(f"`weights` is now `quantize`: regard.load(..., quantize={weights!r}).")
    if quantize is not None:
        check_dtype(quantize, "quantize")
    ops.load_kernels()
    folder = folder_of(path)
    config = _read_config(folder)
    stored = stored_weights(config, folder)
    if quantize not in (None, stored) and stored is not None:
        raise ConfigError(
            f"{folder} holds {stored} weights, and {quantize} ones cannot be made of them. "
            "Quantize the folder that they come from, or leave `quantize` out."
        )
    quantized = quantize or stored
    place = _device_for(quantized, device)
    with _named(folder), releasing() if quantized else nullcontext():
        model = _opened(config, folder, stored, place)
        made = _task_of(config, folder, model.to(place).eval())
        if quantized is not None and (stored is None or place.type != "cpu"):
            prepare(made.model, quantized)
    return made


def _device_for(quantized: Weights | None, asked: str | None) -> torch.device:
    """Where a model with such weights is put.

    Raises:
        ConfigError: there is no such device, or such weights are not for it.
    """
    if asked is None:
        return torch.device("cpu" if quantized == "int8" else device())
    try:
        place = torch.device(asked)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        said = str(error).split("\n")[0]
        raise ConfigError(
            f'`device` must be like "cpu", "cuda" or "cuda:1", and be there: {asked!r} is not. '
            f"{said}"
        ) from None
    if quantized == "int8" and place.type != "cpu":
        raise ConfigError(
            f'int8 weights are for the CPU, but `device` is {asked!r}. Give device="cpu" or, with '
            'the folder that they come from, quantize="bfloat16".'
        )
    return place


def _opened(
    config: dict[str, Any], folder: Path, stored: Weights | None, place: torch.device
) -> nn.Module:
    """The model of a folder; quantized weights are put into the kernels' form for the CPU alone."""
    if stored is None:
        return _read_model(config, folder)
    if place.type == "cpu":
        return _prepared(config, folder)
    return _widened(config, folder)


def _task_of(config: dict[str, Any], folder: Path, model: Any) -> Any:
    """The task of a folder around its model."""
    if isinstance(model, Headed):
        model.labels = names_in(config)
    tokenizer = Tokenizer.load(folder)
    check_tokenizer(tokenizer, config)
    name, settings = _task_in(folder, config, model)
    task = task_class(name)
    check_task(name, model, settings, folder / CONFIG)
    settings = checked_settings(task, settings, folder / CONFIG)
    if task.decodes and (folder / "generation_config.json").exists():
        settings["method"] = decoding.load(folder, model)
    return task(model, tokenizer, **settings)


def _task_in(folder: Path, config: dict[str, Any], model: Any) -> tuple[str, dict[str, Any]]:
    """The name of a folder's task, and its settings."""
    about = config.get("regard")
    name = "" if about is None else about.get("task", "translation")
    name = FORMER_NAMES.get(name, name)
    if name in ("", "embedding") and (pooling := read_pooling(folder)) is not None:
        return "embedding", dict(vars(pooling))
    if about is not None:
        settings = {k: v for k, v in about.items() if k not in NOT_SETTINGS}
        if name not in TASKS:
            raise CheckpointError(
                f"{folder / CONFIG}: `regard.task` is {name!r}. {nearest(name, TASKS)}"
            )
        if config.get("model_type") == OURS:
            return name, kept_settings(name, settings, model, config) or settings
        if (kept := kept_settings(name, settings, model, config)) is not None:
            return name, kept
        warnings.warn(
            f"{folder / CONFIG}: `regard` tells of the task {name}, but the weights have no head "
            "of it; so it is not regarded. Another library has changed this folder.",
            stacklevel=3,
        )
    return task_of(model, config)


def read_model(path: str | Path, changes: dict[str, Any] | None = None) -> nn.Module:
    """The model of a folder or of a name on the hub, without tokenizer and task.

    changes: options of its configuration that are to differ, such as `dropout`.

    Raises:
        ConfigError: the model has no such option, or its weights are quantized and cannot learn.
    """
    folder = folder_of(path)
    config = _read_config(folder)
    if stored := stored_weights(config, folder):
        raise ConfigError(
            f"{folder} holds {stored} weights, which can be used but not changed. Begin with the "
            "folder that they come from."
        )
    with _named(folder):
        model = _read_model(config, folder)
    model = with_options(model, changes) if changes else model
    if isinstance(model, Headed):
        model.labels = names_in(config)
    return model


def _for_use(path: str) -> nn.Module:
    """The model of a folder, prepared where its weights are quantized."""
    folder = folder_of(path)
    config = _read_config(folder)
    quantized = stored_weights(config, folder) is not None
    with _named(folder), releasing() if quantized else nullcontext():
        return _prepared(config, folder) if quantized else _read_model(config, folder)


drafts.opener = _for_use


def publish(path: str | Path, out: Path) -> bool:
    """Write a folder with quantized weights as others read it, its numbers in float32.

    Gives False, and writes nothing, where the folder has no quantized weights.
    """
    folder = folder_of(path)
    config = _read_config(folder)
    if stored_weights(config, folder) is None:
        return False
    with _named(folder):
        task = _task_of(config, folder, _widened(config, folder))
    save(task, out)
    return True


def folder_of(path: str | Path) -> Path:
    """The folder of weights that a run, a folder or a name on the hub stands for."""
    folder = resolve(path)
    return folder / "model" if (folder / "model" / CONFIG).exists() else folder


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config = read_json(folder / CONFIG)
    except FileNotFoundError:
        hint = "Give a run folder or its model/."
        if (folder / "recipe.toml").exists():
            hint = (
                "This run has published no weights yet: they come with its first validation. "
                f"Go on with it: regard resume {folder}"
            )
        raise CheckpointError(f"{folder} holds no model: there is no {CONFIG}. {hint}") from None
    checked(config, ModelConfig, folder / CONFIG)
    return config


@contextmanager
def _named(folder: Path) -> Iterator[None]:
    """Errors inside name the folder, and its config.json with the whole path."""
    try:
        yield
    except (CheckpointError, ConfigError) as error:
        said = str(error)
        if str(folder) in said:
            raise
        named = str(folder / said) if said.startswith(CONFIG) else f"{folder}: {said}"
        raise type(error)(named) from error


def stored_weights(config: dict[str, Any], folder: Path) -> Weights | None:
    """Which quantized weights a folder holds; None: none.

    Raises:
        CheckpointError: they are of a kind that is not known here.
    """
    found = config.get("regard", {}).get("weights")
    if found is not None and found not in KINDS:
        raise CheckpointError(
            f"{folder / CONFIG}: `weights` is {found!r}, which this release does not read."
        )
    if found is not None and config.get("model_type") != OURS:
        raise CheckpointError(
            f"{folder / CONFIG}: `model_type` must be {OURS!r} where `regard.weights` is {found}, "
            f"but is {config.get('model_type')!r}."
        )
    return found


def _prepared(config: dict[str, Any], folder: Path) -> nn.Module:
    """The model of a folder with quantized weights."""
    weights: Any = stored_weights(config, folder)
    tensors = read_weights(folder)
    return quantized_checkpoint.opened(lambda: _built(config, folder, tensors), tensors, weights)


def _widened(config: dict[str, Any], folder: Path) -> nn.Module:
    """The same with float32 in the place of quantized weights."""
    tensors = read_weights(folder)
    return quantized_checkpoint.widened(lambda: _built(config, folder, tensors), tensors)


def _read_model(config: dict[str, Any], folder: Path) -> nn.Module:
    weights = read_weights(folder)
    if config.get("model_type") != OURS:
        return from_published(config | decoder_start(config, folder), weights)
    model = _built(config, folder, weights)
    check_fit(model, weights)
    check_finite(weights)
    adopt(model, weights)
    return model


class _Decoding(Fields):
    """The field of generation_config.json that belongs to the model: see `decoder_start`."""

    decoder_start_token_id: int | None = None


def decoder_start(config: dict[str, Any], folder: Path) -> dict[str, int]:
    """The token that generation_config.json lets a decoder begin with, as a field of config.json.

    Other libraries generate from it, whatever config.json says. Marian's decoders begin with the
    padding: their tokenizers have no bos token. Empty where the file does not name a token, and
    for models that have no encoder: they begin with the prompt.

    Raises:
        CheckpointError: the file is malformed.
    """
    path = folder / GENERATION
    two_parts = config.get("is_encoder_decoder", config.get("model_type") in TWO_PARTS)
    if not two_parts or not path.is_file():
        return {}
    found = read_json(path, _Decoding, any_size=True).decoder_start_token_id
    return {} if found is None else {"decoder_start_token_id": found}


def _built(config: dict[str, Any], folder: Path, weights: Mapping[str, Tensor]) -> nn.Module:
    """The model of a configuration of ours for these weights, which it does not have yet.

    Raises:
        CheckpointError: a field is unknown or has a wrong value, or does not fit the weights.
    """
    about, where = config.get("regard", {}), folder / CONFIG
    name, heads = about.get("model", ""), about.get("heads")
    if name not in MODELS:
        raise CheckpointError(f"{where}: `regard.model` is {name!r}. {nearest(name, MODELS)}")
    made: Any = model_class(name)
    if heads is not None and not is_encoder(made):
        raise CheckpointError(
            f"{where}: `regard.heads` must not be there, for the model {name} has none."
        )
    own = config_of(made.Config, {k: v for k, v in config.items() if k not in NOT_OURS}, where)
    check_sizes(own, weights, where)
    try:
        with Undrawn(weights):
            model = made(own)
            model = model if heads is None else assembled(model, heads)
    except ValueError as error:  # of parts that are not for a value
        if isinstance(error, RegardError) and CONFIG in str(error):
            raise
        raise CheckpointError(f"{where} is no configuration of {name}: {error}") from None
    if heads is not None and model.outputs() != heads:
        must = json.dumps(model.outputs())
        raise CheckpointError(f"{where}: `regard.heads` must be {must}, but is {heads}.")
    return model


def ids_of(config: Any) -> dict[str, int]:
    """The special ids, under the names that generation_config.json has for them."""
    return {
        "pad_token_id": config.pad,
        "bos_token_id": config.bos,
        "eos_token_id": config.eos,
        "decoder_start_token_id": config.bos,
    }
