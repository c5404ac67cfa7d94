"""Questions as prompts, judged by loops over models of `transformers`."""

from __future__ import annotations

import json
import re
import warnings
from dataclasses import replace

import pytest
import torch
import transformers
from test_cli import done, refused
from tiny_folders import folder

import regard
from regard.errors import TextError
from regard.models.gpt2 import GPT2
from regard.models.recurrent import RecurrentConfig, RecurrentLanguageModel
from regard.tasks.few_shot import (
    PromptTemplate,
    choice_log_likelihoods,
    drawn_examples,
    few_shot_scores,
    fitted_question,
)
from regard.tasks.language_modeling import TextGenerator
from regard.tasks.log_likelihoods import token_log_probs
from regard.text import train

ROWS = [
    {"text": "the ball is red", "label": 0, "options": ["a dog", "the old cat in the park"]},
    {"text": "who sleeps ?", "label": 1, "options": ["the cat", "a", "the cat sleeps on a mat"]},
    {"text": "it was slow and dull .", "label": 0, "options": ["bad", "good fun"]},
    {"text": "a dog", "label": 1, "options": ["runs", "sleeps"]},
]
POOL = [{"text": f"film {n} was slow and dull and bad fun", "label": n % 2} for n in range(5)]
LABELS = PromptTemplate(
    "{text} It was", answer="label", choices={"0": "bad", "1": "good and cheap"}
)
LISTED = PromptTemplate("{text}\n", answer="label", choices="options")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return folder(tmp_path_factory.mktemp("gpt2"), "gpt2", "LMHeadModel")


def their_sum(theirs, ids: list[int], count: int) -> float:
    """log p of the last tokens, by a model of `transformers` in float64."""
    with torch.no_grad():
        log_probs = theirs(torch.tensor([ids[:-1]])).logits[0].log_softmax(-1)
    return float(log_probs.gather(1, torch.tensor(ids[1:])[:, None])[-count:].sum())


def their_choices(path, prompt: str, endings: list[str], limit: int = 65):
    """log p of each ending behind the end of a prompt, and its tokens."""
    theirs = transformers.GPT2LMHeadModel.from_pretrained(path).eval().double()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    found = []
    for ending in endings:
        whole = tokenizer(prompt + ending, return_offsets_mapping=True)
        count = sum(end > len(prompt) for _, end in whole["offset_mapping"])
        found.append((their_sum(theirs, whole["input_ids"][-limit:], count), count))
    return found


def accuracies(path, template, rows, examples) -> list[float]:
    """By sum, per token and per byte."""
    right = [0, 0, 0]
    for row, solved in zip(rows, examples, strict=True):
        question = template.question(row, ("rows", 1))
        endings = [template.space + choice for choice in question.choices]
        found = their_choices(path, solved + question.prompt, endings)
        values = [
            [total for total, _ in found],
            [total / count for total, count in found],
            [t / len(c.encode()) for (t, _), c in zip(found, question.choices, strict=True)],
        ]
        for at, scores in enumerate(values):
            best = question.choices[scores.index(max(scores))]
            right[at] += best == question.answer
    return [one / len(rows) for one in right]


@pytest.mark.parametrize("template", [LABELS, LISTED], ids=["labels", "listed"])
@pytest.mark.parametrize("repeated", [1, 6])
def test_choices_are_scored_as_by_a_loop_with_transformers(model, template, repeated):
    task = regard.load(model)
    rows = [row | {"text": " ".join([row["text"]] * repeated)} for row in ROWS]  # shared prefixes
    found = few_shot_scores(task, rows, template)
    assert [one.name for one in found] == ["accuracy", "accuracy per token", "accuracy per byte"]
    wanted = accuracies(model, template, rows, [""] * len(rows))
    assert [one.value for one in found] == pytest.approx(wanted)
    assert re.fullmatch(
        r"shots:0\|prompts:[0-9a-f]{8}\|tok:byte-bpe-\d+\|count:4", found[0].signature
    )


def test_scores_of_other_prompts_have_other_signatures(model):
    def signature(template=LABELS, rows=ROWS, **options):
        return few_shot_scores(regard.load(model), rows, template, **options)[0].signature

    few = dict(shots=1, pool=POOL, seed=7)
    found = [
        signature(),
        signature(LISTED),
        signature(replace(LABELS, template=f"{LABELS.template} ")),
        signature(rows=ROWS[:3]),
        signature(rows=[*ROWS[1:], ROWS[0]]),
        signature(**few),
        signature(**few | {"pool": POOL[1:]}),
    ]
    assert len({*found}) == len(found) and signature(**few) == found[5]


