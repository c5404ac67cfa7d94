"""The task of a model folder: from its heads, its labels, and the section `regard` of config.json.

Other libraries keep that section when they replace the head of a model or rename its labels. So the
head and `id2label` decide, and the section adds what they do not contain.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from regard.checkpoints.formats.config_table import label_names
from regard.errors import CheckpointError, ConfigError
from regard.models import is_encoder, name_of
from regard.models.encoder_with_heads import EncoderWithHeads, outputs_of
from regard.models.protocols import EncoderDecoder
from regard.schema import check_same, joined_with_or

# kind of head -> task; the first kind that a model has decides
TASK_OF = {
    "classes": "classification",
    "chart": "parsing",  # before the tags, which it also has
    "tags": "tagging",
    "crf": "crf-tagging",
    "span_search": "question-answering",
    "span": "question-answering",
    "multiple_choice": "multiple-choice",
    "masked_lm": "fill-mask",
    "replaced": "replaced-tokens",
    "next_sentence": "next-sentence",
    "sentence_order": "sentence-order",
}
# what encoder-decoders are for: pairs of texts; trees, and turns of dialogues
ENCODER_DECODERS = ("translation", "summarization", "text-to-text", "span-corruption")
OF_ENCODER_DECODERS = (*ENCODER_DECODERS, "sequence-parsing", "dialogue")
# what the published ones of a `model_type` are for; others turn any text into another
PUBLISHED_FOR = {
    **dict.fromkeys(("marian", "mbart", "m2m_100"), "translation"),
    "pegasus": "summarization",
}
# a language model -> another task that it is trained for, and then used as such
TRAINED_AS = {"xlnet": "permutation-language-modeling"}
# an encoder -> the task that it is pre-trained by, and then used as such
PRETRAINED_AS = {"elmo": "bidirectional-language-modeling"}
OF_CLASSES = ("classification", "multi-label-classification")  # of at least two; one is a number
HEAD_OF = {task: kind for kind, task in TASK_OF.items()}
HEAD_OF |= dict.fromkeys((*OF_CLASSES, "regression"), "classes")
HEAD_OF["masked-language-modeling"] = "masked_lm"
NAMED = ("classes", "tags", "crf")  # heads whose outputs have names


def tasks_for(model: nn.Module) -> tuple[str, ...]:
    """The tasks that a model can be used for."""
    if isinstance(model, EncoderWithHeads):
        tasks = [TASK_OF[kind] for kind in TASK_OF if kind in model.heads]
        if "classes" in model.heads:
            is_number = model.outputs()["classes"] == 1
            tasks[:1] = ["regression", OF_CLASSES[1]] if is_number else OF_CLASSES
        if "masked_lm" in model.heads:
            tasks.append("masked-language-modeling")
        return (*tasks, "embedding")
    if isinstance(model, EncoderDecoder) and model.reads_regions:
        return ("captioning",)
    encodes = is_encoder(type(model))
    if not model.continues and not encodes:
        return OF_ENCODER_DECODERS
    tasks = ["language-modeling"] if model.continues else []
    trained = (TRAINED_AS if model.continues else {}) | (PRETRAINED_AS if encodes else {})
    if name_of(model) in trained:
        tasks.append(trained[name_of(model)])
    return (*tasks, *(["embedding"] if encodes else []))


def check_task(task: str, model: nn.Module, settings: Mapping[str, Any], where: Path) -> None:
    """Compare the task that a folder names, and its labels, with the model in it.

    Raises:
        CheckpointError: the model is for other tasks, or its head has another number of outputs.
    """
    able = tasks_for(model)
    if task not in able:
        raise CheckpointError(
            f"{where}: `regard.task` is {task}, but the model of this folder, {_described(model)}, "
            f"is for {joined_with_or(able)}. Correct the field, or use another folder."
        )
    labels = settings.get("labels")
    if not isinstance(model, EncoderWithHeads) or task not in HEAD_OF:
        return
    if not isinstance(labels, list | tuple):
        return  # their types are checked with those of the other settings
    outputs = model.outputs()[HEAD_OF[task]]
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
    inferred = task_of(model, config)[0]
    if inferred in ENCODER_DECODERS:
        return dict(settings) if task in OF_ENCODER_DECODERS else None
    if inferred == "language-modeling" and task in tasks_for(model) and task != "embedding":
        return dict(settings)
    kind = HEAD_OF.get(task, "")
    heads = dict(model.heads) if isinstance(model, EncoderWithHeads) else {}
    fits = inferred == task if kind in ("", "classes", "span") else kind in heads
    if not fits or kind not in NAMED or task == "regression":
        return dict(settings) if fits else None
    if "labels" in settings and not config.get("id2label"):
        return dict(settings)
    labels = labels_of(config, outputs_of(heads[kind]))
    check_same("config.json", "regard.labels", settings.get("labels"), "`id2label`", labels)
    return {**settings, "labels": labels}


def task_of(model: nn.Module, config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name of a task and its settings, for a model and its config.json.

    Raises:
        ConfigError: labels and head do not fit together.
    """
    if not isinstance(model, EncoderWithHeads):
        if model.continues:
            return "language-modeling", {}
        if isinstance(model, EncoderDecoder) and model.reads_regions:
            return "captioning", {}
        prefix = source_prefix(config)
        name = PUBLISHED_FOR.get(str(config.get("model_type")), "text-to-text")
        return name, {"source_prefix": prefix} if prefix else {}
    kind = next((kind for kind in TASK_OF if kind in model.heads), None)
    if kind is None:
        return "embedding", {}
    outputs = outputs_of(model.heads[kind])
    task = _task_of_classes(config, outputs) if kind == "classes" else TASK_OF[kind]
    if task == "regression":
        activation = cross_encoder_activation(config)
        return task, {} if activation is None else {"activation": activation}
    return task, {"labels": labels_of(config, outputs)} if kind in NAMED else {}


