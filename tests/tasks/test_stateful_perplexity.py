"""A text that is read in segments has the likelihood of a sequential reading."""

from __future__ import annotations

import json
import math
import random
import shutil
from decimal import Decimal, localcontext
from pathlib import Path

import pytest
import torch
from recipe_files import written
from torch import Tensor

import regard
from regard.checkpoints.store import read_folder
from regard.data.lm_streams import ParallelStreams
from regard.data.readers import open_table
from regard.data.token_arrays import TokenArray
from regard.errors import TextError, TextTooLong
from regard.experiments import runs
from regard.models.recurrent import RecurrentConfig, RecurrentLanguageModel
from regard.models.transformer_xl import TransformerXL, TransformerXLConfig
from regard.models.xlnet import Xlnet
from regard.tasks import stateful_perplexity
from regard.tasks.language_modeling import TextGenerator
from regard.tasks.permutation_language_modeling import PermutationLanguageModel
from regard.tasks.stateful_perplexity import (
    CacheState,
    NeuralCache,
    mixed_nats,
    sequential_likelihood,
    stateful_likelihood,
)
from regard.text import train

WORDS, LENGTH = 40, 8001


@pytest.fixture(scope="module")
def text():
    draw = torch.Generator().manual_seed(7)
    return TokenArray.of([torch.randint(WORDS, (LENGTH,), generator=draw).tolist()], LENGTH)


def model_of(cell, *, init_range=0.2, keep=0.0, gain=0.0):
    """keep: is added to the bias of the forget gate.  gain: of a recurrent matrix that expands."""
    torch.manual_seed(3)
    config = RecurrentConfig(WORDS, cell=cell, d_model=24, init_range=init_range)
    model = RecurrentLanguageModel(config).eval().requires_grad_(False)
    for layer in model.stack.layers:
        if keep:
            layer.input.bias[24:48] += keep
        if gain:
            layer.recurrent.weight.normal_(std=gain / math.sqrt(24))
    return model


def sequential(model, text):
    """In float64, one token at a time."""
    model = model.double()
    total, state = 0.0, None
    for batch in ParallelStreams(text, batch_size=1, sequence_length=500):
        output = model(batch.tokens, state)
        loss, _ = model.head.loss(output.hidden[0], batch.targets[0])
        total, state = total + float(loss), output.state
    model.float()
    return total


@pytest.fixture
def passes(monkeypatch):
    """The number of segments of each reading in segments."""
    found, read = [], stateful_perplexity._read_segments

    def counted(model, text, rows, overlap):
        found.append(rows)
        return read(model, text, rows, overlap)

    monkeypatch.setattr(stateful_perplexity, "_read_segments", counted)
    return found


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
def test_segments_give_the_likelihood_of_a_sequential_reading(cell, text, passes):
    model = model_of(cell)
    found = stateful_likelihood(model, text)
    assert found.count == LENGTH - 1
    assert found.nats == pytest.approx(sequential(model, text), rel=1e-7)
    assert passes == [found.segments] and found.segments >= 8 and found.overlap >= 64


@pytest.mark.parametrize(
    "options",
    [
        dict(cell="lstm", keep=12.0),  # nothing is ever forgotten
        dict(cell="rnn", gain=3.0),  # the slightest difference grows
        dict(cell="lstm", keep=4.5),  # slow
    ],
)
def test_a_model_whose_state_does_not_converge_reads_sequentially(options, text, passes):
    model = model_of(**options)
    found = stateful_likelihood(model, text)
    assert passes == [15, 7] and found.count == LENGTH - 1 and found.segments == 1
    if "gain" not in options:
        assert found.nats == pytest.approx(sequential(model, text), rel=1e-6)


def test_an_overlap_that_is_too_short_is_doubled(text, passes, monkeypatch):
    model = model_of("lstm", keep=1.0)
    monkeypatch.setattr(stateful_perplexity, "FIRST_OVERLAP", 8)
    found = stateful_likelihood(model, text)
    assert len(passes) > 1 and found.count == LENGTH - 1
    assert found.nats == pytest.approx(sequential(model, text), rel=1e-6)


@pytest.mark.parametrize("length", [2, 3, 100, 5000])
def test_texts_are_read_in_segments_only_if_they_are_long(length, passes):
    model = model_of("lstm")
    text = TokenArray.of([[i % WORDS for i in range(length)]], length)
    found = stateful_likelihood(model, text)
    assert found.count == length - 1
    assert found.nats == pytest.approx(sequential(model, text), rel=1e-6)
    assert bool(passes) == (length == 5000)


# ---- carried memory

STORY = "the cat sat on the mat and the dog ran to the old house by the sea".split()
SIZES = dict(d_model=8, d_ff=12, heads=2, layers=2, cutoffs=(8,), divisor=2)


def lines(count: int, seed: int = 1) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(STORY, k=draw.randint(3, 9))) for _ in range(count)]


@pytest.fixture(scope="module")
def tokenizer():
    return train("words", lines(40), 30)