def test_examples_come_before_the_question_and_the_first_are_dropped(model):
    task = regard.load(model)
    pool = LABELS.questions(POOL)
    drawn = [
        drawn_examples(question, number, pool, 3, 7)
        for number, question in enumerate(LABELS.questions(ROWS))
    ]
    assert all(len({one.prompt for one in few}) == 3 for few in drawn)
    assert drawn[0] != drawn[1]
    own = drawn_examples(pool[2], 0, pool, 4, 7)
    assert sorted(one.prompt for one in [*own, pool[2]]) == sorted(one.prompt for one in pool)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    solved, dropped = [], 0
    for row, few in zip(ROWS, drawn, strict=True):
        texts = [f"{one.prompt} {one.answer}\n\n" for one in few]
        longest = LABELS.question(row, ("rows", 1)).prompt + " good and cheap"
        while len(tokenizer("".join(texts) + longest)["input_ids"]) > 65:
            texts, dropped = texts[1:], dropped + 1
        solved.append("".join(texts))
    assert dropped
    found = few_shot_scores(task, ROWS, LABELS, shots=3, pool=POOL, seed=7)
    assert [one.value for one in found] == pytest.approx(accuracies(model, LABELS, ROWS, solved))
    assert "shots:3|seed:7|" in found[0].signature
    assert found[0].signature.endswith(f"|count:4|dropped:{dropped}")


def test_log_likelihoods_do_not_depend_on_other_questions(model):
    task = regard.load(model)
    questions = LISTED.questions([row | {"text": row["text"] * 5} for row in ROWS])
    fitted = [
        fitted_question(task, question, [], LISTED.space, number, "error")
        for number, question in enumerate(questions)
    ]
    together = choice_log_likelihoods(task.generator, fitted)
    for one, sums, question in zip(fitted, together, questions, strict=True):
        (alone,) = choice_log_likelihoods(task.generator, [one])
        assert sums == pytest.approx(alone, rel=1e-5)
        theirs = their_choices(model, question.prompt, list(question.choices))
        assert sums == pytest.approx([total for total, _ in theirs], rel=1e-4)
        assert one.counts == [count for _, count in theirs]


@pytest.mark.parametrize("width", [20, 63, 64, 65])
def test_choices_behind_a_common_prompt_may_fill_the_context(model, width):
    """The model reads 64 tokens; the 65th is predicted."""
    task, draw = regard.load(model), torch.Generator().manual_seed(1)
    prompt = torch.randint(5, 90, (width - 3,), generator=draw)
    rows = [torch.cat([prompt, torch.randint(5, 90, (n,), generator=draw)]) for n in (3, 1, 2)]
    counts = [3, 1, 2]
    theirs = transformers.GPT2LMHeadModel.from_pretrained(model).eval().double()
    pairs = zip(rows, counts, strict=True)
    wanted = [their_sum(theirs, ids.tolist(), count) for ids, count in pairs]
    found = token_log_probs(task.generator, [ids.tolist() for ids in rows], counts)
    assert [sum(row.own) for row in found] == pytest.approx(wanted, rel=1e-5)


def test_questions_longer_than_the_context_lose_their_beginning(model):
    task = regard.load(model)
    rows = [{**ROWS[0], "text": "a dog runs after a red ball " * 12 + "the ball is red"}, ROWS[1]]
    with pytest.raises(TextError, match="Question 1 has .* fit into the context.*truncate"):
        few_shot_scores(task, rows, LABELS)
    found = few_shot_scores(task, rows, LABELS, too_long="truncate")
    assert found[0].signature.endswith("|count:2|truncated:1")
    question = LABELS.question(rows[0], ("rows", 1))
    endings = [f" {choice}" for choice in question.choices]
    values = [total for total, _ in their_choices(model, question.prompt, endings)]
    alone = few_shot_scores(task, rows[:1], LABELS, too_long="truncate")
    right = question.choices[values.index(max(values))] == question.answer
    assert alone[0].value == float(right)


