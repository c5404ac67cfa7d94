"""From a recipe to a run folder and back: early errors, messages, and saved folders."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import zipfile
from pathlib import Path

import pytest
import torch
from recipe_files import written
from tiny_folders import folder
from tiny_runs import CHOICE, DATA, options_of

import regard
from regard.data.batches import Sequences
from regard.errors import ConfigError, DataError, RegardError
from regard.experiments import runs
from regard.experiments.runs import read_recipe
from regard.recipe import read
from regard.tasks.classification import TextClassifier
from regard.training.callbacks import Callback
from regard.training.interrupt import Interrupted
from regard.training.metrics_log import read_events

WORDS = "zero one two three four five six seven".split()
RECIPE = dict(
    task="translation",
    data=dict(train=["train.a", "train.b"], valid=["valid.a", "valid.b"], max_tokens_per_batch=256),
    tokenizer=dict(kind="words", vocab_size=50),
    model=dict(
        name="transformer", d_model=16, d_ff=32, heads=2, encoder_layers=1, decoder_layers=1,
        max_length=12, dropout=0.0,
    ),
    training=dict(max_steps=1),
)  # fmt: skip
LANGUAGE = dict(
    task="language-modeling",
    data=dict(train="train.a", valid="valid.a", batch_size=4, sequence_length=8),
    model=dict(name="lstm-lm", d_model=16),
    training=dict(max_steps=4, validation=dict(eval_steps=1)),
)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = (f"{text}\t{label}\n" for text, label in DATA["classification"])
    Path("rows.tsv").write_text("".join(rows))


@pytest.fixture
def workdir(tmp_path) -> Path:
    """A folder with toy data (a line of words, the same words upper-cased) and two recipes."""
    draw = random.Random(1)
    for name, count in (("train", 60), ("valid", 6)):
        lines = [" ".join(draw.choices(WORDS, k=draw.randint(1, 6))) for _ in range(count)]
        (tmp_path / f"{name}.a").write_text("\n".join(lines) + "\n")
        (tmp_path / f"{name}.b").write_text("\n".join(lines).upper() + "\n")
    written(tmp_path / "small.toml", RECIPE)
    written(tmp_path / "language.toml", LANGUAGE)
    return tmp_path


def train(recipe: str, *overrides: str):
    return runs.train_recipe(read(recipe, overrides), out="run", progress=False)


def add(workdir: Path, *pairs: tuple[str, str]) -> None:
    """Further training pairs."""
    for side, name in enumerate(("train.a", "train.b")):
        with (workdir / name).open("a") as file:
            file.writelines(f"{pair[side]}\n" for pair in pairs)


# ---- keywords -----------------------------------------------------------------------------------


def test_keywords_replace_options_of_a_recipe_and_their_paths_start_in_the_current_folder(workdir):
    Path("recipes").mkdir()
    Path("small.toml").rename("recipes/small.toml")
    files = {"train": ["train.a", "train.b"], "valid": [Path("valid.a"), Path("valid.b")]}
    run = runs.train("recipes/small.toml", **files, max_steps=2, model={"d_ff": 8}, progress=False)
    recipe = read_recipe(run.folder / "recipe.toml")
    assert run.result.step == recipe.training.max_steps == 2
    assert (recipe.model.d_ff, recipe.model.d_model) == (8, 16)
    with pytest.raises(ConfigError, match="^keyword argument: `training.max_steps` must be"):
        runs.train("recipes/small.toml", **files, max_steps="two")


def test_a_recipe_that_is_trained_again_makes_another_folder(workdir):
    folders = [runs.train("small.toml", progress=False).folder for _ in range(3)]
    assert folders == [Path("runs/small"), Path("runs/small-2"), Path("runs/small-3")]
    with pytest.raises(ConfigError, match="regard resume runs/small.*a folder of its own"):
        runs.train("small.toml", out=folders[0])


# ---- refused before anything long -------------------------------------------------------------


def test_missing_test_data_raises_an_error_with_the_nearest_name(workdir):
    with pytest.raises(DataError, match="Did you mean 'valid.a'"):
        train("language.toml", "data.test=valld.a")


def test_a_member_of_an_archive_is_trained_on_and_has_its_checksum(workdir):
    with zipfile.ZipFile("pairs.zip", "w") as archive:
        archive.writestr("small/pairs.tsv", "one\tONE\ntwo\tTWO\n")
    name = workdir / "pairs.zip!small/pairs.tsv"
    train("small.toml", f'data.train=["{name}"]')
    sums = read("run/recipe.toml").run["data"]
    assert sums[str(name)] == hashlib.sha256(b"one\tONE\ntwo\tTWO\n").hexdigest()


def test_a_run_started_meanwhile_by_another_process_is_not_overwritten(workdir, monkeypatch):
    plan = runs.plan

    def slow(recipe, **options):
        Path("run").mkdir()
        Path("run/recipe.toml").write_text("of another process")
        return plan(recipe, **options)

    monkeypatch.setattr(runs, "plan", slow)
    with pytest.raises(ConfigError, match="holds a run already"):
        train("small.toml")
    assert Path("run/recipe.toml").read_text() == "of another process"


# ---- told -------------------------------------------------------------------------------------


def test_rows_that_are_left_out_are_counted_in_a_warning_and_the_record(workdir):
    long = " ".join(["one"] * 20)
    add(workdir, (long, "ONE"), ("", "TWO"), ("two", long))
    with pytest.warns(UserWarning, match="training data") as told:
        train("small.toml", "data.max_length=15")
    (note,) = [str(one.message) for one in told]
    # The model reads 12 tokens, less than the data's own limit.
    assert "63 examples read, 60 kept" in note
    assert "source: longer than 12 tokens, example left out: 1 (first at line 61)" in note
    assert "target: longer than 12 tokens, example left out: 1 (first at line 63)" in note
    assert "source: empty, example left out: 1 (first at line 62)" in note
    assert read("run/recipe.toml").run["notes"] == [note]


def test_rows_longer_than_max_tokens_per_batch_give_a_warning(workdir):
    with pytest.warns(
        UserWarning, match="rows are longer than `max_tokens_per_batch`, 4; each is a batch"
    ):
        train("small.toml", "data.max_tokens_per_batch=4")


def test_an_infinite_perplexity_does_not_stop_the_training(workdir):
    options = ("training.optimizer.learning_rate=1e6", "training.optimizer.max_grad_norm=0.0")
    result = train("language.toml", *options, 'training.optimizer.name="sgd"').result
    assert result.scores["loss"] > 709 and result.scores["perplexity"] is None


# ---- folders ----------------------------------------------------------------------------------


def test_transformers_translates_equally_with_a_saved_folder(workdir):
    """Its tokenizer ends sentences as ours were in training, and its limit cuts nothing off."""
    transformers = pytest.importorskip("transformers")
    learned = ("max_steps=80", "optimizer.learning_rate=1e-2", "schedule.name=constant")
    limits = ("min_tokens=12", "max_length_a=2.0", "max_length_b=3")
    options = [f"training.{one}" for one in learned] + [f"decoding.{one}" for one in limits]
    train("small.toml", "model.max_length=60", *options)
    task = runs.load("run")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained("run/model").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained("run/model")
    texts = [" ".join(words) for words in (["one", "two"] * 8, WORDS * 2, ["three"] * 9)]
    read = tokenizer(texts, return_tensors="pt", padding=True)
    ours = [[*task.tokenizer.encode(text).ids, task.tokenizer.eos_id] for text in texts]
    source = Sequences.of(ours, task.tokenizer.pad_id)
    assert read["input_ids"].tolist() == source.ids.tolist()
    target = torch.tensor([[1, 5, 6]] * 3)
    with torch.no_grad():
        theirs = model(**read, decoder_input_ids=target).logits
        mine = task.module.head.logits(task.module(source, Sequences.full(target)).hidden)
    assert torch.allclose(theirs, mine, atol=1e-5)
    found = tokenizer.batch_decode(model.generate(**read), skip_special_tokens=True)
    assert found == task.translate(texts)
    assert all(best[0].finished for best in task.hypotheses(texts))


def test_small_data_are_read_until_there_are_200_steps_at_most_30_times(workdir, capsys):
    rows = [("good", "yes"), ("bad", "no")] * 20
    options = dict(task="classification", model={"name": "kim-cnn", "d_words": 4}, progress=False)
    few = runs.train(train=rows, batch_size=40, **options)
    assert (few.result.step, few.result.reason) == (30, "30 epochs")
    some = runs.train(train=rows, batch_size=4, **options | {"progress": True})
    assert (some.result.step, some.result.reason) == (200, "20 epochs")
    assert "; 20 epochs, since 10 would be 100 steps;" in "".join(capsys.readouterr())
    asked = runs.train(train=rows, batch_size=4, epochs=1, **options)
    assert asked.result.step == 10


def test_a_cross_validation_of_small_data_goes_on_unless_other_epochs_are_set(workdir):
    options = dict(task="classification", model={"name": "kim-cnn", "d_words": 4}, folds=2)
    options |= dict(train=[("good", "yes"), ("bad", "no")] * 20, batch_size=40, progress=False)
    first = regard.cross_validate(out="folds", **options)
    assert regard.cross_validate(out="folds", **options).facts() == first.facts()
    with pytest.raises(ConfigError, match=r"training\.epochs: was 30, is 10"):
        regard.cross_validate(out="folds", epochs=10, **options)


def test_the_defaults_of_a_run_are_said_and_stand_in_its_folder(workdir, capsys):
    silent = dict(max_steps=None, validation=dict(eval_steps=None, patience=1))
    written("silent.toml", LANGUAGE, dict(training=silent))
    run = runs.train("silent.toml", out="run", epochs=1)
    said = "AdamW, learning rate 0.01, linear after a warm-up of 10%, betas 0.9 and 0.999"
    assert said in "".join(capsys.readouterr())
    recipe = (run.folder / "recipe.toml").read_text()
    for line in ("learning_rate = 0.01", "betas = [0.9, 0.999]", "weight_decay = 0.0"):
        assert line in recipe
    assert "warmup = 0.1" in recipe and "epochs = 1" in recipe
    assert runs.read_recipe("silent.toml").training.epochs == 10
    assert runs.resume(run.folder, progress=False).scores == run.scores


# ---- device

CLASSIFIER = options_of("classification") | {"train": "rows.tsv"}
VERBS = {
    "train": lambda device: regard.train(**CLASSIFIER, device=device),
    "cross_validate": lambda device: regard.cross_validate(
        **CLASSIFIER | {"valid": None}, folds=2, device=device
    ),
}


@pytest.mark.parametrize("verb", VERBS)
def test_the_device_that_is_named_computes(monkeypatch, verb):
    """The default, a GPU on machines that have one, is then not asked for."""

    def default():
        raise AssertionError("the default")

    monkeypatch.setattr("regard.tasks.folders.device", default)
    with pytest.raises(AssertionError, match="the default"):
        VERBS[verb](None)
    VERBS[verb]("cpu")


@pytest.mark.parametrize("verb", VERBS)
def test_a_device_that_is_not_here_is_an_error_and_nothing_is_written(verb):
    for device in ("cuda:99", "gpu", "meta", ""):
        with pytest.raises(ConfigError, match=f"There is no device '{device}' here"):
            VERBS[verb](device)
    assert not [*Path().rglob("fold-*"), *Path().rglob("recipe.toml")]


def test_the_device_is_no_part_of_a_run():
    run = regard.train(**CLASSIFIER, device="cpu", out="a")
    assert "device =" not in (run.folder / "recipe.toml").read_text()
    assert regard.resume("a", device="cpu", progress=False).result == run.result


# ---- runs report

REPORTED = dict(
    task="translation",
    data=dict(train=["pairs.tsv"], valid=["pairs.tsv"]),
    tokenizer=dict(vocab_size=40),
    model=dict(name="{model}", d_model=16),
    training=dict(max_steps=2),
)


def test_the_report_of_a_translation_run_has_samples_scores_and_attention(tmp_path):
    lines = ["one <b>two</b>\teins zwei", "two one\tzwei eins", "one\teins"]
    (tmp_path / "pairs.tsv").write_text("\n".join(lines) + "\n")
    for model in ("transformer", "lstm-seq2seq"):
        recipe = tmp_path / f"{model}.toml"
        more = dict(heads=2, d_ff=16) if model == "transformer" else dict(layers=1)
        written(recipe, REPORTED, dict(model=dict(name=model, **more)))
        trained = runs.train(recipe, out=tmp_path / model, progress=False)
        folder, result = trained.folder, trained.result
        page = (folder / "report.html").read_text()
        assert result.step == 2
        assert "eins zwei" in page and "one &lt;b&gt;two" in page and "<b>two" not in page
        assert "What it attends to" in page
        assert (
            f"{sum(p.numel() for p in runs.load(folder).module.parameters()):,} parameters" in page
        )
        assert f"{result.scores['loss']:.4g}" in page


@pytest.fixture(scope="module")
def start(tmp_path_factory) -> Path:
    return folder(tmp_path_factory.mktemp("start") / "small", "bert", "Model")


# task -> what two examples are, words of a text, and a word that an encoder attends to
SHOWN = {
    "classification": ("2 examples", "dull and bad", '"good"'),
    "regression": ("2 examples", "dull and bad", '"good"'),
    "tagging": ("6 words", "dull and bad", '"good"'),
    "multiple-choice": ("2 examples", "the cat sleeps", ""),
    "question-answering": ("2 windows", "who sleeps ?", '"cat"'),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("task", SHOWN)
def test_the_report_of_a_fine_tuned_encoder_has_counts_texts_and_attention(start, tmp_path, task):
    items, text, attended = SHOWN[task]
    folder = runs.train(
        task=task, train=DATA[task][:2], model=start, data={"max_length": 60}, epochs=1,
        out=tmp_path / "run", progress=False,
    ).folder  # fmt: skip
    page = (folder / "report.html").read_text()
    model = runs.load(folder).module
    parameters = sum(weights.numel() for weights in model.parameters())
    assert f"bert, 2 layers of 16, started from small, {parameters:,} parameters" in page
    assert items in page and "tokens a second" not in page and "predicted tokens" not in page
    assert f"{items.split()[1]} a second" in page
    assert "nats a token" not in page and text in page
    seen = page.partition("What it attends to")[2]
    assert bool(seen) == bool(attended)
    assert attended in seen and ('"[SEP]"' in seen) == bool(attended)
    event = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])
    assert event[items.split()[1]] == int(items.split()[0])


# ---- runs tested

NOT_SCORED = ("multi-label-classification", "crf-tagging", "parsing")  # as others are


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("task", [task for task in DATA if task not in NOT_SCORED])
def test_test_scores_equal_those_of_the_opened_model(task):
    test = DATA[task][: len(DATA[task]) // 2]
    run = regard.train(**options_of(task), test=test)
    data = read_recipe(run.folder / "recipe.toml").data.records("test")
    scores = regard.load(run.folder).evaluate(data)
    assert run.test_scores == pytest.approx(dict(scores), rel=1e-5)
    assert run.result.test_signatures == {one.name: one.signature for one in scores.named}
    assert json.loads((run.folder / "result.json").read_text())["test_scores"] == run.test_scores
    *_, last = read_events(run.folder)
    assert last == {"step": run.result.step} | {
        f"test/{name}": value for name, value in run.test_scores.items()
    }
    page = (run.folder / "report.html").read_text()
    for name, value in run.test_scores.items():
        assert f"test {name}" in page and f"{value:.4g}" in page
    assert f"test {next(iter(run.test_scores))}" in run._repr_html_()
    assert not run.test_scores.keys() & {f"valid {name}" for name in run.scores}


def test_test_data_change_no_weights_and_no_validation_score():
    options = options_of("classification")
    without = regard.train(**options, out="without")
    tested = regard.train(**options, out="tested", test=DATA["classification"])
    assert without.test_scores == {} and tested.scores == without.scores
    one, other = (Path(f"{name}/model/model.safetensors") for name in ("without", "tested"))
    assert one.read_bytes() == other.read_bytes()


def test_a_run_stopped_while_it_is_tested_is_completed_by_resume(monkeypatch):
    options = options_of("classification") | {"test": DATA["classification"]}
    whole = regard.train(**options, out="whole")
    evaluate = TextClassifier.test

    def interrupted(self, recipe):
        os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(self, recipe)

    with monkeypatch.context() as patch:
        patch.setattr(TextClassifier, "test", interrupted)
        with pytest.raises(Interrupted, match="regard resume stopped"):
            regard.train(**options, out="stopped")
    assert not Path("stopped/result.json").exists()
    result = regard.resume("stopped", progress=False).result
    assert result.test_scores == whole.test_scores and result.scores == whole.scores
    one, other = (Path(f"{name}/model/model.safetensors") for name in ("stopped", "whole"))
    assert one.read_bytes() == other.read_bytes()
    events, wanted = (read_events(Path(name)) for name in ("stopped", "whole"))
    assert [e for e in events if "test/accuracy" in e] == wanted[-1:] == events[-1:]


@pytest.mark.parametrize(
    ("task", "test", "said"),
    [
        ("classification", [("a film", "perhaps")], "'perhaps', which is none of: 'no', 'yes'"),
        ("regression", [("a good film", "much")], "'much' where a number should be"),
        ("tagging", [{"words": ["a"], "tags": []}], "tags"),
        ("multiple-choice", [{**CHOICE, "answer": 7}], "answer"),
        ("question-answering", [{"id": "1", "question": "who ?"}], "context"),
    ],
)
def test_errors_in_test_data_are_raised_before_the_training(task, test, said):
    class Never(Callback):
        def on_step(self, step):
            raise AssertionError("trained")

    with pytest.raises((DataError, RegardError), match=said):
        regard.train(**options_of(task), test=test, callbacks=[Never()])
    assert not Path("runs").exists() or not list(Path("runs").iterdir())


def test_a_test_that_fails_leaves_a_finished_run_and_a_warning(monkeypatch, capsys):
    def fails(self, recipe):
        raise RegardError("scores are NaN")

    monkeypatch.setattr(TextClassifier, "test", fails)
    options = options_of("classification") | {"progress": True}
    run = regard.train(**options, test=DATA["classification"])
    assert run.test_scores == {} and run.scores
    assert "the test data were not scored: scores are NaN" in capsys.readouterr().err
    assert regard.resume(run, progress=False).result == run.result
