"""Low-rank adapters under the names of `peft`: adapter_config.json and adapter_model.safetensors.

    add_adapters(model, AdapterOptions(rank=8, targets=("query", "value")))
    write_adapter(folder, model, options, base="org/name")
    model = read_adapter(read_adapter_config(folder), read_adapter_tensors(folder), base)

A folder holds the factors A and B of each adapted layer, the complete tensors of new modules (the
head), and the name of the base model.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from regard.attention.pruning import pruned_heads
from regard.checkpoints.adapted_tensors import AdaptedTensors
from regard.checkpoints.filling import SkipInit, check_finite
from regard.checkpoints.formats import LAYOUTS, from_published, layout_for
from regard.checkpoints.formats.layout import Layout
from regard.checkpoints.pickled import read_pickled
from regard.checkpoints.projections import Projection, projections_of
from regard.checkpoints.store import read_tensors, write_tensors
from regard.errors import ConfigError
from regard.file_writing import write_text
from regard.layers.low_rank import LowRankUpdate
from regard.layers.quantized import QuantizedMatrix
from regard.models import described
from regard.models.adapters import adapted_layers, freeze_base, insert_updates, merged
from regard.schema import Fields, read_json
from regard.suggest import nearest

CONFIG, WEIGHTS, PICKLED = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
NAME_PREFIX = "base_model.model."  # of every tensor's name
A_SUFFIX, B_SUFFIX = ".lora_A.weight", ".lora_B.weight"
# parts of tensor names that name a module of `peft` around the adapted one
WRAPPER_PARTS = re.compile(r"\.(base_layer|modules_to_save)(?=\.)")
# the same and the name of the adapter: a second copy of a bias, where all biases are trained
NAMED_COPY = re.compile(r"\.modules_to_save\.[^.]+(?=\.)")
# factors of an embedding (V, D), whose update is (B A)^T
EMBEDDING_A, EMBEDDING_B = ".lora_embedding_A", ".lora_embedding_B"
ALL_LINEAR = "all-linear"
# how the name of an architecture ends -> `task_type` of adapter_config.json
TASK_TYPES = {
    "ForSequenceClassification": "SEQ_CLS",
    "ForTokenClassification": "TOKEN_CLS",
    "ForQuestionAnswering": "QUESTION_ANS",
    "ForQuestionAnsweringSimple": "QUESTION_ANS",
    "LMHeadModel": "CAUSAL_LM",
    "ForCausalLM": "CAUSAL_LM",
    "MTModel": "SEQ_2_SEQ_LM",
    "ForConditionalGeneration": "SEQ_2_SEQ_LM",
}
# modules that `peft` saves completely by default
HEAD_MODULES = ("classifier", "score", "qa_outputs")
# Further fields of adapter_config.json that do not change the result: they act only in training,
# describe, or their effect is in the tensors. Any other field that is set is an error.
FIELDS_WITHOUT_EFFECT = {
    *("inference_mode", "peft_version", "rank_pattern", "lora_dropout", "target_modules"),
    *("exclude_modules", "modules_to_save", "layers_to_transform", "layers_pattern"),
    *("fan_in_fan_out", "bias", "loftq_config", "eva_config", "corda_config", "lora_ga_config"),
    *("megatron_config", "megatron_core", "runtime_config", "qalora_group_size"),
    "ensure_weight_tying",
}
# values of `init_lora_weights` that keep the base weights
INITIALIZATIONS = (True, False, "gaussian", "orthogonal", "eva")


@dataclass(frozen=True)
class AdapterOptions:
    """The options of low-rank adapters.

    rank: r.
    alpha: B A is multiplied by alpha / r.
    dropout: the dropout probability of the input of A, in training.
    targets: the layers that get adapters: published names of linear layers, the ends of such names
        ("query"), or "all-linear"; (): the query and value projections (Hu et al. 2021, section
        4.2).
    """

    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.0
    targets: tuple[str, ...] = ()


class AdapterConfig(Fields):
    """The fields of adapter_config.json that are read."""

    peft_type: str
    base_model_name_or_path: str | None = None
    revision: str | None = None
    task_type: str | None = None
    auto_mapping: dict[str, Any] | None = None
    r: int = 8
    lora_alpha: int | float = 8
    use_rslora: bool = False
    alpha_pattern: dict[str, int | float] | None = None
    init_lora_weights: Any = True

    def scale(self, rank: int) -> float:
        """What B A of this rank is multiplied by."""
        return self.lora_alpha / (math.sqrt(rank) if self.use_rslora else rank)

    @property
    def base(self) -> str | None:
        """The folder, or the name on the hub, of the model to which the adapter belongs."""
        name = self.base_model_name_or_path or None
        return f"{name}@{self.revision}" if name and self.revision else name


# ----------------------------------------------------------------------------------- adding


def add_adapters(
    model: nn.Module, options: AdapterOptions, also_trained: Iterable[nn.Parameter] = ()
) -> None:
    """Add adapters to a model, in place: they and its heads are trained, all else is frozen.

    also_trained: further parameters that are trained.

    Raises:
        ConfigError: the model is not a Transformer, is quantized or pruned, or has no layer that
            `targets` names; or the rank is larger than a side of a layer's matrix.
    """
    layout = _layout(model)
    updates: dict[str, dict[str, LowRankUpdate]] = defaultdict(dict)
    for projection in _targeted(projections_of(layout, model), options.targets or layout.adapted):
        smaller = min(len(projection.outputs), len(projection.inputs))
        if options.rank > smaller:
            raise ConfigError(
                f"`rank` must be at most {smaller}, the smaller side of the matrix of "
                f"{projection.name}, but is {options.rank}."
            )
        scale = options.alpha / options.rank
        update = _update(model, projection, options.rank, scale, options.dropout)
        updates[projection.layer][projection.label] = update
    insert_updates(model, updates)
    freeze_base(model)
    for parameter in also_trained:
        parameter.requires_grad_()


def _layout(model: nn.Module) -> Layout:
    """The published layout of a model that can have adapters.

    Raises:
        ConfigError: the model cannot have adapters.
    """
    if any(isinstance(part, QuantizedMatrix) for part in model.modules()):
        raise ConfigError(
            "A model with quantized weights cannot have adapters. Load the folder that they come "
            "from, without `quantize`."
        )
    layout = layout_for(model)
    if layout is None:
        kinds = ", ".join(kind for kind in LAYOUTS)
        raise ConfigError(
            f"Low-rank adapters cannot be added to {described(model)}: only to Transformers that "
            f"`transformers` has too ({kinds})."
        )
    if pruned_heads(model):
        raise ConfigError(
            "A model with pruned heads cannot have adapters: `peft` does not support pruned heads. "
            "Start from the model before it was pruned."
        )
    return layout


def _targeted(found: Sequence[Projection], targets: Sequence[str]) -> list[Projection]:
    """The projections that `targets` names.

    Raises:
        ConfigError: a target names no projection.
    """
    for target in targets:
        if target != ALL_LINEAR and not any(_is_named(one, target) for one in found):
            known = list(dict.fromkeys(one.label for one in found))
            raise ConfigError(
                f"`targets`: the model has no linear layer {target!r}. It has {', '.join(known)}; "
                f"{ALL_LINEAR!r} names all of them. {nearest(target, known)}"
            )
    return [one for one in found if any(t == ALL_LINEAR or _is_named(one, t) for t in targets)]


def _is_named(projection: Projection, target: str) -> bool:
    return projection.name == target or projection.name.endswith(f".{target}")


def _update(
    model: nn.Module, at: Projection, rank: int, scale: float, dropout: float = 0.0
) -> LowRankUpdate:
    weight: Any = model.get_submodule(at.layer).weight
    return LowRankUpdate(weight, at.rows, rank, scale=scale, dropout=dropout)


# ----------------------------------------------------------------------------------- writing


def write_adapter(folder: Path, model: nn.Module, options: AdapterOptions, base: str) -> None:
    """Write the adapters of a model, and the modules trained beside them, in the format of `peft`.

    base: the folder of the base model, or its name on the hub: NAME or NAME@REVISION.

    Raises:
        ConfigError: the model cannot have adapters.
        CheckpointError: the files cannot be written.
    """
    plain = merged(model)
    layout = _layout(plain)
    tensors: dict[str, Tensor] = {}
    chosen = _adapted_projections(layout, model)
    for projection, update in chosen:
        a, b = projection.to_published(update.A.detach(), update.B.detach())
        tensors |= {
            f"{NAME_PREFIX}{projection.name}{A_SUFFIX}": a,
            f"{NAME_PREFIX}{projection.name}{B_SUFFIX}": b,
        }
    published = layout.names_of(plain).write(plain.state_dict())
    modules = _new_modules(layout, model)
    for name, tensor in published.items():
        if any(name.startswith(f"{module}.") for module in modules):
            tensors[NAME_PREFIX + name] = tensor
    name, _, revision = base.partition("@") if not Path(base).exists() else (base, "", "")
    config = _config(layout, plain, options, [one for one, _ in chosen])
    config |= {"base_model_name_or_path": name, "revision": revision or None}
    config |= {"modules_to_save": modules or None}
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / WEIGHTS, tensors)
    write_text(folder / CONFIG, json.dumps(config, indent=2) + "\n")


def _adapted_projections(
    layout: Layout, model: nn.Module
) -> list[tuple[Projection, LowRankUpdate]]:
    """The adapted projections of a model and their updates."""
    layers = {
        name: {update.rows.start: update for update in layer.ordered_updates()}
        for name, layer in adapted_layers(model).items()
    }
    return [
        (projection, layers[projection.layer][projection.rows.start])
        for projection in projections_of(layout, merged(model))
        if projection.rows.start in layers.get(projection.layer, ())
    ]


def _new_modules(layout: Layout, model: nn.Module) -> list[str]:
    """Published names of the modules whose own parameters are trained."""
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    plain = merged(model)
    modules = []
    for _, ours, theirs in layout.names_of(plain).filled(plain.state_dict()):
        if trained & {*ours}:
            for name in theirs:
                first = name.split(".")[0]
                modules.append(first if first in HEAD_MODULES else name.rpartition(".")[0])
    return list(dict.fromkeys(modules))


def _config(
    layout: Layout, plain: nn.Module, options: AdapterOptions, chosen: Sequence[Projection]
) -> dict[str, Any]:
    architecture = layout.architecture_of(plain)
    task = next(
        (word for ending, word in TASK_TYPES.items() if architecture.endswith(ending)), None
    )
    kind = {"base_model_class": architecture, "parent_library": "transformers"}
    targets = options.targets or layout.adapted
    return {
        "peft_type": "LORA",
        "task_type": task,
        "auto_mapping": None if task else kind,
        "r": options.rank,
        "lora_alpha": int(options.alpha) if options.alpha == int(options.alpha) else options.alpha,
        "lora_dropout": options.dropout,
        "target_modules": [one.name for one in chosen] if ALL_LINEAR in targets else list(targets),
        "fan_in_fan_out": any(one.transposed for one in chosen),
        "bias": "none",
        "inference_mode": True,
    }


# ----------------------------------------------------------------------------------- reading


def holds_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter."""
    return (folder / CONFIG).exists()


