"""The tree that a listener records of a beam search, against the search itself."""

import pytest
from decoding_mocks import EOS, Recurrent, batch, next_log_probs, sources

from regard.decoding import Beam, NoRepeatNGram
from regard.visual.decoding import FINISHED, KEPT, PRUNED, WINNER, BeamTrace


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
