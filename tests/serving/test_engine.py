"""The queue: what is computed together, who waits, and what is refused."""

from __future__ import annotations

import threading
import time

import pytest
from served import ask, ask_together, near, running, service_of

from regard.errors import TextError
from regard.serving.engine import TURN_TOKENS, Engine, RequestCounters
from regard.serving.problems import Problem
from regard.serving.work import Work
from regard.tasks.batching import watched


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


class Windows:
    """Answers an item of N letters in N batches; `ended` has requests in the order of their ends.

    between: is called before each batch.
    """

    def __init__(self, between=lambda: None):
        self.between, self.ended, self.batches = between, [], 0

    def __call__(self, items):
        found = []
        for item in items:
            for _ in watched(item):
                self.between()
                self.batches += 1
            found.append(item.upper())
        return found

    def long(self, text, **options):
        return request_of(self, [text], cost=TURN_TOKENS + 1, ended=self.ended, **options)


def test_a_long_text_gives_turns_to_others_between_its_batches_and_two_long_ones_are_in_order():
    windows, calls = Windows(), Calls()
    first, second = windows.long("abcdef"), windows.long("ghi", key="j")
    before = request_of(windows, ["x"], ended=windows.ended)
    short = [request_of(calls, ["x"], key=key, ended=windows.ended) for key in "lmn"]
    computed([before, first, second, *short])
    assert windows.ended == [before, *short, first, second]
    assert [one.results for one in windows.ended] == [["X"]] * 4 + [["ABCDEF"], ["GHI"]]
    assert len(calls.made) == 3 and windows.batches == 1 + 9


@pytest.mark.parametrize(("reason", "status"), [("leaves", None), ("late", 504), ("stops", 503)])
def test_a_long_text_ends_early_when_its_client_leaves_its_time_is_over_or_the_server_stops(
    reason, status
):
    engine, windows = Engine(10**6, RequestCounters()), Windows()
    long, bad = windows.long("abcdef"), request_of(Calls(), ["bad"], ended=windows.ended)

    def between():
        if windows.batches == 2:
            if reason == "leaves":
                engine.cancel(long)
            if reason == "late":
                long.deadline = 0.0
            threading.Timer(0.0 if reason == "stops" else 0.1, engine.stop).start()
            time.sleep(0.05)

    windows.between = between
    engine.submit(long)
    engine.submit(bad)
    engine.run()
    assert windows.batches == 3 and engine.waiting_tokens == 0
    assert isinstance(error_of(bad), TextError) and (long in windows.ended) == bool(status)
    assert status is None or error_of(long).status_code == status


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


def test_requests_beside_a_long_text_are_answered_before_it_with_the_answers_that_they_have_alone(
    folders,
):
    service = service_of({"tagging": folders["tagging"]})
    words = ("the cat sat on a mat in Paris " * 1500).split()
    requests = [("/tag", {"texts": [words]}), ("/tag", {"texts": "a cat sat"})]
    ended, end = [], service.engine._end
    service.engine._end = lambda queued, error=None: (ended.append(queued.cost), end(queued, error))
    with running(service):
        alone = [ask(service, *request).json() for request in requests]
        ended.clear()
        assert [answered.json() for answered in ask_together(service, requests)] == near(alone)
    assert ended == sorted(ended) and ended[-1] > TURN_TOKENS
