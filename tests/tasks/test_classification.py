"""Classes of texts: saved folders against transformers, metrics against scikit-learn, labels.

Tests of `regard.tasks.text_tasks` and `regard.tasks.encoding`.
"""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sklearn.metrics
import sklearn.utils.class_weight
import torch
from recipe_files import trained, written
from tiny_folders import FAMILIES, GPTS, folder, their_scores
from torch.nn import functional as F

import regard
from regard.data.encoder_inputs import InputBatch
from regard.errors import ConfigError, DataError
from regard.experiments import runs
from regard.tasks.classification import OneTargetData, class_weights

ROWS = [
    ("a good film", "i liked it", "yes"), ("the ball is red", "where is it ?", "no"),
    ("the old cat sleeps on a warm mat in the park", "a cat sleeps", "yes"),
    ("dull", "it was good fun", "no"), ("a dog runs", "the dog is after a ball", "maybe"),
    ("slow and bad", "i liked the film a lot", "no"), ("who sleeps ?", "the cat sleeps", "yes"),
]  # fmt: skip
FIRST, SECOND = [row[0] for row in ROWS], [row[1] for row in ROWS]
PAIRS = [row[:2] for row in ROWS]
NO_DROPOUT = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
RECIPE = dict(
    task="classification",
    model=dict(path="start"),
    data=dict(columns=[0, 1, 2], train="train.tsv", valid="train.tsv"),
    training=dict(
        epochs=1, schedule=dict(name="constant"), optimizer=dict(name="adamw", learning_rate=0.01)
    ),
)


@pytest.fixture
def workdir(tmp_path, monkeypatch) -> Path:
    """A folder with data and a recipe that starts from the folder `start`."""
    write("train.tsv", ROWS, tmp_path)
    written(tmp_path / "small.toml", RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name: str, rows: list[tuple[str, ...]], where: Path = Path()) -> None:
    (where / name).write_text("".join("\t".join(row) + "\n" for row in rows))


train = partial(trained, "small.toml")


def classifier(workdir: Path, family: str = "bert", **options) -> Path:
    named = dict(enumerate(("no", "maybe", "yes")))
    options = {"id2label": named, "label2id": {v: k for k, v in named.items()}, **options}
    return folder(workdir / "start", family, "ForSequenceClassification", **options)


# ---- folders of transformers -------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_of_transformers_gives_its_probabilities(workdir, family):
    task = runs.load(classifier(workdir, family))
    answers = task.predict(PAIRS, return_proba=True)
    for pair, answer in zip(PAIRS, answers, strict=True):  # GPT's have no padding there
        theirs = their_scores("AutoModelForSequenceClassification", workdir / "start", *pair)
        ours = torch.tensor([answer.probabilities[label] for label in ("no", "maybe", "yes")])
        assert torch.allclose(theirs.softmax(-1)[0], ours, atol=1e-5)
    assert task.labels == ("no", "maybe", "yes")
    rows = [[*answer.probabilities.values()] for answer in answers]
    np.testing.assert_allclose(task.predict_proba(PAIRS), rows, atol=1e-6)


# ---- labels ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.parquet"])
def test_columns_of_each_format_have_usual_names_and_labels_that_look_alike_warn(workdir, name):
    alike = ["cafe\u0301", "caf\u00e9", "no", "no\u200b", "yes", "yes "]
    table = pd.DataFrame({"label": alike, "id": range(6), "text": FIRST[:6]})
    options = {"orient": "records", "lines": True} if name == "t.jsonl" else {"index": False}
    writers = {"t.csv": table.to_csv, "t.jsonl": table.to_json, "t.parquet": table.to_parquet}
    writers[name](name, **options)
    options = {"model": "bilstm", "max_steps": 1, "progress": False}
    with pytest.warns(UserWarning, match="look alike") as said:
        assert regard.train(task="classification", train=name, **options).model.labels == (*alike,)
    pairs = [str(warning.message).partition(" are ")[0] for warning in said]
    assert pairs[:3] == [
        f"{ascii(a)}, {ascii(b)}" for a, b in zip(alike[::2], alike[1::2], strict=True)
    ]


def test_a_trained_head_with_the_same_labels_is_kept(workdir):
    classifier(workdir)
    before = runs.load("start").predict(PAIRS, return_proba=True)
    task, _ = train("training.optimizer.learning_rate=1e-9")
    assert task.labels == ("no", "maybe", "yes")
    for old, new in zip(before, task.predict(PAIRS, return_proba=True), strict=True):
        assert new.probabilities == pytest.approx(old.probabilities, abs=1e-4)


