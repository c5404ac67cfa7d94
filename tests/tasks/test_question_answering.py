"""Answers from contexts: against transformers' windows and a plain search; texts of any shape."""

from __future__ import annotations

import json
import math
import warnings
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from letter_folders import bert, transformers
from recipe_files import planned, until_learned
from recipe_files import written as written_recipe
from tiny_folders import folder as tiny

import regard
from regard.data.datasets.records import AnswerSpan as Given
from regard.data.datasets.records import Question
from regard.data.encoder_inputs import EncodedContext
from regard.errors import DataError
from regard.experiments.runs import read_recipe, train
from regard.metrics.squad import SQuAD2
from regard.tasks.question_answering import best_spans

STORY = "the cat sat in the hat (size 7) while rain fell on 3 towns, then it went in. "
LONG = STORY * 3 + "a dog came at 12:30! " + STORY * 2
PAIRS = [
    ("who sat?", LONG),
    ("when did the dog come?", LONG),
    ("what", "the cat"),
    ("where is it raining?", STORY),
    ("  how many?", "  " + STORY),
]
LIMIT, OVERLAP, LONGEST = 48, 12, 9
OPTIONS = dict(max_length=LIMIT, doc_stride=OVERLAP, answer_tokens=LONGEST)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return bert(tmp_path_factory.mktemp("questions") / "bert", "QuestionAnswering")


@pytest.fixture(scope="module")
def roberta(tmp_path_factory):
    return tiny(tmp_path_factory.mktemp("bytes"), "roberta", "ForQuestionAnswering")


@cache
def both(folder):
    """Our task, and transformers' tokenizer and model."""
    loaded = regard.load(folder)
    task = type(loaded)(loaded.module, loaded.tokenizer, **OPTIONS)
    theirs = transformers.AutoModelForQuestionAnswering.from_pretrained(folder).eval()
    return task, transformers.AutoTokenizer.from_pretrained(folder), theirs


