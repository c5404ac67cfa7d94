"""Texts as they are generated, beside others: equal to those at once, under any load."""

from __future__ import annotations

import json
import random
import shutil
import threading
import time

import httpx2
import pytest
from served import ask, ask_together, listening, message_of, running, service_of

MODELS = ("language-modeling", "language-modeling-gpt2")
WORDS = "the old cat sat on a warm mat and was sleeping in the sun who where".split()


def events(answered):
    """The events of a stream, the last of which says that it is done."""
    assert answered.status_code == 200, answered.text
    assert answered.headers["content-type"].startswith("text/event-stream")
    *lines, empty = answered.text.split("\n\n")
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
        {"stop": ["at", "sun"], "top_p": 0.9, "seed": 4},
        {"stop": "e s", "n": 2},
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
    assert all(one.status_code == 200 for one in answers)
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


def empty(service, seconds=10.0):
    """Whether nothing waits or is generated, at the latest after so many seconds."""
    ends = time.monotonic() + seconds
    batch = service.models.all["lm"].batch.sequences
    while (len(batch) or service.engine.waiting_requests) and time.monotonic() < ends:
        time.sleep(0.01)
    return not len(batch) and service.engine.waiting_tokens == 0


ENDLESS = {"model": "lm", "prompt": "the cat", "max_tokens": 100_000, "temperature": 0}


@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_leaves_frees_its_part_and_others_are_answered(folders, streamed):
    service = service_of({"lm": folders["language-modeling"]})
    staying = {"prompt": "a warm mat", "max_tokens": 40, "temperature": 0}
    with running(service), listening(service) as address:
        path, body = f"{address}v1/completions", {**ENDLESS, "stream": streamed}
        if streamed:
            with httpx2.stream("POST", path, json=body) as answered:
                assert next(answered.iter_lines()).startswith("data: ")
                stayed = httpx2.post(path, json=staying).json()
        else:
            with pytest.raises(httpx2.ReadTimeout):
                httpx2.post(path, json=body, timeout=0.3)
            stayed = httpx2.post(path, json=staying).json()
        expected = service.models.all["lm"].task.generate("a warm mat", max_tokens=40)
        assert "a warm mat" + stayed["choices"][0]["text"] == expected
        assert empty(service)
        assert streamed or 'status="499"} 1.0' in httpx2.get(f"{address}metrics").text


def test_a_deadline_ends_a_stream_with_an_error(folders):
    service = service_of({"lm": folders["language-modeling"]}, timeout=0.1)
    with running(service):
        answered = ask(service, "/v1/completions", {**ENDLESS, "stream": True})
        assert last_error(answered)["code"] == "deadline"
        assert ask(service, "/v1/completions", ENDLESS).status_code == 504
        assert empty(service)


def last_error(answered):
    return json.loads(answered.text.strip().split("\n\n")[-1].removeprefix("data: "))["error"]


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
    answers = ask_together(service, [("/v1/completions", body) for body in bodies])
    service.engine.stop()
    thread.join(5)
    assert [len(answered.json()["choices"]) for answered in answers] == [600, 60, 1]
    assert max(ended, key=lambda queued: len(queued.results)) is ended[-1]
    count = float(sum(len(queued.results) for queued in ended))
    assert f'path="/v1/completions"}} {count}' in ask(service, "/metrics").text


TEMPLATE = """{% for message in messages %}{{ message.role }}: {{ message.content }}{{ eos_token }}
{% endfor %}{% if messages[0].role == 'user' %}{{ raise_exception('system first') }}{% endif %}"""
TURN = {"role": "user", "content": "the cat sat"}


def test_a_chat_template_makes_the_prompt_of_messages(folders, tmp_path):
    folder = tmp_path / "chat"
    shutil.copytree(folders["language-modeling-gpt2"], folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    messages = [{"role": "system", "content": "the warm sun"}, TURN]
    with running(service_of({"chat": folder})) as service:
        task = service.models.all["chat"].task
        prompt = task.tokenizer.apply_chat_template(messages)
        ids = task.tokenizer.encode(prompt).ids
        body = {"model": "chat", "messages": messages, "temperature": 0}
        by_developer = [{**messages[0], "role": "developer"}, TURN]
        for options in (
            {"max_tokens": 5}, {"max_tokens": 5, "messages": by_developer},
            {"max_completion_tokens": 5}, {},
        ):  # fmt: skip
            answered = ask(service, "/v1/chat/completions", {**body, **options}).json()
            limit = 5 if options else task.context - len(ids)
            asked = {"model": "chat", "prompt": ids, "max_tokens": limit, "temperature": 0}
            expected = ask(service, "/v1/completions", asked).json()
            (choice,), (completed,) = answered["choices"], expected["choices"]
            assert choice["message"] == {"role": "assistant", "content": completed["text"]}
            assert choice["finish_reason"] == completed["finish_reason"]
            assert answered["usage"] == expected["usage"]
        several = {**body, "temperature": 1, "n": 2, "stream": True, "max_tokens": 5}
        deltas = [[], []]
        for part in events(ask(service, "/v1/chat/completions", several)):
            deltas[part["choices"][0]["index"]].append(part["choices"][0]["delta"])
        assert [[d.get("role") for d in row][:2] for row in deltas] == [["assistant", None]] * 2
        whole = ask(service, "/v1/chat/completions", {**several, "stream": False}).json()["choices"]
        texts = ["".join(delta["content"] for delta in row) for row in deltas]
        assert texts == [choice["message"]["content"] for choice in whole]
        for wrong, said in (
            ({"messages": [TURN]}, "system first"),
            ({"max_tokens": 10**4}, "context"),
            ({"messages": [{"role": "system", "content": "the cat " * 400}]}, "Shorten"),
        ):
            answered = ask(service, "/v1/chat/completions", {**body, **wrong})
            assert answered.status_code == 400 and said in message_of(answered)
