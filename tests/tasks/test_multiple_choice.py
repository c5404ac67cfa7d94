"""Multiple choice: rows, truncation, and the answers of transformers from the same folder.

Tests of `regard.tasks.encoding`.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch
import transformers
from recipe_files import trained, written
from tiny_folders import ENCODERS, FAMILIES, GPTS, folder

from regard.data.datasets.records import ChoiceQuestion
from regard.errors import DataError, RegardError
from regard.experiments import runs

QUESTIONS = [
    ChoiceQuestion("A dog runs after a red ball.", "What runs?", ("a dog", "the old cat"), 0),
    ChoiceQuestion(
        "The cat sleeps on a warm mat in the park.", "Who sleeps?", ("dog", "cat", "ball"), 1
    ),
    ChoiceQuestion("", "Where is the ball?", ("in the park", "on the mat", "good", "bad"), 0),
    ChoiceQuestion("I liked the film", "", ("a lot.", "the mat."), 0),
]
RECIPE = dict(
    task="multiple-choice",
    model=dict(path="start"),
    data=dict(train="train.jsonl", valid="train.jsonl"),
    training=dict(epochs=1, schedule=dict(name="constant"), optimizer=dict(learning_rate=0.001)),
)


@pytest.fixture
def workdir(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(QUESTIONS)
    written("small.toml", RECIPE)
    return tmp_path


def write(questions: list[ChoiceQuestion], name: str = "train.jsonl") -> None:
    Path(name).write_text("".join(json.dumps(vars(one)) + "\n" for one in questions))


train = partial(trained, "small.toml")


def start(workdir: Path, family: str, *, head: bool = False, **options) -> Path:
    ending = "Model" if family in ENCODERS else "LMHeadModel"
    if head:
        ending = "ForMultipleChoice" if family in ENCODERS else "DoubleHeadsModel"
    return folder(workdir / "start", family, ending, **options)


def their_answers(path: Path, one: ChoiceQuestion, family: str) -> torch.Tensor:
    """Probabilities of a question's choices by `transformers`, from the same folder."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    ends = [" ".join(filter(None, (one.question, choice))) for choice in one.choices]
    firsts, seconds = [one.context] * len(ends), ends
    if not one.context:
        firsts, seconds = [one.question] * len(ends), list(one.choices)
    if family in GPTS:
        firsts = [" ".join(filter(None, (one.context, one.question)))] * len(ends)
        seconds = list(one.choices)
    given = tokenizer(firsts, seconds, return_tensors="pt", padding=True)
    given = {name: value[None] for name, value in given.items()}
    with torch.no_grad():
        if family in GPTS:
            name = {"gpt": "OpenAIGPTDoubleHeadsModel", "gpt2": "GPT2DoubleHeadsModel"}[family]
            model = getattr(transformers, name).from_pretrained(path).eval()
            given["mc_token_ids"] = given.pop("attention_mask").sum(-1) - 1  # nobody looks behind
            return model(**given).mc_logits.softmax(-1)[0]
        model = transformers.AutoModelForMultipleChoice.from_pretrained(path).eval()
        return model(**given).logits.softmax(-1)[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_gives_the_same_probabilities_from_a_saved_folder(workdir, family):
    start(workdir, family)
    task, _ = train()
    for one, answer in zip(QUESTIONS, task.predict(QUESTIONS, return_proba=True), strict=True):
        theirs = their_answers(workdir / "run/model", one, family)
        assert torch.allclose(theirs, torch.tensor(answer.probabilities), atol=1e-5)
        assert answer.answer == int(theirs.argmax()) and str(answer) == one.choices[answer.answer]
        assert task.predict([one], return_proba=True)[0].probabilities == pytest.approx(
            answer.probabilities, abs=1e-5
        )


def test_loss_and_accuracy_equal_those_of_transformers(workdir):
    start(workdir, "bert", head=True)
    task = runs.plan(runs.read_recipe("small.toml")).task
    shares = [their_answers(workdir / "start", one, "bert") for one in QUESTIONS]
    right = [
        int(share.argmax()) == one.answer for share, one in zip(shares, QUESTIONS, strict=True)
    ]
    losses = [-share[one.answer].log().item() for share, one in zip(shares, QUESTIONS, strict=True)]
    found = task.validate()
    assert found["accuracy"] == sum(right) / 4
    assert found["loss"] == pytest.approx(sum(losses) / 4, rel=1e-4)
    assert task.evaluate(QUESTIONS).named[0].value == sum(right) / 4


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_only_the_context_of_a_long_question_is_truncated_and_counted(workdir, family):
    start(workdir, family)
    long = ChoiceQuestion("the old cat sleeps " * 20, "what ball", ("a cat", "the good dog"), 0)
    write([*QUESTIONS, long])
    limit = 40
    with pytest.warns(UserWarning, match=r"longer than 40 tokens, truncated: 1 \(first at"):
        task, _ = train(f"data.max_length={limit}", quiet=False)
    whole = runs.load("start").tokenizer
    for row, choice in zip(task.encoder_inputs([long])[0].inputs, long.choices, strict=True):
        assert len(row) == limit
        said = " ".join(task.tokenizer.decode(ids) for ids in row.texts())
        assert "what ball" in said and said.endswith(choice)
        assert row.ids[1:8] == whole.encode(long.context).ids[:7]
    with pytest.raises(RegardError, match="Text 2 has .* reads at most 40. Shorten it"):
        task.predict([QUESTIONS[0], long])
    assert list(task.over_limit([QUESTIONS[0], long])) == [1]
    assert task.predict(long, too_long="truncate") in long.choices
    endless = ChoiceQuestion("a", "who ? " * 40, ("a cat", "b"), 0)
    assert all(len(row) <= limit for row in task.encoder_inputs([endless])[0].inputs)
    write([*QUESTIONS, endless])
    with pytest.raises(DataError, match="question 5 has .* tokens, more than 40"):
        train(f"data.max_length={limit}", "data.too_long=error", out="other")
    for option, said in (("skip", "example left out: 1"), ("truncate", "tokens, truncated: 1")):
        with pytest.warns(UserWarning, match=said):
            train(f"data.max_length={limit}", f"data.too_long={option}", out=option, quiet=False)


def test_the_auxiliary_lm_loss_counts_the_tokens_of_all_choices(workdir):
    start(workdir, "gpt2")
    recipe = runs.read_recipe("small.toml", ["objective.aux_lm_weight=0.5"])
    task = runs.plan(recipe).task
    batch = next(task.train_batches())
    losses, _ = task.losses(batch)
    assert losses["language_modeling"][1] == int(batch.texts.lengths.sum()) - len(batch.texts)
    assert task.counts(batch) == {name: count for name, (_, count) in losses.items()}