def xl(tokenizer, **options) -> TextGenerator:
    torch.manual_seed(2)
    options = {"memory_length": 9, "target_length": 5, "eos": tokenizer.eos_id, **SIZES, **options}
    model = TransformerXL(TransformerXLConfig(tokenizer.vocab_size, **options))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return TextGenerator(model.eval(), tokenizer, format="lines")


@torch.no_grad()
def plain(model: TransformerXL, ids: list[int], target: int) -> float:
    """The likelihood of a text, segment by segment, from the logits of all words."""
    nats, state = 0.0, None
    for start in range(0, len(ids) - 1, target):
        segment = torch.tensor([ids[start : min(start + target, len(ids) - 1)]])
        targets = torch.tensor(ids[start + 1 : start + 1 + segment.size(1)])
        out = model(segment, state)
        said = model.head.logits(out.hidden)[0].double()
        nats, state = nats - float(said.gather(1, targets[:, None]).sum()), out.state.detach()
    return nats


@pytest.mark.parametrize("reading", [
    {}, dict(target_length=3), dict(memory_length=20), dict(memory_length=0), dict(max_distance=2),
    dict(target_length=4, memory_length=30, max_distance=6),
], ids=str)  # fmt: skip
def test_transformer_xl_is_evaluated_with_a_target_length_a_memory_and_a_clamp(tokenizer, reading):
    task, text = xl(tokenizer), lines(12, seed=7)
    found = task.evaluate(text, **reading).named[0]
    ids = [tokenizer.eos_id]
    for line in text:
        ids += [*tokenizer.encode(line).ids, tokenizer.eos_id]
    memory, clamp = reading.get("memory_length"), reading.get("max_distance")
    model = task.module.with_memory(memory, clamp)
    target = reading.get("target_length", 5)
    assert found.nats == pytest.approx(plain(model, ids, target), rel=1e-6)
    assert found.count == len(ids) - 1
    expected = f"target:{target}|memory:{9 if memory is None else memory}"
    expected += f"|max_distance:{clamp}" if clamp else ""
    assert f"|window:carried|{expected}|count" in found.signature
    assert task.module.config.memory_length == 9 and not task.module.training


def xlnet(tokenizer) -> TextGenerator:
    config = Xlnet.Config(tokenizer.vocab_size, d_model=8, d_ff=12, heads=2, layers=1)
    return PermutationLanguageModel(Xlnet(config).eval(), tokenizer, format="lines")


@pytest.mark.parametrize("make", [xl, xlnet])
def test_prompts_beyond_the_limit_of_a_model_without_a_context_are_named(
    tokenizer, make, monkeypatch
):
    task, short, long = make(tokenizer), "the cat", " ".join(STORY)
    monkeypatch.setattr(type(task.module), "longest", 6)
    with pytest.raises(TextTooLong, match=r"^Prompt 2 has 17 tokens, but .* context is 6"):
        task.generate([short, long], max_tokens=20)
    with pytest.raises(TextTooLong, match="Prompt 1 has 17 tokens"):
        next(task.stream(long))
    with pytest.raises(TextTooLong, match="Prompt 2 has 17 tokens"):  # as HTTP reads prompts
        task.fitted(task.prompt_ids([short, long]), "error", False, {"max_tokens": 20})
    assert task.over_limit([short, long]) == {1: 17} and task.token_limit() == 6
    with pytest.warns(UserWarning, match="cut to their last 6 tokens"):
        assert task.generate([long], max_tokens=2, too_long="truncate")
    assert task.lambada([f"{long} mat"])[0].signature.endswith("cut:1")
    assert task.log_likelihoods([long])[0] < 0  # in segments
    if isinstance(task, PermutationLanguageModel):
        with pytest.raises(TextError, match="Text 1 has 19 tokens"):
            task.pseudo_log_likelihoods([long])


# ---- the neural cache


def naive_cache(
    model: RecurrentLanguageModel, ids: list[int], cache: NeuralCache
) -> tuple[float, list[Tensor]]:
    """Equations 2 and 3 of Grave et al. 2017, word by word; also the distributions."""
    hidden = model(torch.tensor([ids[:-1]])).hidden[0]
    vocabulary = model.head.logits(hidden).softmax(-1)
    nats, all_said = 0.0, []
    for t in range(len(ids) - 1):
        pairs = [(i, ids[i + 1]) for i in range(max(0, t - cache.size), t)]
        said = vocabulary[t].clone()
        if pairs:
            scores = {i: math.exp(cache.theta * float(hidden[t] @ hidden[i])) for i, _ in pairs}
            total, share = sum(scores.values()), torch.zeros_like(said)
            for i, word in pairs:
                share[word] += scores[i] / total
            said = (1 - cache.weight) * said + cache.weight * share
        all_said.append(said)
        nats -= math.log(float(said[ids[t + 1]]))
    return nats, all_said


