"""Completions over HTTP, by their clients and by the evaluation harness."""

from __future__ import annotations

import pytest
import torch
from served import ask, listening, message_of, running, service_of

from regard.models.gpt2 import GPT2, GPT2Config
from regard.serving.models import ServedModels, served_model
from regard.tasks.language_modeling import TextGenerator
from regard.text import train

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
        ({"n": 2, "temperature": 0}, "are the same"),
        ({"stream": True, "n": 2, "temperature": 0}, "are the same"),
        ({"prompt": "the cat " * 40}, "context is 24"),
        ({"stream": True, "prompt": "the cat " * 40}, "context is 24"),
        ({"max_tokens": 9999}, "context is"),
        ({"prompt": [1, 9999]}, "has the id 9999"),
        ({"prompt": [[]]}, "has no token"),
        ({"prompt": [1, "a"]}, "`prompt`"),
        ({"temperature": -1}, "`temperature`"),
        ({"stream": True, "logprobs": 1}, "`logprobs` and `echo` are not streamed"),
        ({"stream": True, "stream_options": {"usage": True}}, "`usage` is an unknown field"),
        ({"stream_options": {"include_usage": True}}, "`stream_options` are for a stream"),
        ({"stream": True, "max_tokens": 0}, "`max_tokens` is 0"),
        ({"stream": True, "prompt": []}, "`prompt` is an empty list"),
        ({"temperature": 0, "top_p": 2.5}, "`top_p`"),
        ({"prompt": "the cat " * 40}, "Shorten the prompt, or lower `max_tokens`."),
    ],
)
def test_errors_name_what_is_wrong_and_no_hint_is_of_another_route(service, fields, said):
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


MODEL = "language-modeling-gpt2"
PROMPT = {"model": MODEL, "prompt": "the cat", "max_tokens": 6}
HELLO = {"model": "dialogue", "messages": [{"role": "user", "content": "the cat"}]}


@pytest.fixture(scope="module")
def address(service):
    with listening(service) as found:
        yield f"{found}v1"


def test_openais_client_receives_what_the_tasks_compute(service, address):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=address, api_key="x", max_retries=0)
    assert MODEL in [model.id for model in client.models.list()]
    assert client.models.retrieve(MODEL).id == MODEL
    task = service.models.all[MODEL].task
    whole = client.completions.create(**PROMPT, temperature=0)
    assert "the cat" + whole.choices[0].text == task.generate("the cat", max_tokens=6)
    assert whole.usage.prompt_tokens == len(task.prompt_ids(["the cat"])[0])
    counted = {"include_usage": True}
    *parts, last = client.completions.create(
        **PROMPT, temperature=0, stream=True, stream_options=counted
    )
    assert "".join(part.choices[0].text for part in parts) == whole.choices[0].text
    assert last.usage == whole.usage and len(parts) > 3
    vectors = client.embeddings.create(model="embedding", input=["the cat", "a mat"]).data
    expected = service.models.all["embedding"].task.embed(["the cat", "a mat"])
    for item, row in zip(vectors, expected.tolist(), strict=True):
        assert item.embedding == pytest.approx(row, abs=1e-6)
    reply = client.chat.completions.create(**HELLO).choices[0].message.content
    assert reply == service.models.all["dialogue"].task.reply(["the cat"])
    streamed = client.chat.completions.create(**HELLO, stream=True)
    assert "".join(part.choices[0].delta.content or "" for part in streamed) == reply
    with pytest.raises(openai.NotFoundError, match="Its models: "):
        client.completions.create(**{**PROMPT, "model": "no"})
    with pytest.raises(openai.BadRequestError, match="best_of"):
        client.completions.create(**PROMPT, best_of=2)
    short = client.embeddings.create(model="embedding", input="a mat", dimensions=3).data[0]
    task = service.models.all["embedding"].task
    expected = task.embed("a mat", truncate_dim=3).tolist()
    assert short.embedding == pytest.approx(expected, abs=1e-6)


def test_langchains_client_receives_what_the_tasks_compute(service, address):
    langchain = pytest.importorskip("langchain_openai")
    options = {"base_url": address, "api_key": "x"}
    written = langchain.OpenAI(model=MODEL, max_tokens=6, temperature=0, **options)
    expected = service.models.all[MODEL].task.generate("the cat", max_tokens=6)
    assert "the cat" + written.invoke("the cat") == expected
    assert "the cat" + "".join(written.stream("the cat")) == expected
    chat = langchain.ChatOpenAI(model="dialogue", **options)
    reply = service.models.all["dialogue"].task.reply(["the cat"])
    assert chat.invoke("the cat").content == reply
    assert "".join(part.content for part in chat.stream("the cat")) == reply


