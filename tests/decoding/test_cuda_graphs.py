"""Replayed steps against the model's own: a recording on the CPU stands for the one of a GPU."""

from __future__ import annotations

import copy
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path

import pytest
import recording
import torch
from random_weights import new_model, randomized

import regard
from regard.attention.cache import KeyValueCache
from regard.attention.masks import Padding
from regard.attention.pruning import heads_masked
from regard.data.batches import Sequences
from regard.decoding import (
    Beam,
    Greedy,
    Sampling,
    TopK,
    cuda_graphs,
)
from regard.decoding.steps import evaluating, start
from regard.models.wrappers import generator
from regard.ops import KeyMask

sys.path.append(str(Path(__file__).parents[1] / "models"))
from test_registry import CASES, build, ids, name_of, reads_source, start_decoding  # noqa: E402

CLOSE = dict(atol=1e-5, rtol=1e-5)
WORDS = 31


def padding(lengths, width):
    """`KeyMask.padding` as on a GPU, which is not asked whether there is any."""
    return KeyMask((torch.arange(width) < lengths[:, None])[:, None, None, :])


@pytest.fixture
def replays(monkeypatch, no_kernels):
    """Steps are recorded and replayed on the CPU; counts the replays by rows and tokens."""
    counts = []

    def recorded(run, device):
        start, scores, left = recording.recorded(run)
        counts.append("recorded")
        return lambda: (counts.append(tuple(scores.shape[:2])), start()), scores, left

    monkeypatch.setattr(cuda_graphs, "DEVICES", ("cpu",))
    monkeypatch.setattr(cuda_graphs, "OWN", 1)  # the second step of a shape is recorded
    monkeypatch.setattr(cuda_graphs, "recorded", recorded)
    # What a CPU reads, a GPU is not asked for.
    monkeypatch.setattr(Padding, "trivial", lambda mask, keys: False)
    monkeypatch.setattr(KeyMask, "padding", padding)
    monkeypatch.setattr(KeyMask, "idle", property(lambda a: None if a.grid is None or a.is_causal
                                                  else ~a.grid.any(-1, keepdim=True)))  # fmt: skip
    return counts


