"""Batches of a training: real ones, or assumed ones where there is no data.

Where the data exists and is not large, it is read, the tokenizer is trained, and real batches are
counted. Else the vocabulary is the recipe's, or that of the folder that the model is started from;
every sentence has `ASSUMED_TOKENS` tokens, and tasks that read long texts have rows of the maximum
length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from regard.attention.pruning import HasModule
from regard.checkpoints.filling import on_meta
from regard.checkpoints.hub import resolve
from regard.data.bidirectional_streams import BidirectionalBatch
from regard.data.files import split_member
from regard.data.grouped_inputs import GroupBatch
from regard.errors import ConfigError
from regard.experiments.build_model import build_model, build_tokenizer
from regard.experiments.lora import adapt
from regard.experiments.recipe_options import FineTuneSection
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.tasks import task_class
from regard.tasks.auxiliary_lm import AuxiliaryLM
from regard.tasks.batching import device_of
from regard.tasks.encoding import EncoderTask, headed
from regard.text import Tokenizer
from regard.training import Trainable
from regard.training.flops import grids_of, twin

ASSUMED_TOKENS = 30  # tokens of a sentence, both ends included, as in WMT's news
ASSUMED_OUTPUTS = {  # of a new head
    "classification": 2,
    "question-answering": 2,
    "parsing": 100,
    "tagging": 9,
    "crf-tagging": 9,
}
MAX_BYTES = 64 << 20  # of data that is read for an estimate
BATCHES = 4  # real batches that are counted

HasModuleT = TypeVar("HasModuleT", bound=HasModule)


@dataclass(frozen=True)
class TaskSample:
    """A task whose model is on the meta device, and some of its batches.

    batches_per_epoch: None where it is unknown.  vocabulary, how: the vocabulary and the batches,
    described in words.
    """

    task: Trainable
    batches: Sequence[Any]
    batches_per_epoch: int | None
    vocabulary: str
    how: str


class HeadOnly(Trainable):
    """Stands for a task whose data is missing: its passes through encoder and head cost the same.

    head: the kind of the head; "" for a task without one.
    """

    def __init__(self, model: EncoderWithHeads, tokenizer: Tokenizer, head: str, items: str):
        self.module, self.head, self.items = model, head, items
        self.tokenizer = model.encoder.input_tokenizer(tokenizer)
        self.aux_lm: AuxiliaryLM | None = None

    def counts(self, batch: Any) -> dict[str, int]:
        """The counts of the task, in which every token counts as a word."""
        own = int(batch.texts.lengths.sum()) if self.items == "words" else len(batch)
        words = self.aux_lm
        return {"loss": own} | ({} if words is None else {"words": words.count(batch.texts)})

    def losses(self, batch: Any, carry: None = None) -> tuple[dict[str, tuple[Tensor, int]], None]:
        """The outputs of the head instead of their loss, which has no matrix products."""
        texts = self.module.encoder.complete(batch.texts, self.tokenizer)
        texts = texts.to(device_of(self.module))
        hidden = self.module.encoder.encode(texts)
        scores = self.module.heads[self.head](hidden, texts) if self.head else hidden
        found = {"loss": (scores.sum(), len(batch))}
        if self.aux_lm is not None:
            found["words"] = self.aux_lm.loss(hidden, texts)
        return found, None


def with_local_model(recipe: Any) -> Any:
    """The recipe; a model of the hub is replaced by its folder in the cache.

    Raises:
        ConfigError, CheckpointError: it is not on this machine; nothing is downloaded.
    """
    if not isinstance(recipe.model, FineTuneSection):
        return recipe
    path = recipe.model.path
    if "$" in path:
        raise ConfigError(
            f"[model] path: there is no variable for {path[path.index('$') :]}. What a training "
            "costs depends on the model: set it, or give path=FOLDER for another one."
        )
    section = recipe.model.model_copy(update={"path": str(resolve(path, download=False))})
    return recipe.model_copy(update={"model": section})


def read_sample(recipe: Any) -> TaskSample:
    """Real batches where the data exists and is not large, else assumed ones."""
    kind = task_class(recipe.task)
    why = _why_not_read(recipe, kind)
    if why:
        taught = (
            "; the passes of the teacher are not counted" if dict(recipe).get("teacher") else ""
        )
        return _assumed(recipe, kind, why + taught)
    tokenizer = build_tokenizer(recipe)
    model = _model(recipe, tokenizer)
    task = _with_adapters(recipe, kind.from_recipe(recipe, model, tokenizer), model)
    sampler = task.train_batches()
    batches_per_epoch = sampler.batches_per_epoch
    batches = list(islice(sampler, min(BATCHES, batches_per_epoch)))
    how = f"{shape_of(batches[0])}; mean of {len(batches)} of {batches_per_epoch:,} an epoch"
    vocabulary = f"{tokenizer.vocab_size:,} tokens, {_origin(recipe)}"
    return TaskSample(task, batches, batches_per_epoch, vocabulary, how)


def _with_adapters(recipe: Any, task: HasModuleT, model: nn.Module) -> HasModuleT:
    """The task, its model with the adapters that the recipe asks for; `model` is without a head."""
    if isinstance(recipe.model, FineTuneSection):
        adapt(task, recipe.model.lora, model)
    return task


def _why_not_read(recipe: Any, kind: Any) -> str:
    """Why the data is not read; "" where it is."""
    files = [split_member(file)[0] for file in recipe.data.files()]
    missing = next((str(file) for file in files if not file.exists()), "")
    if "$" in missing:
        return f"there is no variable for {missing[missing.index('$') :]}"
    if missing:
        return f"{missing} is not there"
    size = sum(split_member(file)[0].stat().st_size for file in recipe.data.files_of_examples())
    return f"{size / 1e6:,.0f} MB of data are not read for an estimate" if size > MAX_BYTES else ""


def _model(recipe: Any, tokenizer: Any) -> Any:
    """The recipe's model on the meta device."""
    if isinstance(recipe.model, FineTuneSection):
        return twin(build_model(recipe.model, tokenizer), "meta")
    with on_meta():
        model = build_model(recipe.model, tokenizer)
    return model.to("meta")  # tables made by numpy are still on the CPU


