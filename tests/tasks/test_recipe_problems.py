"""Options of recipes without effect, or without what they need: refused before data are read.

Tests of `regard.tasks.sections`, `regard.tasks.text_tasks` and `regard.tasks.running_text`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from every_task import OF_ENCODER_DECODERS as ENCODER_DECODERS

from regard.errors import ConfigError
from regard.experiments import runs
from regard.models import MODELS, model_class
from regard.tasks import TASKS, task_class

BOTH = ["data.train=['a','b']", "data.valid=['a','b']"]
PRETRAINING = ("masked-language-modeling", "replaced-tokens")
# The files do not exist: whatever is refused here is refused before anything is read.
FILES = {"tagging": '"no.conll"', "multiple-choice": '"no.jsonl"'}
FILES |= dict.fromkeys((*ENCODER_DECODERS, *PRETRAINING), '["no.tsv"]')
VALID = (
    *ENCODER_DECODERS,
    "language-modeling",
    "hybrid-language-modeling",
    "permutation-language-modeling",
    "bidirectional-language-modeling",
    "captioning",
    *PRETRAINING,
)  # cannot do without
TRAINED = [name for name in TASKS if task_class(name).Recipe is not None]
MODEL = {**dict.fromkeys(ENCODER_DECODERS, "transformer"), "language-modeling": "lstm-lm"}
MODEL["hybrid-language-modeling"] = "gpt2"
MODEL["permutation-language-modeling"] = "xlnet"
MODEL["bidirectional-language-modeling"] = "elmo"
MODEL["replaced-tokens"] = "electra"
MODEL["captioning"] = "show-attend-tell"


def recipe(workdir: Path, task: str, *more: str, model: str = "") -> Path:
    file = FILES.get(task, '"no.tsv"')
    valid = f"valid = {file}\n" if task in VALID else ""
    name = model or MODEL.get(task, "bert")
    text = f'task = "{task}"\n[data]\ntrain = {file}\n{valid}[model]\nname = "{name}"\n'
    teacher = '[teacher]\npath = "no folder"\n' if task == "embedding" else ""
    path = workdir / "recipe.toml"
    path.write_text(text + teacher + "[training]\nmax_steps = 2\n" + "".join(more))
    return path


@pytest.mark.parametrize("task", TRAINED)
def test_a_recipe_of_defaults_is_accepted(tmp_path, task):
    assert runs.read_recipe(recipe(tmp_path, task)).task == task


@pytest.mark.parametrize("task", [name for name in TRAINED if '["no.tsv"]' == FILES.get(name)])
def test_a_single_file_needs_no_list(tmp_path, task):
    listed = recipe(tmp_path, task)
    parts = runs.read_recipe(listed).data
    listed.write_text(listed.read_text().replace('["no.tsv"]', '"no.tsv"'))
    assert runs.read_recipe(listed).data == parts
    assert parts.files_of_examples() == [str(tmp_path / "no.tsv")] * len(parts.parts())


@pytest.mark.parametrize("task", TRAINED)
@pytest.mark.parametrize("option", ["eval_steps", "patience"])
def test_validation_options_without_validation_data_raise_an_error(tmp_path, task, option):
    path = recipe(tmp_path, task)
    changes = [f"training.validation.{option}=3"]
    if task in VALID:
        assert getattr(runs.read_recipe(path, changes).training.validation, option) == 3
        return
    with pytest.raises(ConfigError, match=f"`training.validation.{option}` needs validation data"):
        runs.read_recipe(path, changes)
    file = FILES.get(task, '"no.tsv"')
    assert runs.read_recipe(path, [*changes, f"data.valid={file}"])


# Of sections that all tasks share; the options are overrides of the default optimizer and schedule.
WITHOUT_EFFECT = [
    (["optimizer.momentum=0.9"], "optimizer.momentum"),
    (["optimizer.name=sgd", "optimizer.learning_rate=1.0", "optimizer.betas=[0.5, 0.5]"],
     "optimizer.betas"),
    (["schedule.name=constant", "schedule.min_lr_ratio=0.5"], "schedule.min_lr_ratio"),
    (["schedule.constant_epochs=2"], "schedule.constant_epochs"),
]  # fmt: skip


@pytest.mark.parametrize("task", ["classification", "translation", "language-modeling"])
def test_options_without_effect_raise_an_error(tmp_path, task):
    path = recipe(tmp_path, task)
    with pytest.raises(ConfigError, match="command line: `tokenizer.kind` "):
        runs.read_recipe(path, ["tokenizer.kind=bytes"])
    for changes, option in WITHOUT_EFFECT:
        with pytest.raises(ConfigError, match=f"command line: `training.{option}` "):
            runs.read_recipe(path, [f"training.{change}" for change in changes])


@pytest.mark.parametrize(
    "task, changes, message",
    [
        ("classification", ["evaluation.metrics=['pearson']"], "'pearson', which does not score"),
        ("regression", ["data.glue=rte"], 'scored by accuracy.*say task = "classification"'),
        ("classification", ["data.glue=rte", "data.format=csv"], "`data.format` is of tables"),
        ("tagging", ["data.words=1", "data.tags=1"], "`data.tags` must be another column"),
        ("tagging", ["data.train=no.jsonl", "data.words=1"], "`data.words` is of files of columns"),
        ("translation", [*BOTH, "data.columns=[1, 0]"], "`data.columns` is of a table"),
        ("translation", ["data.columns=[1]"], "`data.columns"),
        ("translation", ["evaluation.bleu_tokenize=x"], "bleu_tokenize.* must be one of"),
        ("classification", ["decoding.beams=2"], "has no `decoding`"),
        ("replaced-tokens", ["teacher.path=no"], "`teacher` has no loss in this task"),
    ],
)
def test_contradicting_options_raise_an_error(tmp_path, task, changes, message):
    with pytest.raises(ConfigError, match=message):
        runs.read_recipe(recipe(tmp_path, task), changes)


@pytest.mark.parametrize("task", TRAINED)
def test_the_seed_of_a_split_is_refused_where_nothing_is_drawn(tmp_path, task):
    path, file = recipe(tmp_path, task), FILES.get(task, '"no.tsv"')
    affects = "`data.split_seed` only affects a random split of the training data"
    with pytest.raises(ConfigError, match=affects):
        runs.read_recipe(path, ["data.split_seed=7", f"data.valid={file}"])
    share = ["data.split_seed=7", "data.valid=0.2"]
    kind = task_class(task).Recipe.model_fields["data"].annotation
    if kind.running_text:  # its end
        with pytest.raises(ConfigError, match=affects):
            runs.read_recipe(path, share)
    else:
        assert runs.read_recipe(path, share).data.split_seed == 7


@pytest.mark.parametrize("task", TRAINED)
def test_test_data_are_scored_or_refused(tmp_path, task):
    """A task that no command can evaluate has no scores of test data either."""
    path, change = recipe(tmp_path, task), "data.test=" + FILES.get(task, '"no.tsv"')
    if task_class(task).has("evaluate") and task not in ("span-corruption", "embedding"):
        assert runs.read_recipe(path, [change]).data.test
        return
    with pytest.raises(ConfigError, match="`data.test` has no (scores|target)"):
        runs.read_recipe(path, [change])


@pytest.mark.parametrize("task", TRAINED)
def test_a_model_that_does_not_fit_the_task_raises_an_error(tmp_path, task):
    kind = task_class(task)
    refused = [name for name in MODELS if not kind.trains(model_class(name))]
    assert refused and len(refused) < len(MODELS)
    for name in refused:
        with pytest.raises(ConfigError, match=f"{task} cannot train this model. `model.name` must"):
            runs.read_recipe(recipe(tmp_path, task, model=name))


def test_the_recorded_recipe_of_a_run_is_not_checked_again(tmp_path):
    path = recipe(tmp_path, "classification", "validation = { patience = 2 }\n")
    with pytest.raises(ConfigError, match="recipe.toml:.*patience` needs validation data"):
        runs.read_recipe(path)
    path.write_text(path.read_text() + "[run]\nseed = 1\n")
    assert runs.read_recipe(path).training.validation.patience == 2


@pytest.mark.parametrize(
    "task",
    [one for one in TRAINED if one not in (*MODEL, *ENCODER_DECODERS, *PRETRAINING)],
)
def test_frozen_word_vectors_need_a_file_in_every_task_on_an_encoder(tmp_path, task):
    path = recipe(tmp_path, task)
    with pytest.raises(ConfigError, match="`data.freeze_word_vectors` is for `word_vectors`"):
        runs.read_recipe(path, ["data.freeze_word_vectors=true"])
    changes = ["data.freeze_word_vectors=true", "data.word_vectors=glove.txt"]
    assert runs.read_recipe(path, changes).data.files()[-1].endswith("glove.txt")
