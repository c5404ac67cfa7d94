"""The queue: what is computed together, who waits, and what is refused."""

from __future__ import annotations

import threading
import time

import pytest
from served import ask, ask_together, near, service_of

from regard.errors import TextError
from regard.serving.engine import TURN_TOKENS, Engine
from regard.serving.models import RequestCounters
from regard.serving.problems import Problem
from regard.serving.work import Work


class Calls:
    """Answers items, and records those of each call."""

    def __init__(self):
        self.made = []

    def __call__(self, items):
        self.made.append(list(items))
        for index, item in enumerate(items):
            if item == "bad":
                raise TextError(index, "is bad.")
            if item == "worse":
                raise RuntimeError("worse")
        return [item.upper() for item in items]


def request_of(run, items, key="k", cost=10, seconds=100.0, ended=None):
    deadline = time.monotonic() + seconds
    work = Work(key, items, [cost] * len(items), run, list, path="/path", deadline=deadline)
    if ended is not None:
        work.future.add_done_callback(lambda _: ended.append(work))
    return work


def error_of(work):
    return work.future.exception(timeout=5)


def computed(requests, most=10**6):
    """The requests after an engine has computed all of them."""
    engine = Engine(most, RequestCounters())
    for queued in requests:
        engine.submit(queued)
    thread = threading.Thread(target=engine.run)
    thread.start()
    while engine.waiting_requests:
        time.sleep(0.001)
    engine.stop()
    thread.join(5)
    assert not thread.is_alive() and engine.waiting_tokens == 0
    return engine


def test_requests_with_the_same_key_share_a_call():
    calls, ended = Calls(), []
    requests = [request_of(calls, [f"a{n}", f"b{n}"], ended=ended) for n in range(5)]
    requests.insert(2, request_of(calls, ["x"], key="other", ended=ended))
    computed(requests)
    assert sorted(map(len, calls.made)) == [1, 10]
    assert [queued.results for queued in requests if queued.key == "k"] == [
        [f"A{n}", f"B{n}"] for n in range(5)
    ]
    assert len(ended) == 6 and not any(map(error_of, ended))


def test_a_long_list_does_not_keep_the_others_waiting():
    calls, ended = Calls(), []
    long = request_of(calls, [f"t{n}" for n in range(3000)], cost=TURN_TOKENS // 100, ended=ended)
    other = [request_of(calls, [f"s{n}"], key=key, ended=ended) for n, key in enumerate("kkj")]
    computed([long, *other])
    assert ended[-1] is long and long.results == [f"T{n}" for n in range(3000)]
    assert max(map(len, calls.made)) <= 101 + 3
    first = {item for made in calls.made[:3] for item in made}
    assert {"s0", "s1", "s2"} <= first


@pytest.mark.parametrize("bad, kind", [("bad", TextError), ("worse", RuntimeError)])
def test_an_error_ends_the_request_that_it_is_about_and_no_other(bad, kind):
    calls = Calls()
    requests = [request_of(calls, items) for items in (["a"], ["b", bad], ["c"])]
    computed(requests)
    assert [queued.results for queued in requests[::2]] == [["A"], ["C"]]
    assert [type(error_of(queued)) for queued in requests] == [type(None), kind, type(None)]


def test_errors_count_the_texts_of_their_own_request():
    calls = Calls()
    texts = ["a"] * 250 + ["bad"] + ["a"] * 30
    requests = [request_of(calls, ["x"]), request_of(calls, texts, cost=TURN_TOKENS // 100)]
    computed(requests)
    assert str(error_of(requests[1])) == "Text 251 is bad."


def test_a_full_queue_refuses_with_a_time_to_wait():
    engine = Engine(100, RequestCounters())
    engine.submit(request_of(Calls(), ["a"], cost=60))
    with pytest.raises(Problem) as refused:
        engine.submit(request_of(Calls(), ["b"], cost=60))
    assert refused.value.status_code == 429 and int(refused.value.headers["Retry-After"]) >= 1
    engine.submit(request_of(Calls(), ["c"], cost=40))
    with pytest.raises(Problem) as refused:
        engine.submit(request_of(Calls(), ["d", "e", "f"], cost=40))
    assert refused.value.status_code == 413 and "120" in str(refused.value)


def test_a_stopped_engine_tells_those_who_wait():
    engine, ended = Engine(100, RequestCounters()), []
    engine.submit(request_of(Calls(), ["a"], ended=ended))
    engine.stop()
    engine.run()
    assert [error_of(queued).status_code for queued in ended] == [503]


def test_health_is_503_while_models_load(folders):
    service = service_of({"tagging": folders["tagging"]})
    models, service.models = service.models, None
    for path, body in (("/health", None), ("/v1/models", None), ("/tag", {"texts": "a"})):
        answered = ask(service, path, body)
        assert answered.status_code == 503 and answered.headers["retry-after"] == "1"
    service.models = models
    assert ask(service, "/health").json() == {"status": "ok", "models": ["tagging"]}


def test_a_full_queue_over_http_loses_nothing(folders):
    service = service_of({"tagging": folders["tagging"]}, most=40)
    bodies = [("/tag", {"texts": ["the cat sat"] * 2}) for _ in range(50)]
    thread = threading.Timer(0.2, service.engine.run)
    thread.daemon = True
    thread.start()
    answers = ask_together(service, bodies)
    service.engine.stop()
    thread.join(5)
    statuses = [answered.status_code for answered in answers]
    assert set(statuses) == {200, 429}
    expected = next(answered.json() for answered in answers if answered.status_code == 200)
    for answered in answers:
        if answered.status_code == 200:
            assert answered.json() == near(expected)
        else:
            assert int(answered.headers["retry-after"]) >= 1
    text = ask(service, "/metrics").text
    count = float(statuses.count(429))
    assert f'regard_requests_total{{path="/tag",status="429"}} {count}' in text
    assert "regard_waiting_tokens 0.0\n" in text
