"""The answers to the evaluation harness: its own arithmetic over a model of `transformers`, our own
evaluations, and, where it is installed, the harness itself."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import transformers
from tiny_folders import folder

import regard
from regard.data import MinimalPair
from regard.errors import ConfigError, RegardError, TextError
from regard.models.awd_lstm import AwdLstm, AwdLstmConfig
from regard.models.recurrent import RecurrentConfig, RecurrentLanguageModel
from regard.models.transformer_xl import TransformerXL, TransformerXLConfig
from regard.tasks.evaluation_harness import (
    HarnessAnswers,
    _method_options,
    harness_model,
    windows,
)
from regard.tasks.few_shot import few_shot_scores
from regard.tasks.finite_checks import NonFiniteScores
from regard.tasks.language_modeling import TextGenerator
from regard.tasks.minimal_pairs import minimal_pair_scores
from regard.tasks.prompt_template import PromptTemplate
from regard.text import train

CONTEXTS = [
    ("the old cat", " sleeps on a warm mat"), ("who sleeps ? ", "a dog"), ("", "a red ball"),
    ("the ball is good and cheap and", " good"),
    ("a dog runs after a red ball " * 12, "in the park"), ("the ca", "t sleeps"),
    ("the dog ru", "ns"),
]  # fmt: skip
LONG = "a dog runs after a red ball in the park . the old cat sleeps on a warm mat . " * 6
PAIRS = [
    MinimalPair("the dog runs .", "the dog run .", "agreement"),
    MinimalPair("the cat is good .", "the cat are good .", "agreement"),
    MinimalPair("who sleeps ?", "sleeps who on a mat ?", "agreement"),
]
SENTIMENTS = {"0": "bad", "1": "good"}
PASSAGES = ["the old cat sleeps", "a dog runs after a red ball", "who is good"]


@dataclass
class Request:
    args: tuple[Any, ...]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return folder(tmp_path_factory.mktemp("gpt2"), "gpt2", "LMHeadModel")


def their_log_probs(model, ids: list[int]) -> torch.Tensor:
    """Of what follows each of the ids, (T, V)."""
    theirs = transformers.GPT2LMHeadModel.from_pretrained(model).eval().double()
    with torch.no_grad():
        return theirs(torch.tensor([ids])).logits[0].log_softmax(-1)


def test_continuations_are_scored_as_the_harness_defines_them(model):
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    wanted = []
    for context, continuation in CONTEXTS:
        spaces = len(context) - len(context.rstrip())
        prompt, rest = context.rstrip(), context[len(context) - spaces :] + continuation
        before = tokenizer(prompt)["input_ids"] if prompt else [0]  # 0: bos and eos
        after = tokenizer(prompt + rest)["input_ids"][len(before) if prompt else 0 :]
        ids = [*before, *after][-65:]
        log_probs, count = their_log_probs(model, ids[:-1]), len(after)
        targets = torch.tensor(ids[-count:])
        nats = log_probs[-count:].gather(1, targets[:, None]).sum()
        wanted.append((float(nats), bool((log_probs[-count:].argmax(-1) == targets).all())))
    answers = HarnessAnswers(regard.load(model))
    found = answers.loglikelihood([Request(one) for one in CONTEXTS])
    assert [one for one, _ in found] == pytest.approx([one for one, _ in wanted], rel=1e-5)
    assert [one for _, one in found] == [one for _, one in wanted]
    assert answers.loglikelihood([]) == []
    with pytest.raises(TextError, match="Continuation 2 has 9[0-9] tokens"):
        answers.loglikelihood([Request(("a", " dog")), Request(("a", " ball" * 90))])
    with pytest.raises(TextError, match="Continuation 1 has no token"):
        answers.loglikelihood([Request(("a dog", ""))])


@pytest.mark.parametrize(("context", "before"), [("the ca", []), ("a", [0])])
def test_a_continuation_that_is_in_one_token_with_its_context_is_that_token(model, context, before):
    """Where the harness ends with an AssertionError, and by HTTP counts no token."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    ids = [*before, *tokenizer(context + "t")["input_ids"]]
    assert tokenizer.decode(ids[-1:]) == "at"
    ((found, _),) = HarnessAnswers(regard.load(model)).loglikelihood([Request((context, "t"))])
    assert found == pytest.approx(float(their_log_probs(model, ids[:-1])[-1, ids[-1]]), rel=1e-5)


