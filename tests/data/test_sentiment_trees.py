"""Trees with a label at every node: sentences and phrases, damaged files, and classification."""

from __future__ import annotations

import random
import re
import sys
import warnings
from collections import Counter
from pathlib import Path

import pytest
from row_tuples import tuples

import regard
from regard.data import read_sentiment_trees
from regard.errors import DataError

EXAMPLE = "(3 (2 It) (4 (2 's) (4 (3 lovely) (2 .))))"


def written(tmp_path: Path, *trees: str) -> Path:
    file = tmp_path / "trees.txt"
    file.write_text("".join(f"{tree}\n" for tree in trees))
    return file


def drawn(draw: random.Random, depth: int = 0) -> tuple[str, list[tuple[str, str]]]:
    """A tree in brackets, and its nodes (text, label), the whole last."""
    label = str(draw.randrange(5))
    if depth > 5 or draw.random() < 0.3:
        word = draw.choice(["good", "bad", "-LRB-", "it's", "a"])
        return f"({label} {word})", [({"-LRB-": "("}.get(word, word), label)]
    parts = [drawn(draw, depth + 1) for _ in range(draw.choice([1, 2, 2, 3]))]
    text = " ".join(nodes[-1][0] for _, nodes in parts)
    inside = [node for _, nodes in parts for node in nodes]
    return f"({label} {' '.join(tree for tree, _ in parts)})", [*inside, (text, label)]


def test_published_trees_are_read_as_sentences_or_as_phrases(tmp_path):
    file = written(tmp_path, EXAMPLE, "", "(1 (2 It) (0 (1 (2 is) (1 bad)) (2 .)))")
    assert tuples(read_sentiment_trees(file)) == [("It 's lovely .", "3"), ("It is bad .", "1")]
    phrases = list(read_sentiment_trees(file, phrases=True).numbered())
    first = [{"text": "It", "label": "2"}, {"text": "'s", "label": "2"}]
    assert phrases[:2] == [(1, row) for row in first]
    assert [row["text"] for line, row in phrases if line == 3][0] == "is"  # "It" is of line 1
    assert len(phrases) == 7 + 5


def test_drawn_trees_give_the_nodes_that_were_drawn(tmp_path):
    draw = random.Random(3)
    trees = [drawn(draw) for _ in range(60)]
    file = written(tmp_path, *(tree for tree, _ in trees))
    assert tuples(read_sentiment_trees(file)) == [nodes[-1] for _, nodes in trees]
    distinct = dict.fromkeys(node for _, nodes in trees for node in nodes)
    assert tuples(read_sentiment_trees(file, phrases=True)) == list(distinct)


@pytest.mark.parametrize(
    "line, problem",
    [
        ("(3 (2 It) (4 bad)", "has 1 brackets that are not closed"),
        ("(3 (2 It)) (4 bad)", "has more than one tree"),
        ("(3 (2 It)))", r"has '\)' outside of the tree"),
        ("(3 (2) (4 bad))", "has a node without a word"),
        ("((2 It) (4 bad))", "has a node without a label"),
        ("()", "has a node without a label"),
        ("It is bad", "has 'It' outside of the tree"),
    ],
)
def test_a_line_that_is_no_tree_is_named(tmp_path, line, problem):
    file = written(tmp_path, EXAMPLE, line)
    with pytest.raises(DataError, match=rf"trees\.txt:2: .*{problem}"):
        list(read_sentiment_trees(file))


RECIPE = dict(
    task="classification", trees="phrases", tokenizer="words", max_steps=4, progress=False,
    model=dict(name="kim-cnn", d_words=8, filters=[[2, 4]]),
)  # fmt: skip


def test_phrases_are_trained_on_and_sentences_are_scored(tmp_path):
    draw = random.Random(1)
    written(tmp_path, *(drawn(draw)[0] for _ in range(12)))
    (tmp_path / "valid.txt").write_text(EXAMPLE.replace("lovely", "good") + "\n" + "(0 bad)\n")
    files = dict(train=str(tmp_path / "trees.txt"), valid=str(tmp_path / "valid.txt"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = regard.train(**RECIPE, **files, out=tmp_path / "run")
    phrases = tuples(read_sentiment_trees(tmp_path / "trees.txt", phrases=True))
    assert run.model.labels == tuple(sorted({label for _, label in phrases}))
    sentences = tuples(read_sentiment_trees(tmp_path / "valid.txt"))
    right = sum(run.predict(text) == label for text, label in sentences)
    assert run.scores["accuracy"] == right / 2
    assert run.evaluate(read_sentiment_trees(tmp_path / "valid.txt")).named[0].value == right / 2


def test_the_treebank_has_its_published_counts(shared, tmp_path):
    sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
    import sst

    sst.main(str(shared("sst_trees/trees")), str(tmp_path))
    counts = {}
    for name in ("train", "dev", "test"):
        rows = tuples(read_sentiment_trees(tmp_path / f"{name}.txt"))
        counts[name] = [number for _, number in sorted(Counter(one for _, one in rows).items())]
        lines = (tmp_path / f"{name}.txt").read_text().splitlines()
        bare = [re.sub(r"\([0-4]|\)", " ", line).split() for line in lines]
        assert [len(text.split(" ")) for text, _ in rows] == list(map(len, bare))
    assert counts == {
        "train": [1092, 2218, 1624, 2322, 1288],
        "dev": [139, 289, 229, 279, 165],
        "test": [279, 633, 389, 510, 399],
    }
