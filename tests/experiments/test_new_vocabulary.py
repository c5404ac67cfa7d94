"""[tokenizer] beside the folder of a model: known words keep their vectors, new ones get a mean."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

import regard
from regard.checkpoints.model_folder import read_model
from regard.errors import ConfigError
from regard.experiments.training_plan import for_vocabulary
from regard.text import train as train_tokenizer

OLD = "the cat sat on the mat\nthe dog ran\n" * 20
NEW = "the zebra sat in the house\nthe dog ran off again and again\n" * 20
DROPOUTS = ("embedding", "input", "weight", "hidden", "output")
MODEL = dict(name="awd-lstm", d_model=16, d_hidden=20, layers=2)
MODEL |= {f"{name}_dropout": 0.0 for name in DROPOUTS}
WORDS = dict(kind="words", vocab_size=30)


def train(file: str, model, out: str, **options):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        asked = dict(train=file, valid=file, format="lines", batch_size=4, sequence_length=5)
        asked |= dict(task="language-modeling", max_steps=4, tokenizer=WORDS)
        run = regard.train(model=model, progress=False, out=out, **{**asked, **options})
    return run, [str(one.message) for one in told if "[tokenizer]" in str(one.message)]


@pytest.fixture
def start(tmp_path, monkeypatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("old.txt").write_text(OLD)
    Path("new.txt").write_text(NEW)
    train("old.txt", MODEL, "start")
    return "start"


def matched(old: torch.Tensor, words: list[str], new_words: list[str]) -> torch.Tensor:
    """As ULMFiT's authors match embeddings: by the word, and the mean where there is none."""
    number = {word: n for n, word in enumerate(words)}
    return torch.stack([old[number[w]] if w in number else old.mean(0) for w in new_words])


def test_vectors_and_biases_are_matched_by_the_word(start):
    tokenizer = train_tokenizer("words", NEW.splitlines(), 30)
    own = regard.load(start).tokenizer
    with pytest.warns(UserWarning, match=r"6 of 14 words are not in the vocabulary of start"):
        made = for_vocabulary(read_model(start), start, tokenizer)
    words, new_words = ([one.token(n) for n in range(one.vocab_size)] for one in (own, tokenizer))
    before = regard.load(start).module.state_dict()
    for name, found in made.state_dict().items():
        old = before[name]
        if old.size(0) == own.vocab_size:
            torch.testing.assert_close(found, matched(old, words, new_words))
        else:
            assert torch.equal(found, old)
    assert {"embedding.weight", "head.bias"} <= {*made.state_dict()}
    assert made.head.weight is made.embedding.weight  # tied as before
    assert made.config.eos == tokenizer.eos_id


def test_subwords_are_not_exchanged(start):
    with pytest.raises(ConfigError, match="only words can be exchanged"):
        train("new.txt", start, "none", tokenizer=dict(kind="bpe", vocab_size=60))
    assert not Path("none").exists()
