"""SuperGLUE: its files, its metrics beside scikit-learn and by their definitions, and prompts."""

from __future__ import annotations

import json
import random

import pytest
import torch
import transformers
from test_cli import done, refused
from tiny_folders import folder

import regard
from regard.data import read_super_glue
from regard.errors import ConfigError, DataError, RegardError
from regard.metrics import super_glue as metrics
from regard.tasks.super_glue import PROMPTS, super_glue_scores

PASSAGE = "The old cat sleeps on a mat . The dog runs in the park ."
ROWS = {
    "boolq": [
        {"passage": PASSAGE, "question": "does the cat sleep?", "label": True, "idx": 0},
        {"passage": PASSAGE, "question": "is the dog slow", "label": False, "idx": 1},
    ],
    "cb": [
        {"premise": "a dog runs", "hypothesis": "who sleeps", "label": "neutral"},
        {"premise": "it was dull", "hypothesis": "it was bad", "label": "entailment"},
        {"premise": "it was dull", "hypothesis": "it was fun", "label": "contradiction"},
    ],
    "copa": [
        {"premise": "The cat sleeps.", "choice1": "The mat is warm.", "choice2": "It runs.",
         "question": "cause", "label": 0},
        {"premise": "The dog runs.", "choice1": "It has a red ball.", "choice2": "It sleeps.",
         "question": "effect", "label": 0},
    ],
    "multirc": [
        {"idx": 3, "passage": {"text": PASSAGE, "questions": [
            {"question": "Who sleeps?", "idx": 0, "answers": [
                {"text": "the dog", "idx": 0, "label": 0},
                {"text": "the cat", "idx": 1, "label": 1},
            ]},
            {"question": "Where?", "idx": 1, "answers": [{"text": "a mat", "idx": 2, "label": 1}]},
        ]}},
    ],
    "record": [
        {"source": "x", "passage": {"text": PASSAGE, "entities": [
            {"start": 4, "end": 10}, {"start": 34, "end": 36}, {"start": 34, "end": 36}]},
         "qas": [{"idx": 0, "query": "On a mat lies @placeholder .",
                  "answers": [{"start": 4, "end": 10, "text": "old cat"}]}]},
    ],
    "rte": [{"premise": "a dog runs", "hypothesis": "it was good", "label": "not_entailment"}] * 2,
    "wic": [
        {"word": "ball", "sentence1": "a red ball", "sentence2": "the ball was good fun",
         "start1": 6, "end1": 10, "start2": 4, "end2": 8, "label": False},
    ],
    "wsc": [
        {"text": "The cat sleeps as it likes the mat .", "label": True, "target": {
            "span1_text": "The cat", "span1_index": 0, "span2_text": "it", "span2_index": 4}},
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return folder(tmp_path_factory.mktemp("gpt2"), "gpt2", "LMHeadModel", n_positions=160)


def written(path, task: str):
    file = path / f"{task}.jsonl"
    file.write_text("\n".join(map(json.dumps, ROWS[task])))
    return file


# ---- files


@pytest.mark.parametrize("task", ROWS)
def test_every_task_is_read_from_a_file_and_from_its_objects(tmp_path, task):
    questions = list(read_super_glue(task, written(tmp_path, task)))
    assert len(questions) == len(list(read_super_glue(task, ROWS[task]))) > 0
    for one in questions:
        assert len(one.choices) > 1 and {*one.answers} <= {*one.choices}


def test_answers_groups_and_entities_are_those_of_the_files():
    found = list(read_super_glue("multirc", ROWS["multirc"]))
    assert [one.fields["answer"] for one in found] == ["the dog", "the cat", "a mat"]
    assert [one.answers for one in found] == [("false",), ("true",), ("true",)]
    assert found[0].group == found[1].group != found[2].group
    (query,) = read_super_glue("record", ROWS["record"])
    assert query.choices == ("old cat", "dog") and query.answers == ("old cat",)
    first, second = read_super_glue("boolq", ROWS["boolq"])
    assert (first.answers, second.answers) == (("true",), ("false",))
    assert [one.answers[0] for one in read_super_glue("copa", ROWS["copa"])] == [
        "The mat is warm.", "It has a red ball.",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "task, change, message",
    [
        ("boolq", {"label": None}, "has the label None, but must have one of false, true"),
        ("cb", {"label": "maybe"}, "has the label 'maybe'"),
        ("copa", {"question": "reason"}, "asks for 'reason'"),
        ("copa", {"choice2": 7, "label": 2}, "has the label 2"),
        ("copa", {"choice2": " "}, "has an empty choice: '.*', ' '"),
        ("rte", {"premise": None}, "field 'premise' must be text, but is missing"),
        ("wsc", {"target": {}}, "target.span1_text"),
        ("multirc", {"passage": {"text": "x", "questions": {}}}, "a list of questions"),
        ("record", {"qas": []}, "has not one question of record"),
        ("record", {"passage": {"text": "x", "entities": []}}, "has 0 entities"),
        ("record", {"qas": [{"query": "x", "answers": []}]}, "a query without @placeholder"),
        ("wic", "text", "an object"),
    ],
)
def test_malformed_questions_are_named(task, change, message):
    row = change if isinstance(change, str) else {**ROWS[task][0], **change}
    with pytest.raises(DataError, match=message):
        list(read_super_glue(task, [row]))


def changed(draw: random.Random, value):
    """A copy of a value of JSON in which something is missing or of another type."""
    if draw.random() < 0.3 or not isinstance(value, dict | list) or not value:
        return draw.choice([None, 1, -1, True, "x", [], {}, [1], {"a": 1}])
    if isinstance(value, list):
        at = draw.randrange(len(value))
        return [*value[:at], changed(draw, value[at]), *value[at + 1 :]]
    name = draw.choice([*value])
    if draw.random() < 0.3:
        return {key: inner for key, inner in value.items() if key != name}
    return value | {name: changed(draw, value[name])}


@pytest.mark.parametrize("task", ROWS)
def test_drawn_questions_are_read_or_an_error_that_names_the_line(task):
    draw = random.Random(1)
    for _ in range(300):
        row = changed(draw, ROWS[task][0])
        try:
            list(read_super_glue(task, [row]))
        except DataError as error:
            assert error.line == 1 or "has not one question" in str(error)


def test_unknown_tasks_are_errors():
    with pytest.raises(ConfigError, match="boolq"):
        read_super_glue("bool", [])
    with pytest.raises(ConfigError, match="boolq"):
        metrics.scores("bool", ["a"], [["a"]], [""])


# ---- metrics


def test_metrics_are_those_of_their_definitions():
    labels = ("entailment", "contradiction", "neutral")
    draw = torch.Generator().manual_seed(1)
    found, right = (
        [labels[i] for i in torch.randint(0, 3, (40,), generator=draw)] for _ in range(2)
    )
    sklearn = pytest.importorskip("sklearn.metrics")
    accuracy, macro = metrics.scores("cb", found, [[one] for one in right], [""] * 40)
    assert accuracy.value == pytest.approx(sklearn.accuracy_score(right, found))
    assert macro.value == pytest.approx(sklearn.f1_score(right, found, average="macro"))
    found, right = (
        [("false", "true")[i] for i in torch.randint(0, 2, (40,), generator=draw)] for _ in range(2)
    )
    groups = [str(n // 4) for n in range(40)]
    f1, exact = metrics.scores("multirc", found, [[one] for one in right], groups)
    assert f1.value == pytest.approx(sklearn.f1_score(right, found, pos_label="true"))
    whole = [found[n : n + 4] == right[n : n + 4] for n in range(0, 40, 4)]
    assert exact.value == sum(whole) / 10 and exact.count == 10
    right = [["cat"], ["cat", "mat"], ["ball", "x"]]
    f1, exact = metrics.scores("record", ["The cat", "a dog", "red ball"], right, [""] * 3)
    assert exact.value == pytest.approx(1 / 3) and f1.value == pytest.approx((1 + 0 + 2 / 3) / 3)


def test_the_average_is_over_tasks():
    results = {"boolq": [0.5], "cb": [0.8, 0.6], "multirc": metrics.scores(
        "multirc", ["true"], [["true"]], ["0"]
    )}  # fmt: skip
    assert metrics.average(results) == pytest.approx((0.5 + 0.7 + 1.0) / 3)
    for wrong in ({}, {"cb": []}):
        with pytest.raises(RegardError, match="no"):
            metrics.average(wrong)
    with pytest.raises(RegardError, match="as many"):
        metrics.scores("rte", ["entailment"], [], [])


# ---- prompts


def test_prompts_are_the_texts_of_the_questions():
    one = {
        task: PROMPTS[task].question(next(iter(read_super_glue(task, ROWS[task])))) for task in ROWS
    }
    assert one["boolq"].prompt == f"{PASSAGE}\nquestion: does the cat sleep?\nanswer:"
    assert one["boolq"].choices == ("no", "yes") and one["boolq"].answer == "yes"
    assert one["copa"].prompt == "The cat sleeps because"
    assert one["copa"].choices == ("the mat is warm.", "it runs.")
    assert one["record"].prompt.endswith("\n- On a mat lies")
    assert one["record"].choices == ("old cat .", "dog .")
    assert "does 'it' refer to 'The cat'?" in one["wsc"].prompt


@pytest.mark.parametrize("task", ROWS)
def test_the_choice_is_the_most_probable_one_by_transformers(model, task):
    theirs = transformers.GPT2LMHeadModel.from_pretrained(model).eval().double()
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    questions, chosen = list(read_super_glue(task, ROWS[task])), []
    for one in questions:
        prompt, values = PROMPTS[task].question(one), []
        for choice in prompt.choices:
            whole = tokenizer(f"{prompt.prompt} {choice}", return_offsets_mapping=True)
            count = sum(end > len(prompt.prompt) for _, end in whole["offset_mapping"])
            ids = torch.tensor([whole["input_ids"]])
            with torch.no_grad():
                log_probs = theirs(ids).logits[0, :-1].log_softmax(-1)
            total = float(log_probs.gather(1, ids[0, 1:, None])[-count:].sum())
            values.append(total if PROMPTS[task].words else total / count)
        chosen.append(one.choices[values.index(max(values))])
    wanted = metrics.scores(
        task, chosen, [one.answers for one in questions], [one.group for one in questions]
    )
    found = super_glue_scores(regard.load(model), task, questions)
    assert [(one.name, one.value) for one in found] == [(one.name, one.value) for one in wanted]


def test_examples_come_from_the_pool(model):
    task, questions = regard.load(model), list(read_super_glue("cb", ROWS["cb"]))
    (first, *_) = super_glue_scores(task, "cb", questions, shots=2, pool=questions, seed=4)
    assert first.signature.startswith("shots:2|seed:4|")
    with pytest.raises(ConfigError, match="the pool has 2 examples"):
        super_glue_scores(task, "cb", questions, shots=3, pool=questions)


def test_a_task_is_scored_from_the_command_line(model, tmp_path):
    file = written(tmp_path, "multirc")
    printed = done("evaluate", model, "--super-glue", "multirc", "--data", file)
    assert "F1 = " in printed and "exact match = " in printed
    shot = ("--shots", 1, "--examples", file)
    assert "shots:1" in done("evaluate", model, "--super-glue", "multirc", "--data", file, *shot)
    assert "copa" in refused("evaluate", model, "--super-glue", "cope", "--data", file)
    assert "different tests" in refused(
        "evaluate", model, "--super-glue", "cb", "--minimal-pairs", "--data", file
    )