def test_a_head_with_other_labels_is_replaced_with_a_warning(workdir):
    names = ("red", "green", "yes")
    label2id = {name: number for number, name in enumerate(names)}
    classifier(workdir, id2label=dict(enumerate(names)), label2id=label2id)
    with pytest.warns(UserWarning, match="own head answers 'red', 'green', 'yes', but not 'maybe'"):
        task, _ = train("training.optimizer.learning_rate=1e-9", quiet=False)
    assert task.labels == ("maybe", "no", "yes")
    kept = runs.load("start").module.heads["classes"]
    assert torch.allclose(task.module.heads["classes"].inner.dense.weight, kept.inner.dense.weight)
    assert not torch.allclose(task.module.heads["classes"].output.weight, kept.output.weight)


def test_labels_without_examples_are_kept_with_a_warning_and_unknown_ones_are_errors(workdir):
    classifier(workdir)
    write("train.tsv", [row for row in ROWS if row[2] != "maybe"])
    with pytest.warns(UserWarning, match="no example of 'maybe'"):
        task, _ = train(quiet=False)
    assert task.labels == ("no", "maybe", "yes")
    write("valid.tsv", [ROWS[0], ("a", "b", "never")])
    said = "valid.tsv:2: has the label 'never', which is none of: 'no', 'maybe', 'yes'."
    with pytest.raises(DataError, match=said):
        train("data.valid=valid.tsv", out="other")
    folder(workdir / "start", "bert", "Model")
    write("train.tsv", [("a", "b", "yes"), ("c", "d", "yes")])
    with pytest.raises(DataError, match="has 1 label, .*Is it the right column"):
        train(out="other")


# ---- rows and batches --------------------------------------------------------------------------


def test_truncated_and_empty_rows_are_counted_in_a_warning(workdir):
    folder(workdir / "start", "bert", "Model")
    write("train.tsv", [*ROWS, ("a " * 30, "b " * 30, "yes"), (" ", "", "no")])
    with pytest.warns(UserWarning, match="training data") as told:
        train("data.max_length=32", "training.max_steps=1", quiet=False)
    assert "9 examples read, 8 kept" in str(told[0].message)
    assert "longer than 32 tokens, truncated: 1 (first at line 8)" in str(told[0].message)
    assert "empty, example left out: 1 (first at line 9)" in str(told[0].message)


# ---- learning ----------------------------------------------------------------------------------


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_equals_cross_entropy(workdir, smoothing):
    folder(workdir / "start", "bert", "Model", **NO_DROPOUT)
    recipe = runs.read_recipe("small.toml", [f"objective.label_smoothing={smoothing}"])
    task = runs.plan(recipe).task
    task.module.train()
    batch: InputBatch = next(task.train_batches())
    total, count = task.losses(batch)[0]["loss"]
    scores = task.module.scores("classes", batch.texts)
    wanted = torch.tensor([("maybe", "no", "yes").index(ROWS[i][2]) for i in batch.numbers])
    kept = F.cross_entropy(scores, wanted, reduction="sum", label_smoothing=smoothing)
    assert count == len(ROWS) and total.item() == pytest.approx(kept.item(), rel=1e-5)
    task.module.eval()
    plain = F.cross_entropy(task.text_scores(task.parts.valid.inputs), task.parts.valid.targets)
    assert task.validate()["loss"] == pytest.approx(float(plain), rel=1e-5)


def test_nan_weights_give_nan_scores_of_validation(workdir):
    folder(workdir / "start", "bert", "Model")
    task = runs.plan(runs.read_recipe("small.toml")).task
    with torch.no_grad():
        task.module.heads["classes"].output.weight.fill_(math.nan)
    found = task.validate()
    assert set(found) == {"accuracy", "loss"} and all(map(math.isnan, found.values()))


@pytest.mark.parametrize("model", ["bert", "roberta", "distilbert", "gpt", "gpt2"])
def test_a_new_model_trains_a_tokenizer_with_special_tokens(workdir, model):
    sizes = dict(path=None, name=model, d_model=8, heads=2, layers=1)
    written("small.toml", RECIPE, dict(model=sizes, tokenizer=dict(kind="words")))
    task, _ = train()
    ids = task.input_format.encode([("a dog",)])[0].ids
    assert len(ids) == 4 and {ids[0], ids[-1]} <= task.tokenizer.special_ids
    theirs = their_scores("AutoModelForSequenceClassification", workdir / "run/model", FIRST)
    np.testing.assert_allclose(task.predict_proba(FIRST), theirs.softmax(-1), atol=1e-5)


