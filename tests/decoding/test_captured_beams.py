"""What is recorded of a beam search: its tree, and the attention of its hypotheses."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from decoding_mocks import EOS, Recurrent, batch, next_log_probs, sources
from random_weights import new_model, randomized
from torch import Tensor

import regard
from regard.data.batches import Sequences
from regard.decoding import Beam, NoRepeatNGram
from regard.errors import ConfigError
from regard.models.seq2seq import SCORES
from regard.models.wrappers import GeneratorWrapper
from regard.state import State
from regard.visual.decoding import FINISHED, KEPT, PRUNED, WINNER, BeamTrace

WORDS = 17
SOURCES = [[5, 6, 7, 2], [8, 2], [9, 10, 11, 12, 13, 14, 2], [4, 15, 2]]


RECURRENT = dict(d_model=8, layers=2, dropout=0.2, max_length=20)
HARD = dict(RECURRENT, selection="hard")
MODELS = {
    **{score: ("lstm-seq2seq", dict(RECURRENT, attention=score)) for score in SCORES},
    "local-m": ("lstm-seq2seq", dict(RECURRENT, window="local-m", half_width=1)),
    "local-p": ("lstm-seq2seq", dict(RECURRENT, window="local-p", half_width=2)),
    "hard": ("lstm-seq2seq", HARD),
    "hard, drawn": ("lstm-seq2seq", dict(HARD, choice_seed=3)),
    "hard-expected": ("lstm-seq2seq", dict(HARD, selection="hard-expected")),
    "hard, drawn, local-m": (
        "lstm-seq2seq",
        dict(HARD, selection="hard-expected", choice_seed=3, window="local-m", half_width=2),
    ),
    "location, local-p": (
        "lstm-seq2seq", dict(RECURRENT, attention="location", window="local-p", half_width=2),
    ),
    "rnnsearch": ("rnnsearch", dict(d_model=8, d_embedding=6, d_score=5, d_maxout=7)),
    "conv-seq2seq": (
        "conv-seq2seq",
        dict(
            d_model=8, encoder=((3, 8),) * 2, decoder=((3, 8), (2, 6), (3, 8)), max_length=20,
        ),
    ),
    "transformer": (
        "transformer", dict(d_model=8, d_ff=16, heads=2, encoder_layers=1, decoder_layers=2),
    ),
}  # fmt: skip


def model_of(name):
    kind, options = MODELS[name]
    return new_model(kind, WORDS, **options)


@dataclass
class Followed(State):
    """A model's state, the tokens that each row has read (B, T), and the number of its sentence."""

    inner: State
    read: Tensor
    sentence: Tensor


class Following(GeneratorWrapper):
    """A model whose captured attention is kept by sentence and prefix."""

    def __init__(self, model, record):
        super().__init__(model)
        self.record, self.kept, self.rows, self.orders = record, {}, {}, 0

    def read(self, source):
        count = len(source)
        nothing = torch.zeros(count, 0, dtype=torch.long)
        return Followed(self.model.read(source), nothing, torch.arange(count))

    def step(self, tokens, state):
        state.consume()
        for one in self.record.passes:
            one.attentions.clear()
        scores, inner = self.model.step(tokens, state.inner)
        read = torch.cat([state.read, tokens], 1)
        found = {n: a.weights for one in self.record.passes for n, a in one.attentions.items()}
        for row, (sentence, prefix) in enumerate(
            zip(state.sentence.tolist(), read.tolist(), strict=True)
        ):
            key = sentence, tuple(prefix)
            self.kept[key] = {name: weights[row] for name, weights in found.items()}
            self.rows[key] = row
        return scores, Followed(inner, read, state.sentence)


def searched(model):
    """The hypotheses of a search, and the generator that followed it."""
    with regard.look(model) as attention, torch.no_grad():
        follower = Following(model, attention)
        return Beam(size=4, n_best=3, max_tokens=9).run(
            follower, Sequences.of(SOURCES, 0)
        ), follower


def of_one_pass(model, source, target):
    """The weights of every cross-attention in a pass over one sentence alone: (H, T, S) by name."""
    with regard.look(model) as attention, torch.no_grad():
        model(Sequences.of([source], 0), Sequences.full(torch.tensor([target])))
    (one,) = attention.passes
    return {n: a.weights[0] for n, a in one.attentions.items() if a.kind == "cross"}


