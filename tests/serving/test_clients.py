"""The clients of OpenAI and LangChain, with their defaults, over a socket."""

from __future__ import annotations

import pytest
from served import ask, listening, message_of

MODEL = "language-modeling-gpt2"
PROMPT = {"model": MODEL, "prompt": "the cat", "max_tokens": 6}
HELLO = {"model": "dialogue", "messages": [{"role": "user", "content": "the cat"}]}
NEUTRAL = (
    *({"user": "u1"}, {"best_of": 1}, {"suffix": None}, {"logit_bias": {}}, {"logit_bias": None}),
    *({"presence_penalty": 0}, {"frequency_penalty": 0.0}, {"n": None}, {"stream": False}),
)


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


def test_fields_that_change_nothing_are_accepted_and_others_are_errors(service):
    alone = ask(service, "/v1/completions", PROMPT).json()["choices"]
    for field in NEUTRAL:
        assert ask(service, "/v1/completions", {**PROMPT, **field}).json()["choices"] == alone
    reply = ask(service, "/v1/chat/completions", HELLO).json()["choices"]
    parts = [{"type": "text", "text": "the "}, {"type": "text", "text": "cat"}]
    turn = {"role": "user", "content": parts, "name": None, "tool_calls": None}
    for field in (*NEUTRAL[3:], {"messages": [turn]}, {"max_completion_tokens": 40}):
        asked = {**HELLO, "max_tokens": 40, **field}
        assert ask(service, "/v1/chat/completions", asked).json()["choices"] == reply
    for path, field, value in (
        ("/v1/completions", "best_of", 2),
        ("/v1/completions", "presence_penalty", 0.5),
        ("/v1/completions", "logit_bias", {"5": 1.0}),
        ("/v1/chat/completions", "tools", []),
        ("/v1/chat/completions", "messages", [{"role": "system", "content": "a"}]),
        ("/v1/chat/completions", "messages", [{"role": "user", "content": [{"type": "image"}]}]),
        ("/v1/embeddings", "dimensions", 3),
        ("/v1/embeddings", "input", [5, 10**6]),
    ):
        fields = {"model": "embedding", "input": "a"} if "embed" in path else HELLO
        fields = PROMPT if path == "/v1/completions" else fields
        answered = ask(service, path, {**fields, field: value})
        assert answered.status_code == 400
        assert field in message_of(answered) or "has the id 1000000" in message_of(answered)


def test_ids_are_texts_for_embeddings_and_dimensions_are_the_models(service):
    task = service.models.all["embedding"].task
    texts = ["the cat", "a warm mat"]
    plain = ask(service, "/v1/embeddings", {"model": "embedding", "input": texts}).json()
    ids = [list(task.tokenizer.encode(text).ids) for text in texts]
    size = len(plain["data"][0]["embedding"])
    for field in {"input": ids}, {"input": texts, "dimensions": size, "user": "u"}:
        assert ask(service, "/v1/embeddings", {"model": "embedding", **field}).json() == plain
