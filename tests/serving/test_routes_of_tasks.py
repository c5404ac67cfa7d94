"""Every route gives what the same call in Python gives, and errors say what to do."""

from __future__ import annotations

import base64
import json
import re
import struct
from dataclasses import asdict
from pathlib import Path

import pytest
from served import ask, ask_together, message_of, near

from regard.serving.routes import ROUTES
from regard.visual.attention_record import attention_of_text

TEXTS = ["the cat sat", "a warm mat in the sun", "who"]
PAIRS = [("who sat", "the cat sat on a mat"), ("where", "in the sun")]
STRIPES = Path(__file__).parents[1] / "stripes.png"


def task_of(service, name):
    return service.models.all[name].task


def result(service, path, body):
    answered = ask(service, path, body)
    assert answered.status_code == 200, message_of(answered)
    return answered.json()


def labelled(answers):
    return [{"text": str(one), **one.values()} for one in answers]


def classes(task):
    return labelled(task.predict(TEXTS, return_proba=True))


QUESTION = {"context": "the cat sat", "question": "who", "choices": ["the cat", "a mat"]}
MASKED = ["the [MASK] sat", "a [MASK] mat"]
LOW = {"layers": 0, "normalize": True}


# route, model, fields -> what the task gives, or one value of each of its results
SAME = [
    ("/classify", "classification", {}, None, classes),
    ("/classify", "multi-label-classification", {}, None, classes),
    ("/predict", "regression", {}, "value", lambda task: list(task.predict(TEXTS))),
    ("/classify", "classification", {"texts": PAIRS}, "label", lambda task: task.predict(PAIRS)),
    ("/tag", "tagging", {}, "tags", lambda task: task.tag(TEXTS)),
    ("/tag", "tagging", {"texts": [["a", "mat"]] * 2}, "tags",
     lambda task: task.tag([["a", "mat"]] * 2)),
    ("/choose", "multiple-choice", {"texts": None, "questions": [QUESTION]}, None,
     lambda task: labelled(task.predict([QUESTION], return_proba=True))),
    ("/embed", "embedding", {}, "vector", lambda task: task.embed(TEXTS).tolist()),
    ("/embed", "embedding", LOW, "vector", lambda task: task.embed(TEXTS, **LOW).tolist()),
    ("/fill", "fill-mask", {"texts": MASKED, "top": 3}, None,
     lambda task: [one.values() for one in task.fill(MASKED, top=3)]),
    *(("/score", name, {}, "log_likelihood", lambda task: list(task.log_likelihoods(TEXTS)))
      for name in ("language-modeling", "language-modeling-gpt2", "fill-mask")),
    ("/parse", "parsing", {}, "tree", lambda task: list(map(str, task.parse(TEXTS)))),
]  # fmt: skip


@pytest.mark.parametrize(("path", "name", "fields", "key", "call"), SAME)
def test_results_equal_those_of_python(service, path, name, fields, key, call):
    expected = near(json.loads(json.dumps(call(task_of(service, name)))))
    given = {"texts": TEXTS} | fields
    body = {"model": name, **{field: value for field, value in given.items() if value is not None}}
    found = result(service, path, body)["results"]
    assert [one[key] if key else one for one in found] == expected
    if "texts" in body and isinstance(last := body["texts"][-1], str):
        one = result(service, path, {**body, "texts": last})["result"]
        assert (one[key] if key else one) == expected[-1]


@pytest.mark.parametrize("name", ["classification", "translation", "language-modeling-gpt2"])
def test_attention_is_what_was_captured(service, name):
    record, answer = attention_of_text(task_of(service, name), TEXTS[1])
    chosen = {"layer": 1, "head": 2, "tokens": True}
    expected = record.plot(record.plot().main_kind, 1).panels[0]
    found = result(service, "/look", {"model": name, "texts": TEXTS[1], **chosen})["result"]
    assert found["weights"] == near([list(row) for row in expected.head(2)])
    assert (found["layers"], found["head"], found["answer"]) == ([1], 2, answer)
    assert len(found["rows"]) == len(found["weights"])
    assert len(found["columns"]) == len(found["weights"][0])
    long = ask(service, "/look", {"model": name, "texts": ["who", "who", "the cat " * 40]})
    assert long.status_code == 400 and re.search(r"(Text|Prompt|Source) 3 has", message_of(long))
    wrong = ask(service, "/look", {"model": name, "texts": TEXTS[1], "layer": 99})
    assert wrong.status_code == 400 and "layer" in message_of(wrong)


