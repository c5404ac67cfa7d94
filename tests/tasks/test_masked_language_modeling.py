"""BERT's pre-training: losses beside `transformers`, what is stored, and resuming."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import pytest
import torch
from recipe_files import planned, with_documents
from transformers import BertForPreTraining

import regard
from regard.data.batches import IGNORE
from regard.data.corpus import build_corpus, encode_corpus, read_documents
from regard.data.pretraining import MaskVocabulary
from regard.experiments import runs
from regard.experiments.training_plan import build_tokenizer
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.tasks import batching
from regard.tasks.masked_language_modeling import MaskedData, MaskedLanguageModel

WORDS = "the old cat sat on a warm mat and was sleeping in the sun".split()
RECIPE = dict(
    task="masked-language-modeling",
    data=dict(train=["text.txt"], valid=0.1, max_length=32, batch_size=4, sentence_pairs=True),
    tokenizer=dict(kind="wordpiece", vocab_size=90),
    model=dict(name="bert", d_model=16, d_ff=32, heads=2, layers=2, max_length=40),
    training=dict(max_steps=3),
)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with documents and a recipe."""
    draw = random.Random(1)
    documents = [
        " ".join(
            " ".join(draw.choices(WORDS, k=draw.randint(2, 9))) + "." for _ in range(4)
        ).replace(". ", ".\n", 1)
        for _ in range(40)
    ]
    return with_documents(tmp_path, monkeypatch, documents, "bert.toml", RECIPE)


@pytest.mark.parametrize("share", [0.15, 1.0])
@pytest.mark.parametrize("training", [False, True])
def test_losses_and_gradients_are_those_of_transformers(here, monkeypatch, training, share):
    monkeypatch.setattr(batching, "MIN_PADDING", 1)  # in training, batches without padding
    no_dropout = dict(model=dict(dropout=0.0, attention_dropout=0.0))
    task = planned("r.toml", RECIPE, no_dropout, dict(data=dict(mlm_probability=share))).task
    runs.save(task, here / "saved")
    other = BertForPreTraining.from_pretrained(here / "saved", attn_implementation="eager")
    other.train(training)
    task.module.train(training)
    batches = iter(task.train_batches())
    for _ in range(3):
        batch = next(batches)
        found, _ = task.losses(batch)
        (nats, tokens), (pair_nats, pairs) = found["loss"], found["next_sentence"]
        assert task.counts(batch) == {"loss": tokens, "next_sentence": pairs}
        loss = nats / tokens + pair_nats / pairs
        wanted = other(
            input_ids=batch.texts.ids,
            attention_mask=batch.texts.keep.long(),
            token_type_ids=batch.texts.segments,
            labels=batch.labels,
            next_sentence_label=batch.follows,
        ).loss
        torch.testing.assert_close(loss, wanted, rtol=1e-5, atol=1e-5)
        task.module.zero_grad()
        other.zero_grad()
        loss.backward()
        wanted.backward()
        ours = task.module.encoder.word_tables[0].weight.grad
        theirs = other.bert.embeddings.word_embeddings.weight.grad
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_run_is_a_published_folder_that_fills(here):
    trained = regard.train("bert.toml", progress=False)
    folder, result = trained.folder, trained.result
    names = {"loss", "accuracy", "masked_lm", "next_sentence", "next_sentence_accuracy"}
    assert result.scores.keys() == names
    both = result.scores["masked_lm"] + result.scores["next_sentence"]
    assert result.scores["loss"] == pytest.approx(both)
    task = regard.load(folder)
    assert isinstance(task, MaskedLanguageModel) and [*task.module.heads] == [
        "masked_lm",
        "next_sentence",
    ]
    assert "[MASK]" not in task.fill("the old [MASK] sat.").text
    pairs = regard.load(folder, task="next-sentence")
    assert 0 < pairs.follows("the cat sat.", "a mat was warm.") < 1


