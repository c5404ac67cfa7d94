"""What the web UI asks for equals what Python gives, and what a browser is told about it."""

from __future__ import annotations

import base64
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from served import ask, message_of, near, running, service_of

import regard
from regard.attention.pruning import heads_masked
from regard.data.batches import Sequences
from regard.serving.ui.routes import PAGE, UI_ROUTES
from regard.serving.ui.sources import UISources
from regard.text import explain
from regard.visual import attention_record
from regard.visual.attention_record import run_encoder
from regard.visual.head_grid import HeadGrid

FILES = sorted(file.relative_to(PAGE).as_posix() for file in PAGE.rglob("*.*"))
SCRIPT = "<script>alert(1)</script>"
MODELS = ("tagging", "translation", "language-modeling", "language-modeling-gpt2")


@pytest.fixture(scope="module")
def server(folders):
    """A running service with a page and a few models."""
    with running(with_ui({name: folders[name] for name in MODELS})) as made:
        yield made


def with_ui(folders, **options):
    return service_of(folders, ui=UISources({}), **options)


def answer(server, path, **fields):
    answered = ask(server, path, fields)
    assert answered.status_code == 200, message_of(answered)
    return answered.json()["result"]


def test_the_page_comes_with_a_strict_policy(server):
    types = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
    for path in ("/", *(f"/page/{name}" for name in FILES)):
        answered = ask(server, path)
        assert answered.status_code == 200
        kind = types[Path(path).suffix or ".html"]
        assert answered.headers["content-type"] == f"{kind}; charset=utf-8"
        policy = answered.headers["content-security-policy"]
        assert dict(one.strip().split(" ", 1) for one in policy.split(";")) == {
            "default-src": "'none'",
            "script-src": "'self'",
            "style-src": "'self'",
            "img-src": "'self' data:",
            "connect-src": "'self'",
            "base-uri": "'none'",
            "frame-ancestors": "'none'",
        }
        assert answered.headers["x-content-type-options"] == "nosniff"


def test_no_path_leads_out_of_the_page(server):
    for path in ("/page/", "/page/%2e%2e/routes.py", "/page//etc/passwd", "/page/%2fetc/passwd"):
        assert ask(server, path).status_code == 404


def test_a_server_without_a_page_has_none_of_its_routes(service):
    for path in ("/", "/page/main.js"):
        assert ask(service, path).status_code == 404
    for path in UI_ROUTES:
        assert ask(service, path, {}).status_code == 404


def test_browsers_give_the_key_as_a_password(folders):
    keyed = with_ui({"tagging": folders["tagging"]}, key="a-key")

    def basic(text):
        return f"Basic {base64.b64encode(text.encode()).decode()}"

    for path in ("/", "/page/main.js", "/v1/models", "/ui/maps", *UI_ROUTES):
        body = {} if path.startswith("/ui") else None
        for wrong in (None, basic("a-key"), basic("user:"), basic("a-key:user"), "Basic"):
            headers = {} if wrong is None else {"Authorization": wrong}
            answered = ask(keyed, path, body, headers=headers)
            assert answered.status_code == 401
            assert answered.headers["www-authenticate"].startswith("Basic")
        for right in (basic("user:a-key"), basic(":a-key"), "Bearer a-key"):
            answered = ask(keyed, path, body, headers={"Authorization": right})
            assert answered.status_code in (200, 400)


def test_each_model_lists_what_its_views_ask(server):
    listed = {one["id"]: one["routes"] for one in ask(server, "/v1/models").json()["data"]}
    for path, route in UI_ROUTES.items():
        for name, paths in listed.items():
            answered = ask(server, path, {**route.example, "model": name})
            assert (answered.status_code != 404) == (path in paths), (name, path)


@pytest.mark.parametrize("name", MODELS)
def test_tokenization_has_the_steps_of_python(server, name):
    text = f"the sleeping cats {SCRIPT}"
    tokenizer = server.models.all[name].task.tokenizer
    found = answer(server, "/ui/tokens", model=name, texts=text)
    assert found["tokenizer"] == tokenizer.kind
    expected = explain.encoding(tokenizer, text)
    assert [one["word"] for one in found["words"]] == [one.word for one in expected]
    assert [one["tokens"] for one in found["words"]] == [list(one.tokens) for one in expected]
    tokens = [token for one in found["words"] for token in one["tokens"]]
    assert tokens == [tokenizer.token(number) for number in tokenizer.encode(text).ids]


def roots(coded):
    """The weights that the page computes from what the server coded."""
    kind = "<u2" if coded["bits"] == 16 else "u1"
    numbers = np.frombuffer(base64.b64decode(coded["data"]), kind).astype(np.float64)
    return (numbers * coded["largest"] / (2 ** coded["bits"] - 1)) ** 2


def record_of(task, text):
    with regard.look(task) as attention:
        if task.input_format is not None:
            run_encoder(task, [text])
        elif task.name == "translation":
            task.translate(text)
        else:
            task.read_ids(task.prompt_ids([text]))
    return attention.passes[-1]


