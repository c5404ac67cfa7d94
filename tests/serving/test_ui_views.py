"""Cells, maps and lessons of the web UI equal what Python gives."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from served import ask, message_of, near, running, service_of

import regard
from regard.serving.ui.lessons import LESSONS
from regard.serving.ui.sources import NEUTRAL, UISources
from regard.serving.ui.views import of_page, plain_picture
from regard.visual import (
    CellText,
    Curves,
    Heatmap,
    Note,
    Series,
    Table,
    cell_activation,
    find_cells,
)
from regard.visual.image_regions import attended_regions

SCRIPT = "<script>alert(1)</script>"
STRIPES = Path(__file__).parents[1] / "stripes.png"
LINES = ["the cat sat", f"the warm mat {SCRIPT}", "sleeping in the sun", "who was old", "a cat"]
LABELS = ["animal", "<b>", "sun", "<b>", "animal"]
QUOTED = f'the cat: "the old cat (in the sun)" {SCRIPT} and "a mat" ' * 3


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    file = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    rows = zip(LINES, LABELS, strict=True)
    file.write_text("\n".join(json.dumps({"text": t, "kind": k}) for t, k in rows))
    return file


@pytest.fixture(scope="module")
def server(folders, texts):
    """A running service with models and texts."""
    sources = UISources({}, texts, "kind")
    names = ("embedding", "language-modeling", "translation", "captioning")
    made = service_of({name: folders[name] for name in names}, ui=sources)
    sources.prepare(made.models, lambda message: None)
    with running(made):
        yield made


def task_of(server, name):
    return server.models.all[name].task


def answer(server, path, **fields):
    answered = ask(server, path, fields)
    assert answered.status_code == 200, message_of(answered)
    assert answered.headers["content-type"] == "application/json"
    return answered.json()


# ---------------------------------------------------------------------------- pictures


def test_texts_and_tables_stay_texts_and_tables():
    note = plain_picture(Note((SCRIPT, "  a = b"), "t\0"))
    assert note == {"kind": "note", "title": "t␀", "lines": [SCRIPT, "  a = b"]}
    table = plain_picture(Table.of(["a", SCRIPT], [["1", "x\ud800"]]))
    assert table["head"] == ["a", SCRIPT] and table["rows"] == [["1", "x�"]]
    cells = plain_picture(CellText.of("ab\ud800", [(0, 1), (1, 3)], [0.5, -1.0]))
    assert cells["pieces"] == [["a", 0.5], ["b?", -1.0]]


def test_a_drawing_is_its_svg_in_the_colours_of_the_page_with_escaped_texts():
    curves = Curves((Series(SCRIPT, ((0, 1), (1, float("nan")), (2, 3))), Series("b", ((0, 2),))))
    for picture in (curves, Heatmap.of([[0.5, -0.25], [0.0, 0.0]], ["a", SCRIPT], ["c", "d"])):
        plain = plain_picture(picture)
        assert plain["kind"] == "drawing" and plain["svg"] == picture.drawing().svg(of_page)
        root = ElementTree.fromstring(plain["svg"])
        texts = [element.text for element in root.iter() if element.text]
        assert SCRIPT in texts and not list(root.iter("{*}script"))
        assert 'fill="var(--accent)"' in plain["svg"] or 'stroke="var(--accent)"' in plain["svg"]


# ------------------------------------------------------------------------------ images


def test_the_picture_of_a_description_equals_that_of_python(server):
    pytest.importorskip("PIL")
    image = base64.b64encode(STRIPES.read_bytes()).decode()
    found = answer(server, "/ui/regions", model="captioning", images=image, beams=2)["result"]
    expected = attended_regions(task_of(server, "captioning"), STRIPES, beams=2)
    assert found["picture"] == near(plain_picture(expected))
    answered = ask(server, "/ui/regions", {"model": "captioning", "images": [image]})
    assert answered.status_code == 400  # one image, since a page draws one


# ------------------------------------------------------------------------------- cells


def test_one_cell_over_a_text_equals_that_of_python(server):
    task = task_of(server, "language-modeling")
    fields = {"model": "language-modeling", "texts": QUOTED, "layer": 1, "number": 2}
    found = answer(server, "/ui/cell", **fields)["result"]
    expected = cell_activation(task.module, task.tokenizer, QUOTED, layer=1, number=2)
    assert found["picture"] == near(plain_picture(expected))
    assert "".join(text for text, _ in found["picture"]["pieces"]) == QUOTED
    widths = [layer.d_model for layer in task.module.recurrent_layers]
    assert [one["cells"] for one in found["layers"]] == widths
    wrong = ask(server, "/ui/cell", {**fields, "layer": 9})
    assert wrong.status_code == 400 and "There is no cell 9:2" in message_of(wrong)


def test_cells_are_found_as_in_python(server):
    task = task_of(server, "language-modeling")
    fields = {"model": "language-modeling", "texts": QUOTED, "best": 2}
    found = answer(server, "/ui/cells", **fields)["result"]
    expected = find_cells(task.module, task.tokenizer, [QUOTED], best=2).numbers
    plain = {name: [one._asdict() for one in cells] for name, cells in expected.items()}
    assert found["cells"] == near(plain) and "Correlations over" in found["lines"][0]
    for texts, said in (("the cat", "a search needs"), ("", "a search needs")):
        answered = ask(server, "/ui/cells", {**fields, "texts": texts})
        assert answered.status_code == 400 and said in message_of(answered)
    python = ask(server, "/ui/cells", {**fields, "properties": "python"})
    assert python.status_code == 400 and "not valid Python" in message_of(python)


# -------------------------------------------------------------------------------- maps


def test_a_map_has_the_points_of_python_and_hostile_labels_as_text(server):
    assert answer(server, "/ui/maps") == {
        "models": ["embedding", "language-modeling", "translation"],
        "texts": 5,
    }
    found = answer(server, "/ui/map", model="embedding")
    map = server.ui.maps.maps["embedding"]
    vectors = task_of(server, "embedding").embed(LINES, normalize=True, too_long="truncate")
    assert map.vectors.numpy() == pytest.approx(vectors, abs=1e-6)
    assert found["points"] == near([[round(c, 5) for c in p] for p in map.points.tolist()])
    assert found["texts"] == LINES
    assert [found["labels"][number] for number in found["label_of"]] == LABELS
    assert answer(server, "/ui/map") == found


def test_neighbours_are_those_of_search(server):
    task = task_of(server, "embedding")
    fields = {"model": "embedding", "count": 3}
    found = answer(server, "/ui/neighbours", text=1, **fields)
    expected = [
        one for one in task.search(LINES[1], LINES, 4, too_long="truncate") if one.index != 1
    ][:3]
    assert [one["text"] for one in found["neighbours"]] == [one.index for one in expected]
    cosines = [one["cosine"] for one in found["neighbours"]]
    assert cosines == pytest.approx([one.score for one in expected], abs=1e-5)
    vector = task.embed("the cat sat").tolist()
    placed = answer(server, "/ui/neighbours", vector=vector, **fields)
    assert placed["neighbours"][0] == {"text": 0, "cosine": pytest.approx(1, abs=1e-5)}
    points = answer(server, "/ui/map")["points"]
    assert placed["place"] == pytest.approx(points[0], abs=1e-4)


def test_a_model_whose_vectors_are_not_finite_has_no_map(folders, texts):
    sources, said = UISources({}, texts=texts, labels="kind"), []
    service = service_of({"embedding": folders["embedding"]}, ui=sources)
    for parameter in service.models.all["embedding"].task.module.parameters():
        parameter.data.fill_(float("nan"))
    sources.prepare(service.models, said.append)
    assert said[-1].startswith("no map by embedding: ") and "NaN" in said[-1]
    assert ask(service, "/ui/map", {}).status_code == 404


# ----------------------------------------------------------------------------- lessons


def test_lessons_are_listed_and_have_unique_names(server):
    listed = answer(server, "/ui/lessons")["lessons"]
    assert [one["name"] for one in listed] == list(LESSONS)
    assert len({one["title"] for one in listed}) == len(listed) == 10


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_has_the_picture_of_its_function(server, name):
    found = answer(server, "/ui/lesson", name=name)
    lesson = LESSONS[name]
    assert found["picture"] == json.loads(json.dumps(plain_picture(lesson.draw())))
    assert found["title"] == lesson.title and list(found["text"]) == list(lesson.text)
    assert all(control.low <= control.default <= control.high for control in lesson.controls)


def test_links_lead_to_views_and_routes_that_there_are(server):
    views = (Path(regard.__file__).parent / "serving/page/views/index.js").read_text()
    for lesson in LESSONS.values():
        for link in lesson.links:
            assert link.route in server.routes
            assert f'from "./{link.view}.js"' in views


def test_numbers_of_a_lesson_change_its_picture(server):
    found = answer(server, "/ui/lesson", name="self-attention", numbers={"head_dim": 16})
    rows = found["picture"]["parts"][0]["rows"]
    weights = [float(row[3]) for row in rows]
    assert weights == pytest.approx([0.98201, 0.01799, 0, 0], abs=1e-5)  # softmax(28, 24, 4, 2)


def test_every_reading_rejects_unknown_fields(server):
    for route in server.ui.router().routes:
        answered = ask(server, route.path, {"colour": "red"})
        assert answered.status_code == 400
        assert message_of(answered).startswith("`colour` is an unknown field.")
        assert ask(server, route.path).status_code == 405


def test_examples_are_the_validation_texts_of_a_run_or_neutral_sentences(folders, tmp_path):
    (tmp_path / "valid.tsv").write_text("the old cat\tle chat\na warm mat\tun tapis\n")
    for name, file in (("run", "valid.tsv"), ("moved", "lost.tsv")):
        shutil.copytree(folders["translation"], tmp_path / name / "model")
        data = f'train = ["{tmp_path / file}"]\nvalid = ["{tmp_path / file}"]'
        rest = '[model]\nname = "transformer"\n[training]\nepochs = 1\n'
        recipe = f'task = "translation"\n[data]\n{data}\n{rest}'
        (tmp_path / name / "recipe.toml").write_text(recipe)
    named = {"run": tmp_path / "run", "inner": tmp_path / "run/model", "moved": tmp_path / "moved"}
    sources = UISources({**named, "bare": folders["tagging"]})
    service = service_of({**named, "bare": folders["tagging"]}, ui=sources)
    sources.prepare(service.models, print)
    texts = {name: sources.examples.of(name) for name in service.models.all}
    own = [("the old cat",), ("a warm mat",)]
    assert texts["run"]["texts"] == texts["inner"]["texts"] == own and texts["run"]["own"]
    assert texts["moved"]["texts"] == texts["bare"]["texts"] == [(text,) for text in NEUTRAL]
    assert not texts["bare"]["own"]