@pytest.mark.parametrize("name", "bert roberta mpnet distilbert albert electra bigbird".split())
def test_every_family_with_a_head_for_masks_learns_without_pairs(here, name):
    data = dict(sentence_pairs=None, whole_words=True)
    task = planned("r.toml", RECIPE, dict(data=data, model=dict(name=name))).task
    assert task.validate().keys() == {"loss", "accuracy"} and task.validate() == task.validate()
    batch = next(iter(task.train_batches()))
    assert batch.follows is None and batch.count == int((batch.labels != IGNORE).sum())
    found, _ = task.losses(batch)
    found["loss"][0].backward()
    assert all(w.grad is not None for n, w in task.module.named_parameters() if "head" in n)


def test_a_corpus_in_a_folder_gives_the_same_texts(here):
    plan = planned("r.toml", RECIPE)
    in_memory = [batch.texts.ids for batch in plan.task.masked_texts["train"].epoch(1)]
    plan.task.tokenizer.save(here / "tokenizer")
    tokenizer = build_tokenizer(plan.recipe)
    build_corpus(read_documents("text.txt"), tokenizer, here / "corpus", structure=True)
    corpus = dict(data=dict(train=["corpus"]), tokenizer=dict(path="corpus"))
    again = planned("r.toml", RECIPE, dict(tokenizer=None), corpus).task
    found = [batch.texts.ids for batch in again.masked_texts["train"].epoch(1)]
    assert len(found) == len(in_memory)
    assert all(torch.equal(a, b) for a, b in zip(found, in_memory, strict=True))


def test_an_encoder_goes_on_from_its_folder_with_its_heads(here):
    folder = regard.train("bert.toml", progress=False).folder
    started = dict(tokenizer=None, model=dict(path=f"{folder}/model"))
    task = planned("more.toml", {**RECIPE, **started}).task
    assert isinstance(task.module, EncoderWithHeads)
    before = regard.load(folder).module.state_dict()
    assert all(torch.equal(before[name], now) for name, now in task.module.state_dict().items())


def test_test_data_are_scored_as_transformers_scores_their_masks(here):
    (here / "test.txt").write_text("The old cat sat.\n\nA warm mat was in the sun. " * 9)
    run = regard.train("bert.toml", test=["test.txt"], max_steps=20, progress=False)
    task, data = run.model, read_documents(["test.txt"])
    published = BertForPreTraining.from_pretrained(run.folder / "model").eval().double()
    rows = task._rows(
        encode_corpus(data, task.tokenizer), MaskedData(train=("text.txt",), max_length=32), 0
    )
    nats, right, count = 0.0, 0, 0
    for batch in task._texts(rows, MaskVocabulary.of(task.tokenizer, False), 0.15, 0).epoch(0):
        for row, labels in enumerate(batch.labels):
            ids = batch.texts.ids[row, : batch.texts.lengths[row]]
            with torch.no_grad():
                scores = published(input_ids=ids[None]).prediction_logits[0]
            for at in (labels != IGNORE).nonzero()[:, 0].tolist():
                nats -= float(scores[at].log_softmax(-1)[labels[at]])
                right, count = right + int(scores[at].argmax() == labels[at]), count + 1
    assert count > 8
    wanted = {"masked accuracy": right / count, "masked perplexity": math.exp(nats / count)}
    assert run.test_scores == pytest.approx(wanted, rel=1e-5)
    assert json.loads((run.folder / "result.json").read_text())["test_scores"] == run.test_scores


@pytest.mark.parametrize("pairs", [True, False])
def test_segabert_finds_its_sentences_in_the_text_without_masks(here, pairs):
    data = dict(sentence_pairs=pairs, mlm_probability=0.6)
    plan = planned("r.toml", RECIPE, dict(data=data, model=dict(name="segabert")))
    task, masked = plan.task, 0
    (dot,) = task.tokenizer.encode(".").ids
    for batch in task.train_batches().data.epoch(0):
        plain = torch.where(batch.labels != IGNORE, batch.labels, batch.texts.ids)
        masked += int(((batch.labels == dot) & (batch.texts.ids != dot)).sum())
        wanted = task.module.encoder.complete(replace(batch.texts, ids=plain), task.tokenizer)
        found = task.completed(batch)
        assert torch.equal(found.texts.ids, batch.texts.ids)
        for name, indices in wanted.extras.items():
            assert torch.equal(found.texts.extras[name], indices), name
        assert set(wanted.extras) == set(found.texts.extras) != set()
    assert masked  # ends of sentences, which the masked text does not show
    assert task.validate()["loss"] > 0