def read_adapter_config(folder: Path) -> AdapterConfig:
    """adapter_config.json of a folder.

    Raises:
        ConfigError: the file is damaged, describes another kind of adapter, or sets a field that is
            not supported.
    """
    where = folder / CONFIG
    found: AdapterConfig = read_json(where, AdapterConfig, error=ConfigError)
    if found.peft_type != "LORA":
        raise ConfigError(
            f"{where}: `peft_type` must be LORA, the adapters that this library reads, but is "
            f"{found.peft_type!r}."
        )
    for name, value in (found.model_extra or {}).items():
        if name not in FIELDS_WITHOUT_EFFECT and value not in (None, False, [], {}, ""):
            raise ConfigError(
                f"{where}: `{name}` is {value!r:.80}, which is not supported. Train the adapter "
                "without this option."
            )
    if found.alpha_pattern:
        raise ConfigError(
            f"{where}: `alpha_pattern` is not supported: all layers have one `lora_alpha`."
        )
    if found.init_lora_weights not in INITIALIZATIONS:
        raise ConfigError(
            f"{where}: `init_lora_weights` is {found.init_lora_weights!r}, which changes the base "
            "model's own weights. Save the adapter from `peft` as an ordinary one."
        )
    return found


def read_adapter_tensors(folder: Path) -> dict[str, Tensor]:
    """The tensors in the folder of an adapter, by name without the prefix of `peft`.

    Raises:
        CheckpointError: the folder has no file of tensors, or it is damaged.
    """
    path = folder / WEIGHTS
    if not path.exists() and (folder / PICKLED).exists():
        tensors = read_pickled(folder / PICKLED)
    else:
        tensors = read_tensors(path)
    check_finite(tensors)
    return dict(
        _as_linear(WRAPPER_PARTS.sub("", name.removeprefix(NAME_PREFIX)), tensor)
        for name, tensor in tensors.items()
        if ".original_module." not in name  # of the base model, where biases are trained
        and not (NAMED_COPY.search(name) and NAMED_COPY.sub("", name) in tensors)
    )


