"""Every decoding method with the models of the library: recurrent states and key/value caches."""

import pytest
import torch
from decoding_mocks import sources

from regard.data.batches import Sequences
from regard.decoding import GNMT, Beam, BeamFinished, Greedy, Sampling, TopK
from regard.models import model_class
from regard.models.protocols import Generator

VOCABULARY = 40
SMALL = {
    "transformer": dict(d_model=16, d_ff=32, heads=2, encoder_layers=1, decoder_layers=2),
    "transformer-prenorm": dict(d_model=16, d_ff=32, heads=2, encoder_layers=1, decoder_layers=2),
    "lstm-seq2seq": dict(d_model=12, layers=2),
    "rnnsearch": dict(d_model=8, d_embedding=6, d_score=5, d_maxout=7),
    "bytenet": dict(d_model=12, dilations=(1, 2, 4), sets=1),
    "conv-seq2seq": dict(d_model=12, encoder=((3, 12),) * 2, decoder=((3, 12),) * 2),
    "lstm-lm": dict(d_model=12, layers=2),
    "transformer-xl": dict(
        d_model=12, d_ff=16, heads=2, layers=2, memory_length=5, cutoffs=(9,), divisor=2, eos=2
    ),
}
METHODS = [
    Greedy(max_tokens=12),
    Beam(4, 3, GNMT(0.6), max_tokens=12),
    Sampling((TopK(10),), samples=2, max_tokens=12),
]


class Ending(torch.nn.Module, Generator):
    """A model that ends its sentences: random weights hardly ever would.

    `eos` gets a score near the best one's, now above and now below it.
    """

    def __init__(self, model):
        super().__init__()
        self.model, self.config = model, model.config
        self.continues = model.continues
        self.empty, self.prefill, self.read = model.empty, model.prefill, model.read

    def step(self, tokens, state):
        scores, state = self.model.step(tokens, state)
        return self.bend(scores), state

    def bend(self, scores):
        scores[..., self.config.eos] = scores.amax(-1) + 2 * (7 * scores[..., 5]).sin() - 1.2
        return scores


def build(name):
    torch.manual_seed(3)
    kind = model_class(name)
    model = kind(kind.Config(vocab_size=VOCABULARY, **SMALL[name]))
    with torch.no_grad():
        for parameter in model.parameters():  # random weights decide nothing: make them decide
            parameter.mul_(1.5).add_(torch.randn_like(parameter) * 0.5)
    # Exact enough for the bend above; in train mode: decoding must switch dropout off by itself.
    return Ending(model.double())


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_batch_order_and_padding_do_not_change_results(name, method):
    model, rows = build(name), sources(7, VOCABULARY, seed=1)
    together = method.run(model, Sequences.of(rows, 0))
    assert model.training and model.model.training
    ends = [one.finished for hypotheses in together for one in hypotheses]
    assert any(ends) and len({tuple(hypotheses[0].tokens) for hypotheses in together}) > 1
    wide = Sequences.of([*rows, [3] * 15], 0).select(torch.arange(7).flip(0))
    reverse = method.run(model, wide)[::-1]
    for at, row in enumerate(rows):
        (alone,) = method.run(model, Sequences.of([row], 0))
        for other in (alone, reverse[at]):
            assert len(other) == len(together[at])
            for one, two in zip(other, together[at], strict=True):
                assert (one.tokens, one.finished) == (two.tokens, two.finished)
                assert one.score == pytest.approx(two.score, abs=1e-9)


@torch.no_grad()
@pytest.mark.parametrize("name", ["transformer", "lstm-seq2seq", "conv-seq2seq", "bytenet"])
def test_scores_equal_those_of_the_full_pass(name):
    model, rows = build(name), sources(5, VOCABULARY)
    beam = Beam(4, 4, stopping=BeamFinished(), max_tokens=10)
    found = beam.run(model, Sequences.of(rows, 0))
    model.eval()
    for row, hypotheses in zip(rows, found, strict=True):
        for one in hypotheses:
            target = [model.config.bos, *one.tokens] + [model.config.eos] * one.finished
            ids = torch.tensor([target])
            output = model.model(Sequences.of([row], 0), Sequences.full(ids[:, :-1]))
            logits = model.bend(model.model.head.logits(output.hidden))
            log_probs = logits.double().log_softmax(-1)
            total = float(log_probs[0].gather(1, ids[0, 1:, None]).sum())
            assert one.log_prob == pytest.approx(total, abs=1e-8)
            assert one.score == pytest.approx(total / (len(target) - 1), abs=1e-9)
