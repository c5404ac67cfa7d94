"""Every option of a recipe changes the training: its data, batches, losses, scores, or its errors.

`tests/options/recipes.toml` has a small recipe of each task, and of each option another value.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections import Counter
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import every_task
import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from regard.checkpoints import model_folder
from regard.errors import RegardError
from regard.experiments import runs
from regard.recipe import Options
from regard.tasks import task_class
from regard.text import Tokenizer

CASES = tomllib.loads(Path(__file__).with_name("options").joinpath("recipes.toml").read_text())
RECIPES = CASES["recipes"]
ELSEWHERE = {"train", "test", "glue", "test_part", "regions", "features", "freeze_word_vectors"}
TEACHERS = ("classification", "embedding", "fill-mask")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The data, and the teachers."""
    folder = tmp_path_factory.mktemp("data")
    for name, text in CASES["files"].items():
        (folder / name).write_text(text)
    for n in range(5):
        Image.fromarray(np.full((60, 60, 3), 50 * n, np.uint8)).save(folder / f"{n}.png")
    for name in TEACHERS:
        torch.manual_seed(2)
        runs.save(every_task.MAKERS[name](), folder / name)
    with pytest.MonkeyPatch.context() as patch:  # a teacher does not change: it is read once
        patch.setattr(model_folder, "read_model", cache(model_folder.read_model))
        yield folder


def digest(values: Any) -> str:
    """Of all numbers and texts in objects, but of no recipe."""
    found, seen = hashlib.sha256(), {}

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor | np.ndarray):
            found.update(np.asarray(torch.as_tensor(value).detach()).tobytes())
        elif isinstance(value, str | bytes | int | float | None):
            found.update(repr(value).encode())
        elif not isinstance(value, Options | nn.Module | Tokenizer) and id(value) not in seen:
            seen[id(value)] = value
            parts = value if isinstance(value, dict) else getattr(value, "__dict__", {})
            for part in value if isinstance(value, list | tuple) else parts.items():
                add(part)

    add(values)
    return found.hexdigest()


def planned(name: str, folder: Path, recipe: dict[str, Any], made: Any = None) -> tuple[Any, Any]:
    """The task, and its recipe with its options."""
    torch.manual_seed(1)
    kind, made = task_class(name), made or every_task.MAKERS[name]()
    options = kind.Recipe.model_validate({"task": name, **recipe}, context={"folder": folder})
    return kind.from_recipe(options, made.module, made.tokenizer), options


def training(name: str, folder: Path, recipe: dict[str, Any], made: Any) -> str:
    """What a training begins with, and its scores; or the error."""
    try:
        task, options = planned(name, folder, recipe, made)
        task.start_from_word_vectors(options)
        before, batches = digest(vars(task)), list(islice(task.train_batches(), 2))
        first = batches[0], task.counts(batches[0]), task.losses(batches[0], None)
        return digest([before, batches, first, task.validate(), task.settings(), task.notes()])
    except RegardError as error:
        return str(error)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", RECIPES)
def test_each_option_changes_the_training(name, folder):
    recipe, made, without = RECIPES[name], every_task.MAKERS[name](), CASES["without"].get(name, ())
    values = CASES["another"] | CASES["another_of"].get(name, {})
    usual = training(name, folder, recipe, made)
    assert usual == training(name, folder, recipe, made) and len(usual) == 64, usual
    assert "seed" in without or training(name, folder, {**recipe, "seed": 9}, made) != usual
    for section, field in task_class(name).Recipe.model_fields.items():
        kind, *_ = get_args(field.annotation) or (field.annotation,)
        options = set(getattr(kind, "model_fields", ())) - ELSEWHERE
        options &= {"decoding": {"max_tokens"}, "tokenizer": set()}.get(section, options)
        for option in options:
            changed = {section: recipe.get(section, {}) | {option: values[option]}}
            if f"{section}.{option}" not in without:
                assert training(name, folder, recipe | changed, made) != usual, (section, option)


PAIRS = ("translation", "dialogue", "sequence-parsing")
STREAMS = ("language-modeling", "bidirectional-language-modeling")
# random, or in training alone
OTHERS = ("captioning", "hybrid-language-modeling", "permutation-language-modeling")
DRAWN = ("masked-language-modeling", "replaced-tokens")  # masks of validation are others


@torch.no_grad()
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in RECIPES if name not in OTHERS])
def test_the_losses_of_an_epoch_do_not_depend_on_its_batches(name, folder):
    data, totals, items = RECIPES[name]["data"], [Counter(), Counter()], [Counter(), Counter()]
    for n, (rows, tokens) in enumerate(((1, 3), (4, 200))):
        size = {"batch_size": 1 if name in STREAMS else rows, "sequence_length": min(tokens, 9)}
        size |= {"max_tokens_per_batch": tokens, "max_length": 60 if name in PAIRS else 16}
        size = {option: size[option] for option in size.keys() & data} | {"valid": data["train"]}
        size |= {"restart_every": 0} if name == "bidirectional-language-modeling" else {}
        task, _ = planned(name, folder, RECIPES[name] | {"data": data | size})
        batches, carry = task.train_batches(), None
        task.module.eval()
        for batch in islice(batches, batches.batches_per_epoch):
            losses, carry = task.losses(batch, carry)
            assert {key: count for key, (_, count) in losses.items()} == task.counts(batch)
            totals[n].update({key: float(loss) for key, (loss, _) in losses.items()})
            items[n].update(task.counts(batch))
    assert items[0] == items[1] and totals[0] == pytest.approx(totals[1], rel=1e-5)
    loss = task.validate().get("loss")
    if loss and name not in DRAWN:
        assert loss == pytest.approx(totals[0].total() / items[0].total(), rel=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*list(RECIPES)[:8], "translation", "captioning"])
def test_the_score_of_validation_is_that_of_evaluation(name, folder):
    task, recipe = planned(name, folder, RECIPES[name])
    scores = [score.value for score in task.evaluate(recipe.data.records("valid")).named]
    assert task.validate()[task.goal[0]] in [pytest.approx(score) for score in scores]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", RECIPES)
def test_equal_weights_have_equal_scores_whatever_the_seed(name, folder):
    recipes = ({**RECIPES[name], "seed": seed} for seed in (1, 2))
    first, second = (planned(name, folder, recipe)[0] for recipe in recipes)
    first.module.load_state_dict(second.module.state_dict())
    assert first.validate() == second.validate()
