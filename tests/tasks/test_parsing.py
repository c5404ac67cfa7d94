"""Constituency parsing with a chart: data, training, folders, odd sentences, many best trees."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import regard
from regard.data.datasets.annotated import read_treebank
from regard.errors import DataError, TextError
from regard.metrics.brackets import BracketF1
from regard.models.bert import Bert
from regard.models.encoder_with_heads import EncoderWithHeads, new_head
from regard.tasks import parsing
from regard.tasks.parsing import Parser, Sentence
from regard.text import train
from regard.text.trees import read_trees, tree_of

TREES = """
( (S (NP-SBJ (DT the) (NN cat)) (VP (VBD sat) (PP-LOC (IN on) (NP (DT a) (NN mat)))) (. .)) )
( (S (NP-SBJ (PRP it)) (VP (VBD slept)
     (NP (-NONE- *T*-1))) (. .)) )
( (FRAG (NP (NN cat)) (-LRB- -LRB-) (ADVP|PRT (RB up)) (-RRB- -RRB-)) )
( (S (VP (VB sleep))) )
( (NP (NNP Cat)) )
"""


@pytest.fixture
def files(tmp_path):
    path = tmp_path / "trees.mrg"
    path.write_text(TREES)
    return path


OPTIONS = dict(
    task="parsing", batch_size=2, epochs=30, learning_rate=1e-2, schedule=dict(name="constant"),
    model=dict(name="bert", d_model=32, d_ff=32, heads=2, layers=1, dropout=0.0), progress=False,
    tokenizer=dict(kind="words", vocab_size=60), validation=dict(eval_steps=90),
)  # fmt: skip


def trained_on(path, **options):
    files = dict.fromkeys(("train", "valid", "test"), str(path))
    return regard.train(**OPTIONS | files | dict(out=path.with_name("run")) | options)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that knows its trees by heart."""
    path = tmp_path_factory.mktemp("parsing") / "trees.mrg"
    path.write_text(TREES)
    return trained_on(path)


def tiny() -> Parser:
    """A task with random weights."""
    torch.manual_seed(2)
    tokenizer = train("words", ["a b c d e f g h"], 40)
    tokenizer = tokenizer.with_roles({"cls": "[CLS]", "sep": "[SEP]"})
    config = Bert.Config(tokenizer.vocab_size, d_model=16, d_ff=16, heads=2, layers=1)
    encoder = Bert(config)
    labels, tags = ("NP", "S", "S VP"), ("D", "N")
    heads = {
        name: new_head(encoder, name, len(of)) for name, of in (("chart", labels), ("tags", tags))
    }
    with torch.no_grad():
        for weight in [*encoder.parameters(), *(w for h in heads.values() for w in h.parameters())]:
            weight.add_(torch.randn_like(weight), alpha=0.5)
    return Parser(EncoderWithHeads(encoder, heads), tokenizer, labels=labels, tags=tags)


def test_trees_are_learned_by_heart_and_read_back_from_the_folder(trained):
    folder, result = trained.folder, trained.result
    assert result.scores["f1"] == result.scores["exact"] == 1
    task = regard.load(folder)
    assert task.name == "parsing" and "S VP" in task.labels and "ADVP" in task.labels
    gold = list(read_treebank(read_trees(TREES)))
    assert [str(one) for one in task.parse(["the cat sat on a mat."])] == [str(gold[0])]
    assert str(task.parse("sleep")) == "(S (VP (VB sleep)))"
    assert task.predict("Cat") == "(NP (NNP Cat))"
    found = task.parse([["cat", "-LRB-", "up", "-RRB-"]])[0]
    assert str(found) == "(FRAG (NP (NN cat)) (-LRB- -LRB-) (ADVP (RB up)) (-RRB- -RRB-))"
    # Brackets of a text are read as those of the treebank, and written so.
    assert task.predict("cat (up)") == str(found)
    score, tagged = task.evaluate(read_trees(TREES)).named
    assert score.value == tagged.value == 1 and score.errors == 0


