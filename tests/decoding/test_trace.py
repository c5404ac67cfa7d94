"""The tree of a beam search against the search itself."""

import pytest
from decoding_mocks import EOS, Recurrent, batch, next_log_probs, sources

from regard.decoding import Beam, Greedy, NoRepeatNGram
from regard.decoding.trace import trace


@pytest.mark.parametrize("beam", [Beam(3, 3, max_tokens=8), Beam(4, 2, max_tokens=3)])
def test_the_tree_holds_the_search(beam):
    model, rows = Recurrent(eos_bias=1.0), sources(5)
    found, trees = trace(model, batch(rows), beam)
    assert found == beam.run(model, batch(rows))  # listening changes nothing
    for row, hypotheses, tree in zip(rows, found, trees, strict=True):
        assert tree.nodes[0].parent is None and tree.nodes[0].token is None
        for hypothesis in hypotheses:
            node = tree.find(hypothesis, EOS)
            assert node.fate == ("finished" if hypothesis.finished else "cut off")
            assert node.log_prob == hypothesis.log_prob
            tokens = [step.token for step in tree.path(node)[1:]]
            assert tokens == hypothesis.tokens + [EOS] * hypothesis.finished
        for node in tree.nodes[1:]:
            path = [step.token for step in tree.path(node)[1:]]
            above = tree.nodes[node.parent]
            assert len(path) == node.depth and above.fate == "kept"
            step = next_log_probs(model, row, path[:-1])[path[-1]]
            assert node.log_prob == pytest.approx(above.log_prob + step, abs=1e-9)
            assert (node.fate == "kept") >= bool(tree.children(node))
        for depth in range(1, max(node.depth for node in tree.nodes) + 1):
            level = [node for node in tree.nodes if node.depth == depth]
            assert len(level) == 2 * beam.size
            kept = [node.log_prob for node in level if node.fate == "kept"]
            lost = [n.log_prob for n in level if n.fate == "pruned" and n.token != EOS]
            assert len(kept) in (0, beam.size) and kept == sorted(kept, reverse=True)
            assert not kept or all(other <= kept[-1] for other in lost)


def test_a_tree_where_nothing_more_is_allowed():
    model, filters = Recurrent(vocabulary=5, eos=None), (NoRepeatNGram(1),)
    ((found,),), (tree,) = trace(model, batch([[3]]), Beam(3, filters=filters))
    assert [node.token for node in tree.path(tree.find(found, None))[1:]] == found.tokens
    assert Greedy(filters=filters).run(model, batch([[3]]))[0][0].finished is False