def test_answers_are_generated_and_compared(model):
    task = regard.load(model)
    template = PromptTemplate("{text}", answer="answer")
    texts = [row["text"] for row in ROWS]
    answers = []
    for text in texts:
        (found,) = task.hypotheses([text], max_tokens=32)
        answers.append(task.tokenizer.decode(found[0].tokens).strip().split("\n")[0].strip())
    rows = [{"text": t, "answer": f" {a} "} for t, a in zip(texts, answers, strict=True)]
    rows[0]["answer"] = "never this"
    (score,) = few_shot_scores(task, rows, template)
    assert score.name == "exact match" and score.value == pytest.approx(0.75)


@pytest.mark.parametrize("limit", [1, 8, 32, 33])
def test_contexts_around_the_length_of_an_answer_are_errors_or_truncate(limit):
    tokenizer = train("byte-bpe", [str(row) for row in ROWS], 300)
    torch.manual_seed(0)
    config = GPT2.Config(tokenizer.vocab_size, d_model=8, heads=2, layers=1, max_length=limit)
    task = TextGenerator(GPT2(config).eval(), tokenizer)
    rows = [{"text": "the", "answer": "a"}, {"text": "the ball is red", "answer": "b"}]
    read, fit = list(map(len, task.prompt_ids([row["text"] for row in rows]))), max(1, limit - 31)
    template = PromptTemplate("{text}", answer="answer")
    long = [number for number, count in enumerate(read) if count > fit]
    number = long[0]
    most = min(32, limit)
    message = f"Question {number + 1} has {read[number]} tokens, but {fit} fit .* up to {most}[.]"
    with pytest.raises(TextError, match=message):
        few_shot_scores(task, rows, template)
    with warnings.catch_warnings(action="ignore"):  # texts stop where the context does
        (found,) = few_shot_scores(task, rows, template, too_long="truncate")
    assert found.signature.endswith(f"|count:2|truncated:{len(long)}")
    row = {"text": "the ball", "label": 0, "options": ["is red " * limit, "a"]}
    with pytest.raises(TextError, match=rf"no tokens of the prompt, .* {limit + 1} that fit into"):
        few_shot_scores(task, [row], LISTED, too_long="truncate")


def test_choices_of_the_same_tokens_are_counted_and_the_first_wins():
    tokenizer = train("words", ["the cat sat on the mat a dog ran"] * 2, 40)
    config = RecurrentConfig(tokenizer.vocab_size, d_model=8)
    task = TextGenerator(RecurrentLanguageModel(config).eval(), tokenizer, format="lines")
    unknown = {"text": "the cat sat on", "options": ["zebra", "giraffe"]}
    rows = [{**unknown, "label": 0}, {**unknown, "label": 0}, {**unknown, "label": 1}]
    first, *_ = few_shot_scores(task, rows, LISTED)
    assert first.value == pytest.approx(2 / 3) and first.signature.endswith("|count:3|ties:3")
    known = {"text": "the cat sat on", "options": ["a dog", "a mat"], "label": 0}
    assert few_shot_scores(task, [known], LISTED)[0].signature.endswith("|count:1")
    assert "|count:2|ties:1" in few_shot_scores(task, [known, rows[0]], LISTED)[0].signature


def test_questions_are_answered_from_the_command_line(model, tmp_path):
    rows, pool = tmp_path / "rows.jsonl", tmp_path / "pool.csv"
    rows.write_text("\n".join(map(json.dumps, ROWS)))
    pool.write_text("text,label\n" + "\n".join(f"{p['text']},{p['label']}" for p in POOL))
    template = ["--template", r"{text}\nIt was", "--answer", "label"]
    asked = ["evaluate", model, "--data", rows, *template]
    choices = ["--choices", "0=bad,1=good and cheap"]
    found = json.loads(done(*asked, *choices, "--json"))["scores"]
    template = PromptTemplate("{text}\nIt was", "label", {"0": "bad", "1": "good and cheap"})
    wanted = few_shot_scores(regard.load(model), ROWS, template)
    assert [one["value"] for one in found] == [one.value for one in wanted]
    few = ["--shots", 2, "--examples", pool, "--examples-seed", 3]
    found = json.loads(done(*asked, *choices, *few, "--json"))["scores"]
    wanted = few_shot_scores(regard.load(model), ROWS, template, shots=2, pool=pool, seed=3)
    assert [one["signature"] for one in found] == [one.signature for one in wanted]
    assert "exact match" in done(*asked)
    assert "needs --answer" in refused(*asked[:-2])
    assert "--choices has no effect without --template" in refused("evaluate", model, *choices)
    assert "another test" in refused(*asked, "--minimal-pairs")
    assert "needs --data" in refused(*asked[:2], *asked[4:])