def test_answers_to_several_questions_and_to_one_equal_those_of_the_task(service):
    task = task_of(service, "question-answering")
    body = {"model": "question-answering", "n_best": 3}
    question, context = ([pair[side] for pair in PAIRS] for side in (0, 1))
    found = result(service, "/answer", {**body, "question": question, "context": context})
    expected = json.loads(
        json.dumps([one.values() for one in task.predict(PAIRS, n_best=3, return_proba=True)])
    )
    assert found["results"] == near(expected)
    one = result(service, "/answer", {**body, "question": PAIRS[0][0], "context": PAIRS[0][1]})
    assert one["result"] == near(expected[0])
    wrong = ask(service, "/answer", {**body, "question": question, "context": context[:1]})
    assert wrong.status_code == 400 and "`context` must be one text or 2" in message_of(wrong)


LIMITS = {"temperature": 0.9, "seed": 3, "max_length_a": 1.0, "max_length_b": 3}
PATHS = {"translation": "/translate", "summarization": "/summarize"}


@pytest.mark.parametrize(
    "name, options",
    [
        ("translation", {"beams": 3, "n_best": 2, "max_tokens": 6}),
        ("translation", LIMITS),
        ("summarization", {"max_tokens": 5}),
        ("dialogue", {"max_tokens": 5}),
        ("language-modeling-gpt2", {"samples": 2, "top_k": 5, "max_tokens": 7}),
        ("language-modeling-gpt2", {"window": True, "max_tokens": 60}),
        ("language-modeling", {"stop": "a", "max_tokens": 7}),
        ("language-modeling-gpt2", {"stop": ["e", "a"], "beams": 2, "max_tokens": 7}),
    ],
)
def test_generated_texts_equal_those_of_python(service, name, options):
    path = PATHS.get(name, "/generate")
    task = task_of(service, name)
    expected = task.hypotheses(TEXTS, **options)
    found = result(service, path, {"model": name, "texts": TEXTS, **options})["results"]
    for one, hypotheses, texts in zip(found, expected, task.spelled(TEXTS, expected), strict=True):
        assert one["text"] == texts[0]
        assert [each["text"] for each in one["hypotheses"]] == texts
        scores = [each["score"] for each in one["hypotheses"]]
        assert scores == pytest.approx([each.score for each in hypotheses], rel=1e-5)


def test_a_search_finds_what_the_task_finds_in_texts_and_in_an_index(service):
    task, index = task_of(service, "embedding"), service.models.all["index"].index
    for name, texts in (("embedding", TEXTS), ("index", None)):
        searched = list(index.texts) if texts is None else texts
        body = {"model": name, "top_k": 2, **({} if texts is None else {"texts": texts})}
        expected = [asdict(one) for one in task.search("a cat", searched, 2)]
        assert result(service, "/search", {**body, "query": "a cat"})["result"] == near(expected)
        several = result(service, "/search", {**body, "query": ["the sun", "a cat"]})["results"]
        assert several[1] == near(expected) and len(several[0]) == 2
    refused = ask(service, "/search", {"model": "embedding", "query": "a cat"})
    assert refused.status_code == 400 and "--index FOLDER" in message_of(refused)
    assert ask(service, "/search", {"model": "index", "query": "a", "top_k": 0}).status_code == 400


