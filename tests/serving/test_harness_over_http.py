"""lm-evaluation-harness asks the server by its model `local-completions`: what it sends, and where
it is installed the harness itself, against our own adapter."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from served import ask, listening, message_of, running, service_of

from regard.models.gpt2 import GPT2, GPT2Config
from regard.serving.models import ServedModels, served_model
from regard.tasks.evaluation_harness import HarnessAnswers, harness_model
from regard.tasks.language_modeling import TextGenerator
from regard.text import train

TEXTS = ["the old cat sat on a warm mat", "who was sleeping in the sun ?"] * 4
REQUESTS = [
    ("the old cat", " sat on a warm mat"), ("who was", " sleeping"), ("", "the cat sat"),
    ("the sun ", "was warm"), ("who", " in"), ("the old ca", "t sat"),
]  # fmt: skip


@dataclass
class Request:
    args: tuple[Any, ...]


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


def test_continuations_have_the_numbers_of_the_adapter_in_the_requests_of_the_harness(served):
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
    wanted = HarnessAnswers(served.models.all["gpt"].task).loglikelihood(
        [Request(one) for one in REQUESTS]
    )
    for choice, count, row, (nats, greedy) in zip(
        found["choices"], counts, rows, wanted, strict=True
    ):
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


def test_the_harness_has_the_same_numbers_by_http_and_by_the_adapter(tmp_path, served):
    lm_eval = pytest.importorskip("lm_eval")
    task = served.models.all["gpt"].task
    rows = [{"context": context, "end": end} for context, end in REQUESTS if context]
    rows = [{**one, "whole": one["context"] + one["end"]} for one in rows]
    (tmp_path / "rows.json").write_text("\n".join(map(json.dumps, rows)))
    data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": f"{tmp_path}/*"}}}
    score = {"perplexity": "perplexity", "acc": "mean"}
    ends = {
        "task": "ends", **data, "test_split": "test", "output_type": "loglikelihood",
        "doc_to_text": "context", "doc_to_target": "end",
        "metric_list": [{"metric": name, "aggregation": how} for name, how in score.items()],
    }  # fmt: skip
    choices = {
        "task": "choices", **data, "test_split": "test", "output_type": "multiple_choice",
        "doc_to_text": "", "doc_to_target": 0, "doc_to_choice": "{{[whole, end]}}",
        "metric_list": [{"metric": "acc"}],
    }  # fmt: skip
    texts = {
        "task": "texts", **data, "test_split": "test", "output_type": "loglikelihood_rolling",
        "doc_to_text": "", "doc_to_target": "whole", "metric_list": [{"metric": "byte_perplexity"}],
    }  # fmt: skip
    tasks = [ends, choices, texts]
    with listening(served) as address:
        for options in ({}, {"batch_size": 4}, {"num_concurrent": 3}):
            given = {"model": "gpt", "base_url": f"{address}v1/completions", "max_length": 48}
            found = lm_eval.simple_evaluate(
                "local-completions", {**given, **options}, tasks=tasks, bootstrap_iters=0
            )
            wanted = lm_eval.simple_evaluate(harness_model(task), tasks=tasks, bootstrap_iters=0)
            for name, results in wanted["results"].items():
                for metric, value in results.items():
                    if isinstance(value, float):
                        same = pytest.approx(value, rel=1e-6)
                        assert found["results"][name][metric] == same, (name, metric)
