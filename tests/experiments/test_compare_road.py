"""Language models and n-grams compared on a text of one's own, in a budget of tokens or of time."""

from random import Random

import pytest

import regard
from regard.data import encode_texts
from regard.data.splits import split_text
from regard.errors import ConfigError
from regard.experiments import compare, estimate
from regard.experiments.runs import read_recipe
from regard.models.kneser_ney import KneserNey
from regard.recipe import recipe_set

pytestmark = pytest.mark.filterwarnings("ignore:.*too few")
LINES = ["", *(" ".join(Random(number).choices("abcdefghijk", k=12)) for number in range(5000))]
SIZES = {"d_model": 8, "heads": 2, "d_ff": 8, "layers": 1, "max_length": 16}
GRAMS = {"name": "grams", "model": {"name": "kneser-ney", "order": 3}, "batch_size": 1}
OPTIONS: dict = {"task": "language-modeling", "eval_steps": 0.25, "unit": "word", "threads": 1}
OPTIONS |= {"executor": "here", "progress": False, "sequence_length": 16}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("road")
    (folder / "my.txt").write_text("\n".join(LINES))
    models = [GRAMS, {"model": {"name": "gpt2", **SIZES}, "batch_size": 4}]
    options = OPTIONS | {"data": folder / "my.txt", "out": folder / "out", "tokens": 4000}
    return compare.compare(models, **options), models, options


def test_n_grams_are_scored_as_if_they_were_counted_directly(done):
    task, parts = regard.load(done[0].folder / "grams-seed1"), split_text(LINES)
    ids = encode_texts(parts["train"], task.tokenizer, after=task.line_end()).ids
    (counted,) = done[0].outcomes["grams"]
    direct = KneserNey.fit(ids[1 : 1 + counted.tokens], task.module.config)
    assert 4000 <= counted.tokens < 4016 and len(counted.scores) == 2
    for unit, score in zip(("word", "byte"), counted.scores, strict=True):
        expected = type(task)(direct, task.tokenizer, format="lines", unit=unit)
        assert score["value"] == pytest.approx(expected.evaluate(parts["test"]).named[0].value)


def test_all_models_are_validated_at_equal_tokens_and_drawn_on_one_page(done):
    results, models, options = done
    curves = [runs[0].validation_curve(results.drawn) for runs in results.outcomes.values()]
    assert [len(curve) for curve in curves] == [4, 4] and curves[0][0][1] > curves[0][-1][1]
    assert all(abs(one[0] - other[0]) <= 64 for one, other in zip(*curves, strict=True))
    page = (results.folder / "report.html").read_text()
    assert page.index("valid perplexity per word") < page.index("2 models") < page.index("per byte")
    assert compare.compare(models, **options).outcomes == results.outcomes  # nothing is repeated


def test_tokens_within_a_time_are_measured_once_and_kept(tmp_path, monkeypatch, done):
    measured: list = []
    monkeypatch.setattr(compare, "tokens_within", lambda *given: measured.append(given) or 1000)
    options = done[2] | {"out": tmp_path / "out", "tokens": None}
    for _ in range(2):
        assert compare.compare([GRAMS], budget="20m", **options).tokens < 1016
    assert len(measured) == 1 and 1100 < measured[0][0] < 1200
    with pytest.raises(ConfigError, match="budget.time: was '20m', is '90s'"):
        compare.compare([GRAMS], budget="90s", **options)
    monkeypatch.setattr(estimate, "TIMED", 0.1)
    recipes = [read_recipe(path) for path in done[0].folder.glob("recipes/*.toml")]
    assert 1000 < estimate.tokens_within(120, recipes) < estimate.tokens_within(1200, recipes)
    with pytest.raises(ConfigError, match="`budget` must be more than 2"):
        estimate.tokens_within(5, recipes)
    with pytest.raises(ConfigError, match="such as 90s, 20m or 2h, but is '20 min'"):
        estimate.seconds_of("20 min")
    with pytest.raises(ConfigError, match="must have 100,000"):
        split_text(LINES[:1000])
    assert len(recipe_set("road")) == 4
