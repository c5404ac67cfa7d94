"""Tagging by words: against transformers and seqeval, and for sentences of every shape."""

from __future__ import annotations

import warnings
from functools import cache

import every_task
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from letter_folders import bert, byte_level, transformers
from recipe_files import planned, until_learned, written

import regard
from regard.data.encoder_inputs import WordWindows
from regard.errors import DataError
from regard.experiments.runs import read_recipe, train
from regard.layers.chart import CRF
from regard.metrics.entities import spans

TAGS = ["B-LOC", "B-PER", "I-LOC", "I-PER", "O"]
NAMED = dict(id2label=dict(enumerate(TAGS)), label2id={tag: i for i, tag in enumerate(TAGS)})
SENTENCES = [
    "the cat in the hat .".split(),
    "anna lives in new york , says bob smith !".split(),
    ["in"],
    "3,000 x-rays cost $5.00 (the state-of-the-art)".split(),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return bert(tmp_path_factory.mktemp("tagging") / "bert", "TokenClassification", **NAMED)


@cache
def both(folder):
    """Our task, and transformers' tokenizer and model."""
    theirs = transformers.AutoModelForTokenClassification.from_pretrained(folder).eval()
    return regard.load(folder), transformers.AutoTokenizer.from_pretrained(folder), theirs


def their_scores(folder, words):
    """(words, labels): the logits at the first piece of each word."""
    _, tokenizer, model = both(folder)
    encoded = tokenizer([words], is_split_into_words=True, return_tensors="pt")
    word_ids = encoded.word_ids(0)
    with torch.no_grad():
        logits = model(**encoded).logits[0]
    return logits[[word_ids.index(i) for i in range(len(words))]]


def our_probabilities(task, sentences):
    return [answer.probabilities for answer in task.predict(sentences, return_proba=True)]


# ------------------------------------------------------------------- against other libraries


def test_tags_and_probabilities_equal_those_of_transformers(folder):
    task = both(folder)[0]
    seen = set()
    for answer, words in zip(task.predict(SENTENCES, return_proba=True), SENTENCES, strict=True):
        wanted = their_scores(folder, words).softmax(-1)
        assert list(answer.tags) == [TAGS[i] for i in wanted.argmax(-1)]
        assert answer.probabilities == pytest.approx(wanted.amax(-1).tolist(), abs=1e-5)
        seen |= set(answer.tags)
    assert len(seen) > 2  # otherwise the weights above are too tame to tell anything


def test_byte_level_models_give_the_tags_of_transformers(tmp_path):
    for family in ("Roberta", "GPT2"):
        folder = byte_level(tmp_path / family, family, "TokenClassification", **NAMED)
        task = regard.load(folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, add_prefix_space=True)
        model = transformers.AutoModelForTokenClassification.from_pretrained(folder).eval()
        for words in [*SENTENCES, ["über", "東京", "x"]]:
            encoded = tokenizer([words], is_split_into_words=True, return_tensors="pt")
            logits, word_ids = model(**encoded).logits[0], encoded.word_ids(0)
            wanted = logits[[word_ids.index(i) for i in range(len(words))]]
            assert task.tag([words]) == [[TAGS[i] for i in wanted.argmax(-1)]]


def test_a_word_without_tokens_is_read_as_the_unknown_token(folder):
    task = both(folder)[0]
    for nothing in ("\u200b", "\ufe0f\u200d", "", "\x00"):
        words = ["the", nothing, "cat"]
        wanted = their_scores(folder, ["the", "[UNK]", "cat"]).softmax(-1).amax(-1)
        assert our_probabilities(task, [words])[0] == pytest.approx(wanted.tolist(), abs=1e-5)


def test_the_loss_equals_that_of_transformers(folder, tmp_path):
    _, tokenizer, model = both(folder)
    lines = [f"{word} {TAGS[i % 5]}\n" for i, word in enumerate(SENTENCES[1])]
    file = tmp_path / "one.txt"
    file.write_text("".join(lines))
    task = started(folder, file, scheme="none").task
    batch = next(task.train_batches())
    task.module.eval()
    loss, count = task.losses(batch)[0]["loss"]
    encoded = tokenizer([SENTENCES[1]], is_split_into_words=True, return_tensors="pt")
    word_ids = encoded.word_ids(0)
    labels = [
        -100 if word is None or word in word_ids[:at] else word % 5
        for at, word in enumerate(word_ids)
    ]
    wanted = model(**encoded, labels=torch.tensor([labels])).loss.detach()
    assert count == task.counts(batch)["loss"] == len(lines)
    assert float(loss.detach()) / count == pytest.approx(float(wanted), abs=1e-5)


def test_the_usual_count_is_the_mean_number_of_words_of_a_batch(folder, tmp_path):
    file = tmp_path / "many.txt"
    sentences = [["cat"] * (1 + i % 7) for i in range(20)]
    tagged = ("".join(f"{word} {TAGS[len(words) % 2]}\n" for word in words) for words in sentences)
    file.write_text("\n".join(tagged))
    task = started(folder, file, scheme="none", batch_size=4).task
    batches = task.train_batches()
    counts = [task.counts(next(batches))["loss"] for _ in range(batches.batches_per_epoch)]
    assert len(counts) == 5 and len(set(counts)) > 1
    assert task.usual == {"loss": sum(counts) / 5}


def test_entity_f1_equals_that_of_seqeval(folder, tmp_path):
    seqeval = pytest.importorskip("seqeval.metrics")
    task = both(folder)[0]
    tags = [[TAGS[(i * 7 + len(words)) % 5] for i in range(len(words))] for words in SENTENCES]
    score = task.evaluate(list(zip(SENTENCES, tags, strict=True))).named[0]
    found = task.predict(SENTENCES)
    assert score.value == pytest.approx(seqeval.f1_score(tags, found))
    assert score.precision == pytest.approx(seqeval.precision_score(tags, found))
    assert score.report.scores.micro.predicted > 3
    # The same in a file, where the words are in the third column and the tags in the second.
    rows = [
        [f"x {tag} {word}" for word, tag in zip(*pair, strict=True)]
        for pair in zip(SENTENCES, tags, strict=True)
    ]
    (tmp_path / "x.conll").write_text("\n\n".join(map("\n".join, rows)) + "\n")
    in_file = regard.evaluate(task, tmp_path / "x.conll", columns=(2, 1)).named[0]
    assert in_file.value == score.value
    # The same entities in IOB1, as CoNLL-2003 has them, are the same to us.
    iob1 = [regard.metrics.convert_tags(one, "IOB1") for one in tags]
    assert task.evaluate(list(zip(SENTENCES, iob1, strict=True))).named[0].value == score.value


# --------------------------------------------------------------------------- long sentences


def test_words_of_long_sentences_are_tagged_in_the_window_with_most_context(folder):
    task, tokenizer, _ = both(folder)
    words = [word for i in range(14) for word in SENTENCES[(i * 3 + 1) % 4]]
    lengths = [len(tokenizer.tokenize(word)) for word in words]
    room = 64 - 2
    assert sum(lengths) > 3 * room
    # The rule in plain: fill a window with words, begin the next at most a quarter before its end.
    windows, stop = [], 0
    while stop < len(words):
        start = stop
        while start and sum(lengths[start - 1 : stop]) <= room // 4:
            start -= 1
        while sum(lengths[start : stop + 1]) > room:
            start += 1
        while stop < len(words) and sum(lengths[start : stop + 1]) <= room:
            stop += 1
        windows.append((start, stop))
    wanted: list[tuple[float, str]] = [(-1.0, "")] * len(words)
    for start, stop in windows:
        best = their_scores(folder, words[start:stop]).argmax(-1)
        for i in range(start, stop):
            left = sum(lengths[start:i]) if start else 10**6
            right = sum(lengths[i + 1 : stop]) if stop < len(words) else 10**6
            if min(left, right) > wanted[i][0]:
                wanted[i] = (min(left, right), TAGS[best[i - start]])
    assert task.predict([words]) == [[tag for _, tag in wanted]]


def test_each_word_of_a_split_sentence_is_counted_once_in_the_loss(folder, tmp_path):
    file = tmp_path / "long.txt"
    rows = [[f"{word} O\n" for word in SENTENCES[1] * times] for times in (1, 6, 30)]
    file.write_text("\n".join("".join(row) for row in rows) + f"\n{'a-' * 40} B-LOC\n")
    made = started(folder, file)
    batches = made.task.train_batches()
    counts = [made.task.counts(next(batches))["loss"] for _ in range(batches.batches_per_epoch)]
    assert sum(counts) == sum(map(len, rows)) + 1
    assert any("a word longer than 64 tokens" in note for note in made.task.notes())


# ------------------------------------------------------------------------------- any words

WORDS = st.text(max_size=12)


@settings(max_examples=60)
@given(st.lists(st.one_of(WORDS, st.lists(WORDS, max_size=20)), max_size=5))
def test_each_word_of_any_text_has_a_tag(folder, texts):
    task = both(folder)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answers = task.predict(texts, return_proba=True)
    for given_, answer in zip(texts, answers, strict=True):
        assert len(answer.tags) == len(answer.words) == len(answer.probabilities)
        if not isinstance(given_, str):
            assert answer.words == tuple(given_)
        text = given_ if isinstance(given_, str) else " ".join(given_)
        for entity in answer.entities:
            assert text[entity.start : entity.end] == entity.text


def test_entities_have_their_character_positions_in_the_text(folder, monkeypatch):
    task = both(folder)[0]
    tags = ["B-PER", "I-PER", "O", "B-LOC", "B-LOC", "O"]
    monkeypatch.setattr(task, "_best", lambda *_: (tags, [1.0, 0.5, 1.0, 0.25, 1.0, 1.0]))
    text = "Anna  M\u00fcller\tin Rome,Oslo"  # the comma is a word
    found = task.predict([text], return_proba=True)[0].entities
    wanted = [("PER", "Anna  M\u00fcller"), ("LOC", "Rome"), ("LOC", ",")]
    assert [(e.type, e.text) for e in found] == wanted
    assert all(text[e.start : e.end] == e.text for e in found)
    assert [(e.score, e.words) for e in found] == [(0.75, (0, 2)), (0.25, (3, 4)), (1.0, (4, 5))]


def test_a_splitter_of_the_user_gives_the_words(folder):
    task = both(folder)[0]
    answer = task.predict("the cat-hat", return_proba=True, splitter=lambda text: [(4, 7), (8, 11)])
    assert answer.words == ("cat", "hat") and answer.result == task.tag([["cat", "hat"]])[0]


# -------------------------------------------------------------------------------- training

TRAINING = """anna I-PER
met O
bob I-PER
smith I-PER
in O
rome I-LOC
york B-LOC

the O
cat O
in O
oslo I-LOC

"""


def started(folder, file, **data):
    recipe = dict(task="tagging", model=dict(path=folder), training=dict(max_steps=1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return planned(file.with_name("recipe.toml"), recipe, dict(data=dict(train=file) | data))


RECIPE = until_learned("tagging", "train.txt", 60, 0.02)
SHORT = dict(max_steps=5)


def test_a_trained_model_is_saved_and_gives_the_probabilities_of_transformers(tmp_path):
    start = bert(tmp_path / "start", "MaskedLM")
    (tmp_path / "train.txt").write_text(TRAINING * 4)
    written(tmp_path / "recipe.toml", RECIPE, dict(model=dict(path=start)))
    trained = train(tmp_path / "recipe.toml", out=tmp_path / "run", progress=False)
    run, result = trained.folder, trained.result
    assert result.scores == {"f1": 1.0, "precision": 1.0, "recall": 1.0}
    assert (run / "report.html").exists()
    task = regard.load(run)
    assert task.labels == ("B-LOC", "B-PER", "I-PER", "O")  # IOB2, by the alphabet
    words = "anna met bob smith in rome york".split()
    assert task.predict([words]) == ["B-PER O B-PER I-PER O B-LOC B-LOC".split()]
    model = transformers.AutoModelForTokenClassification.from_pretrained(run / "model").eval()
    assert model.config.id2label == dict(enumerate(task.labels))
    tokenizer = transformers.AutoTokenizer.from_pretrained(run / "model")
    encoded = tokenizer([words], is_split_into_words=True, return_tensors="pt")
    word_ids = encoded.word_ids(0)
    logits = model(**encoded).logits[0][[word_ids.index(i) for i in range(len(words))]]
    assert task.predict([words], return_proba=True)[0].probabilities == pytest.approx(
        logits.softmax(-1).amax(-1).tolist(), abs=1e-5
    )
    assert task.test(read_recipe(tmp_path / "recipe.toml"))[0].value == 1.0


def test_a_model_that_tags_no_entity_is_warned_of(tmp_path):
    start = bert(tmp_path / "start", "MaskedLM")
    (tmp_path / "train.txt").write_text("the O\ncat O\nin O\n\n" * 20 + "oslo I-LOC\n")
    written(tmp_path / "recipe.toml", RECIPE, dict(model=dict(path=start), training=SHORT))
    with pytest.warns(UserWarning, match="predicts 'O' for every word of the validation data"):
        train(tmp_path / "recipe.toml", out=tmp_path / "run", progress=False)


def test_tags_of_another_kind_than_entities_need_scheme_none(folder, tmp_path):
    file = tmp_path / "pos.jsonl"
    file.write_text('{"words": ["the", "cat"], "tags": ["DT", "NN"]}\n')
    with pytest.raises(DataError, match=r"pos.jsonl:1: The tag 'DT' .* scheme = .none."):
        started(folder, file)
    task = started(folder, file, scheme="none").task
    assert task.labels == ("DT", "NN") and task.goal == ("accuracy", "max")
    (found,) = task.predict([["the", "cat"]])
    right = sum(a == b for a, b in zip(found, ["DT", "NN"], strict=True))
    score = task.evaluate([(["the", "cat"], ["DT", "NN"])]).named[0]
    assert score.value == right / 2 and task.predict(["a b"], return_proba=True)[0].entities == ()
    with pytest.warns(UserWarning, match="tags that this model does not predict: VB"):
        task.evaluate([(["runs"], ["VB"])])


def test_a_column_with_only_o_tags_raises_an_error(folder, tmp_path):
    file = tmp_path / "wrong.txt"
    file.write_text("the O O\ncat O O\n")
    with pytest.raises(DataError, match=r"has no tag but 'O'"):
        started(folder, file)


def test_validation_tags_unknown_in_training_are_counted(folder, tmp_path):
    (tmp_path / "valid.txt").write_text("bob I-MISC\n")
    file = tmp_path / "train.txt"
    file.write_text(TRAINING)
    made = started(folder, file, valid=tmp_path / "valid.txt")
    assert any("tag 'B-MISC', which the training data lacks: 1" in n for n in made.task.notes())
    assert made.task.validate() == {"f1": 0.0, "precision": 0.0, "recall": 0.0}


# ---- crf tagging

LINES = [line.split() for line in every_task.lines(12)]


@pytest.fixture
def task():
    torch.manual_seed(1)
    made = every_task.encoder("crf-tagging")
    with torch.no_grad():
        made.module.head("crf").output.weight.mul_(20)  # many of the best tags would be ill-formed
        for parameter in made.crf.parameters():
            parameter.normal_()
    return made


def test_predicted_entities_are_well_formed_and_tags_have_their_probability(task):
    for one in task.predict(LINES, return_proba=True):
        assert len(spans(one.tags)) == len(one.entities)
        before = "O"
        for tag in one.tags:
            assert not tag.startswith("I-") or before[2:] == tag[2:]
            before = tag
        assert all(0 < share <= 1 + 1e-4 for share in one.probabilities)


def test_the_tags_of_a_sentence_are_the_best_sequence_of_its_scores(task):
    """With the scores of the encoder, by enumeration of four words."""
    crf: CRF = task.crf
    words = "the old cat sat".split()
    (found,) = task.predict([words], return_proba=True)
    windows = WordWindows.of([words], task.input_format)
    ((_, read),) = task.passes(windows.inputs, [0])
    scores = read[0, windows.positions.ids].double()  # (4, O)
    best, labels = None, task.labels
    for path in torch.cartesian_prod(*[torch.arange(3)] * 4).tolist():
        tags = [labels[n] for n in path]
        steps = zip(["O", *tags], tags, strict=False)
        if any(tag.startswith("I-") and before[2:] != tag[2:] for before, tag in steps):
            continue
        value = (crf.start[path[0]] + crf.end[path[-1]]).item()
        value += sum(float(scores[n, tag]) for n, tag in enumerate(path))
        value += sum(crf.transitions[a, b].item() for a, b in zip(path, path[1:], strict=False))
        best = max(best or (value, tags), (value, tags))
    assert best is not None and list(found.tags) == best[1]
