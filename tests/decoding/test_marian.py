"""The same model decoded by `transformers` and by us: the same tokens, the same scores."""

from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch
from decoding_mocks import batch, sources
from torch import Tensor

from regard.decoding import (
    Beam,
    BeamFinished,
    CurrentLength,
    ExactBound,
    Greedy,
    MinTokens,
    NoRepeatNGram,
    Power,
)
from regard.models.protocols import Generator
from regard.state import State

VOCABULARY, PAD, EOS = 61, 0, 2
STOPPING = {True: BeamFinished(), False: CurrentLength(), "never": ExactBound()}


@pytest.fixture(scope="module")
def marian():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(4)
    config = transformers.MarianConfig(
        vocab_size=VOCABULARY,
        d_model=16,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_position_embeddings=64,
        init_std=0.7,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=1,
        forced_eos_token_id=None,
        num_beams=1,
    )
    model = transformers.MarianMTModel(config).eval()
    model.final_logits_bias[0, EOS] = 6.0  # random weights would hardly ever end a sentence
    return model


@dataclass
class Read(State):
    memory: Tensor
    keep: Tensor
    tokens: Tensor


class Wrapped(Generator):
    """A transformers model as a `Generator`; it reads its prefix again at each step."""

    def __init__(self, model):
        self.model = model
        self.config = SimpleNamespace(vocab_size=VOCABULARY, pad=0, bos=1, eos=EOS, max_length=64)

    def read(self, source):
        keep = source.keep.long()
        memory = self.model.get_encoder()(source.ids, attention_mask=keep).last_hidden_state
        return Read(memory, keep, source.ids[:, :0])

    def step(self, tokens, state):
        state = replace(state, tokens=torch.cat([state.tokens, tokens], 1))
        logits = self.model(
            encoder_outputs=(state.memory,),
            attention_mask=state.keep,
            decoder_input_ids=state.tokens,
            use_cache=False,
        ).logits
        return logits[:, -1:], state


def theirs(model, source, beams, n_best, **options):
    out = model.generate(
        source.ids,
        attention_mask=source.keep.long(),
        num_beams=beams,
        num_return_sequences=n_best,
        max_new_tokens=20,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    found = []
    for row in out.sequences[:, 1:].tolist():
        ends = row.index(EOS) if EOS in row else None
        unpadded = [token for token in row[:ends] if ends is not None or token != PAD]
        found.append((unpadded, ends is not None))
    scores = out.sequences_scores.tolist() if beams > 1 else [None] * len(found)
    rows = [(tokens, done, s) for (tokens, done), s in zip(found, scores, strict=True)]
    return [rows[at : at + n_best] for at in range(0, len(rows), n_best)]


def assert_same(ours, expected):
    for hypotheses, others in zip(ours, expected, strict=True):
        for one, (tokens, finished, score) in zip(hypotheses, others, strict=True):
            assert one.tokens == tokens and one.finished == finished
            assert score is None or one.score == pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize("early", [True, False, "never"])
@pytest.mark.parametrize("beams, n_best", [(4, 1), (5, 5)])
@pytest.mark.parametrize("alpha", [0.6, 1.0, 2.0])
def test_beam_search_finds_the_tokens_and_scores_of_transformers(
    marian, beams, n_best, alpha, early
):
    source = batch(sources(6, VOCABULARY, seed=beams), PAD)
    expected = theirs(marian, source, beams, n_best, length_penalty=alpha, early_stopping=early)
    beam = Beam(beams, n_best, Power(alpha), STOPPING[early], max_tokens=20)
    assert_same(beam.run(Wrapped(marian), source), expected)


def test_greedy_search_finds_the_tokens_of_transformers(marian):
    source = batch(sources(12, VOCABULARY, seed=8), PAD)
    ours = Greedy(max_tokens=20).run(Wrapped(marian), source)
    assert_same(ours, theirs(marian, source, 1, 1))
    assert any(h.finished for (h,) in ours)


def test_constraints_give_the_tokens_of_transformers(marian):
    source = batch(sources(8, VOCABULARY, seed=9), PAD)
    filters = (MinTokens(7), NoRepeatNGram(2))
    named = {"min_new_tokens": 7, "no_repeat_ngram_size": 2}
    for beams, method in [
        (1, Greedy(filters=filters, max_tokens=20)),
        (4, Beam(4, 4, filters=filters, max_tokens=20)),
    ]:
        expected = theirs(marian, source, beams, beams, **named)
        assert_same(method.run(Wrapped(marian), source), expected)
