"""Arguments of every form: iterators, tables, options out of range or unknown, labels that are
numbers. An answer is that of the plain form; anything else is an error that names the option.
"""

from __future__ import annotations

import json
import sys
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.data.datasets.multiple_choice import ChoiceQuestion
from regard.errors import ConfigError, DataError

sys.path.insert(0, str(Path(__file__).parents[1]))
import every_task

pandas = pytest.importorskip("pandas")
QUESTION = {"question": "who sat", "choices": ["the cat", "a mat"], "answer": 0}
PAIR = ("the cat sat", "on a mat")
WORDS = ["the", "cat", "sat"]  # a list of texts is the words of one
ASKED: dict[str, Any] = {
    "fill-mask": "the cat [MASK] on a mat",
    "masked-language-modeling": "the cat [MASK] on a mat",
    "next-sentence": PAIR,
    "sentence-order": PAIR,
    "question-answering": PAIR,
    "multiple-choice": QUESTION,
    "tagging": WORDS,
    "crf-tagging": WORDS,
    "captioning": str(Path(__file__).parents[1] / "stripes.png"),
}


@cache
def task_named(name: str) -> Any:
    """A task with random weights that are large enough to tell texts apart."""
    torch.manual_seed(1)
    task = every_task.MAKERS[name]()
    with torch.no_grad():
        for weights in task.module.parameters():
            weights.add_(torch.randn_like(weights), alpha=0.3)
    task.module.eval()
    return task


# ---- forms of texts ------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(every_task.MAKERS))
def test_an_iterator_gives_what_its_list_gives(name):
    task = task_named(name)
    text = ASKED.get(every_task.task_of(name), "the cat sat on a mat")
    long = text if not isinstance(text, str) else f"{text} {'cat ' * 40}"
    texts = [text, text]
    options = {"max_tokens": 3} if task.decodes and name != "sequence-parsing" else {}
    several = task.hypotheses if task.decodes else partial(task.predict, return_proba=True)
    wanted = several(texts, **options)
    assert len(wanted) == 2
    assert several(iter(texts), **options) == wanted
    asked = task.predict(texts, **options)
    np.testing.assert_equal(task.predict((one for one in texts), **options), asked)
    if name.partition("-")[0] != "captioning":
        assert task.over_limit(iter([text, long])) == task.over_limit([text, long])
    if isinstance(text, str) and "captioning" not in name:
        assert several(pandas.DataFrame({"text": texts}), **options) == wanted


# ---- options -------------------------------------------------------------------------------

WHOLE_NUMBERS = [
    ("fill-mask", "top", lambda task, **option: task.fill("the [MASK]", **option)),
    (
        "question-answering",
        "n_best",
        lambda task, **option: task.predict([PAIR], **option, return_proba=True),
    ),
    (
        "parsing",
        "n_best",
        lambda task, **option: task.predict(["the cat"], **option, return_proba=True),
    ),
    ("embedding", "max_tokens_per_batch", lambda task, **option: task.embed(["a"], **option)),
    *(
        (name, option, lambda task, **option: task.evaluate(["the cat sat"], **option))
        for name, options in {
            "language-modeling": "target_length max_distance neural_cache",
            "language-modeling-transformer-xl": "target_length max_distance memory_length",
            "language-modeling-gpt2": "window stride",
        }.items()
        for option in options.split()
    ),
]


@pytest.mark.parametrize("value", [0, 2.5])
@pytest.mark.parametrize(("name", "option", "call"), WHOLE_NUMBERS)
def test_numbers_out_of_range_are_named(name, option, call, value):
    if value == 0 and option == "memory_length":
        return  # no memory at all
    with pytest.raises(ConfigError, match=f"`{option}` must be (at least|a whole number)"):
        call(task_named(name), **{option: value})


# ---- labels and answers --------------------------------------------------------------------


@pytest.mark.parametrize("first", [0, 1, 4])
def test_labels_that_are_numbers_are_no_columns(first, tmp_path):
    plain = task_named("multi-label-classification")
    labels = [str(first + i) for i in range(len(plain.labels))]
    task = type(plain)(plain.module, plain.tokenizer, labels=labels)
    rows = list(zip(["the cat", "a mat"], [labels[:1], labels[1:]], strict=True))
    wanted = [score.value for score in task.evaluate(rows).named]
    file = tmp_path / "rows.tsv"
    file.write_text("".join(f"{text}\t{json.dumps(targets)}\n" for text, targets in rows))
    for columns in ((), (0, 1)):
        found = task.evaluate(task.rows_to_evaluate([file], columns)).named
        assert [score.value for score in found] == wanted
    assert [score.value for score in task.evaluate(rows, columns=[0, 1]).named] == wanted


def test_numbered_columns_of_labels_are_still_read(tmp_path):
    plain = task_named("multi-label-classification")
    task = type(plain)(plain.module, plain.tokenizer, labels=["1", "2", "3"])
    file = tmp_path / "rows.tsv"
    file.write_text("the cat\t1\t0\t1\na mat\t0\t1\t0\n")
    found = task.evaluate(task.rows_to_evaluate([file], [0, 1, 2, 3])).named
    wanted = task.evaluate([("the cat", ["1", "3"]), ("a mat", ["2"])]).named
    assert [score.value for score in found] == [score.value for score in wanted]
    named = type(plain)(plain.module, plain.tokenizer, labels=["a", "b", "c"])
    with pytest.raises(ConfigError, match="must name texts, and the labels all or none"):
        named.rows_to_evaluate([file], ["a", "b", "c"])


@pytest.mark.parametrize("answer", [None, -1, 2, 7])
def test_a_question_without_a_right_answer_is_not_scored(answer):
    questions = [QUESTION, ChoiceQuestion("", "who sat", ("the cat", "a mat"), answer)]
    with pytest.raises(DataError, match="question 2 has the answer .*, which is none of its 2"):
        task_named("multiple-choice").evaluate(questions)


# ---- the evaluation harness ----------------------------------------------------------------
