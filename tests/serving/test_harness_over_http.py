"""lm-evaluation-harness asks the server by its model `local-completions`: what it sends, against
the log-probabilities of the model itself."""

from __future__ import annotations

import pytest
import torch
from served import ask, message_of, running, service_of

from regard.models.gpt2 import GPT2, GPT2Config
from regard.serving.models import ServedModels, served_model
from regard.tasks.language_modeling import TextGenerator
from regard.text import train

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