def test_a_turn_may_have_parts_and_fields_that_would_change_an_answer_are_errors(service):
    parts = [{"type": "text", "text": "the "}, {"type": "text", "text": "cat"}]
    turn = {"role": "user", "content": parts, "name": None, "tool_calls": None}
    replies = [
        ask(service, "/v1/chat/completions", {**HELLO, **fields}).json()["choices"]
        for fields in ({}, {"messages": [turn]}, {"max_completion_tokens": 40})
    ]
    assert replies[0] == replies[1] == replies[2]
    for path, field, value in (
        ("/v1/completions", "best_of", 2),
        ("/v1/completions", "presence_penalty", 0.5),
        ("/v1/completions", "logit_bias", {"5": 1.0}),
        ("/v1/chat/completions", "tools", [{"type": "function", "function": {"name": "f"}}]),
        ("/v1/chat/completions", "response_format", {"type": "json_object"}),
        ("/v1/chat/completions", "messages", [{"role": "developer", "content": "a"}]),
        ("/v1/chat/completions", "messages", [{"role": "system", "content": "a"}]),
        ("/v1/chat/completions", "messages", [{"role": "user", "content": [{"type": "image"}]}]),
        ("/v1/embeddings", "dimensions", 300),
        ("/v1/embeddings", "input", [5, 10**6]),
    ):
        fields = {"model": "embedding", "input": "a"} if "embed" in path else HELLO
        fields = PROMPT if path == "/v1/completions" else fields
        answered = ask(service, path, {**fields, field: value})
        assert answered.status_code == 400
        assert field in message_of(answered) or "has the id 1000000" in message_of(answered)


TEXTS = ["the old cat sat on a warm mat", "who was sleeping in the sun ?"] * 4
REQUESTS = [
    ("the old cat", " sat on a warm mat"), ("who was", " sleeping"), ("", "the cat sat"),
    ("the sun ", "was warm"), ("who", " in"), ("the old ca", "t sat"),
]  # fmt: skip


def small_task(eos: int | None = None) -> TextGenerator:
    """A GPT-2 that has more tokens than its tokenizer."""
    tokenizer = train("byte-bpe", TEXTS, 270)
    ids = {"bos": tokenizer.bos_id, "eos": tokenizer.eos_id if eos is None else eos}
    torch.manual_seed(4)
    config = GPT2Config(
        tokenizer.vocab_size + 20, d_model=16, heads=2, layers=1, max_length=48, **ids
    )
    model = GPT2(config).eval()
    with torch.no_grad():
        model.embedding.weight.mul_(20)
    return TextGenerator(model, tokenizer)


@pytest.fixture(params=["ends by its length", "ends by its end-of-text token"])
def served(request):
    """A running service with one model, which in one case ends each text at once."""
    task = small_task()
    if "token" in request.param:
        ids = task.prompt_ids([REQUESTS[0][0] + REQUESTS[0][1]])
        with torch.no_grad():
            best = task.module.head.logits(task.module(torch.tensor(ids)).hidden)[0, -1].argmax()
        task = small_task(int(best))
    service = service_of({})
    made = served_model("gpt", task, service.counters)
    service.models = ServedModels({"gpt": made})
    with running(service):
        yield service


def answer(service, path, body=None):
    answered = ask(service, path, body)
    assert answered.status_code == 200, message_of(answered)
    return answered.json()


def asked_of_tokenizer(service, text):
    return answer(service, "/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]


def test_continuations_have_the_numbers_of_the_model_in_the_requests_of_the_harness(served):
    """Rows of ids, echoed with one token more, whose log-probabilities are left out again."""
    info = answer(served, "/tokenizer_info")
    first = asked_of_tokenizer(served, info["bos_token"] or info["eos_token"])
    rows, counts = [], []
    for context, continuation in REQUESTS:
        before = asked_of_tokenizer(served, context.rstrip()) or first
        whole = asked_of_tokenizer(served, context + continuation)
        rows.append([*before, *whole[len(before) if context else 0 :]])
        counts.append(len(before))
    body = {"model": "gpt", "prompt": rows, "temperature": 0, "max_tokens": 1}
    found = answer(served, "/v1/completions", {**body, "logprobs": 1, "seed": 1234, "echo": True})
    model = served.models.all["gpt"].task.module
    for choice, count, row in zip(found["choices"], counts, rows, strict=True):
        with torch.no_grad():
            log_probs = model.head.logits(model(torch.tensor([row])).hidden)[0].log_softmax(-1)
        expected = [float(log_probs[i - 1, row[i]]) for i in range(count, len(row))]
        nats, greedy = (
            sum(expected),
            all(row[i] == int(log_probs[i - 1].argmax()) for i in range(count, len(row))),
        )
        numbers = choice["logprobs"]
        assert len(numbers["token_logprobs"]) == len(row) + 1
        own, best = (numbers[name][count:-1] for name in ("token_logprobs", "top_logprobs"))
        assert sum(own) == pytest.approx(nats, rel=1e-6)
        assert all(one == max(top.values()) for one, top in zip(own, best, strict=True)) == greedy
    assert {len(v) for v in numbers.values()} == {len(row) + 1}


def test_every_token_of_a_model_has_a_name_also_beyond_its_tokenizer(served):
    body = {"prompt": TEXTS[0], "max_tokens": 0, "echo": True, "logprobs": 20}
    (choice,) = answer(served, "/v1/completions", body)["choices"]
    names = {name for top in choice["logprobs"]["top_logprobs"][1:] for name in top}
    assert any(name.startswith("<") and name[1:-1].isdigit() for name in names)


@pytest.mark.parametrize("fields", [{}, {"texts": "a", "prompt": "a"}])
def test_texts_or_a_prompt_are_tokenized(served, fields):
    answered = ask(served, "/tokenize", fields)
    assert answered.status_code == 400 and "one of `texts` and `prompt`" in message_of(answered)
