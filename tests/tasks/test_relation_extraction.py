"""Relation extraction: markers, head and window against formulas, from files to HTTP."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

import regard
from regard.cli import app
from regard.errors import DataError, TextError
from regard.serving.requests import Predict
from regard.tasks.relation_extraction import RelationData

MARKED = "The <e1>storm</e1> caused the <e2>flood</e2>."
SPANS = {"text": "The storm caused the flood.", "head": [4, 9], "tail": [21, 26]}
CAUSE = "Cause-Effect(e1,e2)"
TACRED = {"token": ["The", "storm", "caused", "the", "flood", "-RRB-"], "relation": CAUSE}
TACRED |= {"subj_start": 0, "subj_end": 1, "obj_start": 4, "obj_end": 4}
RECIPE = dict(
    task="relation-extraction", tokenizer="words", epochs=40, learning_rate=0.01, progress=False,
    model=dict(name="bert", size="tiny", d_model=16, d_ff=16),
)  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Trained on SemEval's form, validated on spans in characters, tested on TACRED's form."""
    folder = tmp_path_factory.mktemp("relation")
    pairs = [("storm", "flood"), ("plant", "seed"), ("car", "engine")]
    verbs = {"caused": "Cause-Effect(e1,e2)", "came from": "Cause-Effect(e2,e1)", "saw": "Other"}
    examples = [
        f'{n}\t"The <e1>{a}</e1> {verb} the <e2>{b}</e2>."\n{label}\nComment: none\n\n'
        for n, ((a, b), (verb, label)) in enumerate((p, v) for p in pairs for v in verbs.items())
    ]
    (folder / "train.TXT").write_text("".join(examples))
    (folder / "rows.jsonl").write_text(json.dumps(SPANS | {"label": CAUSE}) + "\n")
    (folder / "test.json").write_text(json.dumps([TACRED]))
    names = {"train": "train.TXT", "valid": "rows.jsonl", "test": "test.json"}
    files = {part: str(folder / name) for part, name in names.items()}
    data = dict(columns=["text", "head", "tail", "label"], max_length=24, **files)
    return regard.train(**RECIPE, data=data, out=folder / "run")


def test_all_forms_of_a_text_are_one_input_and_a_folder_gives_the_same(run, tmp_path):
    scores = regard.evaluate(run.folder, run.folder.parent / "test.json")
    assert scores["relation-f1"] == run.scores["relation-f1"] == 1
    run.model.save(tmp_path / "saved")
    row = (SPANS["text"], SPANS["head"], SPANS["tail"])
    numbered = f'7\t"{MARKED}"'  # as SemEval has it
    body = Predict.model_validate({"texts": [MARKED, numbered, [*row], SPANS]})
    for model in (run.model, regard.load(tmp_path / "saved")):
        expected = model.predict(MARKED, return_proba=True)
        assert expected.label == model.predict(row) == CAUSE
        for found in model.predict(body.items(), return_proba=True):
            assert found.probabilities == pytest.approx(expected.probabilities, abs=1e-6)


@pytest.mark.parametrize("name, row", [("test.json", TACRED), ("rows.jsonl", SPANS)])
def test_a_row_of_a_file_is_one_in_memory_and_over_http(run, tmp_path, name, row):
    out, model = tmp_path / "out.jsonl", run.model
    command = ["predict", run.folder, "--file", run.folder.parent / name, "--out", out]
    assert CliRunner().invoke(app, list(map(str, command))).exit_code == 0
    (of_file,) = map(json.loads, out.read_text().splitlines())
    (of_http,) = model.predict(Predict.model_validate({"texts": row}).items(), return_proba=True)
    assert model.predict(row) == of_http.label == of_file["prediction"] == CAUSE
    assert of_http.probabilities[CAUSE] == pytest.approx(of_file[f"probabilities.{CAUSE}"])
    assert model.evaluate([row | {"label": CAUSE}])["accuracy"] == 1


def test_scores_are_those_of_the_states_at_both_opening_markers(run):
    task = run.model
    (item,) = task.input_format.encode(task.checked([MARKED]))
    names = [task.tokenizer.token(number) for number in item.ids]
    assert names[1:5] == ["The", "[E1]", "storm", "[/E1]"]
    with torch.no_grad():
        hidden = task.module.encoder.encode(task.input_format.batch([item]))[0]
        joined = torch.cat([hidden[names.index("[E1]")], hidden[names.index("[E2]")]])
        expected = task.module.heads["relation"].output(joined)
        torch.testing.assert_close(task.text_scores(task.encoded([MARKED], "error"))[0], expected)


@pytest.mark.parametrize("before, after", [(40, 0), (0, 40), (40, 40)])
def test_a_long_text_is_read_in_a_window_with_both_spans(run, before, after):
    task, text = run.model, f"{'the ' * before}{MARKED}{' the' * after}"
    with pytest.raises(TextError, match="but this model reads at most 24"):
        task.predict(text)
    (ids,) = task.encoded([text], "truncate").ids
    names = [task.tokenizer.token(int(number)) for number in ids]
    marks = [name for name in names if name.endswith(("E1]", "E2]"))]
    assert len(ids) == 24 and marks == ["[E1]", "[/E1]", "[E2]", "[/E2]"]
    with pytest.raises(TextError, match="has its spans 4[0-9] tokens apart; the model reads 22"):
        task.predict(MARKED.replace("caused", "the " * 40), too_long="truncate")


@pytest.mark.parametrize(
    "row, message",
    [
        ("The storm caused the flood.", "must have one <e1></e1> and one <e2></e2>"),
        (MARKED + " <e1>", "must have one <e1></e1> and one <e2></e2>"),
        ("</e1>a<e1> <e2>b</e2>", "must have one <e1></e1> and one <e2></e2>"),
        (
            "<e1><e2>a</e2></e1> b",
            "must have one <e1></e1> and one <e2></e2>, around two different",
        ),
        ((SPANS["text"], [4, 90], [21, 26]), r"has the span \[4, 90\], which is not"),
    ],
)
def test_a_row_without_spans_is_named(run, tmp_path, row, message):
    with pytest.raises(TextError, match=f"Text 2 {message}"):
        run.model.predict([MARKED, row])
    texts = [row] if isinstance(row, str) else [*row]
    fields = dict(zip(("text", "head", "tail"), texts, strict=False)) | {"label": "Other"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(fields) + "\n")
    with pytest.raises(DataError, match=rf"rows.jsonl:1: {message}"):
        run.model.evaluate(tmp_path / "rows.jsonl")


def test_a_tokenizer_learns_from_texts_without_their_markers(run):
    data = RelationData(train=run.folder.parent / "train.TXT", test=run.folder.parent / "test.json")
    assert next(data.texts()) == "The storm caused the flood."
    marked = run.model.checked(data.records("test"))
    assert marked == [("<e1>The storm</e1> caused the <e2>flood</e2> )",)]
