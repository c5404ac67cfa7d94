"""What a server is sent by mistake or on purpose: each gets a clear error, nothing else stops."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import socket
import time
import tracemalloc
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from served import KEYED, ask, body_of, exchange, listening, service_of

from regard.serving import connections, guards
from regard.serving.connections import LONGEST_HEAD, LOOKS, Connection
from regard.serving.guards import Guard
from regard.serving.routes import GETS, ROUTES

TAG = {"model": "tagging", "texts": "the cat sat"}


def sent(text):
    if isinstance(text, bytes):
        return text
    return text.encode() if isinstance(text, str) else json.dumps(text).encode()


@pytest.mark.parametrize(
    "body, said",
    [
        ("", "is not JSON"),
        ('{"model": "tagging", "tex', "is not JSON"),
        ("[1]", "must be a JSON object"),
        ("null", "must be a JSON object"),
        (b'{"texts": "\xff"}', "must be UTF-8, but byte 11 is 0xff"),
        ("[" * 10_000, "nested too deeply"),
        ('{"texts": ' + "[" * 10_000 + "]" * 10_000 + "}", "nested too deeply"),
        ('{"texts": ' + "[" * 500 + "]" * 500 + "}", "`texts` must be"),
        ('{"texts": ' + '{"a":' * 300 + "1" + "}" * 300 + "}", "`texts` must be"),
        ('{"model": "tagging", "texts": NaN}', "NaN is not a finite number"),
        ('{"model": "tagging", "texts": 1e999}', "1e999 is not a finite number"),
        ('{"texts": "a", "texts": "b"}', "'texts' occurs twice"),
        ('{"texts": "\\ud800"}', "half of a surrogate pair"),
        ({**TAG, "texts": 3}, "`texts` must be"),
        ({**TAG, "texts": None}, "`texts` must be"),
        ({**TAG, "texts": {"a": 1}}, "`texts` must be"),
        ({**TAG, "texts": ["a", 3]}, "`texts.1` must be"),
        ({**TAG, "texts": [["a", None]]}, "`texts.0"),
        ({**TAG, "textes": "a"}, "`textes` is an unknown field"),
        ({**TAG, "model": 3}, "`model` must be a string"),
        ({**TAG, "top-k": 3}, "`top-k` is an unknown field"),
        ({**TAG, "str": 3}, "`str` is an unknown field"),
        ({**TAG, "x" * 10_000: 3}, "xxx...` is an unknown field"),
        ({"model": "tagging"}, "`texts` is missing"),
        ({"texts": "a"}, "`model` must name one of the models that are served: classification,"),
    ],
)
def test_a_body_that_is_wrong_is_an_error_that_says_where(service, body, said):
    answered = ask(service, "/tag", sent(body))
    assert answered.status == 400
    error = answered.json()["error"]
    assert said in error["message"]
    assert error["type"] == "invalid_request_error" and len(error["message"]) < 500
    assert ask(service, "/tag", TAG).status == 200


def test_a_model_that_is_not_served_is_not_looked_for(service, folders):
    for name in ("nothing", str(folders["regression"]), "../regression", "", "bert-base-uncased"):
        answered = ask(service, "/tag", {**TAG, "model": name})
        assert answered.status == 404
        assert "Its models: classification" in answered.message


def test_an_unknown_path_is_404_and_a_wrong_method_405(service):
    answered = ask(service, "/tags", TAG)
    assert answered.status == 404 and "/tag, /answer" in answered.message
    answered = ask(service, "/tag")
    assert answered.status == 405 and "POST" in answered.message
    assert answered.headers["allow"] == "POST"
    answered = ask(service, "/health", {})
    assert answered.status == 405 and answered.headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    "path, fields",
    [
        ("/embed", {"model": "embedding", "texts": "a", "layers": "x" * 10**5}),
        ("/embed", {"model": "embedding", "texts": "a", "pooling": "x" * 10**5}),
        ("/fill", {"model": "fill-mask", "texts": "a [MASK]", "among": ["x" * 10**5]}),
        ("/generate", {"model": "translation", "texts": "a", "length_penalty": f"{'x' * 10**5}:1"}),
    ],
)
def test_an_error_does_not_send_back_a_long_value(service, path, fields):
    answered = ask(service, path, fields)
    assert answered.status == 400 and len(answered.body) < 5_000


def test_a_path_with_a_slash_at_its_end_is_another_one(service):
    for path, body in (("/tag/", TAG), ("/health/", None)):
        answered = ask(service, path, body)
        assert answered.status == 404 and "location" not in answered.headers


def test_a_host_that_has_a_path_is_no_part_of_the_address(service):
    assert ask(service, "/tag", TAG, headers={"host": "localhost/evil"}).status == 200


def test_a_key_may_have_any_letters_and_its_scheme_any_case(folders):
    service = service_of({"tagging": folders["tagging"]}, guard=Guard("schlüssel"))
    sent = "schlüssel".encode().decode("latin-1")  # UTF-8, as curl sends it
    for scheme in ("Bearer", "bearer", "BEARER"):
        headers = {"Authorization": f"{scheme} {sent}"}
        assert ask(service, "/health", headers=headers).status == 200
    for wrong in ("Basic", "Bearer "):
        headers = {"Authorization": f"{wrong} {sent}"}
        assert ask(service, "/health", headers=headers).status == 401


def test_a_compressed_body_is_415(service):
    for path in ("/tag", "/tokenize"):
        for coding in ("gzip", "br", "gzip, identity"):
            headers = {"Content-Encoding": coding}
            answered = ask(service, path, gzip.compress(sent(TAG)), headers=headers)
            assert answered.status == 415 and coding in answered.message
    assert ask(service, "/tag", TAG, headers={"Content-Encoding": "Identity"}).status == 200


def test_bodies_of_two_megabytes_are_read_and_of_three_rejected(service):
    texts = ["the cat sat"] * 100
    padded = sent({"model": "tagging", "texts": texts}) + b" " * 2 * 2**20
    assert len(ask(service, "/tag", padded).json()["results"]) == 100
    for size in (3_000_000, 3 * 2**20, 20 * 2**20):
        answered = ask(service, "/tag", sent(TAG) + b" " * size)
        assert answered.status == 413
        assert "at most 2,621,440 bytes" in answered.message


def test_texts_that_are_too_long_are_errors_of_the_library(service):
    text = "the old cat " * 83_334  # a million characters
    answered = ask(service, "/classify", {"model": "classification", "texts": ["a", text]})
    assert answered.status == 400
    assert answered.message.startswith("Text 2 has 250004 tokens, but this model reads at most 24.")


def test_an_error_for_a_long_text_advises_fields_that_its_route_has(service):
    body = {"model": "translation", "texts": "the old cat " * 90}
    for path, advised in (("/translate", True), ("/look", False)):
        answered = ask(service, path, body)
        assert answered.status == 400 and "Shorten it" in answered.message
        assert ("too_long=" in answered.message) is advised


def test_an_output_cannot_be_both_longer_and_shorter(service):
    body = {"model": "translation", "texts": "the cat", "min_tokens": 5, "max_tokens": 3}
    answered = ask(service, "/translate", body)
    assert answered.status == 400
    assert answered.message == "`min_tokens` must be at most `max_tokens`, 3, but is 5."


def test_ten_thousand_texts_in_one_request_are_embedded_in_order(service):
    texts = ["the cat", "a warm mat"] * 5_000
    body = {"model": "embedding", "input": texts, "encoding_format": "base64"}
    data = ask(service, "/v1/embeddings", body).json()["data"]
    assert [one["index"] for one in data] == [*range(10_000)]
    assert data[0]["embedding"] != data[1]["embedding"]
    assert len({one["embedding"] for one in data}) < 50  # rounding alone differs


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
    assert answered.status == 413 and "about 516,000 tokens" in answered.message
    assert most < 30 * 2**20


def test_empty_lists_have_empty_answers(service):
    assert ask(service, "/tag", {**TAG, "texts": []}).json()["results"] == []
    found = ask(service, "/v1/embeddings", {"model": "embedding", "input": []}).json()
    assert found["data"] == [] and found["usage"]["total_tokens"] == 0
    found = ask(service, "/v1/completions", {"model": "language-modeling", "prompt": []}).json()
    assert found["choices"] == []


def test_text_that_looks_like_a_page_stays_text(service):
    script = "<script>alert(1)</script>"
    answered = ask(service, "/tag", {**TAG, "texts": script})
    assert answered.headers["content-type"] == "application/json"
    assert answered.headers["x-content-type-options"] == "nosniff"
    assert "".join(answered.json()["result"]["words"]) == script
    answered = ask(service, "/tag", {**TAG, "model": script})
    assert answered.status == 404 and answered.headers["content-type"] == "application/json"


@pytest.fixture(scope="module")
def keyed(folders):
    return service_of({"tagging": folders["tagging"]}, guard=KEYED)


def many(value):
    """A list of a quarter of a megabyte of one value."""
    return b"[" + b",".join([value] * (2**18 // (len(value) + 1))) + b"]"


def keys(count):
    return b",".join(b'"%06d": 0' % number for number in range(count))


@pytest.mark.parametrize(
    "path, body, said",
    [
        ("/tag", b'{"texts": ' + many(b"1") + b"}", "`texts.0` must be"),
        ("/tag", b'{"texts": ' + many(b"[1]") + b"}", "`texts.0.0` must be"),
        ("/v1/completions", b'{"prompt": ' + many(b"null") + b"}", "`prompt.0` must be"),
        ("/fill", b'{"texts": "a", "among": ' + many(b"{}") + b"}", "`among.0` must be"),
        ("/choose", b'{"questions": ' + many(b"{}") + b"}", "`questions.0.choices` is missing"),
        ("/tag", b'{"texts": "a", ' + keys(30_000) + b"}", "30,000 fields or values are wrong"),
        ("/tag", b'{"texts": "a", ' + keys(5_000) + b"}", "4,980 further fields are wrong"),
        ("/tag", b'{"texts": "a", ' + keys(60_000) + b', "000007": 1}', "'000007' occurs twice"),
    ],
)
def test_many_mistakes_cost_no_more_than_a_few(service, path, body, said):
    """Each of many errors of pydantic would take a kilobyte, and a line of the answer."""
    tracemalloc.start()
    began = time.process_time()
    try:
        answered = ask(service, path, body)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert answered.status == 400 and said in answered.message
    assert len(answered.body) < 5_000 and most < 60 * 2**20
    assert time.process_time() - began < 20


@pytest.mark.parametrize("path", [*ROUTES, *GETS, "/nothing", "/tag/", "/health/"])
def test_every_route_needs_the_key(keyed, path):
    body = None if path in GETS else {}
    for given in (None, "Bearer wrong", "a-key", "Bearer a-key ", "Basic YTpi", "Bearer schlüssel"):
        headers = {} if given is None else {"Authorization": given}
        answered = ask(keyed, path, body, headers=headers)
        assert answered.status == 401 and answered.headers["www-authenticate"] == "Bearer"
        assert "a-key" not in answered.message
    found = ask(keyed, path, body, headers={"Authorization": "Bearer a-key"})
    assert found.status in (200, 400, 404)


@pytest.mark.parametrize("path", [*ROUTES, *GETS, "/tag/", "/health/"])
def test_pages_of_other_sites_are_refused(keyed, path):
    body, key = (None if path in GETS else {}), {"Authorization": "Bearer a-key"}
    for headers in (
        {"host": "example.org"},
        {"host": "example.org:8000"},
        {"host": "127.0.0.1.example.org"},
        {"host": "localhost@example.org"},
        {"host": "[::1"},
        {"host": ""},
        {"origin": "http://example.org"},
        {"origin": "null"},
        {"origin": "http://["},
        {"host": "localhost.example.org/health"},
        {"origin": "http://localhost:9999"},
    ):
        assert ask(keyed, path, body, headers={**key, **headers}).status == 403
    for host in ("localhost:8000", "127.0.0.1", "127.0.0.2:80", "[::1]:8000"):
        headers = {**key, "host": host, "origin": f"http://{host}"}
        assert ask(keyed, path, body, headers=headers).status in (200, 400, 404)


def test_a_body_that_does_not_arrive_ends_the_request(service, monkeypatch):
    monkeypatch.setattr(guards, "ARRIVAL_SECONDS", 0.05)
    half = [{"type": "http.request", "body": b'{"model"', "more_body": True}]
    answered = asyncio.run(exchange(service, "/tag", half))
    assert answered.status == 408
    answered = asyncio.run(exchange(service, "/tag", half, leaves_after=0.0))
    assert answered.status == 499  # nobody reads it


def test_an_unexpected_error_is_reported_and_the_next_request_answered(
    service, monkeypatch, capsys
):
    task = service.models.all["tagging"].task

    def broken(*args, **options):
        raise KeyError("secret")

    with monkeypatch.context() as patch:
        patch.setattr(task, "_predictions", broken, raising=False)
        answered = ask(service, "/tag", TAG)
    assert answered.status == 500 and answered.json()["error"]["type"] == "server_error"
    assert "KeyError" in capsys.readouterr().err
    assert ask(service, "/tag", TAG).status == 200


def test_a_client_that_has_left_is_no_error(service):
    async def leave():
        return await exchange(service, "/tag", body_of(TAG), leaves_after=0.0)

    assert asyncio.run(leave()).status in (200, 499)
    assert service.engine.waiting_requests == 0


HEAD = f"POST /tag HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(json.dumps(TAG))}\r\n"


def received(client):
    """All that a server sends until it closes the connection."""
    client.settimeout(20)
    return b"".join(iter(lambda: client.recv(1 << 16), b""))


@pytest.mark.parametrize(
    "head, answered_before",
    [("", False), *itertools.product(["P", HEAD[:40], HEAD], [False, True])],
)
def test_a_request_that_does_not_begin_ends_its_connection(
    service, monkeypatch, head, answered_before
):
    monkeypatch.setattr(guards, "ARRIVAL_SECONDS", 0.3)
    with (
        listening(service) as address,
        socket.create_connection(("127.0.0.1", _port(address))) as c,
    ):
        if answered_before:
            c.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            c.settimeout(20)
            first = b""
            while not first.endswith(b"}"):  # head and body may arrive one by one
                first += c.recv(1 << 16)
            assert first.startswith(b"HTTP/1.1 200")
        c.sendall(head.encode())
        answer = received(c)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408") and b"connection: close" in head.lower()
    assert json.loads(body)["error"]["code"] == "slow_request"


def test_a_request_whose_answer_takes_long_keeps_its_connection(service, monkeypatch):
    """The limit of its head ends with its head, also where this arrives byte by byte."""
    monkeypatch.setattr(guards, "ARRIVAL_SECONDS", 0.5)
    task = service.models.all["tagging"].task
    predictions = task._predictions

    def slow(*args, **options):
        time.sleep(1.0)
        return predictions(*args, **options)

    monkeypatch.setattr(task, "_predictions", slow, raising=False)
    with (
        listening(service) as address,
        socket.create_connection(("127.0.0.1", _port(address))) as c,
    ):
        for byte in HEAD.encode():
            c.sendall(bytes([byte]))
        c.sendall(b"Connection: close\r\n\r\n" + json.dumps(TAG).encode())
        assert received(c).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "request_text",
    ["no HTTP\r\n\r\n", f"{HEAD}X: {'x' * 100_000}", f"{HEAD}no header\r\n\r\n"],
)
def test_a_malformed_request_gets_its_error_as_json(service, request_text):
    with (
        listening(service) as address,
        socket.create_connection(("127.0.0.1", _port(address))) as c,
    ):
        c.sendall(request_text.encode())
        head, _, body = received(c).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400") and json.loads(body)["error"]["code"] == "no_http"


@pytest.mark.parametrize("pieces", [1, 2, 1000])
@pytest.mark.parametrize("empty", ["\r\n", "\n", "\r\n\r\n\n\r\n"])
def test_empty_lines_before_and_between_requests_are_left_out(service, pieces, empty):
    """RFC 9112, section 2.2."""
    asked = f"{empty}{HEAD}\r\n{json.dumps(TAG)}"
    last = f"{empty}GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    sent = f"{asked}{asked}{last}".encode()
    with (
        listening(service) as address,
        socket.create_connection(("127.0.0.1", _port(address))) as c,
    ):
        size = -(-len(sent) // pieces)
        for at in range(0, len(sent), size):
            c.sendall(sent[at : at + size])
            time.sleep(0.5 / pieces)
        answer = received(c)
    assert answer.count(b"HTTP/1.1 200") == 3 == answer.count(b"HTTP/1.1")
    assert b'"status":' in answer.rpartition(b"\r\n\r\n")[2]


def test_empty_lines_alone_do_not_fill_the_memory(service):
    """The end of each part may be half of a line."""
    with (
        listening(service) as address,
        socket.create_connection(("127.0.0.1", _port(address))) as c,
    ):
        c.sendall(b"\n" + b"\r\n" * LONGEST_HEAD)
        time.sleep(0.3)
        c.sendall(b"\r\n\r")
        assert received(c).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("before", ["\r", "\r\r\n", "\r\n\r", " \r\n"])
def test_other_bytes_before_a_request_line_are_refused(service, before):
    with (
        listening(service) as address,
        socket.create_connection(("127.0.0.1", _port(address))) as c,
    ):
        c.sendall(f"{before}GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert received(c).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(
    "target, host, status",
    [
        ("http://localhost/health", "localhost", 200),
        ("HTTP://127.0.0.1:80/tokenizer_info?model=tagging", "localhost", 200),
        ("http://localhost/h%65alth", "elsewhere.example", 200),
        ("http://localhost", "localhost", 404),
        ("http://elsewhere.example/health", "localhost", 403),
    ],
)
def test_a_target_in_absolute_form_is_its_path_at_its_own_host(service, target, host, status):
    """RFC 9112, section 3.2.2: servers must accept it, and must ignore `Host`."""
    with (
        listening(service) as address,
        socket.create_connection(("127.0.0.1", _port(address))) as c,
    ):
        lines = f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        c.sendall(lines.encode())
        assert received(c).startswith(f"HTTP/1.1 {status} ".encode())


@pytest.mark.parametrize("method", ["POST /tag", "GET /health"])
def test_a_body_of_two_lengths_is_refused_and_nothing_behind_it_is_read(service, method):
    """RFC 9112, section 6.1: a proxy may take the rest for the next request."""
    with (
        listening(service) as address,
        socket.create_connection(("127.0.0.1", _port(address))) as c,
    ):
        lengths = "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"
        behind = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        c.sendall(
            f"{method} HTTP/1.1\r\nHost: localhost\r\n{lengths}\r\n0\r\n\r\n{behind}".encode()
        )
        answer = received(c)
    assert answer.startswith(b"HTTP/1.1 400 ") and b"two_lengths" in answer
    assert answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize(
    "first, second",
    [
        ("Origin: http://localhost", "Origin: http://elsewhere.example"),
        ("Authorization: Bearer a-key", "Authorization: Bearer another"),
        ("Content-Encoding: identity", "Content-Encoding: gzip"),
    ],
)
def test_a_header_with_two_values_is_refused(service, first, second):
    """A proxy may have checked the other one."""
    with (
        listening(service) as address,
        socket.create_connection(("127.0.0.1", _port(address))) as c,
    ):
        c.sendall(f"{HEAD}{first}\r\n{second}\r\n\r\n{json.dumps(TAG)}".encode())
        answer = received(c)
    assert answer.startswith(b"HTTP/1.1 400 ") and b"two_headers" in answer
    assert b"The request has the header " in answer


LARGE = 2**25  # bytes, more than both sides of a connection can hold


@contextmanager
def asking_for_much(service, monkeypatch, seconds):
    """A client that has asked for a large answer and has read nothing of it.

    seconds: in which it must read something.
    """
    monkeypatch.setattr(connections, "UNREAD", seconds)
    monkeypatch.setattr(service.counters, "text", lambda **counts: "x" * LARGE)
    with listening(service) as address, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", _port(address)))
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        client.settimeout(20)
        yield client


def test_a_client_that_does_not_read_its_answer_loses_its_connection(service, monkeypatch):
    with asking_for_much(service, monkeypatch, 1.0) as client:
        time.sleep(5)
        assert len(received(client)) < LARGE


def test_a_client_that_reads_slowly_gets_its_answer(service, monkeypatch):
    seconds = 3.0  # a busy machine may keep the client waiting for one
    with asking_for_much(service, monkeypatch, seconds) as client:
        size, began = 0, time.monotonic()
        while size < LARGE and (part := client.recv(1 << 18)):
            size += len(part)
            if time.monotonic() - began < 2 * seconds:
                time.sleep(0.002)
    assert size >= LARGE


def _port(address):
    return int(address.rstrip("/").rpartition(":")[2])


@pytest.mark.parametrize(
    ("unread", "closed"),
    [
        ([5] * (LOOKS + 1), True),
        ([5] * LOOKS + [4], False),
        ([5, 3] * LOOKS, False),
        ([5] * LOOKS + [0] + [5] * LOOKS, False),
        ([0] * 3 * LOOKS, False),
    ],
)
def test_only_a_client_that_reads_nothing_at_all_looks_is_closed(unread, closed):
    """unread: bytes at each look."""
    connection, sizes, aborted = Connection.__new__(Connection), iter(unread), []
    connection.transport = SimpleNamespace(
        get_write_buffer_size=lambda: next(sizes), abort=lambda: aborted.append(True)
    )
    later = []
    connection.loop = SimpleNamespace(call_later=lambda *call: later.append(call))
    arguments = (0,)
    for _ in unread:
        connection._look_at_unread(*arguments)
        if aborted:
            break
        seconds, _, *arguments = later[-1]
        assert seconds == connections.UNREAD / LOOKS
    assert bool(aborted) == closed