def test_a_model_that_reads_tags_gives_the_words_of_the_trees(files):
    task = regard.load(trained_on(files, inputs="tags").folder)
    assert "tags" not in task.module.heads and task.inputs == "tags"
    gold = list(read_treebank(files))
    tree = str(gold[0])
    assert task.evaluate(gold).named[0].value == 1  # of a tree its words and tags
    by_tags = task.predict("DT NN VBD IN DT NN .")
    assert by_tags == str(task.parse([["DT", "NN", "VBD", "IN", "DT", "NN", "."]])[0])
    words = tree.replace("the", "DT").replace("cat", "NN").replace("sat", "VBD")
    assert by_tags == words.replace(" on)", " IN)").replace(" a)", " DT)").replace("mat", "NN")


def test_a_sentence_in_a_batch_has_the_tree_and_score_that_it_has_alone():
    task = tiny()
    texts = ["a", "a b c d e f g h a b c", "unseen", "b a", "c c c d", "h g f e d c b a"] * 3
    together = task.predict(texts, n_best=4, return_proba=True)
    for text, one in zip(texts, together, strict=True):
        (alone,) = task.predict([text], n_best=4, return_proba=True)
        assert [str(tree) for tree, _ in alone.n_best] == [str(tree) for tree, _ in one.n_best]
        assert np.allclose([s for _, s in alone.n_best], [s for _, s in one.n_best], atol=1e-4)
        assert [score for _, score in one.n_best] == sorted(
            (s for _, s in one.n_best), reverse=True
        )
        assert len({str(tree) for tree, _ in one.n_best}) == len(one.n_best)
        assert one.tree == str(one.n_best[0][0]) == task.predict(text)


def test_more_trees_than_there_is_memory_for_are_an_error_and_batches_do_not_add_up(monkeypatch):
    task = tiny()
    for count in (10**6, 10**30):
        with pytest.raises(TextError, match="Text 1 has 4 words, more than .* lower `n_best`"):
            task.predict(["a b c d", "a"], n_best=count, return_proba=True)
    texts = ["a b c d", "a", "b a", "c c c d", "d"] * 2
    together = task.predict(texts, n_best=5, return_proba=True)
    sizes = []
    charts = Parser._charts

    def counted(self, hidden, numbers, n_best):
        sizes.append(sum(len(hidden[number]) * n_best for number in numbers))
        return charts(self, hidden, numbers, n_best)

    monkeypatch.setattr(Parser, "_charts", counted)
    monkeypatch.setattr(parsing, "MOST_RANKED", 20)
    for one, wanted in zip(task.predict(texts, n_best=5, return_proba=True), together, strict=True):
        assert [str(tree) for tree, _ in one.n_best] == [str(tree) for tree, _ in wanted.n_best]
    assert max(sizes) <= 40 and len(sizes) > 2
    with pytest.raises(TextError, match="Text 1 has 4 words"):
        task.predict(texts, n_best=6, return_proba=True)


def test_a_training_sentence_that_is_too_long_is_left_out_with_a_note(tmp_path, files):
    with pytest.warns(UserWarning, match="longer than 7 tokens, tree left out: 1"):
        trained_on(files, data=dict(max_length=7), epochs=1)
    with pytest.raises(DataError, match="every sentence is longer than 5 tokens"):
        files.write_text("(S (A a) (A b) (A c) (A d))")
        trained_on(files, data=dict(max_length=5), out=tmp_path / "other")


@pytest.mark.parametrize(
    "text, words",
    [
        ("I don't like Kim's hat, do they've?", "I do n't like Kim 's hat , do they 've ?"),
        ("(Laughter.)", "( Laughter . )"),
        ("(S a)", "( S a )"),
        ("(S (NN a)", "( S ( NN a )"),
        ("n't 's", "n't ' s"),
        ("", ""),
    ],
)
def test_sentences_have_the_words_of_the_treebank(text, words):
    assert " ".join(Sentence.of(text).words) == words


def test_the_score_of_evaluate_is_that_of_the_predicted_trees():
    task, gold = tiny(), list(read_treebank(read_trees(TREES)))
    metric = BracketF1()
    found = task.parse([tree.words for tree in gold])
    retagged = zip(found, gold, strict=True)
    metric.add([tree_of(g.words, g.tags, tree.spans()) for tree, g in retagged], gold)
    score, tagged = task.evaluate(gold).named
    assert score == metric.result() and score.count == len(gold)
    tags = [tag for tree in found for tag in tree.tags]
    wanted = [tag for tree in gold for tag in tree.tags]
    assert tagged.value == sum(map(str.__eq__, tags, wanted)) / len(wanted)