@pytest.mark.parametrize("name", MODELS)
def test_captured_attention_of_a_beam_is_that_of_one_pass_over_each_hypothesis(name):
    torch.manual_seed(1)
    model = randomized(model_of(name), 0.5).double().eval()  # words differ, weights are not flat
    found, follower = searched(model)
    held, steps = set(), 0
    for sentence, (source, hypotheses) in enumerate(zip(SOURCES, found, strict=True)):
        assert len(hypotheses) == 3
        for hypothesis in hypotheses:
            target = [model.config.bos, *hypothesis.tokens][:9]  # what was read
            whole = of_one_pass(model, source, target)
            assert whole
            for t in range(len(target)):
                key = sentence, tuple(target[: t + 1])
                captured = follower.kept[key]
                for attention, weights in whole.items():
                    one = captured[attention][:, 0]  # (H, T=1, S) -> (H, S)
                    torch.testing.assert_close(one[:, : len(source)], weights[:, t].to(one))
                    assert not one[:, len(source) :].any()
                held.add(follower.rows[key] % 4)
                steps += 1
    assert len(held) > 1 and steps > 20  # the search has reordered its rows


def test_the_steps_of_a_search_are_no_matrix_of_one_sentence():
    model = model_of("general").eval()
    with regard.look(model) as record, torch.no_grad():
        Beam(size=3, max_tokens=4).run(model, Sequences.of(SOURCES[:1], 0))
    (attention,) = record.passes[0].attentions.values()
    assert [part.size(0) for part in attention.parts[:2]] == [1, 3]
    with pytest.raises(ConfigError, match="A beam search exchanges rows"):
        record.plot()


def path(steps, at):
    tokens = []
    while at >= 0:
        tokens.append(steps[at][1])
        at = steps[at][0]
    return tokens[::-1]


@pytest.mark.parametrize("beam", [Beam(3, 3, max_tokens=8), Beam(4, 2, max_tokens=3)])
@pytest.mark.parametrize("sentence", [0, 1, 4])
def test_the_tree_has_every_hypothesis_of_the_search(beam, sentence):
    model, rows = Recurrent(eos_bias=1.0), sources(5)
    trace = BeamTrace(beam.size, sentence)
    found = beam.run(model, batch(rows), trace)
    assert found == beam.run(model, batch(rows))  # listening changes nothing
    steps = trace.steps
    below: dict = {}
    for at, (parent, _, log_prob, state) in enumerate(steps):
        tokens = path(steps, at)
        above = steps[parent][2] if parent >= 0 else 0.0
        step = next_log_probs(model, rows[sentence], tokens[:-1])[tokens[-1]]
        assert log_prob == pytest.approx(above + step, abs=1e-9)
        assert parent < 0 or steps[parent][3] == KEPT
        below.setdefault(len(tokens), []).append((log_prob, state, tokens[-1]))
    for level in below.values():
        assert len(level) == 2 * beam.size
        kept = [log_prob for log_prob, state, _ in level if state == KEPT]
        lost = [p for p, state, token in level if state == PRUNED and token != EOS]
        assert len(kept) in (0, beam.size) and kept == sorted(kept, reverse=True)
        assert not kept or all(other <= kept[-1] for other in lost)
    ends = {tuple(path(steps, at)): s for at, s in enumerate(steps)}
    for hypothesis in found[sentence]:
        tokens = tuple(hypothesis.tokens + [EOS] * hypothesis.finished)
        assert ends[tokens][2] == hypothesis.log_prob
        assert ends[tokens][3] == (FINISHED if hypothesis.finished else PRUNED)
    best = found[sentence][0]
    winners = [n for n in trace.tree(winner=best).nodes if n.state == WINNER]
    assert [n.log_prob for n in winners] == [best.log_prob]


def test_the_tree_of_a_search_without_allowed_continuations_ends_there():
    model, filters = Recurrent(vocabulary=5, eos=None), (NoRepeatNGram(1),)
    trace = BeamTrace(3)
    ((found,),) = Beam(3, filters=filters).run(model, batch([[3]]), trace)
    assert found.tokens in [path(trace.steps, at) for at in range(len(trace.steps))]
