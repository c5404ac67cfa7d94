"""A model folder as a task, and a task as a model folder.

task = load("runs/demo")                        weights, tokenizer and task together
save(task, "folder")                            as other libraries publish it, where they have it
quantize("runs/demo", "small", "int8")          weights in 8 bits: smaller, opened at once, faster

The task of a folder follows from its heads, its labels, and the section `regard` of config.json.
Other libraries keep that section when they replace the head of a model or rename its labels. So the
head and `id2label` decide, and the section adds what they do not contain.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import torch
from pydantic import Field, create_model
from torch import Tensor, nn

import regard
from regard import decoding, ops, recipe
from regard.checkpoints import model_folder
from regard.checkpoints.adapters import AdapterOptions, write_adapter
from regard.checkpoints.filling import quantized_tensors
from regard.checkpoints.hub import CONFIG, folder_of
from regard.checkpoints.sentence_transformers import read_pooling, write_sentence_transformers
from regard.data.in_memory import is_path
from regard.errors import CheckpointError, ConfigError, check_choice, warn
from regard.file_pages import releasing
from regard.file_writing import check_new, creating, write_text
from regard.habit_names import task_name
from regard.layers.quantized import QuantizedMatrix, WeightType
from regard.metrics.score import Scores
from regard.models import name_of
from regard.models.config import Count, Probability, Size
from regard.models.conversions import prepare
from regard.models.encoder_with_heads import EncoderWithHeads, HeadMaker, head_finders
from regard.models.protocols import EncoderDecoder
from regard.recipe import Options
from regard.schema import check_same, checked, joined_with_or
from regard.suggest import nearest
from regard.tasks import TASKS, task_class
from regard.tasks.embedding import Embedder
from regard.tasks.encoding import EncoderTask
from regard.tasks.inputs import names_in, rows_of
from regard.tasks.model_card import CardHistory, adapter_form, write_card
from regard.tasks.task import Task


def _new_head(kind: str) -> HeadMaker | None:
    """What makes a head that a task brings; None: no task does."""
    tasks = map(task_class, TASKS)
    return next((task.new_head for task in tasks if task.new_head and task.head == kind), None)


head_finders.append(_new_head)


def tasks_for(model: nn.Module) -> list[str]:
    """The tasks that a model can be used for."""
    return [name for name in TASKS if task_class(name).fits(model)]


def check_task(task: str, model: nn.Module, settings: Mapping[str, Any], where: Path) -> None:
    """Compare the task that a folder names, and its labels, with the model in it.

    Raises:
        CheckpointError: the model is for other tasks, or its head has another number of outputs.
    """
    kind = task_class(task)
    if not kind.fits(model):
        raise CheckpointError(
            f"{where}: `regard.task` is {task}, but the model of this folder, {_described(model)}, "
            f"is for {joined_with_or(tasks_for(model))}. Correct the field, or use another folder."
        )
    labels = settings.get("labels")
    if not isinstance(model, EncoderWithHeads) or not kind.head:
        return
    if not isinstance(labels, list | tuple):
        return  # their types are checked with those of the other settings
    outputs = model.outputs()[kind.head]
    if len(labels) != outputs or len(set(map(repr, labels))) != outputs:
        raise CheckpointError(
            f"{where}: `regard.labels` must name each of the {outputs} answers of the head once, "
            f"but is {list(labels)!r:.200}."
        )


def _described(model: nn.Module) -> str:
    heads = list(model.heads) if isinstance(model, EncoderWithHeads) else []
    kind = type(model.encoder if isinstance(model, EncoderWithHeads) else model).__name__
    return f"{kind} with the head{'s' * (len(heads) > 1)} {', '.join(heads)}" if heads else kind


def kept_settings(
    task: str, settings: Mapping[str, Any], model: nn.Module, config: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The stored settings of a task, with labels as `id2label` names them now; None where the head
    belongs to another task.

    Raises:
        ConfigError: labels and head do not fit together.
    """
    kind = task_class(task)
    if not (kind.is_for(model, config) if issubclass(kind, EncoderTask) else kind.fits(model)):
        return None
    if not kind.names_outputs or ("labels" in settings and not config.get("id2label")):
        return dict(settings)
    current = kind.settings_in(model, config)
    labels = current["labels"]
    check_same("config.json", "regard.labels", settings.get("labels"), "`id2label`", labels)
    return {**settings, **current}


