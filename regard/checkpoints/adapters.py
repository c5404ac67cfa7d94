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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from regard.attention.pruning import pruned_heads
from regard.checkpoints.filling import Problems, SkipInit, Weights, check_finite
from regard.checkpoints.formats import LAYOUTS, from_published, layout_for
from regard.checkpoints.names import NameRow
from regard.checkpoints.store import read_pickled, read_tensors, write_tensors
from regard.errors import ConfigError
from regard.file_writing import write_text
from regard.layers.linear import Linear, LowRankUpdate
from regard.layers.quantized import QuantizedMatrix
from regard.models import described
from regard.models.conversions import adapted_layers, freeze_base, insert_updates, merged
from regard.schema import Fields, read_json
from regard.suggest import nearest

if TYPE_CHECKING:
    from regard.checkpoints.formats import Layout

CONFIG, WEIGHTS, PICKLED = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
NAME_PREFIX = "base_model.model."  # of every tensor's name
A_SUFFIX, B_SUFFIX = ".lora_A.weight", ".lora_B.weight"
# parts of tensor names that name a module of `peft` around the adapted one
WRAPPER_PARTS = re.compile(r"\.(base_layer|modules_to_save)(?=\.)")
# the same and the name of the adapter: a second copy of a bias, where all biases are trained
NAMED_COPY = re.compile(r"\.modules_to_save\.[^.]+(?=\.)")
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


class AdapterFields(Fields):
    """The fields of adapter_config.json that are read."""

    peft_type: Literal["LORA"]
    base_model_name_or_path: Annotated[str, Field(min_length=1)]
    revision: str | None = None
    task_type: str | None = None
    auto_mapping: dict[str, Any] | None = None
    r: int = 8
    lora_alpha: int | float = 8
    use_rslora: bool = False
    alpha_pattern: Annotated[dict[str, Any], Field(max_length=0)] | None = None
    # those that leave the base's weights as they are
    init_lora_weights: Literal[True, False, "gaussian", "orthogonal", "eva"] = True

    def scale(self, rank: int) -> float:
        """What B A of this rank is multiplied by."""
        return self.lora_alpha / (math.sqrt(rank) if self.use_rslora else rank)

    @property
    def base(self) -> str:
        """The folder, or the name on the hub, of the model to which the adapter belongs."""
        name = self.base_model_name_or_path
        return f"{name}@{self.revision}" if self.revision else name


# Fields that do not change the result: they act only in training, describe, or their effect is in
# the tensors. Any other field that is set is an error.
WITHOUT_EFFECT = {
    *("target_modules", "exclude_modules", "layers_to_transform", "rank_pattern"),
    *("inference_mode", "peft_version", "lora_dropout"),
    *("layers_pattern", "modules_to_save", "fan_in_fan_out", "bias", "loftq_config"),
    *("eva_config", "corda_config", "lora_ga_config", "ensure_weight_tying"),
    *("megatron_config", "megatron_core", "runtime_config", "qalora_group_size"),
}


# ----------------------------------------------------------------------------------- adding


def add_adapters(
    model: nn.Module, options: AdapterOptions, also_trained: Iterable[nn.Parameter] = ()
) -> None:
    """Add adapters to a model, in place: they and its heads are trained, all else is frozen.

    also_trained: further parameters that are trained.

    Raises:
        ConfigError: the model is not a Transformer, is quantized or pruned, or has no layer that
            `targets` names.
    """
    layout = _layout(model)
    updates: dict[str, dict[str, LowRankUpdate]] = defaultdict(dict)
    for projection in _targeted(projections_of(layout, model), options.targets or layout.adapted):
        updates[projection.layer][projection.label] = LowRankUpdate(
            model.get_submodule(projection.layer).weight,  # type: ignore[arg-type]
            projection.rows,
            options.rank,
            scale=options.alpha / options.rank,
            dropout=options.dropout,
        )
    insert_updates(model, updates)
    freeze_base(model)
    for parameter in also_trained:
        parameter.requires_grad_()