# ---- metrics -----------------------------------------------------------------------------------


def test_metrics_by_name_equal_scikit_learn(workdir):
    folder(workdir / "start", "bert", "Model")
    names = '["macro-f1", "accuracy", "matthews"]'
    task, result = train(f"evaluation.metrics={names}")
    wanted, found = [row[2] for row in ROWS], task.predict(PAIRS)
    values = {
        "macro-f1": sklearn.metrics.f1_score(wanted, found, average="macro"),
        "accuracy": sklearn.metrics.accuracy_score(wanted, found),
        "matthews": sklearn.metrics.matthews_corrcoef(wanted, found),
    }
    assert task.goal == ("macro-f1", "max") and result.best == pytest.approx(values["macro-f1"])
    assert {k: v for k, v in result.scores.items() if k != "loss"} == pytest.approx(values)
    scores = task.evaluate(ROWS).named
    assert [score.value for score in scores] == pytest.approx(list(values.values()))


@pytest.mark.parametrize(
    "override, message",
    [
        ('evaluation.metrics=["acuracy"]', "does not score classification. Did you mean 'accura"),
        ("objective.label_smoothing=1.0", "`objective.label_smoothing` must be less than 1"),
        ("data.columns=[0]", "`data.columns` must name one text or two, and then the label"),
        ('data.glue="mrcp"', "no task of GLUE. Did you mean 'mrpc'"),
    ],
)  # fmt: skip
def test_wrong_options_raise_an_error_before_the_run_exists(workdir, override, message):
    folder(workdir / "start", "bert", "Model")
    with pytest.raises((ConfigError, DataError), match=message):
        train(override)
    assert not Path("run").exists()


# ---- GPT's input transformations ---------------------------------------------------------------


@pytest.mark.parametrize("family", GPTS)
def test_gpt_texts_have_the_special_tokens_of_the_paper(workdir, family):
    folder(workdir / "start", family, "LMHeadModel")
    start = runs.load("start")
    task = runs.plan(runs.read_recipe("small.toml")).task
    size = start.module.config.vocab_size
    pieces = task.tokenizer.token
    row = task.input_format.encode([("a dog", "a cat")])[0]
    shown = [pieces(i) if i >= size else "." for i in row.ids]
    assert shown[0] == "[START]" and shown[-1] == "[EXTRACT]"
    assert shown.index("[DELIMITER]") == 1 + row.counts[0]
    assert [i for i in row.ids if i < size] == [
        i for text in ("a dog", "a cat") for i in start.tokenizer.encode(text).ids
    ]
    embedding = task.module.encoder.embedding.weight
    assert len(embedding) == task.tokenizer.vocab_size == size + 4
    assert torch.equal(embedding[:size], start.module.embedding.weight)
    new = embedding[size:]
    assert 0.5 < new.std().item() / 0.3 < 1.5 and not torch.equal(new[0], new[1])


def test_a_classifier_of_transformers_keeps_its_input_format(workdir):
    classifier(workdir, "gpt2")
    task, _ = train("training.max_steps=1")
    assert task.input_format.encode([("a dog",)])[0].ids == task.tokenizer.encode("a dog").ids


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_both_orders_sums_the_hidden_states_of_both_orders(workdir, family):
    folder(workdir / "start", family, "LMHeadModel" if family == "gpt2" else "Model")
    task, _ = train("objective.both_orders=true")
    assert runs.load("run").both_orders
    found = task.predict([("a dog", "a red ball"), ("a red ball", "a dog")], return_proba=True)
    assert found[0].probabilities == pytest.approx(found[1].probabilities, abs=1e-6)
    head, hidden = task.module.heads["classes"], 0
    for pair in (("a dog", "a red ball"), ("a red ball", "a dog")):
        texts = task.input_format.batch(task.input_format.encode([pair]))
        at = 0 if family == "bert" else -1
        hidden = hidden + task.module.encoder.encode(texts)[:, at]
    kept = head.scores(hidden).softmax(-1)[0]
    assert list(found[0].probabilities.values()) == pytest.approx(kept.tolist(), abs=1e-5)
    assert task.predict("one text") in task.labels


