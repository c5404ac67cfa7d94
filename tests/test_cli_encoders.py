"""The verbs on encoders: trained from nothing, evaluated, asked, embedded, looked at."""

from __future__ import annotations

import json
import random
from pathlib import Path

import every_task
import pytest
import torch
from PIL import Image
from test_cli import done, refused

from regard.models.bert import Bert
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.tasks.fill_mask import MaskFiller
from regard.tasks.folders import load, save
from regard.text import train
from regard.text.trees import read_trees
from regard.visual import attended_regions

GOOD, BAD = "good fine great nice".split(), "bad dull slow poor".split()
MODEL = """
[model]
name = "bert"
d_model = 16
d_ff = 32
heads = 2
layers = 2
max_length = 24
dropout = 0.0
attention_dropout = 0.0

[tokenizer]
kind = "wordpiece"
vocab_size = 80

[training]
epochs = 20
validation.eval_steps = 1000
optimizer = { name = "adamw", learning_rate = 5e-3 }
"""


def sentence(draw: random.Random, words: list[str]) -> str:
    return f"the film is {draw.choice(words)} and {draw.choice(words)}"


@pytest.fixture(scope="module")
def workdir(tmp_path_factory) -> Path:
    """Toy reviews: every word of one kind, so that a model that learns anything is always right."""
    folder, draw = tmp_path_factory.mktemp("reviews"), random.Random(1)
    for name, count in (("train", 120), ("valid", 20), ("test", 20)):
        rows = [(sentence(draw, kind), label) for kind, label in ((GOOD, "yes"), (BAD, "no"))
                for _ in range(count // 2)]  # fmt: skip
        (folder / f"{name}.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in rows))
        tagged = [
            "".join(f"{word} {'B-X' if word in GOOD + BAD else 'O'}\n" for word in text.split())
            for text, _ in rows
        ]
        (folder / f"{name}.conll").write_text("\n".join(tagged))
    return folder


@pytest.fixture(scope="module")
def classifier(workdir) -> Path:
    recipe = workdir / "classes.toml"
    recipe.write_text(
        'task = "classification"\n[data]\ntrain = "train.tsv"\nvalid = "valid.tsv"\n'
        f'test = "test.tsv"\nmax_length = 20\n{MODEL}'
    )
    done("train", recipe, "--out", workdir / "classes")
    return workdir / "classes"


def test_a_trained_classifier_has_accuracy_1(classifier):
    scores = json.loads(done("evaluate", classifier, "--json"))["scores"]
    assert scores[0]["name"] == "accuracy" and scores[0]["value"] == 1.0
    assert scores[0]["count"] == 20
    assert sum(one["targets"] for one in scores[0]["classes"]) == 20
    assert done("evaluate", classifier, "--valid").startswith("accuracy = 1.0000")
    assert (classifier / "report.html").exists()


def test_evaluate_reads_other_data(classifier, workdir):
    (workdir / "other.tsv").write_text("no\tthe film is dull\nyes\tthe film is good\n")
    said = done("evaluate", classifier, "--data", workdir / "other.tsv", "--columns", "1,0")
    assert said.startswith("accuracy = 1.0000 count:2")
    (workdir / "odd.tsv").write_text("the film is dull\tmaybe\n")
    said = refused("evaluate", classifier, "--data", workdir / "odd.tsv")
    assert "odd.tsv:1:" in said and "'maybe'" in said


def test_lines_are_classified_in_order(classifier):
    texts = ["the film is great and nice", "the film is slow and poor", "the film is fine and good"]
    assert done("predict", classifier, stdin="\n".join(texts)) == "yes\nno\nyes\n"
    facts = json.loads(done("predict", classifier, texts[1], "--json"))
    assert facts["label"] == facts["text"] == "no"
    assert sum(facts["probabilities"].values()) == pytest.approx(1)


def test_predict_gives_a_tag_for_each_word(workdir):
    recipe = workdir / "tags.toml"
    recipe.write_text(
        'task = "tagging"\n[data]\ntrain = "train.conll"\nvalid = "valid.conll"\n'
        f'test = "test.conll"\nmax_length = 20\n{MODEL}'
    )
    done("train", recipe, "training.epochs=6", "--out", workdir / "tags")
    facts = json.loads(done("evaluate", workdir / "tags", "--json"))
    assert facts["scores"][0]["value"] == 1.0
    (of_type,) = facts["scores"][0]["types"]
    assert of_type["label"] == "X" and of_type["f1"] == 1.0 == facts["scores"][0]["macro"]["f1"]
    page = (workdir / "tags" / "report.html").read_text()
    assert "Scores of each type" in page and "micro average" in page
    facts = json.loads(done("predict", workdir / "tags", "the film is good", "--json"))
    assert facts["tags"] == ["O", "O", "O", "B-X"]
    for columns in ("words,tags", "0", "0,1,2"):
        said = refused(
            "evaluate", workdir / "tags", "--data", workdir / "test.conll", "--columns", columns
        )
        assert "the numbers of words and tags" in said


def masked(workdir: Path) -> MaskFiller:
    """A random model that fills masks."""
    lines = [line.split("\t")[0] for line in (workdir / "train.tsv").read_text().splitlines()]
    special_tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = train("wordpiece", lines, 80, special_tokens=special_tokens)
    body = Bert(Bert.Config(tokenizer.vocab_size, d_model=8, d_ff=8, heads=2, layers=1))
    return MaskFiller(EncoderWithHeads(body, {"masked_lm": body.new_head("masked_lm")}), tokenizer)


def test_look_shows_one_word_and_two_models(classifier, tmp_path):
    text = "the film is good"
    facts = json.loads(done("look", classifier, text, "--layer", 2, "--head", 1, "--json"))
    assert facts["rows"] == ["[CLS]", "the", "film", "is", "good", "[SEP]"]
    assert all(sum(row) == pytest.approx(1, abs=1e-5) for row in facts["weights"])
    assert "film" in done("look", classifier, text, "--token", "good", "--layer", 1)
    assert "[SEP]" in done("look", classifier, f"{text}\tthe film", "--inputs")
    page = tmp_path / "both.html"
    done("look", classifier, text, "--compare-with", classifier, "--html", page)
    assert all(f"{classifier} ({number})" in page.read_text() for number in (1, 2))


def test_look_prints_the_numbers_of_one_word_and_of_two_models(classifier):
    asked = ("look", classifier, "the film is good", "--json")
    heads = [json.loads(done(*asked, "--layer", 2, "--head", head)) for head in (1, 2)]
    for word in ("film", "2"):  # the word, or its index
        found = json.loads(done(*asked, "--layer", 2, "--token", word))
        assert found["token"] == "film" and found["columns"] == heads[0]["columns"]
        assert found["rows"] == ["head 1", "head 2", "mean"]
        one, other = (facts["weights"][2] for facts in heads)
        assert found["weights"][:2] == [one, other]
        middle = [(a + b) / 2 for a, b in zip(one, other, strict=True)]
        assert found["weights"][2] == pytest.approx(middle)
    found = json.loads(done(*asked, "--layer", 2, "--head", 1, "--token", "film"))
    assert found["weights"] == [heads[0]["weights"][2]]
    both = json.loads(done(*asked, "--layer", 2, "--head", 2, "--compare-with", classifier))[
        "models"
    ]
    assert [one["weights"] for one in both] == [heads[1]["weights"]] * 2
    assert both[0]["rows"] == heads[1]["rows"] and both[0]["model"] != both[1]["model"]
    assert "once, but 'the' occurs at 1, 2" in refused(
        "look", classifier, "the the", "--token", "the"
    )


def test_look_reads_what_predict_reads_of_a_tab(workdir, classifier, tmp_path):
    torch.manual_seed(1)
    save(every_task.encoder("tagging"), tmp_path / "tagger")
    facts = json.loads(done("look", tmp_path / "tagger", "the cat\tsat", "--json"))
    assert facts["rows"] == ["[CLS]", "the", "cat", "sat", "[SEP]"]
    inputs = json.loads(done("look", tmp_path / "tagger", "the cat\tsat", "--inputs", "--json"))
    assert inputs["tokens"] == facts["rows"]
    facts = json.loads(done("look", classifier, "the film\tis good", "--json"))
    assert facts["rows"].count("[SEP]") == 2


def test_look_draws_the_photograph_for_each_word_of_its_caption(tmp_path):
    folder, image = tmp_path / "captioner", tmp_path / "red.png"
    torch.manual_seed(1)
    save(every_task.captioner(), folder)
    Image.new("RGB", (30, 20), (250, 10, 10)).save(image)
    asked = ["look", folder, image, "--regions"]
    page, drawn = tmp_path / "it.html", tmp_path / "it.png"
    options = ["--max-tokens", 4, "--beams", 2, "--png", drawn, "--html", page]
    found = json.loads(done(*asked, "--json", *options))
    picture = attended_regions(load(folder), image, max_tokens=4, beams=2)
    assert found["answer"] == picture.title and tuple(found["words"]) == picture.words
    torch.testing.assert_close(torch.tensor(found["weights"]), picture.weights)
    assert drawn.read_bytes().startswith(b"\x89PNG") and "data:image" in page.read_text()
    assert picture.title in done(*asked, *options, "--force")
    assert "cannot be read as an image" in refused("look", folder, page, "--regions")


def test_look_shows_zeros_for_a_masked_head(classifier):
    asked = ("look", classifier, "the film is good", "--layer", 2, "--head", 1, "--json")
    facts = json.loads(done(*asked, "--mask-heads", "2:1"))
    assert not any(map(any, facts["weights"]))
    twice = json.loads(done(*asked, "--mask-heads", "2:1", "--mask-heads", "2:2"))
    assert not any(map(any, twice["weights"]))
    assert "3:1,6" in refused("look", classifier, "a", "--mask-heads", "two")


def test_quantized_weights_predict_the_same_labels(classifier):
    texts = ["the film is great and nice", "the film is slow and poor"]
    assert done("predict", classifier, *texts, "--quantize", "int8") == "yes\nno\n"
    assert done("predict", classifier, *texts, "--quantize", "bfloat16") == "yes\nno\n"
    assert "int9" in refused("predict", classifier, *texts, "--quantize", "int9")


@pytest.mark.parametrize("make", [lambda: every_task.encoder("parsing"), every_task.tree_writer])
def test_look_draws_the_best_trees_of_a_sentence(tmp_path, make):
    torch.manual_seed(1)
    save(make(), tmp_path / "parser")
    words = ["look", tmp_path / "parser", "the cat sat", "--trees", 3]
    drawing = tmp_path / "trees.png"
    assert "3. score" in done(*words, "--png", drawing) and drawing.stat().st_size > 1000
    found = json.loads(done(*words, "--json"))["trees"]
    scores = [one["score"] for one in found]
    assert len(found) == len({one["tree"] for one in found}) == 3
    assert scores == sorted(scores, reverse=True)
    assert all(read_trees(one["tree"])[0].words == ["the", "cat", "sat"] for one in found)
    assert "at least 1, but is 0" in refused(*words[:-1], 0)
    save(every_task.encoder("tagging"), tmp_path / "tagger")
    assert "tagging gives no trees" in refused("look", tmp_path / "tagger", "a cat", "--trees", 1)