def their_windows(folder, question, context):
    """Windows as transformers makes them: for each its ids, logits, offsets, context positions."""
    _, tokenizer, model = both(folder)
    found = tokenizer(
        question.lstrip(),
        context,
        truncation="only_second",
        max_length=LIMIT,
        stride=OVERLAP,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    for i, ids in enumerate(found["input_ids"]):
        inputs = {"input_ids": torch.tensor([ids])}
        if "token_type_ids" in found:
            inputs["token_type_ids"] = torch.tensor([found["token_type_ids"][i]])
        with torch.no_grad():
            output = model(**inputs)
        positions = [k for k, text in enumerate(found.sequence_ids(i)) if text == 1]
        logits = output.start_logits[0], output.end_logits[0]
        yield ids, logits, found["offset_mapping"][i], positions


def their_answers(folder, question, context):
    """All spans by a plain search, best first: (score, start, stop); and the score of none."""
    spans, none = {}, math.inf
    for _, (begins, ends), offsets, positions in their_windows(folder, question, context):
        none = min(none, float(begins[0] + ends[0]))
        for a in positions:
            for b in positions:
                if a <= b < a + LONGEST:
                    span = offsets[a][0], offsets[b][1]
                    spans[span] = max(spans.get(span, -math.inf), float(begins[a] + ends[b]))
    return sorted(((score, *span) for span, score in spans.items()), reverse=True), none


def rows_of(task, question, context):
    asked = Question("1", context, question)
    return task._windows([asked], [EncodedContext.of(context, task.tokenizer.encode(context))])


# --------------------------------------------------------------------- against transformers


@pytest.mark.parametrize("kind", ["folder", "roberta"])
def test_windows_equal_those_of_transformers(kind, request):
    folder = request.getfixturevalue(kind)
    task = both(folder)[0]
    most = 0
    for question, context in PAIRS:
        rows = rows_of(task, question, context)
        theirs = list(their_windows(folder, question, context))
        assert [rows.inputs.ids[i].tolist() for i in range(len(rows.inputs))] == [
            w[0] for w in theirs
        ]
        assert rows.input_starts.tolist() == [w[3][0] for w in theirs]
        assert rows.counts.tolist() == [len(w[3]) for w in theirs]
        most = max(most, len(theirs))
    assert most > 4


@pytest.mark.parametrize("kind", ["folder", "roberta"])
def test_the_best_answers_equal_those_of_a_plain_search(kind, request):
    folder = request.getfixturevalue(kind)
    task = both(folder)[0]
    answers = task.predict(PAIRS, n_best=5, return_proba=True)
    assert len({answer.best[0].start for answer in answers}) > 2
    for (question, context), answer in zip(PAIRS, answers, strict=True):
        spans, none = their_answers(folder, question, context)
        for passage, (score, start, stop) in zip(answer.best, spans, strict=False):
            assert passage.score == pytest.approx(score, abs=1e-4)
            assert passage.text == context[passage.start : passage.end]
            assert passage.text == context[start:stop].strip()
        assert answer.text == answer.best[0].text
        wanted = 1 / (1 + math.exp(spans[0][0] - none))
        assert answer.no_answer == pytest.approx(wanted, abs=1e-5)


def written(tmp_path, questions):
    """Questions as a file of lines: (question, context, answer, start); start None: no answer."""
    file = tmp_path / "asked.jsonl"
    with file.open("w") as opened:
        for i, (question, context, text, start) in enumerate(questions):
            given_ = {"text": [text], "answer_start": [start]}
            given_ = {"text": [], "answer_start": []} if start is None else given_
            record = {"id": str(i), "question": question, "context": context, "answers": given_}
            opened.write(json.dumps(record) + "\n")
    return file


def started(folder, file, changes=None):
    data = dict(train=file, max_length=LIMIT, doc_stride=OVERLAP)
    recipe = dict(task="question-answering", model=dict(path=folder), data=data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        training = dict(training=dict(max_steps=1))
        return planned(file.with_name("recipe.toml"), recipe, training, changes or {})


def their_positions(offsets, positions, start, stop):
    """The targets of an answer in transformers' example for SQuAD; 0, 0: not in this window."""
    if not (offsets[positions[0]][0] <= start and offsets[positions[-1]][1] >= stop):
        return 0, 0
    first = max(position for position in positions if offsets[position][0] <= start)
    last = min(position for position in positions if offsets[position][1] >= stop)
    return first, last


def test_targets_and_loss_equal_those_of_transformers(folder, tmp_path):
    words = ["cat", "sat in the hat (size 7)", "12:30!", "dog came", "the cat sat", "in."]
    asked = [("who?", LONG, word, LONG.index(word)) for word in words]
    asked.append(("why?", LONG, "", None))
    task = started(folder, written(tmp_path, asked)).task
    task.module.eval()
    part, model = task.parts.train, both(folder)[2]
    targets, ours, theirs = [], 0.0, 0.0
    for question, context, text, start in asked:
        for ids, _, offsets, positions in their_windows(folder, question, context):
            where = (0, 0)
            if start is not None:
                where = their_positions(offsets, positions, start, start + len(text))
            targets.append(where)
            segments = torch.tensor([[0] * positions[0] + [1] * (len(ids) - positions[0])])
            first, last = (torch.tensor([position]) for position in where)
            given = dict(input_ids=torch.tensor([ids]), token_type_ids=segments)
            with torch.no_grad():
                theirs += float(model(**given, start_positions=first, end_positions=last).loss)
    assert part.targets[:, :2].tolist() == [list(where) for where in targets]
    assert 0 < sum(where != (0, 0) for where in targets) < len(targets) - 1
    batches = task.train_batches()
    for _ in range(batches.batches_per_epoch):
        batch = next(batches)
        loss, count = task.losses(batch)[0]["loss"]
        assert count == task.counts(batch)["loss"] == len(batch)
        ours += float(loss.detach())
    assert ours == pytest.approx(theirs, rel=1e-5)


# -------------------------------------------------------------------------- the best spans


@settings(max_examples=60)
@given(st.data())
def test_best_spans_equal_a_brute_force_search(data):
    rows, width = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 9))
    count = rows * width * 2
    numbers = st.lists(st.integers(-2, 2), min_size=count, max_size=count)  # many spans are equal
    scores = torch.tensor(data.draw(numbers)).float().view(rows, width, 2)
    first = torch.tensor([data.draw(st.integers(0, width)) for _ in range(rows)])
    counts = torch.tensor([data.draw(st.integers(0, width - int(f))) for f in first])
    longest, most = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 8))
    found = best_spans(scores, first, counts, longest=longest, most=most)
    for row in range(rows):
        inside = range(int(first[row]), int(first[row] + counts[row]))
        spans = [
            (-float(scores[row, a, 0] + scores[row, b, 1]), a, b)
            for a in inside
            for b in inside
            if a <= b < a + longest
        ]
        assert found[row] == [(-score, a, b) for score, a, b in sorted(spans)[:most]]


# ------------------------------------------------------------------------- texts of any shape


TEXTS = st.text(st.sampled_from("the cat 7.!\u6771\u00fc\u200b\n\U0001f600"), max_size=150)


@settings(max_examples=60)
@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=4))
def test_answers_are_parts_of_their_context_in_any_batch(folder, roberta, pairs):
    for path in (folder, roberta):
        task = both(path)[0]
        answers = task.predict(pairs, too_long="truncate", return_proba=True)
        assert len(answers) == len(pairs)
        for pair, answer in zip(pairs, answers, strict=True):
            for passage in answer.best:
                assert pair[1][passage.start : passage.end] == passage.text == answer.text
            if not pair[1].strip():
                assert answer.text == ""
            alone = task.predict([pair], too_long="truncate", return_proba=True)[0]
            assert alone.text == answer.text
            assert alone.no_answer == pytest.approx(answer.no_answer, abs=1e-5)


# -------------------------------------------------------------------------------- no answer


def test_questions_above_the_threshold_have_no_answer(folder):
    task = both(folder)[0]
    answers = task.predict(PAIRS, return_proba=True)
    task.threshold = sorted(answer.no_answer for answer in answers)[2]
    try:
        for before, after in zip(answers, task.predict(PAIRS, return_proba=True), strict=True):
            assert after.best == before.best
            assert after.text == ("" if before.no_answer > task.threshold else before.text)
    finally:
        task.threshold = 1.0