def test_long_texts_are_read_in_windows_that_predict_each_token_once(model):
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    answers, limit = HarnessAnswers(regard.load(model)), 64
    wanted = []
    for text in (LONG, "a dog"):
        ids, nats, done = [0, *tokenizer(text)["input_ids"]], 0.0, 1
        while done < len(ids):
            end = min(len(ids), done + limit)
            row = ids[max(0, end - limit - 1) : end]
            log_probs = their_log_probs(model, row[:-1])[done - end :]
            nats += float(log_probs.gather(1, torch.tensor(row[done - end :])[:, None]).sum())
            done = end
        wanted.append(nats)
    found = answers.loglikelihood_rolling([Request((LONG,)), Request(("a dog",))])
    assert found == pytest.approx(wanted, rel=1e-5)
    assert answers.loglikelihood_rolling([Request(("a dog",))])[0] == pytest.approx(wanted[1])
    assert found[1] == pytest.approx(answers.task.log_likelihoods(["a dog"])[0])


@pytest.mark.parametrize("length", range(12))
@pytest.mark.parametrize("limit", [1, 3, 4, None])
@pytest.mark.parametrize("begin", [[], [90], [90, 91]])
def test_windows_cover_a_text_once(length, limit, begin):
    ids = list(range(length))
    found = list(windows(begin, ids, limit))
    ends = [token for row, count in found for token in row[len(row) - count :]]
    whole = limit is None or len(begin) + length <= limit + 1
    assert ends == (ids if begin else ids[1:])
    assert all(0 < count < len(row) for row, count in found)
    assert all(limit is None or len(row) <= limit + 1 for row, _ in found)
    assert not found or len(found) == 1 or not whole


