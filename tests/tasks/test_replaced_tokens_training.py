"""ELECTRA's pre-training: losses beside `transformers`, what is drawn, stored and resumed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from recipe_files import planned, with_documents
from tiny_runs import assert_resumes
from torch.nn import functional as F

import regard
from regard.data.batches import IGNORE
from regard.errors import ConfigError
from regard.experiments import runs
from regard.tasks.masked_language_modeling import MaskedLanguageModel
from regard.tasks.replaced_tokens import ReplacedTokenDetector

WORDS = "the old cat sat on a warm mat and was sleeping in the sun".split()
RECIPE = dict(
    task="replaced-tokens",
    data=dict(train=["text.txt"], valid=0.1, max_length=32, batch_size=4),
    tokenizer=dict(kind="wordpiece", vocab_size=90),
    model=dict(
        name="electra", d_model=16, d_embedding=12, d_ff=32, heads=4, layers=2, max_length=40
    ),
    objective=dict(generator_size=0.5),
    training=dict(max_steps=4),
)
NO_DROPOUT = dict(model=dict(dropout=0.0, attention_dropout=0.0))


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with documents and a recipe."""
    draw = random.Random(1)
    documents = [
        " ".join(" ".join(draw.choices(WORDS, k=draw.randint(2, 9))) + "." for _ in range(count))
        for count in [4, 1, 3] * 15
    ]
    return with_documents(tmp_path, monkeypatch, documents, "electra.toml", RECIPE)


def published(task, folder: Path):
    """The discriminator and the generator in `transformers`, with common embeddings."""
    transformers = pytest.importorskip("transformers")
    runs.save(task, folder / "model")
    runs.save(task.companions()["generator"], folder / "generator")
    eager = {"attn_implementation": "eager"}
    found = transformers.ElectraForPreTraining.from_pretrained(folder / "model", **eager)
    generator = transformers.ElectraForMaskedLM.from_pretrained(folder / "generator", **eager)
    torch.testing.assert_close(
        generator.electra.embeddings.state_dict(), found.electra.embeddings.state_dict()
    )
    generator.electra.embeddings = found.electra.embeddings
    generator.tie_weights()
    return found, generator


@pytest.mark.parametrize("training", [False, True])
def test_losses_and_gradients_are_those_of_transformers(here, training):
    task = planned("r.toml", RECIPE, NO_DROPOUT).task
    other, generator = published(task, here / "saved")
    for model in (task.module, other, generator):
        model.train(training)
    batches = iter(task.train_batches())
    for seed in range(4):
        batch = next(batches)
        torch.manual_seed(seed)
        made = task.corrupted(batch)
        torch.manual_seed(seed)
        found, _ = task.losses(batch)
        assert task.counts(batch) == {name: count for name, (_, count) in found.items()}
        keep, chosen = batch.texts.keep, batch.labels != IGNORE
        masked = batch.texts.ids.masked_fill(chosen, task.tokenizer.mask_id)
        given = dict(attention_mask=keep.long(), token_type_ids=batch.texts.segments)
        generated = generator(input_ids=masked, labels=batch.labels, **given).loss
        judged = other(input_ids=made.texts.ids, labels=made.replaced.long(), **given).loss
        wanted = generated + 50 * judged
        loss = sum(total / count for total, count in found.values())
        torch.testing.assert_close(loss, wanted, rtol=1e-5, atol=1e-4)
        for model in (task.module, other, generator):
            model.zero_grad()
        loss.backward()
        wanted.backward()
        ours = task.module.encoder.embedding.weight.grad
        theirs = other.electra.embeddings.word_embeddings.weight.grad
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
        ours = task.module.generator.encoder.project.weight.grad
        theirs = generator.electra.embeddings_project.weight.grad
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_only_chosen_tokens_change_and_a_drawn_original_is_not_replaced(here):
    task, drawn, kept = planned("r.toml", RECIPE).task, 0, 0
    with torch.no_grad():  # the generator becomes good enough to draw originals
        head = task.module.generator.heads["masked_lm"].softmax
        head.bias[torch.tensor(task.tokenizer.encode("the").ids)] = 6.0
    read = []
    task.module.generator.encoder.register_forward_pre_hook(lambda *given: read.append(given))
    for batch in (next(iter(task.train_batches())) for _ in range(5)):
        made = task.corrupted(batch)
        chosen = batch.labels != IGNORE
        original = torch.where(chosen, batch.labels, batch.texts.ids)
        assert torch.equal(made.texts.ids[~chosen], batch.texts.ids[~chosen])
        assert torch.equal(made.replaced, made.texts.ids != original)
        drawn, kept = drawn + int(chosen.sum()), kept + int((chosen & ~made.replaced).sum())
    assert 0 < kept < drawn