def _layout(model: nn.Module) -> Layout:
    """The published layout of a model that can have adapters.

    Raises:
        ConfigError: the model cannot have adapters.
    """
    layout = layout_for(model)
    quantized = any(isinstance(part, QuantizedMatrix) for part in model.modules())
    if layout is None or quantized or pruned_heads(model):
        raise ConfigError(
            f"Low-rank adapters cannot be added to {described(model)}: only to Transformers that "
            f"`transformers` has too ({', '.join(LAYOUTS)}), with all heads and with weights that "
            "are not quantized."
        )
    return layout


def _targeted(found: Sequence[Projection], targets: Sequence[str]) -> list[Projection]:
    """The projections that `targets` names.

    Raises:
        ConfigError: a target names no projection.
    """
    for target in targets:
        if target != ALL_LINEAR and not any(_is_named(projection, target) for projection in found):
            labels = list(dict.fromkeys(projection.label for projection in found))
            hint = f"It has {', '.join(labels)}. {nearest(target, labels)}"
            raise ConfigError(f"`targets`: the model has no linear layer {target!r}. {hint}")
    return [
        projection
        for projection in found
        if any(t == ALL_LINEAR or _is_named(projection, t) for t in targets)
    ]


def _is_named(projection: Projection, target: str) -> bool:
    return projection.name == target or projection.name.endswith(f".{target}")


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
    config = _config(layout, plain, options, [projection for projection, _ in chosen])
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
        "target_modules": [projection.name for projection in chosen]
        if ALL_LINEAR in targets
        else list(targets),
        "fan_in_fan_out": any(projection.transposed for projection in chosen),
        "bias": "none",
        "inference_mode": True,
    }


# ----------------------------------------------------------------------------------- reading


