"""What the batches of a training look like: real ones, or what is assumed where there is no data.

Where the data is there and not large, it is read, the tokenizer learned, and real batches counted.
Else the vocabulary is the recipe's, or that of the folder that the model is started from; every
sentence has `ASSUMED_WORDS` tokens, and tasks that read long texts have rows as long as they may
be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from regard.checkpoints.hub import resolve
from regard.data.files import split_member
from regard.data.grouped_inputs import GroupBatch
from regard.errors import ConfigError
from regard.experiments.runs import Started, build_model, build_tokenizer
from regard.models.headed import Headed
from regard.tasks import task_class
from regard.tasks.batching import device_of
from regard.tasks.encoding import EncoderTask, NextWords, headed
from regard.training.flops import twin

ASSUMED_WORDS = 30  # tokens of a sentence, both ends included, as in WMT's news
ASSUMED_ANSWERS = {"classification": 2, "tagging": 9, "question-answering": 2}  # of a new head
LARGEST = 64 << 20  # bytes of data that are read for an estimate
BATCHES = 4  # real batches that are counted


@dataclass(frozen=True)
class Sample:
    """A task whose model is on the meta device, some of its batches, how many an epoch has, and how
    vocabulary and batches are known.
    """

    task: Any
    batches: Sequence[Any]
    an_epoch: int | None
    vocabulary: str
    how: str


class Bare:
    """A task on an encoder of which the data is not known: passes through the encoder and a head
    cost what they do in the real task.
    """

    def __init__(self, model: Headed, head: str, items: str):
        self.model, self.head, self.items = model, head, items
        self.next_words: NextWords | None = None

    def counts(self, batch: Any) -> dict[str, int]:
        """As the task's; every token counts as a word."""
        own = int(batch.texts.lengths.sum()) if self.items == "words" else len(batch)
        words = self.next_words
        return {"loss": own} | ({} if words is None else {"words": words.count(batch.texts)})

    def losses(self, batch: Any, carry: None = None) -> tuple[dict[str, tuple[Tensor, int]], None]:
        """The scores of the head in place of their loss, which has no products."""
        texts = batch.texts.to(device_of(self.model))
        hidden = self.model.encoder.encode(texts)
        found = {"loss": (self.model.heads[self.head](hidden, texts).sum(), len(batch))}
        if self.next_words is not None:
            found["words"] = self.next_words.loss(hidden, texts)
        return found, None


def with_local_model(recipe: Any) -> Any:
    """The recipe, where its model is started from one of the hub with the folder in the cache.

    Raises:
        ConfigError, CheckpointError: the model is not here; the hub is not asked.
    """
    if not isinstance(recipe.model, Started):
        return recipe
    path = recipe.model.path
    if "$" in path:
        raise ConfigError(
            f"[model] path: there is no variable for {path[path.index('$') :]}. What a training "
            "costs depends on the model: set it, or say path=FOLDER for another one."
        )
    section = recipe.model.model_copy(update={"path": str(resolve(path, download=False))})
    return recipe.model_copy(update={"model": section})


def read_sample(recipe: Any) -> Sample:
    """Real batches where the data is there and not large, assumed ones elsewhere."""
    kind = task_class(recipe.task)
    why = _why_not(recipe, kind)
    if why:
        return _assumed(recipe, kind, why)
    tokenizer = build_tokenizer(recipe)
    task = kind.from_recipe(recipe, _model(recipe, tokenizer), tokenizer)
    cursor = task.train_batches()
    batches = list(islice(cursor, min(BATCHES, cursor.batches_per_epoch)))
    how = f"{shape_of(batches[0])}; mean of {len(batches)} of {cursor.batches_per_epoch:,} an epoch"
    vocabulary = f"{tokenizer.vocab_size:,} pieces, {_origin(recipe)}"
    return Sample(task, batches, cursor.batches_per_epoch, vocabulary, how)


def _why_not(recipe: Any, kind: Any) -> str:
    """Why the data is not read; nothing where it can be."""
    places = [split_member(str(path))[0] for path in _paths(vars(recipe.data).values())]
    missing = next((str(place) for place in places if not place.exists()), "")
    if "$" in missing:
        return f"there is no variable for {missing[missing.index('$') :]}"
    if missing:
        return f"{missing} is not there"
    size = sum(split_member(file)[0].stat().st_size for file in kind.files(recipe))
    return f"{size / 1e6:,.0f} MB of data are not read for an estimate" if size > LARGEST else ""