@pytest.mark.parametrize("name", ["tagging", "translation", "language-modeling-gpt2"])
def test_maps_and_heads_have_the_weights_of_python(server, name):
    text = "the old cat sat on"
    task = server.models.all[name].task
    one = record_of(task, text)
    asked = {"model": name, "texts": text, "unit": "tokens"}
    found = answer(server, "/ui/attention", **asked)
    expected = list(one.attentions.values())
    assert [layer["kind"] for layer in found["layers"]] == [each.kind for each in expected]
    for layer, each in zip(found["layers"], expected, strict=True):
        weights = each.weights[0]
        assert [len(layer["heads"]), layer["rows"], layer["columns"]] == list(weights.shape)
        roots_of = np.sqrt(roots(layer["roots"]))
        assert roots_of == pytest.approx(weights.flatten().sqrt().numpy(), abs=0.5 / 255 + 1e-6)
        labels = found["labels"][each.kind]
        assert [len(labels["queries"]), len(labels["keys"])] == list(weights.shape[1:])
        which = {"kind": each.kind, "layer": layer["layer"]}
        for head, matrix in (2, weights[1]), (None, weights.mean(0)):
            chosen = which if head is None else {**which, "head": head}
            whole = answer(server, "/ui/head", **asked, **chosen)
            assert whole["queries"] == labels["queries"] and whole["keys"] == labels["keys"]
            numbers = matrix.flatten().numpy()
            assert roots(whole["roots"]) == pytest.approx(numbers, abs=2e-5)
    queries = found["labels"][expected[0].kind]["queries"]
    assert queries == list(one.labels(expected[0].kind, 0)[0])[: len(queries)]


@pytest.mark.parametrize("name", ["tagging", "translation"])
def test_attention_between_words_is_that_of_the_picture_in_python(server, name):
    text = "the catmat sat unwarmly"
    one = record_of(server.models.all[name].task, text)
    found = answer(server, "/ui/attention", model=name, texts=text)
    panels = {(p.kind, p.layer): p for p in HeadGrid.of([one]).by_words().panels}
    assert found["merges"] is (name == "tagging") and len(panels) == len(found["layers"])
    for (kind, layer), panel in panels.items():
        which = {"model": name, "texts": text, "kind": kind, "layer": layer, "head": 2}
        head = answer(server, "/ui/head", **which)
        assert (head["queries"], head["keys"]) == (list(panel.queries), list(panel.keys))
        assert roots(head["roots"]) == pytest.approx(np.array(panel.heads[1]).flatten(), abs=2e-5)
        (small,) = [m for m in found["layers"] if (m["kind"], m["layer"]) == (kind, layer)]
        assert [small["rows"], small["columns"]] == [len(panel.queries), len(panel.keys)]


def test_long_texts_have_the_largest_weight_in_each_cell(server, monkeypatch):
    monkeypatch.setattr(attention_record, "CELLS", 4)
    text = "the old cat sat on a mat"
    task = server.models.all["tagging"].task
    layers = list(record_of(task, text).attentions.values())
    found = answer(server, "/ui/attention", model="tagging", texts=text)["layers"]
    size = layers[0].weights.size(-1)
    assert size > 4
    ends = [(math.floor(i * size / 4), math.ceil((i + 1) * size / 4)) for i in range(4)]
    for layer, each in zip(found, layers, strict=True):
        weights = each.weights[0].numpy()
        cells = np.stack(
            [weights[:, a:b, c:d].max((1, 2)) for a, b in ends for c, d in ends], 1
        ).flatten()
        assert np.sqrt(roots(layer["roots"])) == pytest.approx(np.sqrt(cells), abs=0.5 / 255 + 1e-6)


@pytest.mark.parametrize("name", ["tagging", "translation", "language-modeling-gpt2"])
def test_masked_heads_change_answers_as_in_python(server, name):
    text, task = "the old cat sat", server.models.all[name].task
    kind = next(iter(record_of(task, text).attentions.values())).kind
    masked = [{"kind": kind, "layer": 1, "head": head} for head in (1, 2)]
    found = answer(server, "/ui/masked_heads", model=name, texts=text, masked_heads=masked)

    def said():
        if task.decodes:
            most = 21 if name == "language-modeling-gpt2" else 40  # in a context of 24
            return {"text": task.generate([text], max_tokens=most)[0]}
        one = task.predict([text], return_proba=True)[0]
        return json.loads(json.dumps({"text": str(one), **one.values()}))

    assert found["with_all"] == near(said())
    with heads_masked(task, {1: [1, 2]}, kind):
        assert found["without"] == near(said())
    maps = answer(server, "/ui/attention", model=name, texts=text, masked_heads=masked)
    assert not roots(maps["layers"][0]["roots"]).any()
    other = answer(server, "/ui/masked_heads", model=name, texts=text)
    assert other["with_all"] == other["without"] == found["with_all"]


FILTERED = [{}, {"temperature": 0.7}, {"top_k": 3}, {"top_p": 0.6}]