def test_generation_stops_before_the_first_of_its_strings(model):
    answers = HarnessAnswers(regard.load(model))
    (plain,) = answers.generate_until([Request(("the old cat", {"max_gen_toks": 12}))])
    (hypotheses,) = answers.task.hypotheses(["the old cat"], max_tokens=12)
    assert plain == answers.task.tokenizer.decode(hypotheses[0].tokens)
    stop = plain[len(plain) // 2 :][:2]
    options = {"max_gen_toks": 12, "until": ["never", stop], "do_sample": False, "temperature": 0}
    assert answers.generate_until([Request(("the old cat", options))]) == [plain.split(stop)[0]]
    same = {"until": "never", "num_beams": 1, "max_new_tokens": 12}
    assert answers.generate_until([Request(("the old cat", same))]) == [plain]
    unset = dict.fromkeys(("max_gen_toks", "temperature", "until", "num_beams"))
    assert answers.generate_until([Request(("the old cat", unset | same))]) == [plain]
    for length in (3.5, "x", -1, True):
        with pytest.raises(ConfigError, match="`max_gen_toks` must be"):
            answers.generate_until([Request(("a", {"max_gen_toks": length}))])
    with pytest.raises(ConfigError, match="Generation has no option 'beams'"):
        answers.generate_until([Request(("a", {"beams": 2}))])
    with pytest.raises(ConfigError, match="Up to 256 tokens .* context is 64"):
        answers.generate_until([Request(("a", {}))])


def test_requests_are_generated_in_their_order_whatever_their_options_are(model):
    answers = HarnessAnswers(regard.load(model))
    options = [{"max_gen_toks": 4}, {"max_gen_toks": 6, "until": ["a"]}, {"max_gen_toks": 4}]
    requests = [Request((text, options[n % 3])) for n, text in enumerate([*PASSAGES, "a", "the"])]
    alone = [answers.generate_until([request])[0] for request in requests]
    assert answers.generate_until(requests) == alone and len({*alone}) > 2


def test_weights_that_diverged_are_an_error(model):
    task = regard.load(model)
    with torch.no_grad():
        task.module.norm.weight.fill_(torch.nan)
    answers = HarnessAnswers(task)
    with pytest.raises(NonFiniteScores, match="log-probabilities that are infinite or NaN"):
        answers.loglikelihood([Request(one) for one in CONTEXTS])
    with pytest.raises(NonFiniteScores, match="Text 2"):
        answers.loglikelihood_rolling([Request(("",)), Request((LONG,))])


def test_long_contexts_keep_as_many_tokens_as_in_the_harness(model):
    """Of a context the last tokens that are left beside `max_gen_toks`."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    theirs = transformers.GPT2LMHeadModel.from_pretrained(model).eval()
    ids = torch.tensor([tokenizer(LONG)["input_ids"][-44:]])
    found = theirs.generate(ids, max_length=64, do_sample=False, pad_token_id=0)
    answers = HarnessAnswers(regard.load(model))
    (text,) = answers.generate_until([Request((LONG, {"max_gen_toks": 20}))])
    assert text == tokenizer.decode(found[0, 44:])


@pytest.mark.parametrize(
    ("options", "samples"),
    [({}, False), ({"temperature": 0.0}, False), ({"temperature": 0.7}, True),
     ({"temperature": 0.7, "do_sample": False}, False), ({"do_sample": True}, True)],
)  # fmt: skip
def test_a_temperature_alone_asks_for_sampling(options, samples):
    assert (_method_options(options) != {"beams": 1}) == samples


def test_models_with_a_state_answer_and_backward_ones_say_no():
    tokenizer = train("words", ["the cat sat on the mat a dog ran"] * 2, 40)
    torch.manual_seed(0)
    model = RecurrentLanguageModel(RecurrentConfig(tokenizer.vocab_size, d_model=8)).eval()
    task = TextGenerator(model, tokenizer, format="lines")
    answers = HarnessAnswers(task)
    (found,) = answers.loglikelihood_rolling([Request(("the cat sat on a mat",))])
    assert found == pytest.approx(task.log_likelihoods(["the cat sat on a mat"])[0])
    (pair,) = answers.loglikelihood([Request(("the cat", " sat on"))])
    ids = tokenizer.encode("the cat sat on").ids
    with torch.no_grad():
        log_probs = model.head.logits(model(torch.tensor([ids])).hidden)[0].log_softmax(-1)
    assert pair[0] == pytest.approx(float(log_probs[1, ids[2]] + log_probs[2, ids[3]]), rel=1e-5)
    config = AwdLstmConfig(tokenizer.vocab_size, d_model=6, d_hidden=8, backward=True)
    with pytest.raises(ConfigError, match="from their end"):
        HarnessAnswers(TextGenerator(AwdLstm(config), tokenizer, format="lines"))


@pytest.mark.parametrize("format", ["lines", "text", None])
def test_long_texts_of_models_with_a_memory_are_read_in_segments(format):
    """By hand: of four tokens at a time, each behind the memory of the tokens before."""
    tokenizer = train("words", ["the cat sat on the mat a dog ran"] * 2, 40)
    torch.manual_seed(0)
    config = TransformerXLConfig(
        tokenizer.vocab_size, d_model=8, d_ff=8, heads=2, layers=2, memory_length=3, target_length=4
    )
    task = TextGenerator(
        TransformerXL(config).eval().requires_grad_(False), tokenizer, format=format
    )
    for weight in task.module.parameters():
        weight.mul_(8)  # so that it matters what a token sees
    texts = ["the cat sat on a mat " * 4, "a dog", ""]
    found = HarnessAnswers(task).loglikelihood_rolling([Request((text,)) for text in texts])
    for text, nats in zip(texts, found, strict=True):
        ((begin, rest),) = task.text_ids([text])
        ids, state, wanted = torch.tensor([[*begin, *rest]]), None, 0.0
        for start in range(0, ids.size(1) - 1, 4):
            output = task.module(ids[:, start : min(start + 4, ids.size(1) - 1)], state)
            log_probs = task.module.head.logits(output.hidden)[0].log_softmax(-1)
            targets = ids[0, start + 1 : start + 5, None]
            state, wanted = output.state, wanted + log_probs.gather(1, targets).sum().item()
        assert nats == pytest.approx(wanted, rel=1e-5)


def test_the_harness_gives_the_same_numbers_as_our_own_evaluations(model, tmp_path):
    lm_eval = pytest.importorskip("lm_eval")
    task = regard.load(model)
    files = {
        "pairs": [{"sentence_good": p.good, "sentence_bad": p.bad} for p in PAIRS],
        "passages": [{"text": text} for text in PASSAGES],
    }
    for name, rows in files.items():
        (tmp_path / f"{name}.json").write_text("\n".join(map(json.dumps, rows)))
    local = {name: {"data_files": {"test": str(tmp_path / f"{name}.json")}} for name in files}
    blimp = {
        "task": "our_blimp", "dataset_path": "json", "dataset_kwargs": local["pairs"],
        "test_split": "test", "output_type": "multiple_choice", "doc_to_text": "",
        "doc_to_target": 0, "doc_to_choice": "{{[sentence_good, sentence_bad]}}",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }  # fmt: skip
    lambada = {
        "task": "our_lambada", "dataset_path": "json", "dataset_kwargs": local["passages"],
        "test_split": "test", "output_type": "loglikelihood",
        "doc_to_text": "{{text.split(' ')[:-1]|join(' ')}}",
        "doc_to_target": "{{' '+text.split(' ')[-1]}}",
        "metric_list": [
            {"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False},
            {"metric": "acc", "aggregation": "mean", "higher_is_better": True},
        ],
    }  # fmt: skip
    found = lm_eval.simple_evaluate(harness_model(task), tasks=[blimp, lambada], bootstrap_iters=0)
    results = found["results"]
    assert results["our_blimp"]["acc,none"] == pytest.approx(minimal_pair_scores(task, PAIRS).value)
    accuracy, perplexity = task.lambada(PASSAGES)
    assert results["our_lambada"]["acc,none"] == pytest.approx(accuracy.value)
    theirs = results["our_lambada"]["perplexity,none"]
    assert math.log(theirs) == pytest.approx(math.log(perplexity.value), rel=1e-6)


def local_task(path, name: str, rows, **fields: Any) -> dict[str, Any]:
    """A task of the harness over rows in a file."""
    (path / f"{name}.json").write_text("\n".join(map(json.dumps, rows)))
    files = {"data_files": {"test": str(path / f"{name}.json")}}
    where = {"dataset_path": "json", "dataset_kwargs": files, "test_split": "test"}
    return {"task": name, **where, **fields}


def test_sentiment_and_multiple_choice_are_those_of_the_harness(model, tmp_path):
    """As SST-2 and DREAM are asked there: choices of one word, and choices of any length."""
    lm_eval = pytest.importorskip("lm_eval")
    task = regard.load(model)
    reviews = [{"sentence": one, "label": n % 2} for n, one in enumerate(PASSAGES * 2)]
    dialogues = [
        {"dialogue": "who sleeps ?", "question": "what does the dog do ?", "answer": n % 3,
         "choice": ["runs", "sleeps on a warm mat", "a red ball in the park"]}
        for n in range(5)
    ]  # fmt: skip
    shared: dict[str, Any] = {
        "output_type": "multiple_choice",
        "metric_list": [
            {"metric": "acc", "aggregation": "mean", "higher_is_better": True},
            {"metric": "acc_bytes", "aggregation": "mean", "higher_is_better": True},
        ],
    }
    sst2 = local_task(
        tmp_path, "our_sst2", reviews, **shared, doc_to_text="{{sentence}} it was",
        doc_to_target="label", doc_to_choice=[*SENTIMENTS.values()],
    )  # fmt: skip
    dream = local_task(
        tmp_path, "our_dream", dialogues, **shared, doc_to_text="{{dialogue}} {{question}}",
        doc_to_target="answer", doc_to_choice="choice",
    )  # fmt: skip
    templates = {
        "our_sst2": (reviews, PromptTemplate("{sentence} it was", "label", SENTIMENTS)),
        "our_dream": (dialogues, PromptTemplate("{dialogue} {question}", "answer", "choice")),
    }
    results = lm_eval.simple_evaluate(harness_model(task), tasks=[sst2, dream], bootstrap_iters=0)
    for name, (rows, template) in templates.items():
        ours = {score.name: score.value for score in few_shot_scores(task, rows, template)}
        found = results["results"][name]
        assert found["acc,none"] == pytest.approx(ours["accuracy"])
        assert found["acc_bytes,none"] == pytest.approx(ours["accuracy per byte"])


def test_perplexity_of_documents_is_that_of_the_harness(model, tmp_path):
    """As WikiText-2 is scored there: log p of whole documents, by words and by bytes."""
    lm_eval = pytest.importorskip("lm_eval")
    task = regard.load(model)
    wikitext = local_task(
        tmp_path, "our_wikitext", [{"page": text} for text in PASSAGES],
        output_type="loglikelihood_rolling", doc_to_text="", doc_to_target="page",
        metric_list=[{"metric": name} for name in ("word_perplexity", "bits_per_byte")],
    )  # fmt: skip
    found = lm_eval.simple_evaluate(harness_model(task), tasks=[wikitext], bootstrap_iters=0)
    nats = -sum(task.log_likelihoods(PASSAGES))
    words, size = sum(len(one.split()) for one in PASSAGES), len("".join(PASSAGES).encode())
    results = found["results"]["our_wikitext"]
    assert math.log(results["word_perplexity,none"]) == pytest.approx(nats / words, rel=1e-6)
    assert results["bits_per_byte,none"] == pytest.approx(nats / size / math.log(2), rel=1e-6)


def test_without_the_harness_the_error_says_what_to_install(model, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "lm_eval.api.model", None)
    with pytest.raises(RegardError, match=r"pip install lm_eval==0\.4\.13"):
        harness_model(regard.load(model))
