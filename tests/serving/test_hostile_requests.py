"""What a server is sent by mistake or on purpose: each gets a clear error, nothing else stops."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from served import ask, message_of, service_of

from regard.serving.app import MOST_BYTES, application
from regard.serving.routes import ROUTES

TAG = {"model": "tagging", "texts": "the cat sat"}
GETS = ("/health", "/metrics", "/v1/models", "/v1/models/tagging", "/tokenizer_info")
ALL = (*ROUTES, *GETS, "/openapi.json", "/docs")


def sent(value):
    return value.encode() if isinstance(value, str) else value


@pytest.mark.parametrize(
    "body, said",
    [
        ("", "The body must be a JSON object"),
        ('{"model": "tagging", "tex', "is not JSON"),
        ("[1]", "must be a JSON object"),
        (b'{"texts": "\xff"}', "There was an error parsing the body"),
        ("[" * 100_000, "There was an error parsing the body"),
        ('{"texts": ' + "[" * 500 + "]" * 500 + "}", "`texts` must be"),
        ('{"model": "tagging", "texts": "\\ud800"}', "surrogate"),
        ({**TAG, "texts": None}, "`texts` is missing"),
        ({**TAG, "texts": ["a", 3]}, "`texts.1` must be"),
        ({**TAG, "textes": "a"}, "`textes` is an unknown field. Did you mean 'texts'?"),
        ({**TAG, "model": 3}, "`model` must be a string"),
        ({**TAG, "x" * 10_000: 3}, "xxx` is an unknown field"),
        ({"texts": "a"}, "`model` must name one of the models: classification,"),
    ],
)
def test_a_body_that_is_wrong_is_an_error_that_says_where(service, body, said):
    answered = ask(service, "/tag", sent(body))
    assert answered.status_code == 400
    error = answered.json()["error"]
    assert said in error["message"]
    assert error["type"] == "invalid_request_error" and len(error["message"]) < 500
    assert ask(service, "/tag", TAG).status_code == 200


@pytest.mark.parametrize(
    "path, fields, param",
    [
        ("/embed", {"layers": "9223372036854775808"}, "layers"),
        ("/embed", {"layers": 2**63}, None),
        ("/embed", {"granularity": "x" * 10**5}, "granularity"),
        ("/generate", {"model": "translation", "seed": 2**63}, "seed"),
        ("/generate", {"model": "translation", "temperature": float("inf")}, "temperature"),
        ("/generate", {"model": "translation", "length_penalty": f"{'x' * 10**5}:1"}, None),
        ("/generate", {"model": "translation", "beams": 2, "num_beams": 2}, None),
    ],
)
def test_a_value_out_of_range_is_an_error_that_does_not_send_it_back(service, path, fields, param):
    answered = ask(service, path, {"model": "embedding", "texts": "a", **fields})
    assert answered.status_code == 400, answered.text
    assert answered.json()["error"]["param"] == param and len(answered.content) < 5_000


def test_a_model_that_is_not_served_is_not_looked_for(service, folders):
    for name in ("nothing", str(folders["regression"]), "../regression", "", "<script>"):
        answered = ask(service, "/tag", {**TAG, "model": name})
        assert answered.status_code == 404
        assert "It has: classification" in message_of(answered)
        assert answered.headers["content-type"] == "application/json"
        assert answered.headers["x-content-type-options"] == "nosniff"


def test_an_unknown_path_is_404_and_a_wrong_method_405(service):
    for path, body in (("/tags", TAG), ("/tag/", TAG), ("/health/", None), ("/", None)):
        answered = ask(service, path, body)
        assert answered.status_code == 404 and "location" not in answered.headers
        assert path in message_of(answered)
    answered = ask(service, "/tag")
    assert answered.status_code == 405 and answered.headers["allow"] == "POST"
    assert 'path="other",status="404"' in ask(service, "/metrics").text


def test_bodies_are_json_of_limited_size_whatever_their_type_is_called(service):
    curl = {"content-type": "application/x-www-form-urlencoded"}
    padded = json.dumps(TAG).encode() + b" " * (MOST_BYTES - 1000)
    assert ask(service, "/tag", padded, headers=curl).status_code == 200
    assert ask(service, "/tag", padded + b" " * 1000).status_code == 413


def test_texts_that_are_too_long_are_errors_of_the_library(service):
    text = "the old cat " * 83_334  # a million characters
    answered = ask(service, "/classify", {"model": "classification", "texts": ["a", text]})
    assert answered.status_code == 400
    said = "Text 2 has 250004 tokens, but this model reads at most 24."
    assert message_of(answered).startswith(said)


def test_a_blank_text_has_no_prediction(service):
    for texts in ([["a", "b"], [" ", ""]], ["b", ""]):
        answered = ask(service, "/classify", {"model": "classification", "texts": texts})
        assert answered.status_code == 400 and "Text 2 is blank" in message_of(answered)


def test_an_error_for_a_long_text_advises_fields_that_its_route_has(service):
    body = {"model": "translation", "texts": "the old cat " * 90}
    for path, advised in (("/translate", True), ("/look", False)):
        answered = ask(service, path, body)
        assert answered.status_code == 400 and "Shorten it" in message_of(answered)
        assert ("`too_long`" in message_of(answered)) is advised


def test_a_request_larger_than_the_queue_is_rejected_before_memory_is_allocated(folders):
    """More texts are asked for than would fit into memory."""
    small = service_of({"gpt": folders["language-modeling-gpt2"]}, most=1000)
    tracemalloc.start()
    try:
        body = {"prompt": ["the cat"] * 2_000, "n": 128, "temperature": 1, "max_tokens": 2}
        answered = ask(small, "/v1/completions", body)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert answered.status_code == 413 and "about 516,000 tokens" in message_of(answered)
    assert most < 30 * 2**20


@pytest.mark.parametrize(
    "path, fields",
    [
        ("/embed", {"texts": ["a"] * 400_000}),
        ("/embed", {"texts": "a " * 600_000, "granularity": "token"}),
        ("/embed", {"texts": ["a"] * 100, "layers": [-1] * 5000}),
        ("/v1/embeddings", {"input": ["a"] * 400_000}),
        ("/v1/completions", {"prompt": ["a " * 20] * 9_000, "logprobs": 20, "max_tokens": 0}),
        ("/search", {"query": ["a"] * 9_000, "texts": ["a" * 99] * 1000, "top_k": 1000}),
        ("/fill", {"texts": ["a [MASK]"] * 9_000, "top": 1000}),
        ("/look", {"model": "tagging", "texts": ["a " * 20_000]}),
        ("/answer", {"question": ["a"] * 90_000, "context": "a", "n_best": 100}),
    ],
)
def test_an_answer_that_is_too_large_is_refused_before_it_is_computed(service, path, fields):
    models = {"/v1/completions": "language-modeling", "/fill": "fill-mask"}
    models |= {"/answer": "question-answering"}
    answered = ask(service, path, {"model": models.get(path, "embedding"), **fields})
    assert answered.status_code == 413
    assert answered.json()["error"]["code"] == "answer_too_large"
    assert "MiB, but answers have at most 64." in message_of(answered)


def test_empty_lists_have_empty_answers(service):
    assert ask(service, "/tag", {**TAG, "texts": []}).json()["results"] == []
    answer = ask(service, "/v1/embeddings", {"model": "embedding", "input": []}).json()
    assert answer["data"] == [] and answer["usage"]["total_tokens"] == 0
    answer = ask(service, "/v1/completions", {"model": "language-modeling", "prompt": []}).json()
    assert answer["choices"] == []


@pytest.fixture(scope="module")
def keyed(folders):
    return service_of({"tagging": folders["tagging"]}, key="a-kéy")


KEY = {"Authorization": "Bearer a-kéy".encode()}  # UTF-8, as curl sends it


def test_every_route_needs_the_key(keyed):
    paths = {route.path for route in application(keyed).routes}
    assert paths - {"/v1/models/{name:path}"} == {*ALL} - {"/v1/models/tagging"}
    for path in ALL:
        body = {} if path in ROUTES else None
        for wrong in (None, "Bearer wrong", "a-key", b"a-k\xc3\xa9y", "Basic YTpi", "Bearer "):
            headers = {} if wrong is None else {"Authorization": wrong}
            answered = ask(keyed, path, body, headers=headers)
            assert answered.status_code == 401
            assert answered.headers["www-authenticate"] == "Bearer"
            assert "a-k" not in answered.text
            missing = wrong in (None, "a-key", b"a-k\xc3\xa9y", "Bearer ")
            assert ("The API key is wrong." in message_of(answered)) != missing
        assert ask(keyed, path, body, headers=KEY).status_code in (200, 400, 404)
    assert ask(keyed, "/health", headers={"Authorization": "bEARER a-kéy".encode()}).is_success


def test_pages_of_other_sites_are_refused_with_and_without_the_key(keyed):
    foreign = [
        *({"host": host} for host in ("example.org:8000", "localhost@example.org", "[::1", "")),
        {"host": "127.0.0.1.example.org"},
        *({"origin": f"http://{host}"} for host in ("example.org", "[", "localhost:9999")),
        {"origin": "null"},
    ]
    for path in (*ALL, "/nothing"):
        body = {} if path in ROUTES else None
        for headers in foreign:
            for key in {}, KEY:
                assert ask(keyed, path, body, headers={**key, **headers}).status_code == 403
    for host in ("localhost:8000", "127.0.0.1", "127.0.0.2:80", "[::1]:8000"):
        headers = {**KEY, "host": host, "origin": f"http://{host}"}
        assert ask(keyed, "/health", headers=headers).status_code == 200


def test_an_unexpected_error_is_reported_and_the_next_request_answered(service, monkeypatch):
    task = service.models.all["tagging"].task

    def broken(*args, **options):
        raise KeyError("secret")

    with monkeypatch.context() as patch:
        patch.setattr(task, "_predictions", broken, raising=False)
        answered = ask(service, "/tag", TAG)
    assert answered.status_code == 500 and answered.json()["error"]["type"] == "server_error"
    assert ask(service, "/tag", TAG).status_code == 200
