"""Models that start from a file of word vectors, trained or frozen, resumed and opened again.

Tests of `regard.tasks.encoder_training`, `regard.tasks.encoding`, `regard.tasks.sections` and
`regard.tasks.classification`.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

import regard
from regard.errors import ConfigError, DataError

ROWS = [("a good film", "yes"), ("dull and bad", "no"), ("Good fun", "yes"), ("very bad", "no")] * 6
VECTORS = {"good": [1.0, 2, -3, 4], "bad": [-1.0, 0, 0.5, 2], "film": [0.1, 0.2, 0.3, 0.4]}
MODELS_OF_WORDS = {
    "bilstm": {"characters": "none", "d_words": 4, "d_model": 6},
    "bilstm characters": {"d_words": 4, "d_model": 6, "d_character": 3, "d_characters": 4},
    "kim-cnn": {"d_words": 4, "filters": [[2, 3]]},
    "kim-cnn multichannel": {"d_words": 4, "filters": [[2, 3]], "vectors": "multichannel"},
    "bert": {"d_model": 4, "d_ff": 4, "heads": 2, "layers": 1, "max_length": 12},
    "awd-lstm": {"d_model": 4, "d_hidden": 6, "layers": 2},
}


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in ROWS))
    Path("vectors.txt").write_text(
        "".join(f"{word} {' '.join(map(str, vector))}\n" for word, vector in VECTORS.items())
    )


def train(model: dict, **options):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        asked = dict(task="classification", train="rows.tsv", progress=False, max_steps=3)
        asked |= dict(
            tokenizer={"kind": "words", "vocab_size": 40},
            learning_rate=1e-2,
            schedule={"name": "constant"},
        )
        run = regard.train(model=model, **{**asked, **options})
    return run, [str(one.message) for one in told]


def tables(task) -> dict[str, list[torch.Tensor]]:
    """The vectors of each word."""
    found = [table.weight.detach() for table in task.module.encoder.word_tables]
    words = [task.tokenizer.token(n) for n in range(task.tokenizer.vocab_size)]
    return {word: [one[n] for one in found] for n, word in enumerate(words)}


@pytest.mark.parametrize("name", MODELS_OF_WORDS)
def test_frozen_vectors_are_those_of_the_file_after_training(name):
    model = {"name": name.split()[0], **MODELS_OF_WORDS[name]}
    options = dict(word_vectors="vectors.txt", freeze_word_vectors=True)
    run, told = train(model, **options)
    Path("vectors.txt").unlink()
    for word, found in tables(regard.load(run)).items():
        wanted = VECTORS.get(word, VECTORS.get(word.lower()))
        if wanted is not None:
            assert found and all(one.tolist() == torch.tensor(wanted).tolist() for one in found)
    (said,) = [one for one in told if "vectors.txt" in one]
    assert "of width 4, 1 of them that of the word in lower case" in said  # Good
    words = {word for text, _ in ROWS for word in text.split()}
    assert f"4 of {len(words)} words" in said
    assert said in (run.folder / "recipe.toml").read_text()


@pytest.mark.parametrize("name", MODELS_OF_WORDS)
def test_trained_vectors_begin_as_those_of_the_file_and_change(name):
    model = {"name": name.split()[0], **MODELS_OF_WORDS[name]}
    run, _ = train(model, word_vectors="vectors.txt", learning_rate=1e-4)
    plain, _ = train(model, learning_rate=1e-4, out="plain")
    first = tables(run.model)["good"][0]
    wanted = torch.tensor(VECTORS["good"])
    assert 0 < (first - wanted).abs().max() < 1e-3
    frozen = tables(run.model)["good"][1:]  # the second channel
    assert all(torch.equal(one, wanted) for one in frozen)
    assert (tables(plain.model)["good"][0] - wanted).abs().max() > 0.1


def test_words_without_a_vector_have_the_mean_square_of_the_others():
    model = {"name": "bilstm", **MODELS_OF_WORDS["bilstm"]}
    run, _ = train(model, word_vectors="vectors.txt", freeze_word_vectors=True)
    others = [found[0] for word, found in tables(run.model).items() if word.lower() not in VECTORS]
    known = [found[0] for word, found in tables(run.model).items() if word.lower() in VECTORS]
    wanted = torch.stack(known).double().square().mean()
    found = torch.stack(others).double().square().mean()
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=0)
    assert len({tuple(one.tolist()) for one in others}) == len(others)


def test_vectors_stand_beside_the_features_of_a_frozen_encoder():
    start, _ = train({"name": "bert", **MODELS_OF_WORDS["bert"]}, out="start")
    features = {"path": str(start.folder / "model"), "features": {"d_words": 4, "d_model": 6}}
    features["features"]["layers"] = -1
    run, _ = train(
        features, tokenizer=None, word_vectors="vectors.txt", freeze_word_vectors=True, out="over"
    )
    words = run.model.module.encoder.words.weight
    id = run.model.tokenizer.encode("good").ids
    assert VECTORS["good"] in words[id].tolist()
    del features["features"]["d_words"]
    with pytest.raises(ConfigError, match="`data.word_vectors` would replace what the model of a"):
        train(features, tokenizer=None, word_vectors="vectors.txt", out="none")


def test_a_resumed_run_refuses_another_file():
    model = {"name": "kim-cnn", **MODELS_OF_WORDS["kim-cnn"]}
    run, _ = train(model, word_vectors="vectors.txt")
    Path("vectors.txt").write_text("good 1 1 1 1\n")
    (run.folder / "report.html").unlink()
    with pytest.raises(ConfigError, match=r"vectors\.txt"):
        regard.resume(run, progress=False)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"model": {"d_words": 5}}, "have width 4, but those of BiLSTM 5. Set `d_words`"),
        ({"tokenizer": {"kind": "bpe", "vocab_size": 40}}, 'set kind = "words" in'),
        ({"model": {"name": "elmo"}}, "Elmo has no vectors of words"),
        ({"word_vectors": "other.txt"}, "has none of the [0-9]+ words of the vocabulary"),
        ({"word_vectors": "missing.txt"}, r"missing\.txt.*does not exist"),
    ],
)
def test_unsuitable_word_vectors_and_options_raise_errors(changes, message):
    Path("other.txt").write_text("chien 1 2 3 4\n")
    model = {"name": "bilstm", **MODELS_OF_WORDS["bilstm"], **changes.pop("model", {})}
    if model["name"] == "elmo":
        model = {"name": "elmo", "d_model": 8, "d_cell": 6, "filters": [[1, 4]]}
    options = {"word_vectors": "vectors.txt", "freeze_word_vectors": True, **changes}
    with pytest.raises((ConfigError, DataError), match=message):
        train(model, **options)
    assert not Path("runs").exists()
