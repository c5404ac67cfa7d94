"""What we ask of a model: examples, objective, prediction and metric, one task a file.

A task object bundles a model, its tokenizer and how they are used. `regard.load` gives one, the
training loop trains one. A new task is one file and one line.
"""

from __future__ import annotations

from typing import Any

from regard.lazy import entry

# name -> module:Class
TASKS = {
    "translation": "regard.tasks.translation:Translation",
    "language-modeling": "regard.tasks.language_modeling:LanguageModeling",
    "embedding": "regard.tasks.embedding:Embedding",
    "classification": "regard.tasks.classification:Classification",
    "regression": "regard.tasks.regression:Regression",
    "multiple-choice": "regard.tasks.multiple_choice:MultipleChoice",
    "fill-mask": "regard.tasks.fill_mask:FillMask",
    "next-sentence": "regard.tasks.next_sentence:NextSentence",
    "tagging": "regard.tasks.tagging:Tagging",
    "question-answering": "regard.tasks.question_answering:QuestionAnswering",
}


def task_class(name: str) -> Any:
    """The class of this name, imported now.

    Raises:
        ConfigError: no task has this name; the nearest one is offered.
    """
    return entry(TASKS, name, "task")