def settings_for(task: str, model: nn.Module, config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a task that the user chooses for a model.

    Raises:
        ConfigError: the model is not for this task, or labels and head do not fit together.
    """
    if task not in (able := tasks_for(model)):
        raise ConfigError(
            f"The task {task} is not for this model, {_described(model)}. It is for "
            f"{joined_with_or(able)}."
        )
    kind = HEAD_OF.get(task)
    if kind in NAMED and task != "regression" and isinstance(model, EncoderWithHeads):
        return {"labels": labels_of(config, model.outputs()[kind])}
    prefix = source_prefix(config) if task in ENCODER_DECODERS else ""
    return {"source_prefix": prefix} if prefix else {}


def cross_encoder_activation(config: Mapping[str, Any]) -> str | None:
    """What a cross-encoder of sentence-transformers applies to its one score: "sigmoid", unless its
    config.json names another; None for a model that is none.

    A published head of one output is that of a cross-encoder unless its `problem_type` is
    "regression": other libraries apply a sigmoid to it, too.

    Raises:
        ConfigError: it names another activation.
    """
    section = config.get("sentence_transformers")
    name = section.get("activation_fn") if isinstance(section, Mapping) else None
    name = name or config.get("sbert_ce_default_activation_function")
    if name is None and section is None:
        if "regard" in config or config.get("problem_type") == "regression":
            return None
        warnings.warn(
            "config.json names neither an activation nor a `problem_type`: a sigmoid is applied to "
            'the one output. For the number itself set `problem_type` to "regression".',
            stacklevel=2,
        )
    kind = str(name or "Sigmoid").rpartition(".")[2].lower()
    if kind not in ("sigmoid", "identity"):
        raise ConfigError(
            f"config.json: the activation of a cross-encoder must be Sigmoid or Identity of torch, "
            f"but is {name!r}."
        )
    return kind


def source_prefix(config: Mapping[str, Any]) -> str:
    """What stands before each source, such as "summarize: ".

    That is `prefix`, or the prefix of the task in `task_specific_params` where there is one task; a
    model of several tasks gets the prefix with each text.
    """
    tasks = config.get("task_specific_params") or {}
    sections = [config, *(tasks.values() if len(tasks) == 1 else ())]
    prefixes = [section.get("prefix") for section in sections if isinstance(section, Mapping)]
    return next((prefix for prefix in prefixes if isinstance(prefix, str) and prefix), "")


def labels_of(config: Mapping[str, Any], outputs: int) -> list[str]:
    """The names of labels in the order of the head's outputs; LABEL_0 and so on without names.

    A name that several labels have gets the number of the label behind it, with a warning.

    Raises:
        ConfigError: see `label_names`.
    """
    names = label_names(config, outputs)
    if not names:
        return [f"LABEL_{i}" for i in range(outputs)]
    labels = list(names.values())
    repeated = sorted({label for label in labels if labels.count(label) > 1})
    if repeated:
        warnings.warn(
            f"config.json: `id2label` has several labels {', '.join(repeated)}. They get their "
            "numbers behind them.",
            stacklevel=2,
        )
    return [f"{name} ({i})" if name in repeated else name for i, name in names.items()]


def _task_of_classes(config: Mapping[str, Any], outputs: int) -> str:
    """The task of a head for classes or a number, as `problem_type` has it.

    Raises:
        ConfigError: it has not the outputs for it.
    """
    problem = config.get("problem_type")
    if problem == "multi_label_classification":
        return "multi-label-classification"
    numbers = "regression" if outputs == 1 else "single_label_classification"
    if problem not in (None, numbers):
        raise ConfigError(
            f"config.json: `problem_type` must be {numbers} or multi_label_classification for a "
            f"head of {outputs} outputs, but is {problem!r}."
        )
    return "regression" if outputs == 1 else "classification"
