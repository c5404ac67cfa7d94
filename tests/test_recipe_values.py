"""Values that no option takes, in every option of every recipe: errors with file, line, option."""

from __future__ import annotations

import json
import os
import random
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from regard import recipe
from regard.errors import ConfigError, DataError, RegardError
from regard.experiments import runs
from regard.experiments.recipe_options import open_recipe
from regard.suggest import nearest
from regard.tasks.translation import TranslationRecipe
from regard.toml_text import dumps

RECIPES = sorted((Path(__file__).parents[1] / "recipes").glob("*.toml"))
IMPOSSIBLE = [
    *("99999999999999999999", "-99999999999999999999", "0x8000000000000000", "nan", "inf", "-inf"),
    *("1e400", "1979-05-27", "07:32:00", "1979-05-27T07:32:00Z", "[nan]", "[1979-05-27]"),
    *("{a = nan}", "[[99999999999999999999]]"),
]
WRONG = ["-1", "0", "true", '"x"', "[]", "{}", "1.5", "1e308", "9223372036854775807", '""', "[1]"]


def options_in(schema: Any, prefix: str = "") -> Iterator[str]:
    """The dotted names of all options of a schema."""
    for name, option in recipe._names(schema).items():
        inner = recipe._plain(option)
        if inner is None:
            yield prefix + name
        else:
            yield from options_in(inner, f"{prefix}{name}.")


def with_option(text: str, key: str, value: str) -> str:
    """The recipe with one option set, in the section that it belongs to."""
    tables = tomllib.loads(text)
    *sections, name = key.split(".")
    at = tables
    for section in sections:
        at = at.setdefault(section, {})
    at[name] = "VALUE"
    return dumps(tables).replace('"VALUE"', value)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_an_impossible_value_is_an_error_with_file_and_line(path, tmp_path):
    text, draw, other = path.read_text(), random.Random(path.stem), tmp_path / "r.toml"
    _, read = open_recipe(path, keep_unset=True)
    names = [name for name in options_in(type(read)) if name not in ("task", "model.name")]
    for name in draw.sample(names, 12):
        other.write_text(with_option(text, name, draw.choice(IMPOSSIBLE)))
        line = recipe._line_of(other.read_text(), name)
        with pytest.raises(ConfigError) as refused:
            runs.read_recipe(other, keep_unset=True)
        assert str(refused.value).startswith(f"{other}:{line}: `{name}"), other.read_text()
    for name in draw.sample(names, 12):
        other.write_text(with_option(text, name, draw.choice(WRONG)))
        line = recipe._line_of(other.read_text(), name)
        try:
            runs.read_recipe(other, keep_unset=True)
        except ConfigError as error:
            # Options that do not fit together, or a section without an option that it needs.
            several = len(re.findall("`", str(error))) > 2 or "options must be" in str(error)
            if several or "is missing" in str(error):
                line = f"({line}|{recipe._line_of(other.read_text(), name.rpartition('.')[0])})"
            assert re.match(f"{other}:{line}: ", str(error)), f"{error}\n{other.read_text()}"


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("training.optimizer.learning_rate=nan", "must be a finite number, but is nan"),
        ("training.optimizer.betas=[0.9, inf]", "must be a finite number, but is inf"),
        ("seed=99999999999999999999", "must fit into 64 bits"),
        ("data.max_tokens_per_batch=1979-05-27", "must not be a date"),
        ("training.threads=1000000000", "must be at most 1,024"),
        ("name=../evil", "must be a plain name"),
    ],
)
def test_an_impossible_override_is_an_error(override, told):
    path = next(path for path in RECIPES if path.stem == "demo-transformer")
    with pytest.raises(ConfigError, match=f"^command line: .*{re.escape(told)}"):
        runs.read_recipe(path, [override], keep_unset=True)
    assert runs.read_recipe(path, ["name=1979-05-27"], keep_unset=True).name == "1979-05-27"


TINY = """
task = "language-modeling"
[data]
train = "text.txt"
valid = "text.txt"
batch_size = 2
sequence_length = 4
[model]
name = "gpt2"
d_model = 8
heads = 2
layers = 1
max_length = 8
[training]
max_steps = 1
"""


@pytest.mark.parametrize(
    "option",
    [
        "model.d_model = 1000000000",
        "model.d_model = 9223372036854775806",
        "model.layers = 1000000000",
        "model.heads = 3",
        "model.max_length = 1000000000000",
        "model.dropout = 1e308",
        "model.dropout = -0.5",
        "model.init_range = -1.0",
        "data.sequence_length = 9",
        "data.batch_size = 0",
        "tokenizer.vocab_size = 9223372036854775807",
        "decoding.beams = 0",
        "evaluation.stride = 100",
    ],
)
def test_an_error_while_the_model_is_built_names_file_and_line(tmp_path, monkeypatch, option):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("a b c d\n" * 20)
    name, _, value = option.partition(" = ")
    Path("r.toml").write_text(with_option(TINY, name, value))
    line = recipe._line_of(Path("r.toml").read_text(), name)
    section = recipe._line_of(Path("r.toml").read_text(), name.rpartition(".")[0])
    with pytest.raises(ConfigError) as refused:
        runs.train("r.toml", out="run", progress=False)
    assert re.match(rf"r\.toml:({line}|{section}): ", str(refused.value)), str(refused.value)
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("a = " + "[" * 100_000, "nested too deeply"),
        ("a" + ".a" * 5000 + " = 1", "nested too deeply"),
        ("a = " + "9" * 6000, "is not TOML"),
        ("run = 3\n", "r.toml:1: `run` must be a section"),
        ("#" * (4 * 2**20 + 1), "at most 4,194,304 bytes"),
        ("\n".join(f"a{i} = {i}" for i in range(3000)), "has no `a17`"),
    ],
)
def test_recipes_that_are_too_large_or_too_deep_are_errors(tmp_path, content, told):
    path = tmp_path / "r.toml"
    path.write_text(content)
    with pytest.raises(RegardError) as refused:
        recipe.read(path).check(TranslationRecipe)
    assert told in str(refused.value)


def test_a_recipe_that_is_a_pipe_raises_an_error_at_once(tmp_path):
    os.mkfifo(tmp_path / "r.toml")
    with pytest.raises(DataError, match=r"r\.toml: must be a file, but is"):
        recipe.read(tmp_path / "r.toml")


def test_a_changed_record_of_a_run_is_an_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("a b c d\n" * 20)
    Path("r.toml").write_text(TINY)
    folder = runs.train("r.toml", out="run", progress=False).folder
    whole = (folder / "recipe.toml").read_text()
    for wrong in ("[run]\ndata = 3\n", '[run.data]\n"text.txt" = 3\n'):
        (folder / "recipe.toml").write_text(whole.partition("[run]")[0] + wrong)
        with pytest.raises(ConfigError, match=r"recipe\.toml: `run\.data"):
            runs.resume(folder, progress=False)
    json.loads((folder / "result.json").read_text())


def test_a_name_after_other_letters_is_no_misspelling():
    """ALBERT is another model than BERT."""
    known = ["bert", "roberta", "layers"]
    assert nearest("albert", known) == "Known are: bert, roberta, layers."
    assert nearest("bertt", known) == "Did you mean 'bert'?"
    assert nearest("n_layers", known) == "Did you mean 'layers'?"
