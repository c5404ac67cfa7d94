"""Recipes: errors, overrides, paths, reading what was written, and values that no option takes."""

from __future__ import annotations

import math
import random
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from regard import recipe
from regard.errors import ConfigError, DataError, RegardError
from regard.experiments import runs
from regard.experiments.recipe_options import open_recipe
from regard.schema import to_toml
from regard.suggest import nearest
from regard.tasks.pair_tasks import TranslationRecipe


class Data(recipe.Options):
    train: recipe.RecipePath
    valid: recipe.RecipePath | None = None
    columns: tuple[int, ...] = (0, 1)


@dataclass(frozen=True)
class Training:
    updates: int = 1000
    rate: float = 1e-3
    shape: Literal["constant", "cosine", "linear"] = "constant"
    fast: bool = False
    clip: Annotated[float, Field(gt=0)] | None = None
    budget: int | list[int] = 4096


@dataclass(frozen=True)
class Config:
    vocab_size: int
    d_model: int
    layers: int = 2


class Schema(recipe.Recipe):
    data: Data
    training: Training = Training()
    model: recipe.options_of(Config, omit=["vocab_size"], name=(str, ...))  # type: ignore


TEXT = """\
task = "translation"
seed = 7

[data]
train = "train.tsv"

[model]
name = "gpt2"
d_model = 64
layers = 3

[training]
updates = 100
"""


def check(text: str = TEXT, *overrides: str, path: Path = Path("small.toml")) -> Schema:
    return recipe.parse(text, overrides, path).check(Schema)


def refusal(text: str, *overrides: str) -> str:
    with pytest.raises(RegardError) as caught:
        check(text, *overrides)
    return str(caught.value)


def test_sections_are_typed_and_frozen():
    options = check()
    assert (options.task, options.seed, options.training.updates) == ("translation", 7, 100)
    assert isinstance(options.training, Training)
    assert options.model.model_dump() == {"name": "gpt2", "d_model": 64, "layers": 3}
    with pytest.raises(ValueError, match="frozen"):
        options.seed = 8


WHOLE = "`training.updates` must be a whole number, but is"
WRONG = [  # in TEXT, this; replaced by that; is refused at the line; with the words
    ("updates", "updatse", 13, "[training] has no `updatse`. Did you mean 'updates'?"),
    ("[training]", "[trainig]", 12, "a recipe has no `trainig`. Did you mean 'training'?"),
    ("layers", "rate", 10, "[model] has no `rate`. It belongs to [training]."),
    ("layers", "vocab_size", 10, "[model] has no `vocab_size`. Known are: name, d_model, layers."),
    ("100", '"many"', 13, WHOLE + ' "many".'),
    ("100", "true", 13, WHOLE + " true."),
    ("updates", "fast", 13, "`training.fast` must be true or false, but is 100."),
    ("updates = ", "clip = -", 13, "`training.clip` must be greater than 0, but is -100."),
    (
        "updates = 100",
        "budget = 'all'",
        13,
        '`training.budget` must be a whole number or a list, but is "all".',
    ),
    (
        "updates = 100",
        "shape = 'cosin'",
        13,
        "`training.shape` must be 'constant', 'cosine' or 'linear', but is \"cosin\". "
        "Did you mean 'cosine'?",
    ),
    ("d_model = 64", "", 7, "`model.d_model` is missing; it has no default."),
    ("seed = 7", "seed = '7'", 2, '`seed` must be a whole number, but is "7".'),
    (
        "train.tsv",
        "${NOT_SET}/a",
        5,
        "`data.train` is '${NOT_SET}/a', but NOT_SET is not set. Set it: export NOT_SET=PATH",
    ),
]


@pytest.mark.parametrize(("old", "new", "line", "words"), WRONG)
def test_an_error_names_file_line_and_option(old, new, line, words):
    assert old in TEXT
    assert refusal(TEXT.replace(old, new)) == f"small.toml:{line}: {words}"


def test_an_error_of_a_dataclass_names_file_and_line():
    @dataclass(frozen=True)
    class Heads:
        heads: int
        d_model: int

        def __post_init__(self):
            if self.d_model % self.heads:
                raise ConfigError("`d_model` must be a multiple of `heads`, but is 10")

    class Wide(recipe.Recipe):
        model: Heads

    source = recipe.parse('task = "x"\n[model]\nheads = 4\nd_model = 10\n', path=Path("w.toml"))
    with pytest.raises(ConfigError) as caught:
        source.check(Wide)
    assert str(caught.value).startswith("w.toml:2: [model] `d_model` must be a multiple of")


