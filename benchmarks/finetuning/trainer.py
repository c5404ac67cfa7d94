"""The side of `transformers`: Auto classes and the Trainer with its usual settings."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import accelerate
import torch
import transformers
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from benchmarks.finetuning.conditions import Recipe, Task
from benchmarks.finetuning.rows import Row

IGNORED = -100


class Side:
    """An encoder with a new head for a task: `encode`, then `train`, then `predict`."""

    versions = {each.__name__: each.__version__ for each in (torch, transformers, accelerate)}

    def __init__(self, task: Task, recipe: Recipe, seed: int, encoder: Path) -> None:
        transformers.set_seed(seed)
        self.task, self.recipe, self.seed = task, recipe, seed
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(encoder)
        self.tagging = task.columns is None
        kind = (
            AutoModelForTokenClassification if self.tagging else AutoModelForSequenceClassification
        )
        collator = (
            transformers.DataCollatorForTokenClassification
            if self.tagging
            else transformers.DataCollatorWithPadding
        )
        self.collator = collator(self.tokenizer)
        self.model = kind.from_pretrained(encoder, **self._labels())
        self.rows: list[dict[str, Any]] = []

    def _labels(self) -> dict[str, Any]:
        if not self.task.labels:
            return {"num_labels": 1, "problem_type": "regression"}
        names = dict(enumerate(self.task.labels))
        return {"id2label": names, "label2id": {name: id for id, name in names.items()}}

    def encode(self, rows: list[Row]) -> int:
        """Prepare the rows to train on; the number of tokens they have, padding not counted."""
        self.rows, _ = self._encode(rows)
        return sum(len(row["input_ids"]) for row in self.rows)

    def _encode(self, rows: list[Row]) -> tuple[list[dict[str, Any]], list[dict[int, int]]]:
        """What the model takes; and of each sentence, where a word's first piece stands."""
        texts = [[list(row.texts) for row in rows]]
        if not self.tagging:
            texts = [list(column) for column in zip(*(row.texts for row in rows), strict=True)]
        encoded = self.tokenizer(
            *texts,
            is_split_into_words=self.tagging,
            truncation=True,
            max_length=self.recipe.max_length,
        )
        firsts = [_firsts(encoded.word_ids(n)) if self.tagging else {} for n in range(len(rows))]
        given = [
            {**{name: values[n] for name, values in encoded.items()}, "labels": labels}
            for n, labels in enumerate(map(self._targets, rows, encoded["input_ids"], firsts))
        ]
        return given, firsts

    def _targets(self, row: Row, ids: list[int], firsts: dict[int, int]) -> Any:
        names = self.task.labels
        if not isinstance(row.label, list):
            return names.index(str(row.label)) if names else row.label
        found = [IGNORED] * len(ids)
        for word, position in firsts.items():
            found[position] = names.index(row.label[word])
        return found

    def _trainer(self, folder: str) -> transformers.Trainer:
        recipe = self.recipe
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            learning_rate=recipe.learning_rate,
            adam_beta1=recipe.betas[0],
            adam_beta2=recipe.betas[1],
            adam_epsilon=recipe.epsilon,
            weight_decay=recipe.weight_decay,
            lr_scheduler_type="linear",
            warmup_steps=recipe.warmup,  # below one it is a share of the steps
            max_grad_norm=recipe.clip,
            per_device_train_batch_size=recipe.batch,
            per_device_eval_batch_size=recipe.batch,
            num_train_epochs=recipe.epochs,
            bf16=recipe.precision == "bf16",
            use_cpu=True,
            seed=self.seed,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        return transformers.Trainer(
            self.model, arguments, train_dataset=self.rows, data_collator=self.collator
        )

    def train(self) -> None:
        """All epochs."""
        with tempfile.TemporaryDirectory() as folder:
            self._trainer(folder).train()

    def predict(self, rows: list[Row]) -> tuple[list[Any], int]:
        """Class names, numbers, or tags of each word; and how many words were not seen.

        A word that was cut off, or has no piece, is taken to be outside of any entity.
        """
        given, firsts = self._encode(rows)
        with tempfile.TemporaryDirectory() as folder:
            logits: Any = self._trainer(folder).predict(given).predictions  # type: ignore[arg-type]
        if not self.task.labels:
            return logits[:, 0].tolist(), 0
        best = logits.argmax(-1)
        names = self.task.labels
        if not self.tagging:
            return [names[id] for id in best], 0
        found = [
            [names[ids[at[word]]] if word in at else "O" for word in range(len(row.texts))]
            for row, ids, at in zip(rows, best, firsts, strict=True)
        ]
        return found, sum(map(len, found)) - sum(map(len, firsts))


def _firsts(words: list[int | None]) -> dict[int, int]:
    found: dict[int, int] = {}
    for position, word in enumerate(words):
        if word is not None:
            found.setdefault(word, position)
    return found