def test_embeddings_equal_those_of_the_task_as_numbers_and_as_base64(service):
    expected = task_of(service, "embedding").embed(TEXTS)
    body = {"model": "embedding", "input": TEXTS}
    found = result(service, "/v1/embeddings", body)
    assert [one["index"] for one in found["data"]] == [0, 1, 2]
    vectors = [one["embedding"] for one in found["data"]]
    assert vectors == near(expected.tolist())
    coded = result(service, "/v1/embeddings", {**body, "encoding_format": "base64"})["data"]
    width = expected.shape[1]
    for one, vector in zip(coded, vectors, strict=True):
        numbers = struct.unpack(f"<{width}f", base64.b64decode(one["embedding"]))
        assert numbers == pytest.approx(vector, abs=1e-6)
    encoder = task_of(service, "embedding").input_format
    read = sum(len(one) for one in encoder.encode([(text,) for text in TEXTS]))
    assert found["usage"] == {"prompt_tokens": read, "total_tokens": read}


def test_images_are_given_as_bytes_and_never_by_name(service):
    pytest.importorskip("PIL")
    image = base64.b64encode(STRIPES.read_bytes()).decode()
    expected = task_of(service, "captioning").caption(STRIPES)
    body = {"model": "captioning", "images": [image]}
    assert result(service, "/caption", body)["results"][0]["text"] == expected
    for wrong in (str(STRIPES), "/etc/passwd", base64.b64encode(b"no image").decode()):
        answered = ask(service, "/caption", {**body, "images": wrong})
        assert answered.status_code == 400
        assert message_of(answered).startswith("Image 1 is no")
        assert "regard-" not in message_of(answered)  # the name of a file of the server
    for path in ("/generate", "/predict", "/embed", "/translate"):
        answered = ask(service, path, {"model": "captioning", "texts": str(STRIPES)})
        assert answered.status_code == 404


def test_tokens_of_a_text_equal_those_of_the_tokenizer(service):
    tokenizer = task_of(service, "tagging").tokenizer
    encoded = tokenizer.encode(TEXTS[1])
    found = result(service, "/tokenize", {"model": "tagging", "texts": TEXTS[1]})["result"]
    assert found["ids"] == list(encoded.ids)
    assert found["offsets"] == [list(both) for both in encoded.offsets]
    assert found["tokens"] == [tokenizer.token(number) for number in encoded.ids]
    info = ask(service, "/tokenizer_info?model=tagging").json()
    assert info["vocab_size"] == tokenizer.vocab_size
    assert info["mask_token"] == tokenizer.token(tokenizer.mask_id)


def test_each_model_lists_the_routes_that_it_answers(service):
    data = {one["id"]: one for one in ask(service, "/v1/models").json()["data"]}
    assert data.keys() == service.models.all.keys()
    assert data["tagging"]["routes"] == [
        "/embed",
        "/search",
        "/tag",
        "/predict",
        "/look",
        "/tokenize",
        "/v1/embeddings",
    ]
    assert data["captioning"]["routes"] == ["/caption", "/regions", "/tokenize"]
    for name, one in data.items():
        for path, route in ROUTES.items():
            answered = ask(service, path, {**route.example, "model": name})
            assert (answered.status_code != 404) == (path in one["routes"]), (name, path)


# Values of fields that differ from the defaults and may change an answer.
VALUES = dict(
    beams=3, n_best=2, samples=2, temperature=3.0, top_k=2, top_p=0.5, seed=5, length_penalty=3.0,
    no_repeat_ngram=1, max_tokens=2, min_tokens=9, max_length_a=0.001, max_length_b=1, stop="a",
    early_stopping=True, source_language="en", target_language="de", window=True, layers=0,
    combine="sum", pooling="max", granularity="word", normalize=True, truncate_dim=4,
    precision="bfloat16", top=3, kind="cross", layer=1, head=1, tokens=True, n=2, stream=True,
    max_completion_tokens=3, echo=True, logprobs=2, encoding_format="base64", dimensions=4,
    texts=["who"], prompt="who", stream_options={"include_usage": True}, presence_penalty=0.0,
    frequency_penalty=0.0, best_of=1, tools=[], suffix="", logit_bias={}, user="a", name="a",
    response_format={"type": "text"}, add_special_tokens=False, too_long="truncate",
)  # fmt: skip
# Fields of OpenAI's that change nothing.
ACCEPTED = {"user", "presence_penalty", "frequency_penalty", "logit_bias", "best_of", "suffix"}
ACCEPTED |= {"tools", "response_format", "add_special_tokens"}
# What becomes of texts that are longer than those here, end early or have no subwords; and the
# layer of a model with one.
UNSEEN = {"too_long", "min_tokens", "early_stopping", "tokens", "layer"}


