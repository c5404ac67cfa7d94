"""From a recipe to a run folder and back: early errors, messages, and saved folders."""

from __future__ import annotations

import hashlib
import random
import zipfile
from pathlib import Path

import pytest
import torch

import regard
from regard.data import Sequences
from regard.errors import CheckpointError, ConfigError, DataError
from regard.experiments import runs
from regard.experiments.recipe_options import read_recipe
from regard.recipe import read

WORDS = "zero one two three four five six seven".split()
RECIPE = """
task = "translation"
[data]
train = ["train.a", "train.b"]
valid = ["valid.a", "valid.b"]
max_tokens_per_batch = 256
[tokenizer]
kind = "words"
vocab_size = 50
[model]
name = "transformer"
d_model = 16
d_ff = 32
heads = 2
encoder_layers = 1
decoder_layers = 1
max_length = 12
dropout = 0.0
[training]
max_steps = 1
"""
LANGUAGE = """
task = "language-modeling"
[data]
train = "train.a"
valid = "valid.a"
batch_size = 4
sequence_length = 8
[model]
name = "lstm-lm"
d_model = 16
[training]
max_steps = 4
[training.validation]
eval_steps = 1
"""


@pytest.fixture
def workdir(tmp_path, monkeypatch) -> Path:
    """A folder with toy data (a line of words, the same words upper-cased) and two recipes."""
    draw = random.Random(1)
    for name, count in (("train", 60), ("valid", 6)):
        lines = [" ".join(draw.choices(WORDS, k=draw.randint(1, 6))) for _ in range(count)]
        (tmp_path / f"{name}.a").write_text("\n".join(lines) + "\n")
        (tmp_path / f"{name}.b").write_text("\n".join(lines).upper() + "\n")
    (tmp_path / "small.toml").write_text(RECIPE)
    (tmp_path / "language.toml").write_text(LANGUAGE)
    monkeypatch.chdir(tmp_path)
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


def test_a_text_too_short_for_its_streams_raises_an_error(workdir):
    (workdir / "tiny.a").write_text("one\n")
    message = "tiny.a: has 2 tokens, too few for 4 parallel streams"
    with pytest.raises(DataError, match=message) as refused:
        train("language.toml", "data.valid=tiny.a")
    assert "`batch_size` of [data] to at most 1" in str(refused.value)


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


def test_loading_a_run_without_weights_raises_an_error_that_names_resume(workdir):
    train("small.toml")
    Path("run/model/config.json").unlink()
    with pytest.raises(CheckpointError, match="no weights yet.*regard resume run"):
        runs.load("run")


def test_transformers_translates_equally_with_a_saved_folder(workdir):
    """Its tokenizer ends sentences as ours were in training, and its limit cuts nothing off."""
    transformers = pytest.importorskip("transformers")
    sizes = ("model.max_length=60", "decoding.min_tokens=12")
    limits = ("decoding.max_length_a=2.0", "decoding.max_length_b=3")
    train(
        "small.toml",
        "training.max_steps=80",
        "training.optimizer.learning_rate=1e-2",
        "training.schedule.name=constant",
        *sizes,
        *limits,
    )
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
    text = LANGUAGE.replace("[training]\nmax_steps = 4\n", "")
    (workdir / "silent.toml").write_text(text.replace("eval_steps = 1", "patience = 1"))
    run = runs.train("silent.toml", out="run", epochs=1)
    said = "AdamW, learning rate 0.01, linear after a warm-up of 10%, betas 0.9 and 0.999"
    assert said in "".join(capsys.readouterr())
    written = (run.folder / "recipe.toml").read_text()
    for line in ("learning_rate = 0.01", "betas = [0.9, 0.999]", "weight_decay = 0.0"):
        assert line in written
    assert "warmup = 0.1" in written and "epochs = 1" in written
    assert runs.read_recipe("silent.toml").training.epochs == 10
    assert runs.resume(run.folder, progress=False).scores == run.scores
