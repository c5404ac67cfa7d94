"""OpenAI's completions against generation and log-likelihoods in Python."""

from __future__ import annotations

import pytest
from served import ask, message_of

MODELS = ("language-modeling", "language-modeling-gpt2")
PROMPTS = ["the cat", "a warm mat in"]


def task_of(service, name):
    return service.models.all[name].task


def complete(service, name, **fields):
    answered = ask(service, "/v1/completions", {"model": name, **fields})
    assert answered.status_code == 200, message_of(answered)
    return answered.json()


def wrong(service, name, **fields):
    answered = ask(service, "/v1/completions", {"model": name, **fields})
    assert answered.status_code == 400
    return message_of(answered)


@pytest.mark.parametrize("name", MODELS)
def test_greedy_completions_continue_the_prompts(service, name):
    task = task_of(service, name)
    found = complete(service, name, prompt=PROMPTS, max_tokens=6, temperature=0)
    expected = task.generate(PROMPTS, max_tokens=6, beams=1)
    assert [p + one["text"] for p, one in zip(PROMPTS, found["choices"], strict=True)] == expected
    assert [one["index"] for one in found["choices"]] == [0, 1]
    assert {one["finish_reason"] for one in found["choices"]} <= {"stop", "length"}
    ids = [[*one] for one in task.prompt_ids(PROMPTS)]
    written = sum(len(one[0].tokens) for one in task.hypotheses(PROMPTS, max_tokens=6, beams=1))
    read = sum(map(len, ids))
    assert found["usage"] == {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
    }
    same = complete(service, name, prompt=ids, max_tokens=6, temperature=0)
    assert [one["text"] for one in same["choices"]] == [one["text"] for one in found["choices"]]


@pytest.mark.parametrize("name", MODELS)
def test_samples_are_those_of_the_seed(service, name):
    task = task_of(service, name)
    options = {"max_tokens": 6, "temperature": 0.9, "top_p": 0.95, "seed": 5}
    found = complete(service, name, prompt=PROMPTS, n=3, **options)
    several = task.hypotheses(PROMPTS, samples=3, **options)
    expected = [text for texts in task.spelled(PROMPTS, several) for text in texts]
    prompts = [prompt for prompt in PROMPTS for _ in range(3)]
    texts = [p + one["text"] for p, one in zip(prompts, found["choices"], strict=True)]
    assert texts == expected


@pytest.mark.parametrize("name", MODELS)
def test_log_probabilities_of_an_echo_add_up_to_the_log_likelihood(service, name):
    task = task_of(service, name)
    begin, own = task.text_ids(["the cat sat on a mat"])[0]
    found = complete(service, name, prompt=[*begin, *own], max_tokens=0, echo=True, logprobs=2)
    (choice,) = found["choices"]
    numbers = choice["logprobs"]
    assert numbers["token_logprobs"][0] is None and numbers["top_logprobs"][0] is None
    (expected,) = task.log_likelihoods(["the cat sat on a mat"])
    assert sum(numbers["token_logprobs"][len(begin) :]) == pytest.approx(expected, abs=1e-4)
    assert numbers["tokens"] == [task.tokenizer.token(i) for i in (*begin, *own)]
    assert len(numbers["text_offset"]) == len(numbers["tokens"])
    for own_one, best in zip(
        numbers["token_logprobs"][1:], numbers["top_logprobs"][1:], strict=True
    ):
        assert len(best) == 2 and max(best.values()) >= own_one - 1e-6


@pytest.mark.parametrize("name", MODELS)
def test_log_probabilities_of_generated_tokens_equal_those_of_the_task(service, name):
    task = task_of(service, name)
    found = complete(
        service, name, prompt="the cat", max_tokens=5, temperature=0, logprobs=1, echo=True
    )
    numbers = found["choices"][0]["logprobs"]
    (one,) = task.hypotheses(["the cat"], max_tokens=5, beams=1)[0]
    count = len(one.tokens)
    assert numbers["tokens"][-count:] == [task.tokenizer.token(i) for i in one.tokens]
    if not one.finished:
        assert sum(numbers["token_logprobs"][-count:]) == pytest.approx(one.log_prob, abs=1e-4)
    best = [max(top, key=top.get) for top in numbers["top_logprobs"][-count:]]
    assert best == numbers["tokens"][-count:]  # greedy search
    text = found["choices"][0]["text"]
    alone = complete(service, name, prompt="the cat", max_tokens=5, temperature=0, logprobs=1)
    assert alone["choices"][0]["logprobs"]["tokens"] == numbers["tokens"][-count:]
    assert text == "the cat" + alone["choices"][0]["text"]
    offsets = alone["choices"][0]["logprobs"]["text_offset"]
    assert offsets[0] == 0 and offsets == sorted(offsets)


@pytest.mark.parametrize("name", MODELS)
def test_a_stop_ends_the_text_before_it_even_across_tokens(service, name):
    whole = complete(service, name, prompt="the cat", max_tokens=8, temperature=0)
    text = whole["choices"][0]["text"]
    assert len(text) > 6
    for at in range(1, len(text) - 3, 2):
        stop = text[at : at + 3]  # in the middle of words, and from one to the next
        found = complete(
            service, name, prompt="the cat", max_tokens=8, temperature=0, stop=["no such", stop]
        )
        (choice,) = found["choices"]
        assert choice["text"] == text[: text.find(stop)]
        assert choice["finish_reason"] == "stop"