def test_tokens_are_drawn_by_the_probabilities_of_the_generator(here):
    model = planned("r.toml", RECIPE).task.module.eval()
    states = torch.randn(3, model.generator.config.d_model) * 3
    with torch.no_grad():
        head = model.generator.heads["masked_lm"]
        head.softmax.bias.normal_()
        wanted = head.logits(states).double().softmax(-1)
    count = 40_000
    drawn = model.draw(states.repeat_interleave(count, 0)).unflatten(0, (3, count))
    for row, shares in zip(drawn, wanted, strict=True):
        found = torch.bincount(row, minlength=len(shares)) / count
        deviation = (shares * (1 - shares) / count).sqrt()
        assert ((found - shares).abs() < 5 * deviation + 1 / count).all()


def test_scores_of_validation_are_those_of_the_definition(here):
    task = planned("r.toml", RECIPE).task
    scores = task.validate()
    assert scores == task.validate()
    task.module.eval()
    random, rows = torch.Generator().manual_seed(0), []
    with torch.no_grad():
        for batch in task._masked("valid").epoch(0):
            made = task.corrupted(batch, random)
            hidden = task.module.encoder.encode(made.texts)
            logits = task.module.scores_from("replaced", hidden)[..., 0].double()
            keep = made.texts.keep
            rows += zip(logits[keep].tolist(), made.replaced[keep].tolist(), strict=True)
    logits, targets = map(torch.tensor, zip(*rows, strict=True))
    wanted = F.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype))
    assert scores["discriminator"] == pytest.approx(float(wanted), rel=1e-5)
    assert scores["loss"] == pytest.approx(scores["generator"] + 50 * float(wanted), rel=1e-5)
    judged = logits > 0
    assert scores["accuracy"] == pytest.approx(float((judged == targets).double().mean()))


def test_a_run_has_both_models_with_common_embeddings_and_is_trained_further(here):
    folder = regard.train("electra.toml", progress=False).folder
    task, generator = (regard.load(Path(folder) / name) for name in ("model", "generator"))
    assert isinstance(task, ReplacedTokenDetector) and isinstance(generator, MaskedLanguageModel)
    assert "[MASK]" not in generator.fill("the old [MASK] sat.").text
    for name in ("embedding", "positions", "segments", "norm"):
        ours = getattr(task.module.encoder, name).state_dict()
        theirs = getattr(generator.module.encoder, name).state_dict()
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)
    assert task.predict(["the cat sat"], return_proba=True)[0].words == ("the", "cat", "sat")
    assert task.companions() == {}
    again = regard.train(
        task="replaced-tokens", model=str(Path(folder) / "model"), train=["text.txt"],
        valid=0.1, max_steps=1, max_length=16, progress=False, out="again",
    )  # fmt: skip
    assert again.scores
    with pytest.raises(ConfigError, match=r"model.lora.*would freeze the generator"):
        regard.train(
            task="replaced-tokens", model=dict(path=str(Path(folder) / "model"), lora=dict(rank=2)),
            train=["text.txt"], valid=0.1, max_steps=1, progress=False,
        )  # fmt: skip


def test_a_resumed_run_equals_one_that_never_stopped(here):
    every = dict(validation={"eval_steps": 2}, checkpoints={"save_steps": 1})
    run = assert_resumes(3, recipe="electra.toml", max_steps=6, progress=False, **every)
    assert (run.folder / "generator" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(objective=dict(generator_size=0.7)), "do not divide it"),
        (dict(model=dict(name="bert")), "cannot train this model"),
        (dict(data=dict(sentence_pairs=True)), "sentence_pairs"),
        (dict(objective=dict(weight=0.0)), "weight"),
    ],
)
def test_recipes_that_cannot_be_trained_raise_errors(here, change, message):
    with pytest.raises(ConfigError, match=message):
        planned("r.toml", RECIPE, change)