@pytest.mark.parametrize("options", [*FILTERED, {"temperature": 1.5, "top_k": 9, "top_p": 0.8}])
@pytest.mark.parametrize("name", ["translation", "language-modeling", "language-modeling-gpt2"])
def test_the_next_tokens_have_the_filtered_probabilities(server, name, options):
    task, text = server.models.all[name].task, "the old cat"
    found = answer(server, "/ui/next", model=name, texts=text, most=200, **options)
    scores = scores_after(task, text, [])
    plain = np.exp(scores - np.logaddexp.reduce(scores))
    scores = scores / options.get("temperature", 1.0)
    if "top_k" in options:
        scores[scores < np.sort(scores)[-options["top_k"]]] = -np.inf
    after = np.exp(scores - np.logaddexp.reduce(scores))
    if "top_p" in options:
        order = np.argsort(-after)
        kept = np.searchsorted(np.cumsum(after[order]), options["top_p"]) + 1
        after[order[kept:]] = 0.0
        after /= after.sum()
    assert [one["id"] for one in found["next"]] == list(np.argsort(-plain)[: len(found["next"])])
    for one in found["next"]:
        assert one["probability"] == pytest.approx(plain[one["id"]], rel=1e-4)
        assert one["filtered"] == pytest.approx(after[one["id"]], rel=1e-4, abs=1e-9)
        assert one["token"] == task.tokenizer.for_targets.label(one["id"])
    assert found["allowed"] == (after > 0).sum()
    assert found["greedy"] == plain.argmax()
    assert found["entropy"] == pytest.approx(-(plain * np.log(plain)).sum(), rel=1e-5)


def scores_after(task, text, chosen):
    """The scores of the full pass, float64."""
    model = task.module
    with torch.no_grad():
        if model.continues:
            ids = torch.tensor([task.prompt_ids([text])[0] + chosen])
            hidden = model(ids).hidden
        else:
            source = Sequences.of([list(map(int, task.decoding_inputs([text])[0][0]))], 0)
            target = Sequences.full(torch.tensor([[model.config.bos, *chosen]]))
            hidden = model(source, target).hidden
        return model.head.logits(hidden)[0, -1].double().numpy()


@pytest.mark.parametrize("name", ["translation", "language-modeling", "language-modeling-gpt2"])
def test_tokens_that_are_drawn_one_by_one_are_those_of_sampling(server, name):
    task, text = server.models.all[name].task, "the old cat"
    options = {"temperature": 0.9, "top_k": 8, "seed": 5}
    (expected,) = task.hypotheses([text], **options, max_tokens=6)[0]
    chosen, log_prob = [], 0.0
    for _ in range(len(expected.tokens) + expected.finished):
        body = {"model": name, "texts": text, "chosen": chosen, **options}
        found = answer(server, "/ui/next", **body)
        chosen.append(found["drawn"])
    assert chosen[: len(expected.tokens)] == expected.tokens
    found = answer(server, "/ui/next", model=name, texts=text, chosen=chosen)
    log_prob = sum(one["log_prob"] for one in found["chosen"])
    assert log_prob == pytest.approx(expected.log_prob, abs=1e-4)
    assert found["ended"] == expected.finished
    assert found["text"] == task.tokenizer.for_targets.decode(expected.tokens)


def test_tokens_that_were_chosen_must_fit(server):
    body = {"model": "language-modeling-gpt2", "texts": "the cat"}
    answered = ask(server, "/ui/next", {**body, "chosen": [10**6]})
    assert answered.status_code == 400 and "must be tokens of the model" in message_of(answered)
    answered = ask(server, "/ui/next", {**body, "chosen": [5] * 100})
    assert answered.status_code == 400 and "102 tokens are to be read" in message_of(answered)
    answered = ask(server, "/ui/next", {**body, "top_p": 2.0})
    assert answered.status_code == 400 and "top_p" in message_of(answered)


@pytest.mark.parametrize("name", ["translation", "language-modeling"])
def test_the_tree_of_a_beam_leads_to_its_hypotheses(server, name):
    task, text = server.models.all[name].task, "the old cat"
    options = {"beams": 3, "max_tokens": 6}
    expected = task.hypotheses([text], n_best=3, **options)
    found = answer(server, "/ui/beam", model=name, texts=text, **options)
    assert [one["text"] for one in found["hypotheses"]] == task.spelled([text], expected)[0]
    scores = [one["score"] for one in found["hypotheses"]]
    assert scores == pytest.approx([one.score for one in expected[0]], rel=1e-5)
    nodes = found["nodes"]
    assert nodes[0]["parent"] is None and all(
        one["parent"] < at for at, one in enumerate(nodes) if at
    )
    path = [nodes[at] for at in found["winning"]]
    assert path[-1]["log_prob"] == pytest.approx(expected[0][0].log_prob, abs=1e-4)
    label = task.tokenizer.for_targets.label
    tokens = [label(token) for token in expected[0][0].tokens]
    assert [one["token"] for one in path[1:]][: len(tokens)] == tokens
