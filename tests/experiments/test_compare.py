"""Comparing recipes: equal conditions, results with spread, going on after a stop, refusals."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
from recipe_files import written

from regard.errors import ConfigError, RegardError
from regard.experiments import runs
from regard.experiments.compare import compare, compare_files
from regard.experiments.results import Outcome, StudyResults, Trial, run_name
from regard.experiments.runs import read_recipe
from regard.experiments.study import RunOptions, conditions_of, peak_memory
from regard.recipe import read

TOKENS = 600
HERE: dict = {"executor": "here", "progress": False}  # runs in this process
WORDS = "a b c d e f g h".split()
PAIR = dict(encoder_layers=1, decoder_layers=1)
MODELS = {
    "lstm": dict(name="lstm-seq2seq", d_model=8, layers=1, dropout=0.0),
    "transformer": dict(name="transformer", d_model=8, d_ff=16, heads=2, **PAIR),
}
RECIPE = dict(
    task="translation",
    data=dict(train=["train.tsv"], valid=["valid.tsv"], test=["test.tsv"], max_tokens_per_batch=64),
    tokenizer=dict(kind="words", vocab_size=12),
    training=dict(
        tokens=TOKENS, threads=1, validation=dict(eval_steps=4), checkpoints=dict(save_steps=2)
    ),
)


def write_tsv(path: Path, first: int, rows: int) -> None:
    """Words, and the same words turned around."""
    lines = []
    for row in range(first, first + rows):
        words = [WORDS[(row * step + step) % len(WORDS)] for step in range(1, 3 + row % 3)]
        lines.append(f"{' '.join(words)}\t{' '.join(reversed(words))}\n")
    path.write_text("".join(lines))


def write_recipes(folder: Path) -> list[Path]:
    for name, first, rows in (("train", 0, 60), ("valid", 60, 4), ("test", 64, 4)):
        write_tsv(folder / f"{name}.tsv", first, rows)
    for name, model in MODELS.items():
        written(folder / f"{name}.toml", dict(RECIPE, name=name, model=model))
    return [folder / f"{name}.toml" for name in MODELS]


@pytest.fixture
def recipes(tmp_path):
    return write_recipes(tmp_path)


@dataclass(frozen=True)
class Done:
    """A comparison that was made in two steps, and its files after the first."""

    recipes: list[Path]
    found: StudyResults
    first: dict[Path, int]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    recipes, out = write_recipes(folder), folder / "out"
    compare(recipes, seeds=(1,), out=out, **HERE)
    first = {path: path.stat().st_mtime_ns for path in out.glob("*/result.json")}
    return Done(recipes, compare(recipes, seeds=(1, 2), out=out, **HERE), first)


def outcome(quality: float, **changes: object) -> Outcome:
    scores = [{"name": "BLEU", "value": quality, "signature": "nrefs:1"}]
    facts: dict = dict(
        scores=scores,
        goal=("bleu", "max", quality),
        curves={"valid/bleu": [(10, 1.0), (20, quality)], "valid/loss": [(20, quality)]},
        steps=2,
        tokens=20,
        seconds=4.0,
        parameters=100,
        flops=1e6,
        memory=1000,
        precision="float32",
        threads=1,
        samples=[("x", "y", "z")],
    )
    return Outcome(**{**facts, **changes})


def comparison(conditions: dict | None = None, **outcomes: tuple[Outcome, ...]) -> StudyResults:
    """Of models by their names, whose runs were trained to the end."""
    trials = []
    for name, several in outcomes.items():
        rows = [
            {
                "run": run_name(name, seed),
                "trial": name,
                "seed": seed,
                "until": 1.0,
                "goal": one.goal[:2],
                "score": one.goal[2],
                "tokens": one.tokens,
                "outcome": asdict(one),
            }
            for seed, one in enumerate(several, 1)
        ]
        trials.append(Trial(name, rows, several))
    return StudyResults(Path("x"), tuple(trials), conditions or {}, tested=True)


# ------------------------------------------------------------------------------ comparing


def test_every_run_has_scores_costs_and_samples(done):
    folder = done.recipes[0].parent
    assert list(done.found.outcomes) == ["lstm", "transformer"]
    for several in done.found.outcomes.values():
        for one in several:
            assert TOKENS <= one.tokens < TOKENS + 64
            assert one.scores[0]["name"] == "BLEU" and "tok:13a" in one.scores[0]["signature"]
            assert one.validation_curve()[-1][0] == one.tokens and len(one.validation_curve()) > 1
            assert one.goal[2] == pytest.approx(max(score for _, score in one.validation_curve()))
            assert one.flops > 6 * one.parameters and one.memory > 50e6 and one.seconds > 0
            assert [sample[0] for sample in one.samples] == [
                line.split("\t")[0] for line in (folder / "test.tsv").read_text().splitlines()
            ]


def test_all_models_train_on_as_many_tokens_of_one_tokenizer(done):
    lstm, transformer = done.found.outcomes.values()
    assert [one.tokens for one in lstm] == [one.tokens for one in transformer]
    pieces = {path.read_bytes() for path in done.found.folder.glob("*/model/tokenizer.json")}
    assert len(pieces) == 1


def test_finished_runs_are_kept_when_a_seed_is_added(done):
    assert len(done.first) == 2
    assert {path: path.stat().st_mtime_ns for path in done.first} == done.first
    again = compare(done.recipes, seeds=(1, 2), out=done.found.folder, progress=False)
    assert again.outcomes == done.found.outcomes


def test_results_are_written_as_json_and_as_a_page(done):
    facts = json.loads((done.found.folder / "comparison.json").read_text())
    assert [run["seed"] for run in facts["runs"]] == [1, 2, 1, 2]
    assert facts["conditions"]["budget"] == {"tokens": TOKENS}
    page = (done.found.folder / "report.html").read_text()
    for told in ("transformer", "nrefs:1|case:mixed", "±", "valid bleu", f"{TOKENS:,} tokens"):
        assert told in page


def test_a_folder_started_under_other_conditions_raises_an_error(done, tmp_path):
    def again(*given: str) -> None:
        compare_files(recipes[:1], given, RunOptions(progress=False), out)

    folder = tmp_path / "copy"
    shutil.copytree(done.recipes[0].parent, folder)
    recipes, out = [folder / path.name for path in done.recipes], folder / "out"
    with pytest.raises(ConfigError, match=rf"budget.tokens: was {TOKENS}, is 300"):
        again("training.tokens=300")
    with pytest.raises(ConfigError, match=r"model.d_model: was 8, is 4"):
        again("model.d_model=4")
    write_tsv(folder / "train.tsv", 0, 61)
    with pytest.raises(ConfigError, match=r"data.train: was \['sha256:"):
        again()


def test_a_failed_run_raises_an_error_that_names_it(recipes, tmp_path):
    """In a process of its own."""
    (tmp_path / "valid.tsv").write_text("a b and no translation\n")
    with pytest.raises(RegardError, match=r"the run in .*lstm-seed1 has failed: .*valid.tsv"):
        compare(recipes[:1], seeds=(1,), workers=1, out=tmp_path / "out", progress=False)


# ------------------------------------------------------------------------------- refusing


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (dict(training=dict(tokens=500)), "budget.tokens: 600 in lstm, 500 in transformer"),
        (dict(tokenizer=dict(vocab_size=11)), "tokenizer.vocab_size: 12 in lstm, 11 in transf"),
        (dict(training=dict(validation=dict(eval_steps=5))), "validation.eval_steps: 4 in lstm, 5"),
        (dict(data=dict(test=["valid.tsv"])), "data.test: ['sha256:"),
        (dict(decoding=dict(beams=2)), "decoding.beams: None in lstm, 2 in"),
        (dict(evaluation=dict(bleu_tokenize="none")), "evaluation.bleu_tokeni"),
    ],
)
def test_each_difference_between_recipes_raises_an_error(recipes, tmp_path, change, told):
    own = dict(RECIPE, name="transformer", model=MODELS["transformer"])
    written(recipes[1], own, change)
    with pytest.raises(ConfigError, match="cannot be compared fairly") as refused:
        compare(recipes, out=tmp_path / "out", progress=False)
    assert told in str(refused.value) and str(refused.value).count("\n  ") == 1
    assert not (tmp_path / "out").exists()


def test_models_without_data_to_score_with_raise_an_error(tmp_path):
    models = [{"model": {"name": "kim-cnn"}}, {"model": {"name": "bilstm"}}]
    with pytest.raises(ConfigError, match="give `valid` or `test` data"):
        train = [("good", "yes"), ("bad", "no")]
        compare(models, task="classification", train=train, epochs=1, out=tmp_path / "out")


def test_a_copy_of_the_data_elsewhere_is_the_same_data(recipes, tmp_path):
    copy = tmp_path / "copy.tsv"
    copy.write_bytes((tmp_path / "train.tsv").read_bytes())
    recipes[1].write_text(recipes[1].read_text().replace("train.tsv", "copy.tsv"))
    hashes: dict[str, str] = {}
    one, other = (conditions_of(read_recipe(path), hashes) for path in recipes)
    assert one == other
    copy.write_text("a\tb\n")
    assert conditions_of(read_recipe(recipes[1]), {}) != one


def test_two_recipes_of_one_name_raise_an_error(recipes, tmp_path):
    with pytest.raises(ConfigError, match="are both named 'lstm'"):
        compare([recipes[0], recipes[0]], out=tmp_path / "out", progress=False)


# ------------------------------------------------------------------------------- results


def test_mean_spread_and_the_best_model_equal_those_of_known_scores():
    both = {"a": (outcome(10.0), outcome(14.0)), "b": (outcome(11.0), outcome(11.5))}
    found = comparison({"budget": {"tokens": 20}}, **both)
    first = found.facts()["trials"][0]
    assert first["scores"]["test BLEU"]["mean"] == 12 and first["speed"] == 5
    assert first["scores"]["test BLEU"]["sd"] == pytest.approx(math.sqrt(8))
    assert first["scores"]["test BLEU"]["runs"] == [10, 14]
    assert found.best.name == found.facts()["best"] == "a"
    text = found.picture().text(200)
    assert "12 ± 2.8" in text and re.search(r"a-seed2 +14 ", text)
    assert "test BLEU" in text and "band" not in text and "band: " in found.picture().html()


CLASSES = dict(
    task="classification",
    data=dict.fromkeys(("train", "valid", "test"), "train.jsonl"),
    training=dict(tokens=24),
)
CLASSES["data"] |= dict(columns=["text", "label"], batch_size=4)
SIZES = dict(d_model=8, d_ff=16, heads=2, layers=1)


@pytest.mark.parametrize("begun", ["new", "started"])
def test_tasks_on_encoders_are_compared_by_examples(tmp_path, begun):
    rows = [{"text": f"a b {word}", "label": "yes" if word < "e" else "no"} for word in WORDS]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipes = [tmp_path / f"{name}.toml" for name in ("bert", "distilbert")]
    for path in recipes:
        model = dict(name=path.stem, **SIZES)
        written(path, CLASSES, dict(tokenizer=dict(kind="words"), model=model))
        if begun == "started":
            start = runs.train_recipe(
                read(path, ["training.tokens=4"]), out=tmp_path / path.stem, progress=False
            ).folder
            written(path, CLASSES, dict(model=dict(path=start)))
    found = compare(recipes, out=tmp_path / "out", **HERE)
    bert, distilbert = (several[0] for several in found.outcomes.values())
    assert bert.items == "examples" and bert.tokens == distilbert.tokens == 24
    assert bert.scores[0]["name"] == "accuracy" and "count:8" in bert.scores[0]["signature"]
    assert [seen for seen, _ in bert.validation_curve()] == [8, 16, 24]
    assert bert.parameters > distilbert.parameters and bert.flops > 0
    assert (tmp_path / "out/tokenizer").exists() is (begun == "new")
    page = (tmp_path / "out/report.html").read_text()
    assert "24 examples" in page and "examples/s" in page
    assert "tokens" not in page.partition("<h1>")[2]
    assert "examples/s" in found.picture().text(200)
    assert json.loads((tmp_path / "out/comparison.json").read_text())["items"] == "examples"


@pytest.mark.parametrize(
    ("one", "other", "ranked"),
    [
        ("tok:13a|nrefs:1", "tok:13a|nrefs:1", True),
        ("tok:13a|nrefs:1", "tok:none|nrefs:1", False),
        ("unit:word|tok:words|window:carried|count:9", "unit:word|tok:bpe|window:4|count:9", True),
        ("unit:token|tok:words|window:4|count:9", "unit:token|tok:bpe|window:4|count:9", False),
        ("unit:word|tok:words|count:9", "unit:word|tok:words|count:9|unk:2", False),
    ],
)
def test_protocols_are_told_and_scores_of_different_ones_are_not_ranked(one, other, ranked):
    both = {
        name: (outcome(1.0, scores=[{"name": "x", "value": 1.0, "signature": protocol}]),)
        for name, protocol in {"a": one, "b": other}.items()
    }
    found = comparison(**both)
    assert found.ranked is ranked and found.protocols == {"a": one, "b": other}
    assert (found.facts()["best"] is None) is not ranked
    text, page = found.picture().text(200), found.report().html()
    if one != other:
        assert one in text and other in text and other in page
    assert ("differ in what matters" in page) is not ranked
    assert (found.best is None) is not ranked


@pytest.mark.parametrize(
    "score, goal, best",
    [
        ("masked accuracy", ("loss", "min"), "high"),
        ("perplexity", ("loss", "min"), "low"),
        ("mean squared error", ("pearson", "max"), "low"),
        ("Pearson correlation", ("mse", "min"), "high"),
        ("mean rank", ("rank", "min"), "low"),  # by the goal alone
        ("error-free sentences", ("error", "min"), "high"),
    ],
)
def test_the_best_model_is_the_best_by_the_score_of_the_test_data(score, goal, best):
    models = {
        name: (outcome(q, scores=[{"name": score, "value": q, "signature": ""}], goal=(*goal, 1)),)
        for name, q in {"low": 0.25, "high": 0.75}.items()
    }
    found = comparison(**models)
    assert found.best.name == found.facts()["best"] == best


def test_the_peak_of_a_small_process_is_not_that_of_its_parent():
    ballast = bytearray(os.urandom(1)) * (400 << 20)
    code = "from regard.experiments.study import peak_memory; print(peak_memory())"
    small = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(small.stdout) < 400 << 20 < peak_memory()
    del ballast


ROWS = [(f"{word} is the {number}", "yes" if number % 2 else "no")
        for number, word in enumerate(WORDS * 3)]  # fmt: skip
TABLE = {"text": [text for text, _ in ROWS], "label": [label for _, label in ROWS]}
SMALL = {"name": "bilstm", "d_model": 8, "layers": 1}


def test_keywords_models_and_runs_are_compared(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = dict(
        task="classification",
        train=TABLE,
        valid=TABLE,
        epochs=1,
        learning_rate=1e-2,
        schedule={"name": "constant"},
    )
    tokenizer = {"kind": "words", "vocab_size": 20}
    wide = {"model": SMALL | {"d_model": 12}, "name": "wide", "tokenizer": tokenizer}
    encoder = {"name": "bert", "d_model": 8, "d_ff": 8, "heads": 2, "layers": 1}
    runs.train(model=encoder, tokenizer=tokenizer, out="start", progress=False, **options)
    given = [wide, {"model": SMALL, "tokenizer": tokenizer}, "start/model"]
    found = compare(given, out="three", **HERE, **options)
    assert [*found.outcomes] == ["wide", "bilstm", "start"]
    assert found.outcomes["wide"][0].parameters > found.outcomes["bilstm"][0].parameters
    assert repr(found).startswith("StudyResults('three': 3 trials, the best ")
    with pytest.raises(ConfigError, match="other data"):
        compare([wide], out="three", **options | {"valid": {**TABLE, "label": ["no"] * len(ROWS)}})
    # finished runs are scored as they are, however long each was trained
    other = runs.train(model="start/model", out="other", progress=False, **options | {"epochs": 2})
    before = {path: path.stat().st_mtime_ns for path in other.folder.glob("checkpoints/*")}
    both = compare(["start", other], out="both", **HERE)
    assert [*both.outcomes] == ["start", "other"]
    assert both.outcomes["other"][0].goal[2] == other.result.best
    assert both.outcomes["other"][0].memory is None
    assert before == {path: path.stat().st_mtime_ns for path in other.folder.glob("checkpoints/*")}


SCORED = {  # by its task: an option outside the data on which the validation score depends
    "replaced-tokens": ("objective.weight", 50.0, 5.0, ["lines.txt"]),
    "embedding": ("teacher.path", "one", "other", "lines.txt"),
}


@pytest.mark.parametrize("task", SCORED)
def test_scores_that_depend_on_an_option_need_one_value_of_it(task, tmp_path):
    """ELECTRA's weighted sum of two losses, and the distance from the vectors of a teacher."""
    option, value, other, lines = SCORED[task]
    section, _, name = option.partition(".")
    (tmp_path / "lines.txt").write_text("the cat sat\n" * 9)
    both = dict(task=task, data=dict(train=lines), model=dict(name="electra"))
    both |= dict(training=dict(max_steps=2), tokenizer={} if task == "replaced-tokens" else None)
    files = [
        written(tmp_path / f"{chosen}.toml", both, {section: {name: chosen}})
        for chosen in (value, other)
    ]
    told = f"\n  {option}: {value!r} in .*, {other!r} in "
    with pytest.raises(ConfigError, match=told):
        compare(files, out=tmp_path / "out", progress=False)
