"""Models and tasks of one's own: registered, saved, opened; errors.

`docs/how-to/own-model.md` trains one. Tests of `regard.tasks.task`.
"""

from __future__ import annotations

import json

import pytest
from torch import nn

import regard
from regard.errors import CheckpointError, ConfigError
from regard.models import MODELS
from regard.models.recurrent import RecurrentConfig, RecurrentLanguageModel
from regard.tasks import TASKS, register
from regard.tasks.classification import TextClassifier
from regard.tasks.language_modeling import TextGenerator
from regard.text import train


class Own(RecurrentLanguageModel):
    """With another name."""


@pytest.fixture
def tables():
    """What a test registers is gone after it."""
    before = dict(MODELS), dict(TASKS)
    yield
    for table, old in zip((MODELS, TASKS), before, strict=True):
        table.clear()
        table.update(old)


def test_a_registered_model_is_saved_and_opened(tables, tmp_path):
    register("own", Own)
    words = train("words", ["the cat sleeps ."], 10)
    regard.save(TextGenerator(Own(RecurrentConfig(words.vocab_size)), words), tmp_path)
    model = regard.load(tmp_path)
    assert type(model.module) is Own and repr(model).startswith("<TextGenerator: own, ")
    assert json.loads((tmp_path / "config.json").read_text())["regard"]["model"] == "own"
    del MODELS["own"]
    with pytest.raises(CheckpointError, match="`regard.model` is 'own'"):
        regard.load(tmp_path)


def test_a_task_of_ones_own_has_its_name(tables):
    class Stars(TextClassifier):
        """Classes with another name."""

    register("stars", Stars)
    assert TASKS["stars"] is Stars and Stars.name == "stars" and TextClassifier.name != "stars"


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("x", 5, "5 cannot be registered: it must be a class that inherits Model"),
        ("x", nn.Linear, "cannot be registered: it must be a class that inherits Model"),
        ("bert", Own, "The name 'bert' is taken: choose another one for Own"),
        ("x", type("NoConfig", (RecurrentLanguageModel,), {"Config": None}), "is no dataclass"),
    ],
)
def test_registering_no_model_or_under_a_taken_name_raises_an_error(tables, name, kind, said):
    with pytest.raises(ConfigError, match=said):
        register(name, kind)