def test_squad_2_scores_use_the_threshold(folder):
    task = both(folder)[0]
    questions = [
        Question("1", LONG, "who?", (Given("cat", 4), Given("the cat", 0))),
        Question("2", STORY, "why?", impossible=True),
        Question("3", STORY, "what?", (Given("hat", 19),)),
        Question("4", "", "who?", impossible=True),
    ]
    found = [task.predict([(one.question, one.context)], return_proba=True)[0] for one in questions]
    task.threshold = 0.4
    try:
        metric = SQuAD2(0.4)
        metric.add(
            [answer.best[0].text if answer.best else "" for answer in found],
            [[answer.text for answer in one.answers] for one in questions],
            [answer.no_answer for answer in found],
        )
        assert task.evaluate(questions).named[0] == metric.result()
    finally:
        task.threshold = 1.0
    first = task.evaluate([questions[0]]).named[0]
    assert first.signature.startswith("version:1.1")


def test_the_threshold_is_tuned_on_validation_data(folder, tmp_path):
    asked = [("who?", STORY, "cat", 4), ("why?", LONG, "", None), ("what?", STORY, "hat", 19)]
    file = written(tmp_path, asked)
    assert started(folder, file).task.threshold == 0.5
    assert started(folder, file, dict(answers=dict(threshold=0.7))).task.threshold == 0.7
    answerable = tmp_path / "answerable"
    answerable.mkdir()
    assert started(folder, written(answerable, asked[:1])).task.threshold == 1.0
    task = started(folder, file, dict(data=dict(valid=file))).task
    scores = task.validate()
    wanted = [[text] if start is not None else [] for _, _, text, start in asked]
    found = task.predict([pair[:2] for pair in asked], return_proba=True)
    tries = []
    for threshold in (0.0, *(answer.no_answer for answer in found), 1.0):
        metric = SQuAD2(threshold)
        best = [answer.best[0].text for answer in found]
        metric.add(best, wanted, [answer.no_answer for answer in found])
        tries.append(metric.result().value)
    assert scores["f1"] == max(tries) and task.settings()["threshold"] == task.threshold
    # Other weights have another threshold, and the settings are those of the present ones.
    with torch.no_grad():
        task.module.heads["span"].output.weight.mul_(-1)
    task.settings()
    assert len(task._fitted._thresholds) == 2


# --------------------------------------------------------------------------------- training

RECIPE = until_learned(
    "question-answering", "asked.jsonl", 150, 0.005, max_length=48, doc_stride=12
)


def test_a_trained_model_is_saved_and_gives_the_scores_of_transformers(tmp_path):
    start = bert(tmp_path / "start", "MaskedLM")
    asked = [
        ("who?", "the dog sat. the cat ran at 7", "cat", 17),
        ("when?", "the dog sat. the cat ran at 7", "7", 28),
        ("why?", "the dog sat. the cat ran at 7", "", None),
        ("who?", "a fox hid in a box in the rain, and it was not seen by any cat", "cat", 59),
    ]
    written(tmp_path, asked)
    written_recipe(tmp_path / "recipe.toml", RECIPE, dict(model=dict(path=start)))
    trained = train(tmp_path / "recipe.toml", out=tmp_path / "run", progress=False)
    run, result = trained.folder, trained.result
    assert result.scores == {"f1": 100.0, "exact": 100.0}
    assert (run / "report.html").exists()
    task = regard.load(run)
    assert task.predict([pair[:2] for pair in asked]) == ["cat", "7", "", "cat"]
    assert (task.input_format.max_length, task.doc_stride) == (48, 12) and 0 < task.threshold < 1
    assert task.test(read_recipe(tmp_path / "recipe.toml"))[0].exact == 100
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(run / "model").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(run / "model")
    output = model(**tokenizer(*asked[0][:2], return_tensors="pt"))
    rows = rows_of(task, *asked[0][:2])
    _, scores = next(task.passes(rows.inputs))
    theirs = torch.stack([output.start_logits, output.end_logits], -1)
    torch.testing.assert_close(scores, theirs.detach(), atol=1e-4, rtol=0)


def test_questions_that_cannot_be_learned_are_counted(folder, tmp_path):
    asked = [("who? " * 20, STORY, "cat", 4), ("what?", "a \u200b b", "\u200b", 2)]
    made = started(folder, written(tmp_path, asked))
    told = " ".join(made.task.notes())
    assert "2 examples read, 1 kept" in told
    assert "question longer than 22 tokens, truncated: 1" in told
    assert "an answer without tokens, question left out: 1" in told


@pytest.mark.parametrize("count", [1, 3])
def test_data_without_a_question_to_learn_raise_an_error(folder, tmp_path, count):
    asked = [("what?", "a \u200b b", "\u200b", 2)] * count
    with pytest.raises(DataError, match=f"no question is left.* {count} examples read, 0 kept"):
        started(folder, written(tmp_path, asked))


# -------------------------------------------------------------------------------- real data
