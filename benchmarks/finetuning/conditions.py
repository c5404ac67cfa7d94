"""The conditions of the comparison: one recipe, the tasks, their files, seeds and measures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """AdamW, a linear schedule, dropout as in the encoder's config; the last weights are scored.

    Weight decay spares biases and norms. `warmup` is a share of all steps.
    """

    learning_rate: float = 5e-5
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.01
    warmup: float = 0.1
    clip: float = 1.0
    batch: int = 32
    max_length: int = 128
    precision: str = "bf16"
    epochs: int = 3


@dataclass(frozen=True)
class Columns:
    """Where a tab-separated file without quoting keeps its texts and its label."""

    texts: tuple[int, ...]
    label: int
    header: bool = False


@dataclass(frozen=True)
class Task:
    """Files under the data folder, or in an archive there: "archive.zip:file".

    `columns` is None for words and tags in CoNLL's shape.

    `labels` is empty for a regression. `rows`: train on the first of a fixed shuffle only.
    """

    train: str
    tests: dict[str, tuple[str, ...]]
    measures: tuple[str, ...]
    columns: Columns | None = None
    labels: tuple[str, ...] = ("0", "1")
    epochs: int = Recipe.epochs
    rows: int | None = None
    seeds: tuple[int, ...] = (1, 2, 3)


QUESTIONS = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
ENTITIES = ("PER", "ORG", "LOC", "MISC")
COLA, STSB, CONLL = "glue/CoLA/raw", "glue/STS-B/original", "conll2003"

TASKS = {
    "mrpc": Task(
        train="glue/MRPC/msr_paraphrase_train.txt",
        tests={"test": ("glue/MRPC/msr_paraphrase_test.txt",)},
        measures=("accuracy", "f1"),
        columns=Columns(texts=(3, 4), label=0, header=True),
    ),
    "rte": Task(
        train="glue/RTE/train.tsv",
        tests={"dev": ("glue/RTE/dev.tsv",)},
        measures=("accuracy",),
        columns=Columns(texts=(0, 1), label=2, header=True),
    ),
    "cola": Task(
        train=f"{COLA}/in_domain_train.tsv",
        tests={"dev": (f"{COLA}/in_domain_dev.tsv", f"{COLA}/out_of_domain_dev.tsv")},
        measures=("matthews",),
        columns=Columns(texts=(3,), label=1),
    ),
    "stsb": Task(
        train=f"{STSB}/sts-train.tsv",
        tests={"dev": (f"{STSB}/sts-dev.tsv",), "test": (f"{STSB}/sts-test.tsv",)},
        measures=("pearson", "spearman"),
        columns=Columns(texts=(5, 6), label=4),
        labels=(),
    ),
    "sst2": Task(
        train="glue/SST-2/sentiment-train",
        tests={"dev": ("glue/SST-2/sentiment-dev",)},
        measures=("accuracy",),
        columns=Columns(texts=(0,), label=1),
        epochs=1,
        rows=20_000,
        seeds=(1,),
    ),
    "trec": Task(
        train="nltk/qc.zip:qc/train.txt",
        tests={"test": ("nltk/qc.zip:qc/test.txt",)},
        measures=("accuracy",),
        columns=Columns(texts=(1,), label=0),
        labels=QUESTIONS,
    ),
    "conll": Task(
        train=f"{CONLL}/eng.train",
        tests={"testa": (f"{CONLL}/eng.testa",), "testb": (f"{CONLL}/eng.testb",)},
        measures=("entity f1",),
        labels=("O", *(f"{prefix}-{kind}" for kind in ENTITIES for prefix in "BI")),
        seeds=(1,),
    ),
}
