"""Sentence vectors from pairs: MiniLM on questions with their paragraphs, and on scored sentences,
beside sentence-transformers' trainer.

A turn goes from a folder to a folder: the weights are read, texts tokenized, an epoch trained, the
model written (and our checkpoint). Both have the same pairs, seeds, updates and options. The scores
are those of the turns before, each with another seed.
"""

from __future__ import annotations

import csv
import json
import random
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.measure import Work
from benchmarks.options import Options
from benchmarks.workers import Condition

RATE, LENGTH = 5e-5, 128
SIDES = {
    "regard bfloat16": ("Ours", {"precision": "bfloat16"}),
    "sentence-transformers bfloat16": ("Theirs", {"precision": "bfloat16"}),
    "sentence-transformers float32": ("Theirs", {"precision": "float32"}),
}
GOALS = {name: 1.8 for name, (kind, _) in SIDES.items() if kind == "Theirs"}
NAMES = {
    "squad": ("questions and paragraphs", "multiple-negatives-ranking", "MRR@10", 64),
    "stsb": ("scored sentences", "cosent", "Spearman correlation", 32),
}


def works(options: Options) -> Iterator[Work]:
    """SQuAD's questions with their paragraphs, in-batch negatives; STS-B by CoSENT."""
    count = 64 if options.quick else 1024
    for data, (name, loss, score, size) in NAMES.items():
        parts = ("squad",) if data == "squad" else ("glue", "STS-B")
        if not options.file(*parts) or not options.encoder:
            continue
        given = {
            "data": str(options.data),
            "kind": data,
            "encoder": str(options.encoder),
            "count": count,
            "size": size,
        }
        yield Work(
            f"sentence vectors, {name}",
            "pairs/s",
            count,
            [
                Condition(
                    side,
                    f"{__name__}:{kind}",
                    given | settings,
                    ("sentence_transformers", "datasets", "accelerate") if kind == "Theirs" else (),
                )
                for side, (kind, settings) in SIDES.items()
            ],
            GOALS,
            judge=lambda results, score=score: {
                side: f"{score} {' '.join(f'{value:.4f}' for value in values)}"
                for side, values in results.items()
            },
            note=f"MiniLM, {loss}, an epoch of {count:,} pairs, batches of {size}, up to {LENGTH} "
            "tokens; with reading and writing the model; a score for each seed",
        )


def rows(data: Path, kind: str) -> tuple[list[Any], list[Any]]:
    """Pairs or scored pairs for training, in random order, and others for scoring."""
    if kind == "stsb":
        parts = []
        for part in ("train", "test"):
            path = data / "glue" / "STS-B" / "original" / f"sts-{part}.tsv"
            with path.open(encoding="utf-8") as file:
                fields = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
                parts.append([(row[5], row[6], float(row[4])) for row in fields])
        training, scored = parts
    else:
        path = data / "squad" / "dev-v1.1.reconstructed.json"
        articles = json.loads(path.read_text(encoding="utf-8"))["data"]
        of_article = [
            [
                (question["question"], paragraph["context"])
                for paragraph in article["paragraphs"]
                for question in paragraph["qas"]
            ]
            for article in articles
        ]
        training = [pair for pairs in of_article[5:] for pair in pairs]
        scored = [pair for pairs in of_article[:5] for pair in pairs]
    random.Random(1).shuffle(training)
    return training, random.Random(1).sample(scored, min(len(scored), 1000))


class Side:
    """What both have: the pairs, a seed for each turn, and the scores of the turns before."""

    def __init__(
        self,
        data: str,
        kind: str,
        encoder: str,
        count: int,
        size: int,
        precision: str,
        threads: int,
    ):
        import torch

        torch.set_num_threads(threads)
        warnings.simplefilter("ignore")
        training, self.scored = rows(Path(data), kind)
        self.training, self.kind, self.encoder, self.size = training[:count], kind, encoder, size
        self.precision, self.seed, self.scores = precision, 0, list[float]()
        self.folder = Path(tempfile.mkdtemp())

    def ready(self) -> None:
        """The score of the turn before, and the seed of the next one."""
        import regard

        if self.seed:
            trained = regard.load(self.folder / str(self.seed))
            self.scores.append(regard.evaluate(trained, self.scored)[NAMES[self.kind][2]])
        self.seed += 1

    def turn(self) -> list[float]:
        """Train; the scores of the turns before."""
        self.train(self.folder / str(self.seed))
        return self.scores

    def train(self, out: Path) -> None:
        """Read the encoder, train it and write it into the folder `out`."""


class Ours(Side):
    """`regard.train`."""

    def train(self, out: Path) -> None:
        import regard

        regard.train(
            task="embedding",
            model=self.encoder,
            train=self.training,
            epochs=1,
            batch_size=self.size,
            max_length=LENGTH,
            learning_rate=RATE,
            weight_decay=0.0,
            warmup=0.1,
            schedule="linear",
            precision=self.precision,
            seed=self.seed,
            out=out,
            progress=False,
        )


class Theirs(Side):
    """`SentenceTransformerTrainer`, no text twice in a batch of pairs."""

    def train(self, out: Path) -> None:
        import datasets
        from sentence_transformers import (
            SentenceTransformer,
            SentenceTransformerTrainer,
            SentenceTransformerTrainingArguments,
        )
        from sentence_transformers.sentence_transformer import losses

        datasets.disable_progress_bars()
        model = SentenceTransformer(self.encoder, device="cpu")
        model.max_seq_length = LENGTH
        scored = self.kind == "stsb"
        names = ["anchor", "positive", *(["score"] if scored else [])]
        columns = dict(zip(names, map(list, zip(*self.training, strict=True)), strict=True))
        loss = (losses.CoSENTLoss if scored else losses.MultipleNegativesRankingLoss)(model)
        options = SentenceTransformerTrainingArguments(
            output_dir=str(out),
            num_train_epochs=1,
            per_device_train_batch_size=self.size,
            learning_rate=RATE,
            warmup_steps=0.1,
            lr_scheduler_type="linear",
            bf16=self.precision == "bfloat16",
            use_cpu=True,
            seed=self.seed,
            batch_sampler="batch_sampler" if scored else "no_duplicates",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            logging_strategy="no",
        )
        SentenceTransformerTrainer(
            model=model, args=options, train_dataset=datasets.Dataset.from_dict(columns), loss=loss
        ).train()
        model.save(str(out))