def test_overrides_are_read_with_the_options_own_type():
    options = check(
        TEXT,
        "training.updates=5",
        "training.rate=1",
        "training.fast=true",
        "training.shape=cosine",
        "training.budget=[1, 2]",
        "data.columns=[2,0]",
        "name=2024",
        'task="language-modeling"',
    )
    assert options.training == Training(5, 1.0, "cosine", True, None, [1, 2])
    assert options.data.columns == (2, 0)
    assert (options.name, options.task) == ("2024", "language-modeling")


def test_a_section_given_whole_replaces_that_of_the_file():
    options = check(TEXT, "training={rate = 2, shape = 'linear'}", "training.fast=true")
    assert options.training == Training(rate=2.0, shape="linear", fast=True)
    assert check(TEXT, "training={}").training == Training()


@dataclass(frozen=True)
class Outer:
    base_model: Mapping[str, Any] = field(default_factory=dict)


class FreeNames(recipe.Recipe):
    model: Outer = Outer()


def test_options_of_a_section_with_free_names_are_given_one_by_one():
    def inside(text: str, *overrides: str) -> Mapping[str, Any]:
        raw = recipe.parse(text, [f"model.base_model.{item}" for item in overrides])
        return raw.check(FreeNames).model.base_model

    head = 'task = "translation"\n'
    written = f'{head}[model.base_model]\nheads = 2\nname = "a"\n'
    found = inside(written, "heads=4", "kind=own", "rates=[1]")
    assert found == {"heads": 4, "name": "a", "kind": "own", "rates": [1]}
    assert inside(head, "a.b=true") == {"a": {"b": True}}


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("training.updatse=5", "[training] has no `updatse`. Did you mean 'updates'?"),
        ("trainig.updates=5", "a recipe has no `trainig`. Did you mean 'training'?"),
        ("data.columns=[1, true]", "`data.columns[1]` must be a whole number, but is true."),
        ("training={updatse = 5}", "[training] has no `updatse`. Did you mean 'updates'?"),
        ("training=3", "`training` must be a section, but is 3."),
        ("updates=many", WHOLE + ' "many".'),
        (
            "training.updates",
            "'training.updates' must be like training.max_steps=100",
        ),
    ],
)
def test_wrong_overrides_are_errors(override, words):
    assert refusal(TEXT, override) == f"command line: {words}"


def test_paths_start_at_the_recipe_and_overridden_ones_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("CORPUS", "/data/corpus")
    monkeypatch.setenv("HOME", "/somebody")
    monkeypatch.chdir(tmp_path)
    here = tmp_path / "recipes" / "small.toml"
    assert check(path=here).data.train == tmp_path / "recipes" / "train.tsv"
    assert check(TEXT, "data.train=a.tsv", path=here).data.train == tmp_path / "a.tsv"
    for given_path, expected in {
        "${CORPUS}/a": "/data/corpus/a",
        "$CORPUS/a": "/data/corpus/a",
        "~/a": "/somebody/a",
        "/abs/a": "/abs/a",
    }.items():
        text = TEXT.replace("train.tsv", given_path)
        assert check(text, path=here).data.train == Path(expected)


def test_an_unknown_choice_is_an_error_with_the_nearest_name():
    source = recipe.parse(TEXT, ["model.name=transfromer"], Path("small.toml"))
    assert source.choice("task", ["translation", "language-modeling"]) == "translation"
    assert source.choice("tokenizer.kind", ["bpe"], default="bpe") == "bpe"
    with pytest.raises(ConfigError, match="command line: `model.name` is .* mean 'transformer'?"):
        source.choice("model.name", ["lstm", "transformer"])
    with pytest.raises(ConfigError, match="`tokenizer.kind` is missing. Known are: bpe, words"):
        source.choice("tokenizer.kind", ["bpe", "words"])


def test_the_named_model_decides_the_options_of_its_section():
    @dataclass(frozen=True)
    class Recurrent:
        vocab_size: int
        cell: str = "lstm"

    section = recipe.options_of(Recurrent, omit=["vocab_size"], name=(str, ...))
    schema = recipe.with_section(Schema, "model", section)
    text = TEXT.replace("d_model = 64\nlayers = 3", "cell = 'gru'")
    assert recipe.parse(text).check(schema).model.cell == "gru"
    with pytest.raises(ConfigError, match=r"\[model\] has no `d_model`"):
        recipe.parse(TEXT).check(schema)


def test_a_named_size_replaces_the_defaults_of_the_model(tmp_path):
    size = {"d_model": 8, "layers": 5}
    section = recipe.options_of(Config, ["vocab_size"], size, name=(str, ...))
    schema = recipe.with_section(Schema, "model", section)
    options = recipe.parse(TEXT.replace("d_model = 64\n", "")).check(schema)
    assert (options.model.d_model, options.model.layers) == (8, 3)
    recipe.write(tmp_path / "recipe.toml", options)  # what was resolved is what is written
    assert recipe.read(tmp_path / "recipe.toml").tables["model"]["d_model"] == 8


