"""Names of earlier versions: users are told the new ones, files of Regard are translated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import regard
from regard import old_names, recipe
from regard.errors import ConfigError
from regard.experiments import runs
from regard.models import MODELS, model_class
from regard.models.encoder_with_heads import HEADS
from regard.tasks import TASKS, task_class
from regard.tasks.folders import quantize

LANGUAGE = """task = "language-modeling"
[data]
train = "text.txt"
valid = "text.txt"
[model]
name = "gpt2"
d_model = 8
heads = 2
layers = 1
[training]
updates = 1
"""
STARTED = """task = "{task}"
[data]
train = "train.tsv"
[model]
path = "folder"
[model.features]
[objective]
[training]
updates = 1
[training.schedule]
"""
OLD = [  # of which task an option is
    ("data.rows", "language-modeling", 4),
    ("data.steps", "language-modeling", 4),
    ("data.batch_rows", "classification", 4),
    ("data.batch_tokens", "tagging", 400),
    ("data.max_tokens", "question-answering", 40),
    ("data.cache", "language-modeling", "/tokens"),
    ("objective.smoothing", "classification", 0.1),
    ("objective.language_modeling", "multiple-choice", 0.5),
    ("model.features.depth", "regression", 1),
    ("training.recompute", "regression", True),
]


def recipe_of(task: str, key: str = "") -> str:
    if task == "language-modeling":
        return LANGUAGE
    text = STARTED.format(task=task)
    return text if key.startswith("objective") else text.replace("[objective]\n", "")


def with_option(text: str, key: str, value: object) -> str:
    section, _, name = key.rpartition(".")
    return text.replace(f"[{section}]\n", f"[{section}]\n{name} = {json.dumps(value)}\n")


@pytest.fixture
def workdir(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_old_option_is_in_the_cases_here():
    assert {key for key, _, _ in OLD} == old_names.OPTIONS.keys()


@pytest.mark.parametrize(("key", "task", "value"), OLD)
def test_an_old_option_is_an_error_that_gives_the_new_name_and_the_line(workdir, key, task, value):
    Path("r.toml").write_text(text := with_option(recipe_of(task, key), key, value))
    line = text[: text.index(f"{key.rpartition('.')[2]} = ")].count("\n") + 1
    said = f"r.toml:{line}: `{key}` is called `{old_names.OPTIONS[key]}` now."
    with pytest.raises(ConfigError) as refused:
        runs.read_recipe("r.toml")
    assert str(refused.value) == said


@pytest.mark.parametrize(("key", "task", "value"), OLD)
def test_an_old_option_on_the_command_line_is_an_error_that_gives_the_new_name(
    workdir, key, task, value
):
    Path("r.toml").write_text(recipe_of(task, key))
    with pytest.raises(ConfigError) as refused:
        runs.read_recipe("r.toml", [f"{key}={json.dumps(value)}"])
    said = f"command line: `{key}` is called `{old_names.OPTIONS[key]}` now."
    assert str(refused.value) == said


@pytest.mark.parametrize(("key", "task", "value"), OLD)
def test_an_old_option_in_the_recipe_of_a_run_is_translated(workdir, key, task, value):
    record = '[run]\nseed = 1\n[run.versions]\nregard = "0.1.0"\n'
    Path("recipe.toml").write_text(with_option(recipe_of(task, key), key, value) + record)
    found = runs.read_recipe("recipe.toml")
    for name in old_names.OPTIONS[key].split("."):
        found = getattr(found, name)
    assert (str(found) if isinstance(found, Path) else found) == value


def test_an_old_value_is_an_error_that_gives_the_new_one_and_is_translated_in_a_run(workdir):
    text = STARTED.format(task="regression") + 'name = "vaswani"\nwarmup = 3\nd_model = 8\n'
    Path("r.toml").write_text(text)
    with pytest.raises(ConfigError, match='but is "vaswani". It is called "noam" now.'):
        runs.read_recipe("r.toml")
    Path("recipe.toml").write_text(f"{text}[run]\nseed = 1\n")
    assert runs.read_recipe("recipe.toml").training.schedule.name == "noam"


def test_no_new_name_is_an_old_one():
    for table in (old_names.OPTIONS, old_names.HEADS, old_names.TASK_OPTIONS):
        assert not table.keys() & set(table.values())
    assert set(old_names.HEADS.values()) <= HEADS.keys()
    assert not old_names.HEADS.keys() & HEADS.keys()


def test_models_have_the_new_options_and_not_the_old_ones():
    for name, options in old_names.MODEL_OPTIONS.items():
        fields = model_class(name).Config.__dataclass_fields__
        assert name in MODELS
        assert set(options.values()) <= fields.keys() and not options.keys() & fields.keys()


def test_a_recipe_keeps_what_has_no_old_name():
    tables = recipe.parse(LANGUAGE).tables
    assert old_names.recipe(tables) == tables


def test_a_config_that_another_library_wrote_stays_as_it_is():
    theirs = {"model_type": "bert", "depth": 3, "heads": {"words": 1}, "max_tokens": 8}
    assert old_names.config(theirs) == theirs


def test_tasks_have_no_option_with_an_old_name():
    for name in TASKS:
        made = task_class(name)
        if made.Recipe is not None:
            options = {
                f"{section}.{option}"
                for section, field in made.Recipe.model_fields.items()
                for option in getattr(field.annotation, "model_fields", ())
            }
            assert not options & old_names.OPTIONS.keys()


def test_a_quantized_folder_with_old_heads_answers_as_with_new_ones(tmp_path):
    import every_task

    task = every_task.MAKERS["fill-mask"]()
    runs.save(task, tmp_path / "whole")
    quantize(tmp_path / "whole", tmp_path / "new", "bfloat16")
    quantize(tmp_path / "whole", tmp_path / "old", "bfloat16")
    config = json.loads((tmp_path / "old/config.json").read_text())
    config["regard"]["heads"] = {"words": 1}
    config["regard"]["max_tokens"] = config["regard"].pop("max_length")
    (tmp_path / "old/config.json").write_text(json.dumps(config))
    weights = load_file(tmp_path / "old/model.safetensors")
    old = {name.replace("heads.masked_lm.", "heads.words."): w for name, w in weights.items()}
    assert old.keys() != weights.keys()
    save_file(old, tmp_path / "old/model.safetensors")
    masked = f"the {task.tokenizer.roles['mask']} sleeps"
    first, second = (regard.load(tmp_path / name, device="cpu") for name in ("new", "old"))
    assert first.settings() == second.settings()
    assert first.predict(masked) == second.predict(masked)


def test_parameters_are_translated_at_the_start_and_behind_a_prefix_alone():
    values = {"heads.next.output.bias": 1, "optimizer/heads.choice.output.bias/step": 2}
    values |= {"encoder.heads.next.weight": torch.ones(1), "carry/places": torch.ones(1)}
    assert list(old_names.parameters(values)) == [
        "heads.next_sentence.output.bias",
        "optimizer/heads.multiple_choice.output.bias/step",
        "encoder.heads.next.weight",
        "carry/segment_numbers",
    ]
