"""Distillation: losses beside `transformers`, students, and teachers that do not fit.

Tests of `regard.tasks.embedding` and `regard.tasks.classification`, too.
"""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import every_task
import numpy as np
import pytest
import torch
from recipe_files import planned
from tiny_folders import TEXT, folder, transformers
from torch.nn import functional as F

import regard
from regard.data.batches import IGNORE, Sequences
from regard.errors import ConfigError
from regard.experiments import runs
from regard.models.bert import Bert, BertConfig
from regard.models.conversions import keep_layers
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.tasks.encoder_training import Teacher, headed, soft_loss

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
VECTORS = dict(
    task="embedding",
    model=dict(path="teacher", layers=[1]),
    teacher=dict(path="teacher"),
    data=dict(train="texts.txt", valid=0.2, batch_size=8, max_length=12),
    training=dict(
        max_steps=6,
        checkpoints=dict(save_steps=2),
        schedule=dict(name="constant"),
        optimizer=dict(learning_rate=0.01),
    ),
)
MASKED = dict(
    task="masked-language-modeling",
    model=dict(path="student"),
    teacher=dict(path="teacher", temperature=3.0, soft_weight=0.7, cosine_weight=0.2),
    data=dict(train=["documents.txt"], valid=0.2, mlm_probability=0.4, max_length=16, batch_size=4),
    training=dict(max_steps=3),
)
CLASSES = dict(
    task="classification",
    model=dict(path="teacher", layers=[0]),
    teacher=dict(path="teacher", temperature=2.0, soft_weight=0.3),
    data=dict(train="labelled.tsv"),
    training=dict(max_steps=3),
)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with texts, in which tests put folders of models."""
    draw = random.Random(1)
    words = " ".join(TEXT).split()
    texts = [" ".join(draw.choices(words, k=draw.randint(1, 14))) for _ in range(40)]
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    (tmp_path / "documents.txt").write_text("\n\n".join(texts))
    rows = [f"{text}\t{draw.choice(('good', 'bad'))}" for text in texts]
    (tmp_path / "labelled.tsv").write_text("\n".join(rows) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def same_tokenizer(path: Path, teacher: str = "teacher", student: str = "student") -> None:
    """Give the teacher the tokenizer of the student; each folder has trained its own."""
    for file in (path / student).glob("tokenizer*"):
        (path / teacher / file.name).write_bytes(file.read_bytes())


# ---- losses


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_soft_loss_is_that_of_the_formula_in_float64(temperature):
    draw = torch.Generator().manual_seed(1)
    student, teacher = (torch.randn(7, 11, generator=draw) * 4 for _ in range(2))
    shares = [
        np.exp(one / temperature) / np.exp(one / temperature).sum(-1, keepdims=True)
        for one in (student.double().numpy(), teacher.double().numpy())
    ]
    wanted = temperature**2 * (shares[1] * (np.log(shares[1]) - np.log(shares[0]))).sum()
    assert float(soft_loss(student, teacher, temperature)) == pytest.approx(wanted, rel=1e-5)
    assert float(soft_loss(teacher, teacher, temperature)) == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("training", [False, True])
def test_the_three_losses_of_distilbert_are_those_of_transformers(here, training):
    for name, layers in (("teacher", 3), ("student", 1)):
        folder(here / name, "bert", "ForMaskedLM", num_hidden_layers=layers, **NO_DROPOUT)
    same_tokenizer(here)
    task = planned("r.toml", MASKED).task
    task.module.train(training)
    theirs = [
        transformers.BertForMaskedLM.from_pretrained(here / name).eval()
        for name in ("student", "teacher")
    ]
    batch = next(iter(task.train_batches()))
    found, _ = task.losses(batch)
    given = {
        "input_ids": batch.texts.ids,
        "attention_mask": batch.texts.keep.long(),
        "output_hidden_states": True,
    }
    student, teacher = (model(**given) for model in theirs)
    chosen, keep = batch.labels != IGNORE, batch.texts.keep
    kl = F.kl_div(
        F.log_softmax(student.logits[chosen] / 3, -1),
        F.softmax(teacher.logits[chosen] / 3, -1),
        reduction="sum",
    )
    states = student.hidden_states[-1][keep], teacher.hidden_states[-1][keep]
    cosine = F.cosine_embedding_loss(*states, torch.ones(len(states[0])), reduction="sum")
    nats = F.cross_entropy(student.logits[chosen], batch.labels[chosen], reduction="sum")
    wanted = {"loss": nats, "soft": 0.7 * 9 * kl, "cosine": 0.2 * cosine}
    assert [*found] == [*wanted] == [*task.counts(batch)]
    for name, value in wanted.items():
        torch.testing.assert_close(found[name][0], value, rtol=1e-4, atol=1e-4)
    assert {name: count for name, (_, count) in found.items()} == task.counts(batch)
    sum(total / count for total, count in found.values()).backward()
    (
        nats / int(chosen.sum()) + 6.3 * kl / int(chosen.sum()) + 0.2 * cosine / len(states[0])
    ).backward()
    torch.testing.assert_close(
        task.module.encoder.blocks[0].feed.inner.weight.grad,
        theirs[0].bert.encoder.layer[0].intermediate.dense.weight.grad,
        rtol=1e-3, atol=1e-5,
    )  # fmt: skip
    assert all(weight.grad is None for weight in task.teacher.teacher.model.parameters())


@pytest.mark.parametrize("training", [False, True])
def test_losses_of_vectors_are_those_of_transformers(here, training):
    folder(here / "teacher", "bert", "Model", num_hidden_layers=2, **NO_DROPOUT)
    task = planned("r.toml", VECTORS).task
    task.module.train(training)
    theirs = transformers.BertModel.from_pretrained(here / "teacher").eval()
    batch = next(iter(task.train_batches()))
    keep = batch.texts.keep
    mask = {"attention_mask": keep.long(), "output_hidden_states": True}
    teacher = theirs(batch.texts.ids, **mask).hidden_states
    theirs.encoder.layer = theirs.encoder.layer[1:]
    student = theirs(batch.texts.ids, **mask).hidden_states
    mine, known = (
        (one[-1] * keep[..., None]).sum(1) / keep.sum(1, keepdim=True) for one in (student, teacher)
    )
    found, _ = task.losses(batch)
    torch.testing.assert_close(
        found["loss"][0], (mine - known).square().sum(), rtol=1e-4, atol=1e-4
    )
    assert {name: count for name, (_, count) in found.items()} == task.counts(batch)


# A student that reads other inputs, up to 40 tokens of each text.
NEW_STUDENT = dict(
    tokenizer=dict(path="teacher"), data=dict(max_length=40),
    model=dict(path=None, name="bert", d_model=16, d_ff=24, heads=2, layers=1, max_length=64),
)  # fmt: skip


def test_a_teacher_that_reads_shorter_texts_raises_an_error_before_the_training(here):
    folder(here / "teacher", "bert", "ForMaskedLM", max_position_embeddings=16)
    with pytest.raises(ConfigError, match=r"reads at most 16 .* of up to 40 .* max_length = 16"):
        planned("r.toml", MASKED, NEW_STUDENT)
    planned("r.toml", MASKED, NEW_STUDENT, dict(data=dict(max_length=16)))


def test_the_loss_of_a_classifier_mixes_targets_and_the_scores_of_its_teacher(here):
    labels = {"id2label": {0: "good", 1: "bad"}, "label2id": {"good": 0, "bad": 1}}
    folder(here / "teacher", "bert", "ForSequenceClassification", **labels, **NO_DROPOUT)
    task = planned("r.toml", CLASSES).task
    theirs = transformers.BertForSequenceClassification.from_pretrained(here / "teacher").eval()
    batch = next(iter(task.train_batches()))
    mask = {"attention_mask": batch.texts.keep.long()}
    teacher = theirs(batch.texts.ids, **mask).logits
    theirs.bert.encoder.layer = theirs.bert.encoder.layer[:1]
    student = theirs(batch.texts.ids, **mask).logits
    targets = task.parts.train.targets[batch.numbers]  # the order of the kept head: good, bad
    hard = F.cross_entropy(student, targets, reduction="sum")
    shares = [F.log_softmax(one / 2, -1) for one in (student, teacher)]
    soft = 4 * F.kl_div(*shares, reduction="sum", log_target=True)
    for training, wanted in ((True, 0.7 * hard + 0.3 * soft), (False, hard)):
        task.module.train(training)
        [(total, count)] = task.losses(batch)[0].values()
        torch.testing.assert_close(total, wanted, rtol=1e-4, atol=1e-4)
        assert count == len(batch)


def test_the_loss_of_a_regression_mixes_targets_and_the_numbers_of_its_teacher(here):
    folder(here / "teacher", "bert", "ForSequenceClassification", num_labels=1, **NO_DROPOUT)
    lines = (here / "labelled.tsv").read_text().replace("good", "1.5").replace("bad", "-1")
    (here / "labelled.tsv").write_text(lines)
    task = planned("r.toml", CLASSES, dict(task="regression")).task
    task.module.train()
    batch = next(iter(task.train_batches()))
    theirs = transformers.BertForSequenceClassification.from_pretrained(here / "teacher").eval()
    teacher = theirs(batch.texts.ids, attention_mask=batch.texts.keep.long()).logits
    scores = task.scores_of(task.read(batch.texts), batch)
    targets = task.parts.train.targets[batch.numbers].float()
    wanted = 0.7 * (scores[:, 0] - targets).square().sum() + 0.3 * (scores - teacher).square().sum()
    torch.testing.assert_close(task.losses(batch)[0]["loss"][0], wanted, rtol=1e-4, atol=1e-4)


# ---- students


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
def test_a_model_with_chosen_layers_is_that_of_transformers_without_the_others(here, family):
    deep = {"n_layers" if family == "distilbert" else "num_hidden_layers": 3}
    folder(here / "m", family, "ForMaskedLM", **deep)
    model = runs.load(here / "m").module
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(here / "m").eval()
    body = theirs.base_model.transformer if family == "distilbert" else theirs.base_model.encoder
    body.layer = torch.nn.ModuleList([body.layer[2], body.layer[0]])
    made = keep_layers(model, [2, 0])
    ids = torch.randint(5, 60, (2, 7))
    batch = Sequences(ids, torch.tensor([7, 7]))
    with torch.no_grad():
        found = made.masked_lm.logits(made.encoder.encode(batch))
        torch.testing.assert_close(found, theirs(ids).logits, atol=1e-4, rtol=1e-4)
    for layers in ([], [3], [0, -1]):
        with pytest.raises(ConfigError, match="some of the layers 0 to 2"):
            keep_layers(model, layers)


@pytest.mark.parametrize("positions", ["shaw", "t5", "transformer-xl"])
def test_relative_positions_belong_to_their_layers(positions):
    config = BertConfig(60, 16, 24, 2, 4, max_length=32, positions=positions, init_range=0.3)
    model = EncoderWithHeads(Bert(config), {}).eval()
    made = keep_layers(model, [3, 1])
    model.encoder.blocks = torch.nn.ModuleList(model.encoder.blocks[i] for i in (3, 1))
    relations = model.encoder.relations
    if positions != "t5":  # there, all layers share them
        relations.layers = torch.nn.ModuleList(relations.layers[i] for i in (3, 1))
    batch = Sequences(torch.randint(5, 60, (2, 7)), torch.tensor([7, 5]))
    with torch.no_grad():
        torch.testing.assert_close(made.encoder.encode(batch), model.encoder.encode(batch))


# ---- teachers that do not fit


def other_tokenizer(path: Path) -> None:
    """Give the folder a tokenizer in which two tokens have changed places."""
    text = (path / "tokenizer.json").read_text()
    text = text.replace('"dog":', '"X":').replace('"cat":', '"dog":').replace('"X":', '"cat":')
    (path / "tokenizer.json").write_text(text)


def test_teachers_that_do_not_fit_raise_errors(here):
    labels = {"id2label": {0: "good", 1: "so-so"}, "label2id": {"good": 0, "so-so": 1}}
    folder(here / "headless", "bert", "Model")
    folder(here / "teacher", "bert", "ForMaskedLM")
    folder(here / "student", "bert", "ForMaskedLM")
    folder(here / "labels", "bert", "ForSequenceClassification", **labels)
    same_tokenizer(here, "labels", "teacher")
    same_tokenizer(here)
    other_tokenizer(here / "teacher")
    for recipe, teacher, message in (
        (MASKED, "headless", "it has no head 'masked_lm' .its heads: pooler"),
        (MASKED, "teacher", "Give the student the tokenizer of the teacher"),
        (CLASSES, "teacher", "it has no head 'classes' .its heads: masked_lm"),
        (CLASSES, "labels", "knows the labels good, so-so, but not bad"),
    ):
        with pytest.raises(ConfigError, match=message):
            planned("r.toml", recipe, dict(teacher=dict(path=teacher)))
    # vectors of texts can be compared
    plan = planned("r.toml", VECTORS, dict(model=dict(path="student")))
    assert plan.identity()["teacher"] == plan.task.teacher.identity()["teacher"]  # when it resumes
    task = plan.task
    texts = (here / "texts.txt").read_text().splitlines()
    found = {tuple(row.tolist()) for row in task.parts.train.targets.round(decimals=3)}
    wanted = regard.load("teacher").embed(texts, too_long="truncate", granularity="sentence")
    wanted = {tuple(row) for row in torch.tensor(wanted).round(decimals=3).tolist()}
    assert len(found & wanted) > len(found) // 2  # those within 12 tokens by both tokenizers


@pytest.mark.parametrize("name", ["embedding", "classification-gpt2", "tagging-elmo"])
def test_a_teacher_of_any_kind_is_known_by_the_bytes_of_its_weights(name):
    task = every_task.MAKERS[name]()
    model = headed(task.module)
    teacher, wanted = Teacher(model, task.tokenizer), hashlib.sha256()
    for key, weight in model.state_dict().items():
        wanted.update(key.encode() + weight.numpy().tobytes())
    assert teacher.identity() == {"teacher": wanted.hexdigest()}
    with torch.no_grad():
        [*model.parameters()][-1].add_(1)
    assert teacher.identity() != {"teacher": wanted.hexdigest()}
