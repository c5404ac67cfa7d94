"""A finished run has its page."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from regard.experiments import runs

sys.path.insert(0, str(Path(__file__).parents[1] / "tasks"))

RECIPE = """
task = "translation"
[data]
train = ["pairs.tsv"]
valid = ["pairs.tsv"]
[tokenizer]
vocab_size = 40
[model]
name = "{model}"
d_model = 16
[training]
max_steps = 2
"""


def test_the_report_of_a_translation_run_has_samples_scores_and_attention(tmp_path):
    lines = ["one <b>two</b>\teins zwei", "two one\tzwei eins", "one\teins"]
    (tmp_path / "pairs.tsv").write_text("\n".join(lines) + "\n")
    for model, looks in (("transformer", True), ("lstm-seq2seq", True)):
        recipe = tmp_path / f"{model}.toml"
        more = "heads = 2\nd_ff = 16\n" if model == "transformer" else "layers = 1\n"
        recipe.write_text(
            RECIPE.format(model=model).replace("d_model = 16\n", f"d_model = 16\n{more}")
        )
        trained = runs.train(recipe, out=tmp_path / model, progress=False)
        folder, result = trained.folder, trained.result
        page = (folder / "report.html").read_text()
        assert result.step == 2
        assert "eins zwei" in page and "one &lt;b&gt;two" in page and "<b>two" not in page
        assert ("What it attends to" in page) is looks
        assert (
            f"{sum(p.numel() for p in runs.load(folder).module.parameters()):,} parameters" in page
        )
        assert f"{result.scores['loss']:.4g}" in page


TEXTS = ["a dog runs after a red ball .", "the old cat sleeps on a warm mat ."]
QUESTIONS = ["what runs ?", "who sleeps ?"]


def rows_of(task: str) -> str:
    """Two examples, as the task's files have them."""
    if task in ("classification", "regression"):
        pairs = zip(TEXTS, QUESTIONS, ("1", "0"), strict=True)
        return "".join(f"{text}\t{question}\t{label}\n" for text, question, label in pairs)
    if task == "tagging":
        sentences = ["\n".join(f"{word} B-{len(word)}" for word in t.split()) for t in TEXTS]
        return "\n\n".join(sentences) + "\n"
    if task == "multiple-choice":
        both = zip(TEXTS, QUESTIONS, strict=True)
        asked = [dict(context=t, question=q, choices=["dog", "cat"], answer=0) for t, q in both]
        return "".join(json.dumps(one) + "\n" for one in asked)
    answers = [{"text": "dog", "answer_start": 2}]
    qas = [{"id": q, "question": q, "answers": answers} for q in QUESTIONS]
    paragraphs = [{"context": " ".join(TEXTS), "qas": qas}]
    return json.dumps({"data": [{"title": "", "paragraphs": paragraphs}]})


@pytest.fixture(scope="module")
def start(tmp_path_factory) -> Path:
    from tiny_folders import folder

    return folder(tmp_path_factory.mktemp("start") / "small", "bert", "Model")


FILES = {
    "classification": "rows.tsv",
    "regression": "rows.tsv",
    "tagging": "rows.conll",
    "multiple-choice": "rows.jsonl",
    "question-answering": "rows.json",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("task", "items", "looked"),
    [
        ("classification", "2 examples", "after"),
        ("regression", "2 examples", "after"),
        ("tagging", "17 words", "after"),
        ("multiple-choice", "2 examples", "after"),
        ("question-answering", "2 windows", "after"),
    ],
)
def test_the_report_of_a_fine_tuned_encoder_has_counts_texts_and_attention(
    start, tmp_path, task, items, looked
):
    (tmp_path / FILES[task]).write_text(rows_of(task))
    pairs = "columns = [0, 1, 2]\n" if FILES[task] == "rows.tsv" else ""
    recipe = tmp_path / "small.toml"
    recipe.write_text(
        f'task = "{task}"\n[data]\ntrain = "{FILES[task]}"\nmax_length = 60\n{pairs}'
        f'[model]\npath = "{start}"\n[training]\nepochs = 1\n'
    )
    folder = runs.train(recipe, out=tmp_path / "run", progress=False).folder
    page = (folder / "report.html").read_text()
    model = runs.load(folder).module
    parameters = sum(weights.numel() for weights in model.parameters())
    assert f"bert, 2 layers of 16, started from small, {parameters:,} parameters" in page
    assert items in page and "tokens a second" not in page and "predicted tokens" not in page
    assert f"{items.split()[1]} a second" in page
    assert "nats a token" not in page
    assert ("who sleeps ?" if task != "tagging" else "the old cat sleeps") in page
    seen = page.partition("What it attends to")[2]
    assert f'"{looked}"' in seen and '"[SEP]"' in seen
    event = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])
    assert event[items.split()[1]] == int(items.split()[0])