def task_of(model: nn.Module, config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name of a task and its settings, for a model and its config.json.

    Raises:
        ConfigError: labels and head do not fit together.
    """
    name = next(name for name in TASKS if task_class(name).is_for(model, config))
    return name, task_class(name).settings_in(model, config)


def settings_for(task: str, model: nn.Module, config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a task that the user chooses for a model.

    Raises:
        ConfigError: the model is not for this task, or labels and head do not fit together.
    """
    if not task_class(task).fits(model):
        raise ConfigError(
            f"The task {task} is not for this model, {_described(model)}. It is for "
            f"{joined_with_or(tasks_for(model))}."
        )
    settings: dict[str, Any] = task_class(task).settings_in(model, config)
    return settings


NOT_SETTINGS = ("task", "version", "model", "heads", "weights")


def load(
    path: str | PathLike[str],
    *,
    task: str | None = None,
    model_type: str | None = None,
    quantize: WeightType | None = None,
    device: str | None = None,
) -> Task:
    """What a run, a folder of weights or a name on the hub holds, as an object that can be used.

    What it can do depends on its task; its methods are those of `regard.tasks.task.Methods`. A
    folder that another library wrote is of the task that its heads are for. Weights are mapped, not
    copied, where they lie as the model wants them: the file must stay as it is meanwhile.

    task: what to use the model for, where the folder does not say it or says another: a name of
        `regard.list_models("tasks")`, and the head of this task if the weights have several.
    model_type: the kind of model, as config.json names it, where the file does not say it.
    quantize: "int8" (on a CPU alone) or "bfloat16": faster, and cannot be trained; see
        `regard.models.conversions.prepare`. A folder with quantized weights has them in any case.
    device: "cpu", "cuda", "cuda:1". None: a GPU where there is one; the CPU for 8-bit weights.

    Raises:
        CheckpointError: a file is missing, or weights and configuration do not fit.
        ConfigError: there is no such type to quantize to, or the folder has another; there is no
            such device, or such weights are not for it; or the model is not for this task.
    """
    task = None if task is None else task_name(task)
    if task is not None:
        task_class(task)
    if quantize is not None:
        check_choice("quantize", quantize, get_args(WeightType))
    ops.load_kernels()
    folder = model_folder.open_folder(
        path, model_type, None if task is None else task_class(task).head
    )
    if folder.dtype is not None and quantize not in (None, folder.dtype):
        raise ConfigError(
            f"{folder.path} holds {folder.dtype} weights, and {quantize} ones cannot be made of "
            "them. Quantize the folder that they come from, or leave `quantize` out."
        )
    dtype = quantize or folder.dtype
    target = device_for(device, dtype)
    with folder.located(), releasing() if dtype else nullcontext():
        model = _model_on(folder, target).to(target).eval()
        loaded = _task_of(folder, model, task)
        loaded.half_precision = folder.half_precision() if dtype is None else None
        if dtype is not None and (folder.dtype is None or target.type != "cpu"):
            prepare(model, dtype)
    return loaded


def load_float32(path: str | PathLike[str]) -> Task:
    """As `load` on a CPU, with weights of half precision and quantized ones as float32.

    Raises:
        CheckpointError: as `load`.
    """
    folder = model_folder.open_folder(path)
    with folder.located():
        model = folder.model() if folder.dtype is None else folder.quantized_model(float32=True)
        return _task_of(folder, model.float().eval())


def device() -> str:
    """Where models are put: a GPU where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def device_for(name: str | None, dtype: WeightType | None = None) -> torch.device:
    """The device of this name, or the default one, for a model with weights of this type.

    Raises:
        ConfigError: there is no such device, or such weights are not for it.
    """
    if name is None:
        return torch.device("cpu" if dtype == "int8" else device())
    if dtype == "int8" and not name.startswith("cpu"):
        raise ConfigError(
            f'int8 weights are for the CPU, but `device` is {name!r}. Give device="cpu" or, with '
            'the folder that they come from, quantize="bfloat16".'
        )
    try:
        target = torch.device(name)
        torch.empty(0, device=target).cpu()  # "meta" holds no data
    except (RuntimeError, AssertionError, TypeError) as error:
        devices = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
        raise ConfigError(
            f"There is no device {name!r} here. torch {torch.__version__} finds: "
            f"{', '.join(devices)}."
        ) from error
    return target


def _model_on(folder: model_folder.ModelFolder, target: torch.device) -> nn.Module:
    """The model of a folder; stored 8-bit and bfloat16 weights stay quantized on the CPU alone."""
    if folder.dtype is None:
        return folder.model()
    return folder.quantized_model(float32=target.type != "cpu")


def _task_of(folder: model_folder.ModelFolder, model: nn.Module, chosen: str | None = None) -> Task:
    """The task of a folder around its model; `chosen`: this one, whatever the folder says."""
    tokenizer = folder.tokenizer()
    name, settings = _task_in(folder, model)
    if chosen not in (None, name):
        name, settings = str(chosen), settings_for(str(chosen), model, folder.config)
    task = task_class(name)
    check_task(name, model, settings, folder.path / CONFIG)
    settings = checked_settings(task, settings, folder.path / CONFIG)
    if task.decodes and (method := _method_in(folder, model)) is not None:
        settings["method"] = method
    return task(model, tokenizer, **settings)


def _method_in(folder: model_folder.ModelFolder, model: nn.Module) -> Any:
    """How the files of a folder decode; None: they do not say it."""
    if (folder.generation_path / model_folder.GENERATION).exists():
        return decoding.load(folder.generation_path, model)
    if folder.config.get("model_type") == model_folder.OURS:
        return None
    return decoding.load_from_model_config(folder.config, folder.path / CONFIG, model)


def _task_in(folder: model_folder.ModelFolder, model: nn.Module) -> tuple[str, dict[str, Any]]:
    """The name of a folder's task, and its settings."""
    config, where = folder.config, folder.path / CONFIG
    about = config.get("regard")
    name = "" if about is None else about.get("task", "translation")
    if name in ("", Embedder.name) and (pooling := read_pooling(folder.path)) is not None:
        return Embedder.name, dict(vars(pooling))
    if about is not None:
        settings = {k: v for k, v in about.items() if k not in NOT_SETTINGS}
        if name not in TASKS:
            raise CheckpointError(f"{where}: `regard.task` is {name!r}. {nearest(name, TASKS)}")
        stored = kept_settings(name, settings, model, config)
        if config.get("model_type") == model_folder.OURS:
            return name, stored or settings
        if stored is not None:
            return name, stored
        warn(
            f"{where}: `regard` names the task {name}, but the weights have no head for it, so "
            "the name is ignored. Another library has changed this folder.",
        )
    return task_of(model, config)


# With which `AutoModelForCausalLM` opens a model that `transformers` does not have.
AUTO_MODEL = "modeling_regard.py"
AUTO_CLASSES = "from regard.exporting.auto_model import RegardConfig, RegardForCausalLM\n"
AUTO_MAP = {
    "auto_map": {
        "AutoConfig": "modeling_regard.RegardConfig",
        "AutoModelForCausalLM": "modeling_regard.RegardForCausalLM",
    }
}


def save(task: Task, folder: str | PathLike[str], *, license: str | None = None) -> None:
    """Write a task as a folder: config.json, model.safetensors, tokenizer, generation_config, and
    a model card, unless a person has written one there.

    Where `transformers` has the architecture, names and configuration are those it opens. Weights
    that were loaded in half precision are written so, unless they have changed to numbers that it
    cannot hold.

    license: of the weights, as the hub calls it ("apache-2.0"), for the card; None: not known.

    Raises:
        CheckpointError: the weights are quantized; `quantize` writes such folders.
    """
    folder, model = Path(folder), task.module
    if any(isinstance(part, QuantizedMatrix) for part in model.modules()):
        raise CheckpointError(
            f"{folder} was not written: this model has quantized weights, and nothing publishes "
            "such. Load its folder without `quantize`; `regard.quantize` writes a folder of ours."
        )
    config, tensors = model_folder.exported(model)
    if (dtype := task.half_precision) is not None:
        halved = model_folder.in_half_precision(tensors, dtype)
        tensors = tensors if halved is None else halved
    continues = task.pipeline == "text-generation" and not task.module.reads_backward
    if brings_code := continues and config["model_type"] == model_folder.OURS:
        config = config | AUTO_MAP
    written = _write(task, folder, config, tensors, {})
    if brings_code:
        write_text(folder / AUTO_MODEL, AUTO_CLASSES)
    if isinstance(task, Embedder) and config["model_type"] != model_folder.OURS:
        write_sentence_transformers(folder, task.pooling, model.config.d_model)
    write_card(task, folder, written, CardHistory(license))


def save_adapter(
    task: Task, folder: str | PathLike[str], options: AdapterOptions, base: str | PathLike[str]
) -> None:
    """Write the adapters of a task's model as a folder that `peft` opens, and `load`.

    Beside the files of `peft` stand the tokenizer and regard.json, from which `load` knows the task
    and its labels. A model card says which model they are for.

    options: those with which the adapters were added.
    base: the folder, or the name on the hub, of the model without them.

    Raises:
        CheckpointError: the files cannot be written.
    """
    folder = Path(folder)
    local = folder_of(base).absolute() if Path(base).is_dir() else base
    write_adapter(folder, task.module, options, str(local))
    config = config_of_task(task)
    write_text(folder / model_folder.ADAPTED, json.dumps(config, indent=2) + "\n")
    task.tokenizer.save(folder, task.module.config.max_length)
    if task.decodes:
        _save_method(task, folder)
    write_card(task, folder, config, form=adapter_form(options, base))


def config_of_task(task: Task) -> dict[str, Any]:
    """config.json, as `save` writes it."""
    return _config_of(task, model_folder.exported(task.module)[0], {})


def quantize(
    path: str | PathLike[str], out: str | PathLike[str], dtype: WeightType = "int8"
) -> Path:
    """Write what a folder holds as a new folder with quantized weights, which `load` opens at once.

    They are those that `load(path, quantize=...)` makes, and take a quarter or half of the space.
    No other library reads them, and nothing can be trained from them: keep the original folder.

    dtype: "int8", a quarter of the size of float32, or "bfloat16", half of it.

    Raises:
        ConfigError: there is no such `dtype`, or the weights are quantized already.
        CheckpointError: `out` is there already.
    """
    out = Path(out)
    check_choice("dtype", dtype, get_args(WeightType))
    check_new(out)
    folder = model_folder.open_folder(path)
    if folder.dtype is not None:
        raise ConfigError(
            f"{folder.path} holds {folder.dtype} weights already, and to round them again would "
            "only lose more. Quantize the folder that they come from."
        )
    with folder.located():
        task = _task_of(folder, folder.model())
    config = model_folder.own_config(task.module)
    tensors = quantized_tensors(task.module, dtype)
    with creating(out) as temporary:
        written = _write(task, temporary, config, tensors, {"weights": dtype})
        write_card(task, temporary, written, CardHistory.of_folder(folder.path))
    return out


def _write(
    task: Task,
    folder: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    about: Mapping[str, Any],
) -> dict[str, Any]:
    """Write the files of a task; `about` the model beside what its task says; gives config.json."""
    config = _config_of(task, config, about)
    model_folder.write_model(folder, config, tensors, task.tokenizer, task.module.config)
    if task.decodes:
        _save_method(task, folder)
    return config


def _config_of(task: Task, config: Mapping[str, Any], about: Mapping[str, Any]) -> dict[str, Any]:
    """config.json of a task, from that of its model."""
    model = task.module
    section = (
        model_folder.model_section(model)
        if config["model_type"] == model_folder.OURS
        else {"model": name_of(model)}
    )
    section = {"version": regard.__version__, "task": task.name, **section, **about}
    published, settings = task.published(), task.settings()
    if "id2label" in published:
        settings.pop("labels", None)  # which would be a second list
    about = {"regard": {**section, **settings}, **published}
    return {
        **config,
        **(_bos_of(task) if config["model_type"] != model_folder.OURS else {}),
        **about,
    }


def _save_method(task: Task, folder: Path) -> None:
    """How the task decodes, with the special ids under the names of generation_config.json."""
    config = task.module.config
    ids = {
        "pad_token_id": config.pad,
        "bos_token_id": config.bos,
        "eos_token_id": config.eos,
        "decoder_start_token_id": config.bos,
        **_bos_of(task),
    }
    decoding.save(task.method, folder, ids, config.max_length)


def _bos_of(task: Task) -> dict[str, int]:
    """`bos_token_id` of an encoder-decoder: the tokenizer's token, with which texts begin.

    The decoder starts with another one in BART, mBART, M2M-100 and Marian.
    """
    bos = task.tokenizer.bos_id if isinstance(task.module, EncoderDecoder) else None
    return {} if bos is None else {"bos_token_id": bos}


# Narrower types for options whose declared types allow too much.
RANGES: dict[str, Any] = {
    "format": Literal["lines", "text"] | None,
    "max_length": Size | None,
    "threshold": Annotated[float, Field(ge=0, le=1)],
    "window": Size | None,
    "stride": Size | None,
    "label_smoothing": Probability,
    "doc_stride": Count,
    "max_question_length": Size,
    "answer_tokens": Size,
}


def checked_settings(task: type[Task], stored: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """The settings, checked against the options of the task's class.

    where: the file that contains them in its field `regard`.

    Raises:
        CheckpointError: a setting is unknown or missing, has a wrong type, or is out of range.
    """
    schema = _schema(task)
    for name in stored:
        if name not in schema.model_fields:
            problem = f"`regard.{name}` is not an option of the task {task.name}."
            raise CheckpointError(f"{where}: {problem} {nearest(name, list(schema.model_fields))}")
    settings = checked(dict(stored), schema, where, CheckpointError, "regard")
    return {name: getattr(settings, name) for name in stored}


def _schema(task: type[Task]) -> type[Options]:
    """The keyword options of the constructor of a task."""
    options: Any = {
        name: (RANGES.get(name, hint), default)
        for name, (hint, default) in task.constructor_options().items()
    }
    return create_model(task.__name__, __base__=Options, **options)


Model = str | PathLike[str] | Task
"""A model, or a run, a folder or a name on the hub that holds one."""


def evaluate(
    model: Model, data: Any, *, columns: Sequence[int | str] = (), **options: Any
) -> Scores:
    """The scores of a model on data, as its method `evaluate` gives them.

        regard.evaluate("runs/reviews", "test.csv")
        regard.evaluate(model, dataframe, columns=["text", "label"])

    Args:
        data: a file, or rows in memory: a DataFrame, a list of rows, a dataset, a reader.
        columns: of a table, in the order that the task reads them; (): those that the recipe of a
            run names, where the table has them, else chosen by their names.
        options: further arguments of the method.

    Raises:
        DataError: the data cannot be read.
        ConfigError: the names of the columns do not tell which to read.
    """
    from regard.tasks.language_modeling import TextGenerator

    task = as_task(model)
    if not columns and not isinstance(model, Task):
        columns = recipe_columns(Path(model), data)
    if is_path(data) and not isinstance(task, TextGenerator):
        data, columns = rows_of(task, [Path(data)], columns), ()
    return task.evaluate(data, **({"columns": columns} if columns else {}), **options)


def recipe_columns(run: Path, data: Any) -> tuple[str, ...]:
    """The columns of texts and target that the recipe of a run names, if the data have them; else
    ().
    """
    if not (run / "recipe.toml").exists():
        return ()
    section = recipe.read(run / "recipe.toml").tables.get("data", {})
    columns = () if section.get("target_columns") else section.get("columns", ())
    if not columns or not all(isinstance(column, str) for column in columns):
        return ()
    return tuple(columns) if {*columns} <= {*names_in(data)} else ()


def as_task(model: Model) -> Any:
    """The model itself, or the one in a folder."""
    return model if isinstance(model, Task) else load(model)