def _as_linear(name: str, tensor: Tensor) -> tuple[str, Tensor]:
    """A factor of an embedding as that of a matrix; all else as it is."""
    for ending, instead in ((EMBEDDING_A, B_SUFFIX), (EMBEDDING_B, A_SUFFIX)):
        if name.endswith(ending):
            return name.removesuffix(ending) + instead, tensor.t()
    return name, tensor


def read_adapter(
    adapter_config: AdapterConfig,
    tensors: Mapping[str, Tensor],
    base: nn.Module,
    model_config: Mapping[str, Any] | None = None,
) -> nn.Module:
    """A base model with an adapter merged into it: B A is added to the matrices.

    tensors: as `read_adapter_tensors` returns them.
    model_config: config.json of the adapted model; None: that of the base model.

    Raises:
        ConfigError: the base model cannot have adapters.
        CheckpointError: the tensors do not fit the model.
    """
    layout = _layout(base)
    complete = {name: t for name, t in tensors.items() if not name.endswith((A_SUFFIX, B_SUFFIX))}
    with SkipInit():
        architecture = _architecture(adapter_config, layout, base)
        with_heads = layout.with_architecture(base, architecture, complete)
    config, published = layout.write(with_heads)
    adapted = AdaptedTensors(layout, base, with_heads, published)
    adapted.replace(complete)
    adapted.add(_updates(tensors), adapter_config.scale)
    config |= _vocabulary(layout, with_heads, published)
    if model_config is None and adapted.untie():
        config["tie_word_embeddings"] = False
    return from_published(model_config or config, published)


