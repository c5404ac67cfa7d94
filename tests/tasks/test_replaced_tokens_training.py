"""ELECTRA's pre-training: losses beside `transformers`, what is drawn, stored and resumed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import regard
from regard.data.batches import IGNORE
from regard.errors import ConfigError
from regard.experiments import runs
from regard.recipe import read
from regard.tasks.masked_language_modeling import MaskedLanguageModel
from regard.tasks.replaced_tokens import ReplacedTokenDetector
from regard.training.callbacks import Callback

WORDS = "the old cat sat on a warm mat and was sleeping in the sun".split()
RECIPE = """
task = "replaced-tokens"
[data]
train = ["text.txt"]
valid = 0.1
max_length = 32
batch_size = 4
[tokenizer]
kind = "wordpiece"
vocab_size = 90
[model]
name = "electra"
d_model = 16
d_embedding = 12
d_ff = 32
heads = 4
layers = 2
max_length = 40
[objective]
generator_size = 0.5
[training]
max_steps = 4
"""
DROPOUT = ("[model]\n", "[model]\ndropout = 0.0\nattention_dropout = 0.0\n")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with documents and a recipe."""
    draw = random.Random(1)
    documents = [
        " ".join(" ".join(draw.choices(WORDS, k=draw.randint(2, 9))) + "." for _ in range(count))
        for count in [4, 1, 3] * 15
    ]
    (tmp_path / "text.txt").write_text("\n\n".join(documents))
    (tmp_path / "electra.toml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def planned(path: Path, *changes: tuple[str, str]):
    text = path.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    return runs.plan(runs.read_recipe(path))


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
    task = planned(here / "electra.toml", DROPOUT).task
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
    task, drawn, kept = planned(here / "electra.toml").task, 0, 0
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
    model = planned(here / "electra.toml").task.module.eval()
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
    task = planned(here / "electra.toml").task
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
    assert scores["recall"] == pytest.approx(float(judged[targets].double().mean()))
    precision = float(targets[judged].double().mean()) if judged.any() else 0.0
    assert scores["precision"] == pytest.approx(precision)


def test_a_run_has_both_models_with_common_embeddings_and_is_fine_tuned(here):
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
    (here / "classes.tsv").write_text("the cat\tyes\nthe sun\tno\n" * 8)
    run = regard.train(
        task="classification", model=str(Path(folder) / "model"), train="classes.tsv",
        valid="classes.tsv", max_steps=2, progress=False,
    )  # fmt: skip
    assert run.model.predict("the cat") in ("yes", "no")
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


class Stop(Callback):
    """Stops a training after three steps."""

    def on_step(self, step) -> None:
        if step.number == 3:
            raise KeyboardInterrupt


def test_a_resumed_run_equals_one_that_never_stopped(here):
    changes = [
        "training.max_steps=6",
        "training.validation.eval_steps=2",
        "training.checkpoints.save_steps=1",
    ]
    trained = runs.train_recipe(read("electra.toml", changes), out="whole", progress=False)
    whole, result = trained.folder, trained.result
    with pytest.raises(KeyboardInterrupt):
        runs.train_recipe(
            read("electra.toml", changes), out="cut", progress=False, callbacks=[Stop()]
        )
    resumed = regard.resume("cut", progress=False).result
    assert resumed.scores == result.scores
    for name in ("model", "generator"):
        ours, theirs = (regard.load(Path(run) / name).module.state_dict() for run in (whole, "cut"))
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_training_learns_which_tokens_do_not_belong(here):
    draw = random.Random(2)
    documents = [f"{draw.choice('abcdefgh')} " * 40 for _ in range(60)]
    (here / "text.txt").write_text("\n\n".join(documents))
    optimizer = (
        'max_steps = 300\nvalidation.eval_steps = 300\n[training.schedule]\nname = "constant"\n'
        '[training.optimizer]\nname = "adam"\nlearning_rate = 0.004'
    )
    changed = RECIPE.replace("max_steps = 4", optimizer).replace("batch_size = 4", "batch_size = 8")
    changed = changed.replace("generator_size = 0.5", "generator_size = 0.25")
    (here / "electra.toml").write_text(changed.replace(*DROPOUT))
    result = regard.train("electra.toml", progress=False).result
    # Who knows nothing calls no token replaced, and has the entropy of their share, about 0.35.
    scores = result.scores
    assert scores["recall"] > 0.2 and scores["precision"] > 0.7 and scores["discriminator"] < 0.25


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("generator_size = 0.5", "generator_size = 0.7"), "do not divide it"),
        (('name = "electra"\n', 'name = "bert"\n'), "cannot train this model"),
        (("max_length = 32\n", "max_length = 32\nsentence_pairs = true\n"), "sentence_pairs"),
        (("generator_size = 0.5", "weight = 0.0"), "weight"),
    ],
)
def test_recipes_that_cannot_be_trained_raise_errors(here, change, message):
    with pytest.raises(ConfigError, match=message):
        planned(here / "electra.toml", change)
