"""What the studio's page asks for equals what Python gives, and what a browser is told about it."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest
from served import ask, service_of, start

from regard.serving.guards import PageGuard
from regard.serving.page_files import page_files
from regard.serving.studio.routes import STUDIO_ROUTES, studio_page
from regard.text import explain

PAGE = Path(__file__).parents[2] / "regard/serving/page"
SCRIPT = "<script>alert(1)</script>"
MODELS = ("tagging", "translation", "language-modeling", "language-modeling-gpt2")


@pytest.fixture(scope="module")
def studio(folders):
    """A running service with a page and a few models."""
    made = service_of({name: folders[name] for name in MODELS}, page=studio_page())
    thread = start(made)
    yield made
    made.engine.stop()
    thread.join(10)


def answer(studio, path, **fields):
    answered = ask(studio, path, fields)
    assert answered.status == 200, answered.message
    return answered.json()["result"]


def test_the_page_comes_with_a_strict_policy(studio):
    types = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
    for path in page_files():
        answered = ask(studio, path)
        assert answered.status == 200
        suffix = Path(path).suffix or ".html"
        assert answered.headers["content-type"] == f"{types[suffix]}; charset=utf-8"
        policy = dict(one.strip().split(" ", 1) for one in policy_of(answered).split(";"))
        assert policy == {
            "default-src": "'none'",
            "script-src": "'self'",
            "style-src": "'self'",
            "img-src": "'self' data:",
            "connect-src": "'self'",
            "base-uri": "'none'",
            "frame-ancestors": "'none'",
        }
        assert answered.headers["x-content-type-options"] == "nosniff"


def policy_of(answered):
    return answered.headers["content-security-policy"]


def test_the_files_of_the_page_are_small_and_name_no_other_address():
    files = page_files()
    assert {path for path in files} == {"/"} | {
        f"/page/{file.relative_to(PAGE).as_posix()}"
        for file in PAGE.rglob("*.*")
        if file.name != "index.html"
    }
    assert sum(len(file.content) for file in files.values()) <= 150_000
    for path, file in files.items():
        text = file.content.decode()
        addresses = set(re.findall(r"(?:https?:)?//[\w.-]+\.[a-z]+[^\s\"'`]*", text))
        assert addresses <= {"http://www.w3.org/2000/svg"}, path
        forbidden = r"innerHTML|outerHTML\s*=|insertAdjacentHTML|document\.write|\beval\("
        assert not re.search(forbidden, text), path
        assert not re.search(r"<script(?! type=\"module\" src=\"page/)| style=|<style", text), path


def test_no_path_leads_out_of_the_page(studio):
    for path in ("/page/", "/page/../routes.py", "/page/%2e%2e/routes.py", "/page//etc/passwd"):
        assert ask(studio, path).status == 404


def test_a_server_without_a_page_has_none_of_its_routes(service):
    for path in ("/", "/page/main.js"):
        assert ask(service, path).status == 404
    for path in STUDIO_ROUTES:
        assert ask(service, path, {}).status == 404


@pytest.mark.parametrize("path", ["/", "/page/main.js", "/v1/models", *STUDIO_ROUTES])
def test_browsers_give_the_key_as_a_password(folders, path):
    keyed = service_of(
        {"tagging": folders["tagging"]}, page=studio_page(), guard=PageGuard("a-key")
    )
    body = {} if path in STUDIO_ROUTES else None

    def status(given):
        headers = {} if given is None else {"Authorization": given}
        answered = ask(keyed, path, body, headers=headers)
        if answered.status == 401:
            assert answered.headers["www-authenticate"].startswith("Basic ")
        return answered.status

    def basic(text):
        return f"Basic {base64.b64encode(text.encode()).decode()}"

    for wrong in (None, basic("a-key"), basic("user:"), basic("a-key:user"), "Basic ä", "Basic"):
        assert status(wrong) == 401
    for right in (basic("user:a-key"), basic(":a-key"), "Bearer a-key"):
        assert status(right) in (200, 400)
    headers = {"Authorization": basic(":a-key"), "Origin": "http://example.org"}
    assert ask(keyed, path, body, headers=headers).status == 403


@pytest.mark.parametrize("path", STUDIO_ROUTES)
def test_unknown_fields_and_models_are_errors(studio, path):
    route = STUDIO_ROUTES[path]
    assert route.request.model_validate(route.example, strict=True).items()
    answered = ask(studio, path, {**route.example, "model": "tagging", "colour": "red"})
    assert answered.status == 400 and "`colour` is an unknown field" in answered.message
    answered = ask(studio, path, {**route.example, "model": SCRIPT})
    assert answered.status == 404 and SCRIPT in answered.message
    assert answered.headers["content-type"] == "application/json"


def test_each_model_lists_what_its_views_ask(studio):
    listed = {one["id"]: one["routes"] for one in ask(studio, "/v1/models").json()["data"]}
    for path, route in STUDIO_ROUTES.items():
        for name, paths in listed.items():
            answered = ask(studio, path, {**route.example, "model": name})
            assert (answered.status != 404) == (path in paths), (name, path)


@pytest.mark.parametrize("name", MODELS)
def test_tokenization_has_the_steps_of_python(studio, name):
    text = f"the sleeping cats {SCRIPT}"
    tokenizer = studio.models.all[name].task.tokenizer
    found = answer(studio, "/studio/tokens", model=name, texts=text)
    assert found["tokenizer"] == tokenizer.kind
    expected = explain.encoding(tokenizer, text)
    assert [one["word"] for one in found["words"]] == [one.word for one in expected]
    assert [one["tokens"] for one in found["words"]] == [list(one.tokens) for one in expected]
    tokens = [token for one in found["words"] for token in one["tokens"]]
    assert tokens == [tokenizer.token(number) for number in tokenizer.encode(text).ids]
