"""Captioning from files: training, resuming, decoding, scores, cached regions, bad images.

Tests of `regard.tasks.sections`, too.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from recipe_files import written
from tiny_runs import Stop, assert_resumes

import regard
from regard.errors import DataError, TextError
from regard.experiments import runs
from regard.metrics.text import BLEU, CIDEr
from regard.models.show_attend_tell import ATTENTION_WEIGHTS
from regard.recipe import read
from regard.tasks import captioning
from regard.tasks.captioning import doubly_stochastic
from regard.tasks.text_to_text import text_to_text_output

COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255), "white": (255,) * 3}
RECIPE = dict(
    task="captioning", name="small",
    data=dict(
        train="captions.csv", valid=0.25, test="captions.csv", regions="patches",
        max_tokens_per_batch=200,
    ),
    tokenizer=dict(kind="words"),
    model=dict(name="show-attend-tell", d_region=192, d_model=24, d_embedding=12, dropout=0.1),
    objective=dict(doubly_stochastic=0.1),
    training=dict(
        max_steps=12,
        schedule=dict(name="constant"),
        optimizer=dict(learning_rate=0.02),
        validation=dict(eval_steps=6),
    ),
)  # fmt: skip


@pytest.fixture
def workdir(tmp_path, monkeypatch) -> Path:
    """Images of one colour, with two captions each."""
    monkeypatch.chdir(tmp_path)
    lines = ["image,caption"]
    for number in range(12):
        name = list(COLOURS)[number % 4]
        array = np.full((20 + number, 30, 3), COLOURS[name], np.uint8)
        Image.fromarray(array).save(tmp_path / f"{number}.png")
        lines += [f"{number}.png,a {name} square .", f'{number}.png,"all of it , it is {name}"']
    (tmp_path / "captions.csv").write_text("\n".join(lines) + "\n")
    written(tmp_path / "small.toml", RECIPE)
    return tmp_path


def test_colours_are_learned_and_a_stopped_training_goes_on_to_the_same_bits(workdir):
    every = dict(checkpoints={"save_steps": 20}, validation={"eval_steps": 20}, betas=[0.9, 0.98])
    options = dict(max_steps=60, attention="hard", progress=False, **every)  # which draws
    task = regard.load(assert_resumes(33, recipe="small.toml", **options))
    names = [f"{number}.png" for number in range(4)]
    found = task.caption(names)
    assert [sum(c in text for c, text in zip(COLOURS, found, strict=True))] == [4], found
    assert task.predict(names[2]) == found[2] == task.predict(Path(names[2]))
    assert [task.predict(name) for name in names] == found


def test_scores_are_those_of_the_captions_against_all_references(workdir):
    run = regard.train("small.toml", progress=False).folder
    task = regard.load(run)
    rows = task.rows_to_evaluate(["captions.csv"], ())
    found = task.evaluate(rows, beams=2)
    scores, texts = found.named, found.outputs
    assert len(texts) == 12
    assert texts == task.caption([f"{number}.png" for number in range(12)], beams=2)
    for metric, score in zip((BLEU(lowercase=True), CIDEr()), scores, strict=True):
        names = [list(COLOURS)[number % 4] for number in range(12)]
        metric.add(texts, [[f"a {n} square .", f"all of it , it is {n}"] for n in names])
        assert metric.result() == score


def test_images_may_be_in_another_folder_than_the_table(workdir, monkeypatch):
    Path("images").mkdir()
    for number in range(12):
        Path(f"{number}.png").rename(f"images/{number}.png")
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    run = runs.train_recipe(read("../small.toml", ["data.images=../images"]), progress=False).folder
    assert "images/" in (run / "report.html").read_text()


def test_validation_images_and_training_images_are_others(workdir):
    recipe = runs.read_recipe("small.toml")
    parts = [{row["image"] for row in recipe.data.records(part)} for part in ("train", "valid")]
    assert len(parts[1]) == 3 and not parts[0] & parts[1] and len(parts[0] | parts[1]) == 12


def test_regions_that_a_file_holds_are_those_that_are_computed(workdir, monkeypatch):
    reads = []
    read_once = captioning.read_image
    monkeypatch.setattr(captioning, "read_image", lambda *a: reads.append(a) or read_once(*a))
    kept = ["data.features=kept"]
    first = runs.train_recipe(read("small.toml", kept), out="first", progress=False).folder
    (file,) = Path("kept").iterdir()
    assert np.load(file).shape == (12, 49, 192)
    with_cache = len(reads)
    second = runs.train_recipe(read("small.toml", kept), out="second", progress=False).folder
    assert len(reads) - with_cache == with_cache - 12
    one, two = (run / "model/model.safetensors" for run in (first, second))
    assert one.read_bytes() == two.read_bytes()
    Image.new("RGB", (9, 9), "black").save("3.png")  # another image of the same name
    runs.train_recipe(
        read("small.toml", [*kept, "training.max_steps=1"]), out="third", progress=False
    )
    assert len([*Path("kept").iterdir()]) == 2


def test_changed_images_are_noticed_when_a_run_is_resumed(workdir):
    with pytest.raises(KeyboardInterrupt):
        regard.train("small.toml", out="run", progress=False, callbacks=[Stop(4)])
    for number in range(12):
        Image.new("RGB", (9, 9), "black").save(f"{number}.png")
    with pytest.raises(regard.errors.RegardError, match="data"):
        runs.resume("run", progress=False)


def test_the_term_of_equation_14_is_the_formula(workdir):
    weights = torch.rand(2, 3, 4, dtype=torch.float64)
    words = torch.tensor([[True, True, True], [True, False, False]])
    wanted = 0.0
    for row, count in enumerate((3, 1)):
        for region in range(4):
            wanted += (1 - sum(float(weights[row, t, region]) for t in range(count))) ** 2
    assert float(doubly_stochastic(weights, words)) == pytest.approx(wanted, rel=1e-6)
    run = runs.train_recipe(read("small.toml", ["training.max_steps=1"]), progress=False).folder
    recipe = runs.read_recipe("small.toml")
    task = regard.load(run)
    task.data = task._captioned(recipe)
    task.module.train()
    torch.manual_seed(3)
    batch = next(task.train_batches())
    losses, _ = task.losses(batch)
    torch.manual_seed(3)
    output, _ = text_to_text_output(task.module, batch)
    term = doubly_stochastic(output.extras[ATTENTION_WEIGHTS], batch.target.keep[:, 1:])
    torch.testing.assert_close(losses["doubly_stochastic"][0], 0.1 * term)
    assert losses["doubly_stochastic"][1] == losses["loss"][1] == batch.count
    assert task.counts(batch) == {name: count for name, (_, count) in losses.items()}


@pytest.mark.parametrize("content", [b"", b"no image", None])
def test_a_file_that_is_no_image_is_an_error_with_its_name(workdir, content):
    run = runs.train_recipe(read("small.toml", ["training.max_steps=1"]), progress=False).folder
    if content is None:
        Path("bad.png").unlink(missing_ok=True)
    else:
        Path("bad.png").write_bytes(content)
    task = regard.load(run)
    with pytest.raises(TextError, match=r"Text 2.*bad.png"):
        task.caption(["1.png", "bad.png"])
    assert task.caption(["", "1.png"])[0] == ""
    lines = Path("captions.csv").read_text() + "bad.png,nothing\n"
    Path("captions.csv").write_text(lines)
    with pytest.raises(DataError, match="bad.png"):
        regard.train("small.toml", out="again", progress=False)