def _origin(recipe: Any) -> str:
    if recipe.tokenizer is None:
        return "of the model's folder"
    return "trained on the data" if recipe.tokenizer.path is None else "as its file says"


def _assumed(recipe: Any, kind: Any, why: str) -> TaskSample:
    tokenizer, vocabulary = _assumed_tokenizer(recipe)
    model = _model(recipe, tokenizer)
    kind.check_length(recipe, limit := model.config.max_length)
    if not issubclass(kind, EncoderTask):
        words = min(ASSUMED_TOKENS, limit or ASSUMED_TOKENS)
        batch = kind.example(recipe, words)
        how = f"{shape_of(batch)}; sentences of {words} tokens are assumed: {why}"
        task = _with_adapters(recipe, kind(model, tokenizer), model)
        return TaskSample(task, [batch], None, vocabulary, how)
    model = headed(model)
    if (whole := kind.without_data(recipe, model, tokenizer)) is not None:
        batch = kind.example(_with_rows_within(recipe, model.config.max_length), ASSUMED_TOKENS)
        how = f"{shape_of(batch)}; full rows are assumed: {why}"
        return TaskSample(_with_adapters(recipe, whole, model), [batch], None, vocabulary, how)
    own, new = model.outputs().get(kind.head), ASSUMED_OUTPUTS.get(kind.name)
    outputs = 1 if new is None else own or new
    body = model.with_head(kind.head, outputs) if kind.head else model
    task = HeadOnly(body, tokenizer, kind.head, kind.items)
    _with_adapters(recipe, task, model)
    weight = getattr(getattr(recipe, "objective", None), "aux_lm_weight", 0.0)
    task.aux_lm = AuxiliaryLM.of(task.module, weight)
    batch = kind.example(_with_rows_within(recipe, model.config.max_length), ASSUMED_TOKENS)
    head = f"a head of {outputs:,} output{'s' * (outputs > 1)}" if kind.head else "no head"
    rows = f"rows of {batch.texts.ids.size(1)} tokens"
    how = f"{shape_of(batch)}; {rows} and {head} are assumed: {why}"
    return TaskSample(task, [batch], None, vocabulary, how)


def _assumed_tokenizer(recipe: Any) -> tuple[Tokenizer, str]:
    """A tokenizer with as many tokens as the recipe's, and a description."""
    section = recipe.tokenizer
    if section is None or (section.path is not None and section.path.exists()):
        tokenizer = build_tokenizer(recipe)
        return tokenizer, f"{tokenizer.vocab_size:,} tokens, {_origin(recipe)}"
    words = section.model_copy(update={"kind": "words", "path": None})
    made = words.build(lambda: (f"w{number}" for number in range(section.vocab_size)))
    why = "as the recipe says" if section.path is None else f"assumed: {section.path} is not there"
    return made, f"{made.vocab_size:,} tokens, {why}"


def _with_rows_within(recipe: Any, limit: int | None) -> Any:
    """The recipe with `max_length` of [data] within the limit of the model."""
    most = min(recipe.data.max_length, limit or recipe.data.max_length)
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"max_length": most})})


# ------------------------------------------------------------------------------- batches


def first_rows(value: Any, rows: int) -> Any:
    """The first rows of a batch; of a batch of groups, those of its first examples; of a batch in
    both directions, those of each direction.
    """
    if isinstance(value, GroupBatch):
        texts = first_rows(value.texts, int(value.sizes[:rows].sum()))
        return GroupBatch(texts, value.sizes[:rows], value.numbers[:rows])
    if isinstance(value, BidirectionalBatch):
        forward, backward = torch.arange(len(value) * 2).chunk(2)
        kept = torch.cat([forward[:rows], backward[:rows]])
        restarts = first_rows(value.restarts, rows)
        tokens = value.tokens.select(kept)
        return BidirectionalBatch(tokens, value.targets[kept], value.fresh, restarts)
    if isinstance(value, Tensor):
        return value[:rows]
    if isinstance(value, Mapping):
        return {name: first_rows(one, rows) for name, one in value.items()}
    if not is_dataclass(value):
        return value
    cut = {f.name: first_rows(getattr(value, f.name), rows) for f in fields(value)}
    return replace(value, **cut)  # type: ignore[type-var]


def shape_of(batch: Any) -> str:
    """(833, 30) and (833, 30) tokens"""
    grids = [str(tuple(grid.shape)) for grid in grids_of(batch)]
    return " and ".join(dict.fromkeys(grids)) + " tokens"