def _architecture(config: AdapterConfig, layout: Layout, base: nn.Module) -> str:
    """The architecture that an adapter was trained for; that of the base if no field names one."""
    own = layout.architecture_of(base)
    endings = tuple(ending for ending, word in TASK_TYPES.items() if word == config.task_type)
    if endings:
        names = [layout.family + ending for ending in endings]
        known = [name for name in names if name in layout.known_architectures]
        return own if own in names else (known or names)[0]
    named = (config.auto_mapping or {}).get("base_model_class")
    return named if isinstance(named, str) else own


def _vocabulary(
    layout: Layout, model: nn.Module, published: Mapping[str, Tensor]
) -> dict[str, int]:
    """The field of config.json with the number of tokens, which an adapter may change."""
    for _, ours, theirs in layout.names_of(model).filled(model.state_dict()):
        if ours[0] in ("embedding.weight", "encoder.embedding.weight"):
            return {"vocab_size": published[theirs[0]].size(0)}
    return {}


def _updates(tensors: Mapping[str, Tensor]) -> dict[str, tuple[Tensor | None, Tensor | None]]:
    """The factors A and B by the name of their layer; None where one is missing."""
    layers = (n.removesuffix(A_SUFFIX).removesuffix(B_SUFFIX) for n in tensors if "lora_" in n)
    return {name: (tensors.get(name + A_SUFFIX), tensors.get(name + B_SUFFIX)) for name in layers}