@contextmanager
def plain_steps(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(cuda_graphs, "DEVICES", ())
        yield


def gpt2(length=200, **changes):
    torch.manual_seed(4)
    small = dict(d_model=16, heads=2, layers=2, max_length=length)
    return randomized(new_model("gpt2", WORDS, bos=1, eos=2, **small | changes), 0.3).eval()


def transformer():
    torch.manual_seed(5)
    small = dict(d_model=16, d_ff=32, heads=2, encoder_layers=1, decoder_layers=2)
    return randomized(new_model("transformer", WORDS, **small), 0.3).eval()


def stepped(model, state, tokens):
    """Scores of steps, and the last state."""
    said = []
    for token in tokens.split(1, 1):
        scores, state = cuda_graphs.Graphed(model).step(token, state)
        said.append(scores)
    return torch.cat(said, 1), state


def assert_same_as_plain(model, start, tokens, monkeypatch):
    found = stepped(model, start(), tokens)[0]
    with plain_steps(monkeypatch):
        wanted = stepped(model, start(), tokens)[0]
    torch.testing.assert_close(found, wanted, **CLOSE)


# A memory of Transformer-XL moves with every segment; an embedding that is cut into clusters looks
# for the tokens of each.
NOT_RECORDED = [
    case
    for case in CASES
    if case[0]
    in (
        "transformer-xl",
        "sega-transformer-xl",
        "compressive-transformer",
    )
    or case == ("adaptive-transformer", 0)
]


# Of each model the first of its configurations
RECORDED = [case for case in CASES if case not in NOT_RECORDED and case[1] == 0]


@pytest.fixture(params=RECORDED, ids=name_of)
def model(request):
    return build(request.param)


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


# ---- every decoder -----------------------------------------------------------------------------


@pytest.mark.slow("regard/decoding/cuda_graphs.py", "regard/models", "regard/attention")
def test_replayed_steps_give_the_scores_of_plain_ones(model, replays, monkeypatch):
    tokens = ids(3, 12)
    assert_same_as_plain(model, lambda: start_decoding(model)[0], tokens, monkeypatch)
    own = 1  # the first
    joined = (
        reads_source(model)
        and model.joins_source
        and isinstance(model.decoder.empty(1), KeyValueCache)
    )
    own += joined  # its cache has positions of the source, too, and grows beyond 16
    assert len([one for one in replays if one != "recorded"]) == 12 - own
    assert {one[0] for one in replays if one != "recorded"} == {4}  # three rows, and one idle


@pytest.mark.parametrize("case", NOT_RECORDED, ids=name_of)
def test_steps_that_cannot_be_recorded_are_the_models_own(case, replays, monkeypatch):
    model = build(case)
    with pytest.warns(UserWarning, match="cannot be recorded as CUDA graphs"):
        assert_same_as_plain(model, lambda: start_decoding(model)[0], ids(3, 5), monkeypatch)
    assert not replays


@pytest.mark.slow("regard/decoding/cuda_graphs.py", "regard/models", "regard/attention")
def test_replayed_steps_take_sequences_of_different_lengths(model, replays, monkeypatch):
    if reads_source(model):
        pytest.skip("its rows have the same length")
    prompts = Sequences.of([[4, 5, 6, 7], [8], [9, 10]], 0)
    assert_same_as_plain(model, lambda: start(model, prompts)[0], ids(3, 8), monkeypatch)
    assert len(replays) > 6


@pytest.mark.slow("regard/decoding/cuda_graphs.py", "regard/models", "regard/attention")
@pytest.mark.parametrize("orders", [
    [(2, 0, 1), (0, 0, 1), (1, 1, 1), (0, 2), (1,)],  # a search that reorders, and rows that end
    [(0, 0, 1, 1, 2, 2), (1, 0, 3, 2, 5, 5), (0, 1, 4, 5), (3, 2, 1, 1)],  # and beams of sentences
], ids=str)  # fmt: skip
def test_replayed_steps_take_selected_states(model, replays, monkeypatch, orders):
    def said():
        state, found = start_decoding(model)[0], []
        for rows in [None, *orders, None]:
            if rows is not None:
                state = state.select(torch.tensor(rows))
            scores, state = stepped(model, state, ids(state.rows, 2, seed=7))
            found.append(scores)
        return found

    for _ in range(2):  # the second time all is recorded
        replayed = said()
    with plain_steps(monkeypatch):
        wanted = said()
    for one, other in zip(replayed, wanted, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)
    assert len(replays) > 6


# ---- methods of decoding -----------------------------------------------------------------------

PROMPTS = [[3, 4, 5, 6, 3, 4], [7], [8, 9, 10]]
METHODS = {
    "greedy": Greedy(max_tokens=60),
    "beam": Beam(size=3, n_best=2, max_tokens=40),
    "sampling": Sampling((TopK(8),), samples=2, max_tokens=40),
}


@pytest.mark.parametrize("build", [gpt2, transformer])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_finds_the_same_with_replayed_steps(replays, monkeypatch, build, name):
    model, method, source = build(), METHODS[name], Sequences.of(PROMPTS, 0)
    found = [method.run(generator(model), source) for _ in range(2)]
    with plain_steps(monkeypatch):
        wanted = method.run(generator(model), source)
    for one in found:
        for hypotheses, others in zip(one, wanted, strict=True):
            assert [h.tokens for h in hypotheses] == [h.tokens for h in others]
            for h, other in zip(hypotheses, others, strict=True):
                assert h.score == pytest.approx(other.score, abs=1e-4)
    assert len(replays) > 20


# ---- buffers -----------------------------------------------------------------------------------


def test_the_buffers_of_a_training_model_are_freed_after_decoding(replays):
    model, source = gpt2().train(), Sequences.of(PROMPTS, 0)
    with evaluating(generator(model)):
        METHODS["greedy"].run(generator(model), source)
        assert cuda_graphs._replays[model].buffers
    assert model.training and not cuda_graphs._replays[model].buffers


def test_changed_weights_are_replayed_and_moved_ones_recorded_again(replays, monkeypatch):
    model, source, tokens = gpt2(), Sequences.of([[3, 4], [5]], 0), ids(2, 5)

    def compared():
        assert_same_as_plain(model, lambda: start(model, source)[0], tokens, monkeypatch)

    compared()
    model.blocks[0].feed.inner.weight.mul_(2)
    compared()
    assert replays.count("recorded") == 1
    model.double().float()
    compared()
    assert replays.count("recorded") == 2
    other = copy.deepcopy(model)
    other.blocks[0].feed.inner.weight.mul_(2)
    assert_same_as_plain(other, lambda: start(other, source)[0], tokens, monkeypatch)


# ---- what is not replayed ----------------------------------------------------------------------


def test_capture_gating_gradients_autocast_and_training_use_the_plain_step(replays):
    model = gpt2()
    state, tokens = start(model, Sequences.of([[3, 4], [5]], 0))[0], ids(2, 20)

    def steps(fed=tokens[:, :1]):
        for _ in range(3):
            cuda_graphs.Graphed(model).step(fed, state.copy())

    with regard.look(model), warnings.catch_warnings():
        steps()
    with heads_masked(model, {1: [2]}):
        steps()
    with torch.enable_grad():
        steps()
    with torch.autocast("cpu", torch.bfloat16):
        steps()
    model.train()
    steps()
    model.eval()
    steps(tokens)
    assert not replays
    steps()
    assert replays


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")
@pytest.mark.parametrize("build", [gpt2, transformer])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_finds_the_same_on_a_gpu(monkeypatch, build, name):
    model, method = build().cuda(), METHODS[name]
    source = Sequences.of(PROMPTS, 0).to("cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = [method.run(generator(model), source) for _ in range(2)]
    with plain_steps(monkeypatch):
        wanted = method.run(generator(model), source)
    assert cuda_graphs._replays[model].buffers
    for one in found:
        assert [[h.tokens for h in row] for row in one] == [[h.tokens for h in r] for r in wanted]