@pytest.mark.parametrize("steps", [1, 4, 100])
@pytest.mark.parametrize("cache", [
    NeuralCache(3, 0.7, 0.2), NeuralCache(50, 0.0, 0.5), NeuralCache(1), NeuralCache(7, 2.0, 0.0),
], ids=str)  # fmt: skip
@torch.no_grad()
def test_the_neural_cache_equals_its_formula(cache, steps):
    torch.manual_seed(0)
    config = RecurrentConfig(12, d_model=6, init_range=0.8)
    model = RecurrentLanguageModel(config).double().eval()
    ids = torch.randint(0, 12, (31,)).tolist()
    expected, said = naive_cache(model, ids, cache)
    assert all(float(one.sum()) == pytest.approx(1) for one in said)
    text = TokenArray.of([ids], len(ids))
    found = sequential_likelihood(model, text, steps, cache)
    assert found.count == 30 and found.nats == pytest.approx(expected, rel=1e-10)


def test_the_neural_cache_of_tokens_that_the_model_holds_to_be_impossible():
    """Against whole numbers of any size: -log((1 - w) e^-nats + w p_cache)."""
    cache, nats = NeuralCache(4, 0.5, 0.2), torch.tensor([3.0, 800.0, 5000.0, 900.0])
    hidden, targets = torch.zeros(4, 2), torch.tensor([5, 6, 7, 6])
    mixed, _ = mixed_nats(cache, CacheState.empty(hidden), hidden, targets, nats)
    with localcontext() as context:
        context.Emax, context.Emin = 10**6, -(10**6)
        for position, expected in enumerate([None, 0, 0, Decimal(1) / 3]):
            weight = Decimal("0.2") if expected is not None else Decimal(0)
            p = (1 - weight) * Decimal(-int(nats[position])).exp() + weight * (expected or 0)
            assert float(mixed[position]) == pytest.approx(float(-p.ln()), rel=1e-7)


# ---- training

RECIPE = dict(
    task="language-modeling",
    data=dict(
        train="train.txt", valid="valid.txt", test="valid.txt", batch_size=3, sequence_length=6,
    ),
    tokenizer=dict(kind="words", vocab_size=30),
    model=dict(
        name="transformer-xl", d_model=8, d_ff=12, heads=2, layers=2, cutoffs=[8], divisor=2,
        memory_length=10, dropout=0.2, target_length=6,
    ),
    evaluation=dict(memory_length=20),
    training=dict(
        max_steps=9, threads=1, logging_steps=1,
        validation=dict(eval_steps=4),
        checkpoints=dict(save_steps=5, save_total_limit=3),
    ),
)  # fmt: skip


# Of each model its further options, and what a checkpoint holds of its memory besides.
CARRIED = {
    "transformer-xl": ({}, set()),
    "sega-transformer-xl": (dict(sentence_ends=[9]), {"carry/segment_numbers", "carry/following"}),
    "compressive-transformer": (
        dict(compressed_length=4, compression_rate=3), {"carry/single"}
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=CARRIED)
def trained(request, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "train.txt").write_text("\n".join(lines(60)) + "\n")
    (folder / "valid.txt").write_text("\n".join(lines(8, seed=5)) + "\n")
    options = dict(name=request.param, **CARRIED[request.param][0])
    written(folder / "xl.toml", RECIPE, dict(model=options))
    torch.set_num_threads(1)
    runs.train(folder / "xl.toml", out=folder / "whole", progress=False)
    return folder


def test_training_carries_the_memory_and_resumes_exactly(trained):
    """From a checkpoint in the middle of the text the run ends as it did without a stop."""
    folder = Path(shutil.copytree(trained / "whole", trained / "part"))
    for lost in ("model", "result.json"):
        shutil.rmtree(folder / lost) if (folder / lost).is_dir() else (folder / lost).unlink()
    shutil.rmtree(max((folder / "checkpoints").iterdir()))
    newest = max((folder / "checkpoints").iterdir())
    tensors, facts = read_folder(newest)
    carried = {name: one for name, one in tensors["memory"].items() if name.startswith("carry/")}
    name = trained.name[:-1]  # without the number of the temporary folder
    assert {*carried} == {"carry/hidden", "carry/lengths"} | CARRIED[name][1]
    assert facts["counters"]["step"] == 8
    slots = 4 + 10 + 2 if name == "compressive-transformer" else 10
    assert carried["carry/hidden"].shape == (3, 2, slots, 8)
    runs.resume(folder, progress=False)
    files = [trained / name / "model" / "model.safetensors" for name in ("whole", "part")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_trained_model_is_saved_with_how_it_is_evaluated(trained):
    settings = json.loads((trained / "whole/model/config.json").read_text())
    assert settings["cutoffs"] == [8] and settings["regard"]["memory_length"] == 20
    task = regard.load(trained / "whole")
    found = task.evaluate(open_table(trained / "valid.txt")).named[0]
    assert "|target:6|memory:20|" in found.signature
    assert task.generate("the cat", max_tokens=30).startswith("the cat")
    assert task.embed(["the cat", "a dog"]).shape == (2, 8)
    with regard.look(task) as attention:
        task.generate("the cat sat", max_tokens=3)
    assert attention.plot(layer=2) is not None