def answer_of(service, path, body):
    """What is answered, without the time and the number of the answer."""
    answered = ask(service, path, body)
    assert answered.status_code in (200, 400), message_of(answered)
    text = re.sub(r'"(id|created)": ?("[^"]*"|\d+)', "", answered.text)
    return answered.status_code, text


@pytest.mark.parametrize("path", ROUTES)
def test_each_field_changes_the_answer_or_is_an_error_or_accepted(service, path):
    route = ROUTES[path]
    models = [one for one in service.models.all.values() if route.available_for(one.task)]
    image = base64.b64encode(STRIPES.read_bytes()).decode()
    example = {k: v for k, v in route.example.items() if k not in ("max_tokens", "temperature")}
    example |= {"images": image, "temperature": 3.0} if "images" in example else {}
    for served in [one for one in models if one.index is None][:2]:
        body = {**example, "model": served.name}
        plain = answer_of(service, path, body)
        fields = route.request.model_fields.keys() - body.keys()
        assert plain[0] == 200 and fields <= VALUES.keys()
        assert (
            answer_of(service, path, {**body, **dict.fromkeys(fields)}) == plain
        )  # null: not given
        changed = {n for n in fields if answer_of(service, path, {**body, n: VALUES[n]}) != plain}
        no_score = {"length_penalty"} if path == "/regions" else set()
        assert fields & ACCEPTED <= fields - changed <= ACCEPTED | UNSEEN | no_score


def test_the_description_has_every_route_and_its_fields(service):
    described = ask(service, "/openapi.json").json()
    schemas, paths = described["components"]["schemas"], described["paths"]
    gets = {"/health", "/metrics", "/v1/models", "/v1/models/{name}", "/tokenizer_info"}
    assert paths.keys() == ROUTES.keys() | gets
    for path, route in ROUTES.items():
        operation = paths[path]["post"]
        content = operation["requestBody"]["content"]["application/json"]
        schema = schemas[content["schema"]["$ref"].rpartition("/")[2]]
        assert schema["properties"].keys() == route.request.model_fields.keys()
        assert schema["additionalProperties"] is False
        assert all("description" in field for field in schema["properties"].values())
        assert content["example"] == route.example and operation["summary"].endswith(".")
        assert {"HTTPBearer": []} in operation["security"]
        assert "default" in operation["responses"] and "422" not in operation["responses"]


def test_requests_that_arrive_together_are_answered_as_alone(service):
    bodies = [
        ("/classify", {"model": "classification", "texts": text})
        for text in [*TEXTS, "old " * 99, *TEXTS]  # one of them is too long
    ]
    found = ask_together(service, bodies)
    assert [one.status_code for one in found] == [200, 200, 200, 400, 200, 200, 200]
    assert message_of(found[3]).startswith(
        "Text 1 has 101 tokens, but this model reads at most 24."
    )
    expected = [one.json()["result"]["probabilities"] for one in (found[0], found[1], found[2])]
    for one, numbers in zip(found[4:], expected, strict=True):
        assert one.json()["result"]["probabilities"] == pytest.approx(numbers, rel=1e-5)


@pytest.mark.parametrize("field", ["beams", "n_best", "samples"])
def test_a_text_has_a_limited_number_of_outputs(service, field):
    body = {"model": "language-modeling-gpt2", "texts": "the cat", field: 129}
    answered = ask(service, "/generate", body)
    assert answered.status_code == 400 and f"`{field}`" in message_of(answered)
