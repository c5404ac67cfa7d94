"""Texts as they are generated, beside others: equal to those at once, under any load."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from served import ask, ask_together, body_of, exchange, service_of, start

from regard.decoding.generated_text import GeneratedText
from regard.decoding.streaming import IncrementalDetokenizer
from regard.serving import streams
from regard.text import train

MODELS = ("language-modeling", "language-modeling-gpt2")
WORDS = "the old cat sat on a warm mat and was sleeping in the sun who where".split()


def events(answered):
    """The events of a stream, the last of which says that it is done."""
    assert answered.status == 200, answered.body
    assert answered.headers["content-type"].startswith("text/event-stream")
    *lines, empty = answered.body.decode().split("\n\n")
    assert empty == "" and all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def joined(found):
    """The text and the end of each choice of a stream."""
    texts, ends = {}, {}
    for event in found:
        for choice in event["choices"]:
            index = choice["index"]
            assert index not in ends
            texts[index] = texts.get(index, "") + choice["text"]
            if choice["finish_reason"] is not None:
                ends[index] = choice["finish_reason"]
    return [(texts[index], ends[index]) for index in sorted(texts)]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0},
        {"temperature": 0.9, "n": 3, "seed": 2},
        {"echo": True},
        {"stop": ["at", "sun"], "top_p": 0.9, "seed": 4},
        {"stop": "e s", "echo": True, "n": 2},
    ],
)
def test_a_stream_is_the_text_at_once(service, name, fields):
    body = {"model": name, "prompt": ["the cat", "a warm"], "max_tokens": 9, **fields}
    whole = ask(service, "/v1/completions", body).json()
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    found = events(ask(service, "/v1/completions", asked))
    assert found[-1]["choices"] == [] and found[-1]["usage"] == whole["usage"]
    expected = [(one["text"], one["finish_reason"]) for one in whole["choices"]]
    assert joined(found[:-1]) == expected
    assert len({event["id"] for event in found}) == 1
    assert all("usage" not in event for event in found[:-1])
    assert len(events(ask(service, "/v1/completions", {**body, "stream": True}))) == len(found) - 1


@pytest.mark.parametrize(
    "fields, said",
    [
        ({"prompt": "the cat " * 40}, "context is 24"),
        ({"logprobs": 1}, "`logprobs` are not streamed"),
        ({"n": 2, "temperature": 0}, "are the same"),
        ({"stream_options": {"usage": True}}, "`stream_options.usage` is an unknown field"),
    ],
)
def test_an_error_before_the_first_token_is_an_answer_of_its_own(service, fields, said):
    body = {"model": "language-modeling-gpt2", "prompt": "the cat", "stream": True, **fields}
    answered = ask(service, "/v1/completions", body)
    assert answered.status == 400 and said in answered.message


def drawn(seed, count):
    """Requests for texts of two models, and the calls that give the same in Python."""
    draw, found = random.Random(seed), []
    for _ in range(count):
        options = {"max_tokens": draw.randint(1, 14)}
        if draw.random() < 0.6:
            options |= {"temperature": draw.choice((0.7, 1.2)), "seed": draw.randrange(9)}
            if draw.random() < 0.4:
                options |= {"samples": 2, "top_k": 7}
        elif draw.random() < 0.3:
            options |= {"beams": 2}
        texts = [" ".join(draw.choices(WORDS, k=draw.randint(1, 8))) for _ in range(2)]
        found.append((draw.choice(MODELS), texts, options))
    return found


@pytest.mark.parametrize("seed", [1, 2])
def test_texts_under_load_are_those_of_python(service, seed):
    requests = drawn(seed, 40)
    bodies = [
        ("/generate", {"model": name, "texts": texts, **options})
        for name, texts, options in requests
    ]
    others = [("/tag", {"model": "tagging", "texts": "the cat"})] * 5
    answers = ask_together(service, [*bodies, *others])
    assert all(one.status == 200 for one in answers)
    for (name, texts, options), one in zip(requests, answers, strict=False):
        task = service.models.all[name].task
        hypotheses = task.hypotheses(texts, **options)
        expected = task.spelled(texts, hypotheses)
        found = one.json()["results"]
        assert [[each["text"] for each in row["hypotheses"]] for row in found] == expected
        numbers = [[each["score"] for each in row["hypotheses"]] for row in found]
        for row, several in zip(numbers, hypotheses, strict=True):
            assert row == pytest.approx([each.score for each in several], rel=1e-4)
    assert service.engine.waiting_tokens == 0


def test_a_client_that_leaves_a_stream_frees_its_part(folders):
    service = service_of({"lm": folders["language-modeling"]})
    thread = start(service)
    batch = service.models.all["lm"].batch.sequences
    long = {"prompt": "the cat", "max_tokens": 100_000, "temperature": 0, "stream": True}

    silent = {**long, "stream": False}

    async def both():
        staying = {"prompt": "a warm mat", "max_tokens": 40, "temperature": 0}
        return await asyncio.gather(
            exchange(service, "/v1/completions", body_of(long), leaves_after=0.05),
            exchange(service, "/v1/completions", body_of(silent), leaves_after=0.05),
            exchange(service, "/v1/completions", body_of(staying)),
        )

    left, gone, stayed = asyncio.run(both())
    assert b"[DONE]" not in left.body and gone.status == 499
    expected = service.models.all["lm"].task.generate("a warm mat", max_tokens=40)
    assert "a warm mat" + stayed.json()["choices"][0]["text"] == expected
    ends = time.monotonic() + 5
    while len(batch) and time.monotonic() < ends:
        time.sleep(0.01)
    assert not len(batch) and service.engine.waiting_tokens == 0
    service.engine.stop()
    thread.join(5)
    assert not thread.is_alive()


def test_a_deadline_ends_a_stream_with_an_error(folders):
    service = service_of({"lm": folders["language-modeling"]}, deadline=0.1)
    thread = start(service)
    body = {"prompt": "the cat", "max_tokens": 100_000, "temperature": 0, "stream": True}
    answered = ask(service, "/v1/completions", body)
    last = answered.body.decode().strip().split("\n\n")[-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "deadline"
    assert ask(service, "/v1/completions", {**body, "stream": False}).status == 504
    assert service.engine.waiting_tokens == 0
    service.engine.stop()
    thread.join(5)


def test_a_deadline_holds_while_the_engine_is_busy_with_another_request(folders, monkeypatch):
    names = {"lm": "language-modeling", "tagging": "tagging"}
    service = service_of({name: folders[task] for name, task in names.items()}, deadline=0.2)
    thread = start(service)
    task, busy = service.models.all["tagging"].task, threading.Event()
    tag = task._predictions
    monkeypatch.setattr(
        task, "_predictions", lambda *a, **o: (busy.wait(30), tag(*a, **o))[1], raising=False
    )
    lm = {"model": "lm", "prompt": "the cat", "max_tokens": 5}
    endless = {**lm, "max_tokens": 100_000, "stream": True}
    requests = [
        ("/v1/completions", endless),  # is being sent when the engine becomes busy
        ("/tag", {"model": "tagging", "texts": "the cat"}),
        ("/v1/completions", lm),
        ("/v1/completions", {**lm, "stream": True}),
    ]
    began = time.monotonic()
    sent, *late = ask_together(service, requests)
    assert time.monotonic() - began < 10 and not busy.is_set()
    last = sent.body.decode().strip().split("\n\n")[-1].removeprefix("data: ")
    assert sent.status == 504 or json.loads(last)["error"]["code"] == "deadline"
    assert [one.status for one in late] == [504] * 3
    assert service.engine.waiting_tokens == 0
    busy.set()
    service.engine.stop()
    thread.join(5)


def test_a_client_that_does_not_read_its_stream_is_left_after_the_deadline(folders, monkeypatch):
    monkeypatch.setattr(streams, "GRACE", 0.1)
    service = service_of({"lm": folders["language-modeling"]}, deadline=0.2)
    thread = start(service)
    body = {"prompt": "the cat", "max_tokens": 100_000, "stream": True}
    answered = asyncio.run(exchange(service, "/v1/completions", body_of(body), reads=2))
    assert len(answered.parts) == 2 and service.engine.waiting_tokens == 0
    service.engine.stop()
    thread.join(5)


def test_a_request_with_many_prompts_does_not_keep_the_others_waiting(folders):
    service = service_of({"lm": folders["language-modeling"]})
    ended, end = [], service.engine._end
    service.engine._end = lambda queued, error=None: (ended.append(queued), end(queued, error))
    bodies = [
        {"prompt": ["the cat"] * 600, "max_tokens": 8, "temperature": 1},
        {"prompt": "a warm", "max_tokens": 5, "temperature": 1, "n": 60},  # needs most of the room
        {"prompt": "a warm", "max_tokens": 5, "temperature": 0},
    ]
    thread = threading.Timer(0.3, service.engine.run)
    thread.start()
    found = ask_together(service, [("/v1/completions", body) for body in bodies])
    service.engine.stop()
    thread.join(5)
    assert [len(one.json()["choices"]) for one in found] == [600, 60, 1]
    assert max(ended, key=lambda queued: len(queued.results)) is ended[-1]
    generated = f'path="/v1/completions"}} {sum(len(one.results) for one in ended)}'
    assert generated in ask(service, "/metrics").body.decode()


def test_prompts_that_begin_alike_are_read_once(folders):
    service = service_of({"lm": folders["language-modeling-gpt2"]}, prefix_bytes=2**20)
    thread = start(service)
    task = service.models.all["lm"].task
    for text in ("the old cat sat on a warm mat and was", "the old cat sat on a warm mat and sat"):
        body = {"prompt": text, "max_tokens": 4, "temperature": 0}
        found = ask(service, "/v1/completions", body).json()["choices"][0]["text"]
        assert text + found == service_free(folders, text)
    assert task.prefix_cache.reused >= 8 and task.prefix_cache.bytes <= 2**20
    service.engine.stop()
    thread.join(5)


def service_free(folders, text):
    from regard.tasks.folders import load

    return load(folders["language-modeling-gpt2"]).generate(text, max_tokens=4, beams=1)


def test_long_stops_cost_no_more_than_short_ones():
    """Their time is the engine's, for which all requests wait."""
    ids = BYTES.encode("the cat sat " * 300).ids
    stops = [f"{number}" * 500_000 for number in range(14)]
    stops += ["the cat sat " * 50_000, "the cat sat " * 40_000 + "!"]
    generated, began, text = GeneratedText(BYTES, [], stops), time.process_time(), ""
    for token in ids[:1500]:
        generated.add(token)
        text += generated.ready()
    assert text == "" and time.process_time() - began < 5
    generated.end()
    assert generated.ready() == BYTES.decode(ids[:1500])


BYTES = train("byte-bpe", ["naïve café 日本語 😀 the cat sat " * 3], 290)
TEXT = st.text(alphabet="ab é日😀", max_size=12)


@given(TEXT, st.lists(st.text(alphabet="ab é日😀", min_size=1, max_size=3), max_size=3))
def test_a_stop_ends_a_text_before_it_wherever_it_lies(text, stops):
    ids = BYTES.encode(text).ids
    whole = "".join(
        [*map((detokenizer := IncrementalDetokenizer(BYTES, [])).add, ids), detokenizer.rest()]
    )
    generated, pieces = GeneratedText(BYTES, [], stops), []
    for token in ids:
        generated.add(token)
        pieces.append(generated.ready())
        assert not any(stop in "".join(pieces) for stop in stops)
    generated.end()
    pieces.append(generated.ready())
    found = [at for stop in stops if (at := whole.find(stop)) >= 0]
    assert "".join(pieces) == generated.text
    assert generated.reason == ("stop" if found else "length")
    if not found:
        assert generated.text == whole
    else:  # before a stop that no other one precedes completely
        assert any(whole.startswith(generated.text + stop) for stop in stops)
        assert not any(stop in generated.text for stop in stops)
    assert len(generated.parts) == len(generated.tokens) or not ids
