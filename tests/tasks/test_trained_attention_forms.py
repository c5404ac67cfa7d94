"""Every form of attention from a recipe: training, resuming, folders, decoding, capture."""

from __future__ import annotations

import random
import shutil

import pytest
import torch

import regard
from regard.data.batches import Sequences
from regard.decoding.beam import Beam
from regard.decoding.loop import Greedy, Sampling
from regard.errors import ConfigError
from regard.experiments import runs
from regard.models.wrappers import generator
from regard.training.metrics_log import read_events

RECIPE = """
task = "translation"
[data]
train = ["train.tsv"]
valid = ["valid.tsv"]
max_tokens_per_batch = 64
[tokenizer]
kind = "words"
vocab_size = 50
[model]
name = "lstm-seq2seq"
d_model = 8
layers = 1
dropout = 0.1
max_length = 20
{form}
[training]
max_steps = 4
threads = 1
logging_steps = 1
[training.validation]
eval_steps = 2
[training.checkpoints]
save_steps = 1
save_seconds = 0
save_total_limit = 9
{objective}
"""
FORMS = {
    "location": 'attention = "location"',
    "content-based": 'attention = "content-based"\nwindow = "local-m"\nhalf_width = 1',
    "local-p": 'attention = "additive"\nwindow = "local-p"\nhalf_width = 2',
    "hard": 'attention = "general"\nselection = "hard"',
    "hard-drawn": 'attention = "bilinear"\nselection = "hard-expected"\nchoice_seed = 4',
}
TEXTS = ["one two three", "four", "two two one four three", "three one"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder, draw = tmp_path_factory.mktemp("forms"), random.Random(1)
    lines = [" ".join(draw.choices("one two three four".split(), k=3)) for _ in range(24)]
    rows = [f"{line}\t{line.upper()}\n" for line in lines]
    (folder / "train.tsv").write_text("".join(rows))
    (folder / "valid.tsv").write_text("".join(rows[:4]))
    return folder


def recipe(folder, name, objective=""):
    path = folder / f"{name if name in FORMS else 'impossible'}.toml"
    path.write_text(RECIPE.format(form=FORMS.get(name, name), objective=objective))
    return path


@pytest.fixture(scope="module", params=FORMS)
def run(request, data):
    """The folder of a run with this form."""
    out = data / request.param
    runs.train(recipe(data, request.param), out=out, progress=False)
    return out


def test_a_resumed_training_is_exact_to_the_last_bit(run, tmp_path):
    """Resumed after the second step; the moving average of the reward goes on, too."""
    again = tmp_path / "again"
    shutil.copytree(run, again)
    for name in ("model", "checkpoints/step-000003", "checkpoints/step-000004"):
        shutil.rmtree(again / name)
    (again / "result.json").unlink()
    runs.resume(again, progress=False)
    for path in ("model/model.safetensors", "checkpoints/step-000004/memory.safetensors"):
        assert (again / path).read_bytes() == (run / path).read_bytes()
    names = ("step", "train/loss", "train/reinforce", "valid/loss")
    kept = [
        [{name: event[name] for name in names if name in event} for event in read_events(folder)]
        for folder in (run, again)
    ]
    assert kept[0] == kept[1] and ("train/reinforce" in kept[0][-2]) == (run.name == "hard")


def test_batched_and_single_texts_get_the_same_answers(run):
    task = regard.load(run)
    for options in ({"beams": 1}, {"beams": 3}, {"top_k": 4, "seed": 2}):
        together = task.hypotheses(TEXTS, max_tokens=6, **options)
        for text, found in zip(TEXTS, together, strict=True):
            (alone,) = task.hypotheses([text], max_tokens=6, **options)
            assert alone[0].tokens == found[0].tokens
            assert alone[0].log_prob == pytest.approx(found[0].log_prob, abs=1e-5)


@pytest.mark.parametrize("method", [Greedy(max_tokens=5), Beam(size=3, max_tokens=5), Sampling()])
def test_attention_is_captured_during_a_search_and_changes_nothing(run, method):
    task = regard.load(run)
    model, source = task.module, Sequences.of([[5, 6, 7, 2], [8, 2]], pad=0)
    expected = method.run(generator(model), source)
    with regard.look(task) as seen:
        found = method.run(generator(model), source)
    assert [[one.tokens for one in several] for several in found] == [
        [one.tokens for one in several] for several in expected
    ]
    (attention,) = seen.passes[0].attentions.values()
    assert attention.kind == "cross" and len(attention.parts) > 1
    for weights in attention.parts:
        total = weights.sum(-1)
        assert (total > 0).all() and (total < 1.001).all()
        if "hard" in run.name:
            assert ((weights == 0) | (weights == 1)).all()


def test_the_attention_of_a_translation_is_recorded_with_its_words(run):
    task = regard.load(run)
    with regard.look(task) as attention:
        texts = task.generate(["one two three"])
    (panel,) = attention.plot().panels
    assert len(panel.queries) >= len(texts[0].split()) and "one" in panel.keys


def test_a_hard_choice_of_a_search_is_that_of_the_full_pass(data):
    """Random numbers depend on the source and the step, not on how the steps were made."""
    out = data / "hard-again"
    runs.train(recipe(data, "hard-drawn"), out=out, progress=False)
    task = regard.load(out)
    model = task.module
    source, target = Sequences.of([[5, 6, 7, 2], [8, 2]], 0), torch.tensor([[1, 5, 6], [1, 7, 9]])
    with torch.no_grad():
        whole = model.head.logits(model(source, Sequences.full(target)).hidden)
        state = model.read(source).select(torch.tensor([1, 0, 0]))
        for t in range(3):
            scores, state = model.step(target[[1, 0, 0], t : t + 1], state)
            torch.testing.assert_close(scores[:, 0], whole[[1, 0, 0], t])


def test_options_of_reinforce_reach_the_training_and_need_hard_attention(data):
    out = data / "weighted"
    objective = "[objective]\nreinforce_weight = 0.0\nchoice_entropy_weight = 0.0"
    runs.train(recipe(data, "hard", objective), out=out, progress=False)
    logged = [event["train/reinforce"] for event in read_events(out) if "train/reinforce" in event]
    assert logged and not any(logged)
    with pytest.raises(ConfigError, match="`reinforce_weight`.*draws choices"):
        runs.train(recipe(data, "local-p", objective), out=data / "no", progress=False)
