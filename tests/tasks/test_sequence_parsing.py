"""Constituency parsing as a sequence: every output is a tree of the sentence's words."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.data.datasets.annotated import read_treebank
from regard.models.seq2seq import Seq2Seq
from regard.models.transformer import Transformer
from regard.tasks.sequence_parsing import SequenceParser
from regard.text import train
from regard.text.trees import linearized, read_trees

TREES = """
( (S (NP-SBJ (DT the) (NN cat)) (VP (VBD sat) (PP-LOC (IN on) (NP (DT a) (NN mat)))) (. .)) )
( (S (NP-SBJ (PRP it)) (VP (VBD slept)) (. .)) )
( (FRAG (NP (NN cat)) (-LRB- -LRB-) (ADVP|PRT (RB XX)) (-RRB- -RRB-)) )
( (S (VP (VB sleep))) )
"""
BRACKETS = ["(XX)", "(S", ")S", "(SBAR", ")SBAR", "(NP", ")NP", "(X", ")X"]


def tiny(kind=Transformer) -> SequenceParser:
    """A task with random weights."""
    torch.manual_seed(4)
    tokenizer = train("words", ["a b c d e f XX EXXON -LRB- -RRB-"], 40)
    tokenizer = tokenizer.with_special_tokens(BRACKETS)
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "heads": 2, "d_ff": 16}
    known = kind.Config.__dataclass_fields__
    sizes = {name: value for name, value in sizes.items() if name in known}
    ids = {role: getattr(tokenizer, f"{role}_id") for role in ("pad", "bos", "eos")}
    model = kind(kind.Config(tokenizer.vocab_size, d_model=16, **sizes, **ids)).eval()
    return SequenceParser(model, tokenizer, most_open=5)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that knows its trees by heart."""
    tmp_path = tmp_path_factory.mktemp("sequence")
    (tmp_path / "trees.mrg").write_text(TREES)
    model = dict(name="lstm-seq2seq", d_model=32, attention="general", dropout=0.0)
    return regard.train(
        task="sequence-parsing", tokenizer=dict(kind="words"), model=model, label_smoothing=0.0,
        epochs=120, validation=dict(eval_steps=120), schedule=dict(name="constant"), beams=5,
        learning_rate=1e-2, progress=False, out=tmp_path / "run",
        **dict.fromkeys(("train", "valid", "test"), [str(tmp_path / "trees.mrg")]),
    )  # fmt: skip


def test_trees_are_learned_by_heart_and_read_back_from_the_folder(trained):
    assert trained.result.scores["f1"] == trained.result.scores["exact"] == 1
    task = regard.load(trained.folder)
    assert task.name == "sequence-parsing" and task.most_open == 2
    gold = list(read_treebank(read_trees(TREES)))
    for one, tree in zip(task.parse([one.words for one in gold]), gold, strict=True):
        assert linearized(one) == linearized(tree) and one.words == tree.words
        assert set(one.tags) == {"XX"}
    assert task.predict("cat (XX)") == "(FRAG (NP (XX cat)) (XX -LRB-) (ADVP (XX XX)) (XX -RRB-))"
    found = task.evaluate(read_trees(TREES))
    scores, texts = found.named, found.outputs
    assert scores[0].value == 1 and scores[0].count == len(texts) == 4


@pytest.mark.parametrize("kind", [Transformer, Seq2Seq])
def test_outputs_of_random_models_are_trees_in_a_batch_as_alone(kind):
    task = tiny(kind)
    texts = ["a", "a b c d e f a b c", "unseen words", "b (a)", "EXXON", "f e d c b a a b c d e f"]
    for options in ({}, {"beams": 3, "n_best": 3}):
        found = task.hypotheses(texts, **options)
        several = task.spelled(texts, found)
        for text, trees in zip(texts, several, strict=True):
            words = text.replace("(", "-LRB- ").replace(")", " -RRB-").split()
            assert all(read_trees(tree)[0].words == words for tree in trees)
            assert task.spelled([text], task.hypotheses([text], **options))[0] == trees
            assert len(set(trees)) == len(trees)
            if options:
                assert len(trees) == 3
    assert task.predict(texts) == [str(tree) for tree in task.parse(texts)]
