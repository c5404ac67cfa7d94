"""OpenAI's own client against the service, in process."""

from __future__ import annotations

import asyncio

import pytest

openai = pytest.importorskip("openai")
httpx = pytest.importorskip("httpx2")

from regard.serving.app import Application  # noqa: E402

MODEL = "language-modeling-gpt2"


def asked(service, ask):
    """What `ask(client)` gives, with a client of the service."""

    async def run():
        transport = httpx.ASGITransport(app=Application(service))
        async with httpx.AsyncClient(transport=transport) as http:
            client = openai.AsyncOpenAI(
                base_url="http://localhost/v1", api_key="-", http_client=http, max_retries=0
            )
            return await ask(client)

    return asyncio.run(run())


def test_its_models_and_completions_are_those_of_the_library(service):
    models = asked(service, lambda client: client.models.list())
    assert MODEL in {one.id for one in models.data}
    task = service.models.all[MODEL].task
    found = asked(
        service,
        lambda client: client.completions.create(
            model=MODEL, prompt="the cat", max_tokens=6, temperature=0
        ),
    )
    expected = task.generate("the cat", max_tokens=6, beams=1)
    assert "the cat" + found.choices[0].text == expected
    assert found.usage.total_tokens == found.usage.prompt_tokens + found.usage.completion_tokens


def test_its_stream_has_the_same_text(service):
    async def streamed(client):
        stream = await client.completions.create(
            model=MODEL, prompt="the cat", max_tokens=6, temperature=0, stream=True
        )
        return "".join([chunk.choices[0].text async for chunk in stream if chunk.choices])

    expected = service.models.all[MODEL].task.generate("the cat", max_tokens=6, beams=1)
    assert "the cat" + asked(service, streamed) == expected


def test_its_embeddings_are_the_vectors_of_the_library(service):
    """Its client asks for base64, and decodes it."""
    texts = ["the cat", "a warm mat"]
    found = asked(service, lambda client: client.embeddings.create(model="embedding", input=texts))
    expected = service.models.all["embedding"].task.embed(texts)
    for one, vector in zip(found.data, expected, strict=True):
        assert one.embedding == pytest.approx(vector.tolist(), abs=1e-6)


def test_its_errors_have_the_words_of_the_library(service):
    def wrong(kind, **fields):
        given = {"model": MODEL, "prompt": "the cat"} | fields
        with pytest.raises(kind) as error:
            asked(service, lambda client: client.completions.create(**given))
        return str(error.value)

    assert "temperature" in wrong(openai.BadRequestError, temperature=-1)
    assert "nowhere" in wrong(openai.NotFoundError, model="nowhere")