def test_errors_name_what_is_wrong(service):
    gpt, ask_for = "language-modeling-gpt2", {"prompt": "the cat"}
    assert "same" in wrong(service, gpt, **ask_for, n=2, temperature=0)
    assert "context is" in wrong(service, gpt, prompt="the cat " * 40)
    assert "context is" in wrong(service, gpt, **ask_for, max_tokens=9999)
    assert "has the id 9999" in wrong(service, gpt, prompt=[1, 9999])
    assert "has no token" in wrong(service, gpt, prompt=[[]])
    assert "`best_of` must be at most 1" in wrong(service, gpt, **ask_for, best_of=2)
    assert "`temperature`" in wrong(service, gpt, **ask_for, temperature=-1)
    assert "`top_p`" in wrong(service, gpt, **ask_for, top_p=2.5)
    assert "`prompt`" in wrong(service, gpt, prompt=[1, "a"])


def test_models_that_do_not_continue_texts_have_no_completions(service):
    listed = {one["id"]: one["routes"] for one in ask(service, "/v1/models").json()["data"]}
    assert any("/generate" in routes for routes in listed.values())
    for name, routes in listed.items():
        answered = ask(service, "/v1/completions", {"model": name, "prompt": "the cat"})
        assert (answered.status_code == 200) == ("/v1/completions" in routes), name
        assert answered.status_code in (200, 404), name
    assert "/v1/completions" not in listed["dialogue"]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("most", [0, 2])
def test_several_completions_of_each_prompt_have_their_log_probabilities(service, name, most):
    body = {"prompt": PROMPTS, "max_tokens": most, "temperature": 1, "logprobs": 1, "echo": True}
    alone = complete(service, name, **body)["choices"]
    several = complete(service, name, **body, n=2)["choices"]
    assert len(several) == 4 and [one["index"] for one in several] == [0, 1, 2, 3]
    for one, first, second in zip(alone, several[::2], several[1::2], strict=True):
        assert first["text"] == one["text"] and first["logprobs"].keys() == one["logprobs"].keys()
        numbers = one["logprobs"]["token_logprobs"]
        read = len(numbers) if most == 0 else len(numbers) - most
        for other in first, second:
            found = other["logprobs"]["token_logprobs"]
            assert found[1:read] == pytest.approx(numbers[1:read], abs=1e-5)


@pytest.mark.parametrize(
    "fields, said",
    [
        ({"stream_options": {"include_usage": True}}, "`stream_options` are for a stream"),
        ({"stream": True, "max_tokens": 0}, "`max_tokens` is 0"),
        ({"stream": True, "prompt": []}, "`prompt` is an empty list"),
        ({"temperature": 0, "top_p": 2.5}, "`top_p`"),
        ({"prompt": "the cat " * 40}, "Shorten the prompt, or lower `max_tokens`."),
    ],
)
def test_no_field_is_ignored_and_no_hint_names_one_of_another_route(service, fields, said):
    assert said in wrong(service, "language-modeling-gpt2", **{"prompt": "the cat", **fields})


TURNS = ["the cat sat", "on a mat", "who was sleeping"]


def chat_of(turns):
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": turn} for n, turn in enumerate(turns)]


def test_replies_in_a_chat_equal_those_of_the_dialogue_task(service):
    task = task_of(service, "dialogue")
    body = {"model": "dialogue", "messages": chat_of(TURNS), "max_tokens": 7}
    answered = ask(service, "/v1/chat/completions", body).json()
    (choice,) = answered["choices"]
    assert choice["message"] == {"role": "assistant", "content": task.reply(TURNS, max_tokens=7)}
    assert answered["usage"]["prompt_tokens"] == len(task.tokenizer.encode(" ".join(TURNS)).ids)
    options = {"temperature": 1.1, "seed": 4, "top_p": 0.9}
    several = ask(service, "/v1/chat/completions", {**body, "n": 2, **options}).json()["choices"]
    history = [" ".join(TURNS)]
    found = task.hypotheses(history, max_tokens=7, samples=2, **options)
    expected = task.spelled(history, found)[0]
    assert [one["message"]["content"] for one in several] == expected
    text = choice["message"]["content"]
    stopped = ask(service, "/v1/chat/completions", {**body, "stop": text[3:6]}).json()
    assert stopped["choices"][0]["message"]["content"] == text[: text.find(text[3:6])]
    assert stopped["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    "messages", [[], [{"role": "system", "content": "a"}], [{"role": "user"}], "the cat"]
)
def test_messages_that_are_no_turns_are_errors(service, messages):
    body = {"model": "dialogue", "messages": messages}
    answered = ask(service, "/v1/chat/completions", body)
    assert answered.status_code == 400 and "`messages" in message_of(answered)
    wrong = ask(service, "/v1/chat/completions", {**body, "model": "language-modeling"})
    assert wrong.status_code in (400, 404)