def _paths(values: Any) -> Iterator[Path]:
    for value in values:
        if isinstance(value, Path):
            yield value
        elif isinstance(value, list | tuple):
            yield from _paths(value)


def _model(recipe: Any, tokenizer: Any) -> Any:
    """The recipe's model on the meta device."""
    if isinstance(recipe.model, Started):
        return twin(build_model(recipe.model, tokenizer), "meta")
    with torch.device("meta"):
        return build_model(recipe.model, tokenizer)


def _origin(recipe: Any) -> str:
    if recipe.tokenizer is None:
        return "those of the model's folder"
    return "learned from the data" if recipe.tokenizer.path is None else "as its file says"


def _assumed(recipe: Any, kind: Any, why: str) -> Sample:
    tokenizer, vocabulary = _assumed_tokenizer(recipe)
    model = _model(recipe, tokenizer)
    if not issubclass(kind, EncoderTask):
        batch = kind.example(recipe, ASSUMED_WORDS)
        how = f"{shape_of(batch)}; sentences of {ASSUMED_WORDS} tokens are assumed: {why}"
        return Sample(kind(model, None), [batch], None, vocabulary, how)
    model = headed(model)
    own, new = model.outputs().get(kind.head), ASSUMED_ANSWERS.get(kind.name)
    answers = 1 if new is None else own or new
    task = Bare(model.with_head(kind.head, answers), kind.head, kind.items)
    weight = getattr(getattr(recipe, "objective", None), "aux_lm_weight", 0.0)
    task.next_words = NextWords.of(task.model, weight)
    batch = kind.example(_within(recipe, model.config.max_length), ASSUMED_WORDS)
    plural = "s" * (answers > 1)
    told = f"rows of {batch.texts.ids.size(1)} tokens and a head of {answers:,} answer{plural}"
    how = f"{shape_of(batch)}; {told} are assumed: {why}"
    return Sample(task, [batch], None, vocabulary, how)


def _assumed_tokenizer(recipe: Any) -> tuple[Any, str]:
    """What a model needs to know of a tokenizer, and how that is known."""
    section = recipe.tokenizer
    if section is None or (section.path is not None and section.path.exists()):
        tokenizer = build_tokenizer(recipe)
        return tokenizer, f"{tokenizer.vocab_size:,} pieces, {_origin(recipe)}"
    known = SimpleNamespace(vocab_size=section.vocab_size, pad_id=0, bos_id=1, eos_id=2)
    return known, f"{section.vocab_size:,} pieces, as the recipe says"


def _within(recipe: Any, limit: int | None) -> Any:
    """The recipe with rows that are no longer than the model reads."""
    most = min(recipe.data.max_length, limit or recipe.data.max_length)
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"max_length": most})})


# ------------------------------------------------------------------------------- batches


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors in a batch, in the order of its fields."""
    if isinstance(value, Tensor):
        return [value]
    parts = [getattr(value, f.name) for f in fields(value)] if is_dataclass(value) else []
    return [tensor for part in parts for tensor in tensors_of(part)]


def first_rows(value: Any, rows: int) -> Any:
    """A batch with its first rows alone, or its first examples with all of their rows."""
    if isinstance(value, GroupBatch):
        texts = first_rows(value.texts, int(value.sizes[:rows].sum()))
        return GroupBatch(texts, value.sizes[:rows], value.numbers[:rows])
    if isinstance(value, Tensor):
        return value[:rows]
    if not is_dataclass(value):
        return value
    cut = {f.name: first_rows(getattr(value, f.name), rows) for f in fields(value)}
    return replace(value, **cut)  # type: ignore[type-var]


def shape_of(batch: Any) -> str:
    """(833, 30) and (833, 30) tokens"""
    grids = [str(tuple(tensor.shape)) for tensor in tensors_of(batch) if tensor.dim() > 1]
    return " and ".join(dict.fromkeys(grids)) + " tokens"