def test_files_that_are_not_recipes_are_errors_with_name_and_line(tmp_path):
    (tmp_path / "small.toml").write_bytes(b"task = 'x'\nname = '\xff'\n")
    with pytest.raises(DataError, match=r"small.toml:2: byte 0xff is not UTF-8"):
        recipe.read(tmp_path / "small.toml")
    with pytest.raises(DataError, match=r"no such recipe. Did you mean 'small.toml'\?"):
        recipe.read(tmp_path / "smal.toml")
    with pytest.raises(DataError, match="no such recipe. `regard list recipes` shows"):
        recipe.read(tmp_path / "other.toml")
    with pytest.raises(DataError, match="must be a file"):
        recipe.read(tmp_path)
    with pytest.raises(DataError, match="broken.toml:3: is not TOML"):
        recipe.parse("a = 1\nb = 2\nc = = 3\n", path=Path("broken.toml"))


def test_a_written_recipe_reads_back_equal_with_the_record_of_its_run(tmp_path):
    options = check(path=tmp_path / "small.toml")
    about = {"seed": options.seed, "data": {"train.tsv": "abc"}}
    recipe.write(tmp_path / "recipe.toml", options, about)
    again = recipe.read(tmp_path / "recipe.toml")
    assert again.check(Schema) == options
    assert again.run == about and options.seed == 7
    assert sorted(p.name for p in tmp_path.iterdir()) == ["recipe.toml"]


characters = st.characters(exclude_categories=["Cs"])  # a file in UTF-8 holds no surrogates
words = st.text(characters, max_size=8)
scalars = st.booleans() | st.integers() | st.floats(allow_nan=False) | words
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(words, values, max_size=4))
def test_toml_is_read_back_by_the_standard_library(tables):
    assert tomllib.loads(to_toml(tables)) == tables


def test_toml_leaves_out_none_and_other_types_are_errors():
    assert to_toml({"a": None, "b": {"c": None}}) == "[b]\n"
    assert math.isnan(tomllib.loads(to_toml({"a": math.nan}))["a"])
    with pytest.raises(ConfigError, match="TOML has no NoneType"):
        to_toml({"a": [None]})


RECIPES = sorted((Path(__file__).parents[1] / "recipes").glob("*.toml"))
IMPOSSIBLE = [
    *("99999999999999999999", "-99999999999999999999", "0x8000000000000000", "nan", "inf", "-inf"),
    *("1e400", "1979-05-27", "07:32:00", "1979-05-27T07:32:00Z", "[nan]", "[1979-05-27]"),
    *("{a = nan}", "[[99999999999999999999]]"),
]
WRONG_VALUES = [
    *("-1", "0", "true", '"x"', "[]", "{}", "1.5", "1e308", "9223372036854775807", '""', "[1]"),
]


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
    return to_toml(tables).replace('"VALUE"', value)


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
        other.write_text(with_option(text, name, draw.choice(WRONG_VALUES)))
        line = recipe._line_of(other.read_text(), name)
        try:
            runs.read_recipe(other, keep_unset=True)
        except ConfigError as error:
            # Options that do not fit together, or a section without an option that it needs.
            several = len(re.findall("`", str(error))) > 2 or "options must be" in str(error)
            if several or "is missing" in str(error):
                parts = name.split(".")
                above = [".".join(parts[:n]) for n in range(1, len(parts))]
                lines = [recipe._line_of(other.read_text(), section) for section in above]
                line = f"({'|'.join(map(str, [line, *lines]))})"
            assert re.match(f"{other}:{line}: ", str(error)), f"{error}\n{other.read_text()}"


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("training.optimizer.learning_rate=nan", "must be a finite number, but is nan"),
        ("training.optimizer.betas=[0.9, inf]", "must be a finite number, but is inf"),
        ("seed=99999999999999999999", "must fit into 64 bits"),
        ("data.max_tokens_per_batch=1979-05-27", "must not be a date"),
        ("training.threads=1000000000", "must be at most 1,024"),
        ("name=../evil", "must be a plain, short name"),
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
        "model.heads = 3",
        "model.max_length = 1000000000000",
        "model.dropout = 1e308",
        "data.sequence_length = 9",
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


def test_a_name_after_other_letters_is_no_misspelling():
    """ALBERT is another model than BERT."""
    known = ["bert", "roberta", "layers"]
    assert nearest("albert", known) == "Known are: bert, roberta, layers."
    assert nearest("bertt", known) == "Did you mean 'bert'?"
    assert nearest("n_layers", known) == "Did you mean 'layers'?"
