"""The class of every task: few levels of inheritance, and all methods that others call."""

from __future__ import annotations

import pytest

from regard.tasks import TASKS, task_class
from regard.tasks.embedder import EmbedsTexts
from regard.tasks.encoding import EncoderTask
from regard.tasks.methods import METHODS, Methods
from regard.tasks.task import Task

OF_ALL = ("predict", "settings", "over_limit", "notes", "published", "attention_inputs")
TRAINED = (
    "from_recipe", "problems", "train_batches", "counts", "losses", "validate",
    "samples", "test", "evaluate",
)  # fmt: skip
ON_ENCODERS = ("_predictions", "prediction_type", "embed", "embed_stream", "similarity")
DECODING = ("hypotheses", "spelled")


def levels(kind: type) -> list[type]:
    """The classes of regard.tasks that a task inherits from, itself included; not what all tasks
    have, nor the methods that make vectors of what its `text_encoder` gives."""
    own = [one for one in kind.__mro__ if one.__module__.startswith("regard.tasks.")]
    return [one for one in own if one not in (Methods, Task, EmbedsTexts)]


@pytest.mark.parametrize("name", TASKS)
def test_a_task_class_has_at_most_two_levels_and_a_task_with_another_head_one_more(name):
    kind = task_class(name)
    assert kind.name == name and issubclass(kind, Task)
    own = levels(kind)
    inherits_task = own[1:2] and own[1] in map(task_class, TASKS)
    assert len(own) <= (3 if inherits_task and not kind.decodes else 2), own
    assert all(len(one.__bases__) == 1 for one in levels(kind))


@pytest.mark.parametrize("name", TASKS)
def test_a_task_has_the_methods_of_its_kind(name):
    kind = task_class(name)
    wanted = [*OF_ALL, *(DECODING if kind.decodes else ON_ENCODERS)]
    if kind.Recipe is not None:
        evaluated = kind.decodes or "evaluate" in kind.commands
        wanted += [one for one in TRAINED if evaluated or one != "evaluate"]
        own = [one for one in levels(kind) if one is not EncoderTask]
        if kind.losses is EncoderTask.losses:
            assert any("loss" in vars(one) or "loss_of" in vars(one) for one in own)
            assert any("measured" in vars(one) for one in own)
        assert all(hasattr(kind.Recipe.model_fields["data"].annotation, one)
                   for one in ("records", "texts", "files"))  # fmt: skip
    assert [one for one in wanted if not hasattr(kind, one)] == []


def test_every_method_with_an_error_of_its_own_belongs_to_some_task():
    kinds = [task_class(name) for name in TASKS]
    assert all(any(kind.has(method) for kind in kinds) for method in METHODS)