def holds_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter."""
    return (folder / CONFIG).exists()


def read_adapter_config(folder: Path) -> AdapterFields:
    """adapter_config.json of a folder.

    Raises:
        ConfigError: the file is damaged, describes another kind of adapter, or sets a field that is
            not supported.
    """
    where = folder / CONFIG
    config: AdapterFields = read_json(where, AdapterFields, error=ConfigError)
    for name, value in (config.model_extra or {}).items():
        if name not in WITHOUT_EFFECT and value not in (None, False, [], {}, ""):
            raise ConfigError(f"{where}: `{name}` is {value!r:.80}, which is not supported.")
    return config


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
    return {
        WRAPPER_PARTS.sub("", name.removeprefix(NAME_PREFIX)): tensor
        for name, tensor in tensors.items()
        if ".original_module." not in name  # of the base model, where biases are trained
        and not (NAMED_COPY.search(name) and NAMED_COPY.sub("", name) in tensors)
    }


def read_adapter(
    adapter_config: AdapterFields,
    tensors: Weights,
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
    layout, problems = _layout(base), Problems("the adapter does not fit its base model")
    complete = {name: t for name, t in tensors.items() if not name.endswith((A_SUFFIX, B_SUFFIX))}
    with SkipInit():
        architecture = _architecture(adapter_config, layout, base)
        model = layout.with_architecture(base, architecture, complete)
    config, published = layout.write(model)
    # Files may leave out the prefix of the layout.
    names = {name.removeprefix(layout.prefix): name for name in published}
    of_base = {name.removeprefix(layout.prefix) for name in layout.write(base)[1]}
    complete = {name.removeprefix(layout.prefix): tensor for name, tensor in complete.items()}
    problems.add("extra", *(name for name in complete if name not in names.keys() | of_base))
    problems.add("missing", *(n for n in names if n not in of_base and n not in complete))
    published |= {names[name]: tensor for name, tensor in complete.items() if name in names}
    changed = {names[name] for name in complete if name in names}
    transposed = {
        projection.name for projection in projections_of(layout, model) if projection.transposed
    }
    factors = (name for name in tensors if name.endswith((A_SUFFIX, B_SUFFIX)))
    for layer in dict.fromkeys(n.removesuffix(A_SUFFIX).removesuffix(B_SUFFIX) for n in factors):
        a, b = tensors.get(layer + A_SUFFIX), tensors.get(layer + B_SUFFIX)
        bare = f"{layer.removeprefix(layout.prefix)}.weight"
        if bare not in names:
            problems.add("extra", *([] if bare in of_base else [layer]))
        elif a is None or b is None or a.dim() != 2 or b.shape[1:] != a.shape[:1]:
            problems.add("without matrices A and B of one rank", layer)
        else:
            name = names[bare]
            delta = adapter_config.scale(a.size(0)) * (b.float() @ a.float())
            delta = delta.t() if name.removesuffix(".weight") in transposed else delta
            problems.add_shape(layer, delta, published[name])
            if delta.shape == published[name].shape:
                published[name] = published[name] + delta
                changed.add(name)
    # `peft` changes a copy, of which what was tied to it knows nothing.
    tied = {*layout.names_of(model).duplicates.values()} if model_config is None else set()
    problems.add("tied to another tensor, which the adapter does not have", *(changed & tied))
    problems.raise_any()
    return from_published(model_config or config, published)


def _architecture(config: AdapterFields, layout: Layout, base: nn.Module) -> str:
    """The architecture that an adapter was trained for; that of the base if no field names one."""
    of_base = layout.architecture_of(base)
    endings = tuple(ending for ending, word in TASK_TYPES.items() if word == config.task_type)
    if endings:
        names = [layout.family + ending for ending in endings]
        readable = [name for name in names if name in layout.known_architectures]
        return of_base if of_base in names else (readable or names)[0]
    named = (config.auto_mapping or {}).get("base_model_class")
    return named if isinstance(named, str) else of_base


# ------------------------------------------------------------------------------- projections
# A packed matrix of this library holds several published ones, and the published Transformer has
# its dimensions in another order. Both follow from the table of names: its transforms are applied
# to the indices of a matrix.


@dataclass(frozen=True)
class Projection:
    """A linear layer under its published name.

    layer: the name of our layer that computes it, in a packed layer together with others.
    outputs: (N,), for each of its outputs the row of our matrix.
    inputs: (K,), for each of its inputs the column of our matrix.
    transposed: whether its matrix is published as (in, out), like that of GPT-2's Conv1D.
    """

    name: str
    layer: str
    outputs: Tensor
    inputs: Tensor
    transposed: bool

    @property
    def rows(self) -> slice:
        """The rows of our matrix that compute its outputs."""
        first = int(self.outputs.min())
        return slice(first, first + len(self.outputs))

    @property
    def label(self) -> str:
        """The last part of its name, such as "query"."""
        return self.name.rpartition(".")[2]

    def to_published(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Factors A (r, K) and B (N, r) in the order of the published matrix."""
        outputs = self.outputs - self.rows.start
        return a[:, self.inputs.to(a.device)], b[outputs.to(b.device)]


def projections_of(layout: Layout, model: nn.Module) -> list[Projection]:
    """The linear layers of a model without those of its heads."""
    tensors = model.state_dict()
    return [
        projection
        for row, ours, theirs in layout.names_of(model).filled(tensors)
        if _is_linear(model, ours)
        for projection in _of_row(row, ours[0], theirs, tensors)
    ]


def _is_linear(model: nn.Module, ours: tuple[str, ...]) -> bool:
    layer, _, kind = ours[0].rpartition(".")
    weight = len(ours) == 1 and kind == "weight" and not layer.startswith("heads.")
    return weight and isinstance(model.get_submodule(layer), Linear)


def _of_row(
    row: NameRow, ours: str, theirs: tuple[str, ...], tensors: Weights
) -> Iterator[Projection]:
    outputs, inputs = tensors[ours].shape
    numbers = torch.arange(max(outputs, inputs))
    by_row = row.transform.write([numbers[:outputs, None].expand(outputs, inputs)])
    by_column = row.transform.write([numbers[:inputs].expand(outputs, inputs)])
    for name, of_row, of_column in zip(theirs, by_row, by_column, strict=True):
        transposed = bool((of_row[0] != of_row[0, 0]).any())  # their rows are inputs
        if transposed:
            of_row, of_column = of_row.t(), of_column.t()
        layer, their = ours.removesuffix(".weight"), name.removesuffix(".weight")
        yield Projection(their, layer, of_row[:, 0].clone(), of_column[0].clone(), transposed)