@pytest.mark.parametrize("family", GPTS)
def test_the_auxiliary_lm_loss_equals_that_of_transformers(workdir, family):
    """L_3 = L_2 + lambda L_1, with L_1 the mean over all pieces that are predicted."""
    import transformers

    folder(workdir / "start", family, "LMHeadModel", attn_pdrop=0.0)
    recipe = runs.read_recipe("small.toml", ["objective.aux_lm_weight=0.5"])
    task = runs.plan(recipe).task
    batch = next(task.train_batches())
    losses, _ = task.losses(batch)
    counts = task.counts(batch)
    assert {name: count for name, (_, count) in losses.items()} == counts
    runs.save(task, "saved")
    kind = {"gpt": "OpenAIGPTLMHeadModel", "gpt2": "GPT2LMHeadModel"}[family]
    theirs = getattr(transformers, kind).from_pretrained("saved").eval()
    labels = batch.texts.ids.masked_fill(~batch.texts.keep, -100)
    with torch.no_grad():
        kept = theirs(
            input_ids=batch.texts.ids, attention_mask=batch.texts.keep.long(), labels=labels
        ).loss
    total, count = losses["language_modeling"]
    assert float(total) / count == pytest.approx(0.5 * float(kept), rel=1e-4)


def test_an_auxiliary_lm_loss_without_output_layer_raises_an_error(workdir):
    folder(workdir / "start", "gpt2", "Model", tie_word_embeddings=False)
    with pytest.raises(ConfigError, match="no output over words"):
        train("objective.aux_lm_weight=0.5")


# ---- class weights -----------------------------------------------------------------------------


def test_balanced_weights_are_those_of_scikit_learn_scaled_to_the_mean_1():
    targets = torch.tensor([0] * 6 + [1] * 3 + [3])
    found = class_weights("balanced", ["a", "b", "c", "d"], targets)
    theirs = sklearn.utils.class_weight.compute_class_weight(
        "balanced", classes=np.array([0, 1, 3]), y=targets.numpy()
    )
    assert found[[0, 1, 3]].numpy() == pytest.approx(theirs) and found[2] == 0
    assert found[targets].mean() == pytest.approx(1.0)


def test_class_weights_weigh_the_training_loss_alone(workdir):
    folder(workdir / "start", "bert", "Model", **NO_DROPOUT)
    task, result = train("objective.class_weights=balanced")
    plain, _ = train(out="plain")
    assert plain.class_weights is None and task.class_weights is None  # of a loaded task
    recipe = runs.read_recipe("small.toml", ["objective.class_weights=balanced"])
    task = runs.plan(recipe).task
    batch = next(iter(task.train_batches()))
    scores = torch.randn(len(batch), 3, dtype=torch.float64)
    targets = task.parts.train.targets
    wanted = targets[batch.numbers]
    weights = class_weights("balanced", task.labels, targets).double()
    for learning, weight in ((True, weights), (False, None)):
        task.module.train(learning)
        task.class_weights = weights
        total, count = task.loss(scores, batch, targets)
        expected = F.cross_entropy(scores, wanted, weight=weight, reduction="sum")
        assert float(total) == pytest.approx(float(expected)) and count == len(batch)


@pytest.mark.parametrize("glue, half", [("mnli-mismatched", "_mismatched"), ("mrpc", "")])
def test_each_part_of_glue_is_read_from_its_file(tmp_path, glue, half):
    names = {"train": "train", "valid": f"dev{half}", "test": f"test{half}"}
    for name in names.values():
        (tmp_path / f"{name}.tsv").write_text("")
    data = OneTargetData(train=tmp_path, glue=glue)
    for part, name in names.items():
        assert [*data.read(tmp_path, part).files] == [str(tmp_path / f"{name}.tsv")]
    tested = OneTargetData(train=tmp_path, glue=glue, test_part="dev").read(tmp_path, "test")
    assert [*tested.files] == [str(tmp_path / f"dev{half}.tsv")] and data.pairs


def test_segments_are_given_to_the_model_where_the_tokenizer_names_them(workdir):
    """`model_input_names` without token_type_ids: `transformers` passes no segments."""
    start = classifier(workdir)
    path = start / "tokenizer_config.json"
    config = json.loads(path.read_text()) | {"model_input_names": ["input_ids", "attention_mask"]}
    path.write_text(json.dumps(config))
    expected = their_scores("AutoModelForSequenceClassification", start, FIRST, SECOND)
    task = runs.load(start)
    scores = task.text_scores(task.encoded(PAIRS, "error"))
    assert torch.allclose(scores, expected, atol=1e-5)
