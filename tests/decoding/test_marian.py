"""The same model decoded by `transformers` and by us: the same tokens, the same scores."""

import json

import pytest
import torch
from decoding_mocks import batch, sources

from regard.checkpoints.formats import from_published
from regard.decoding import (
    Beam,
    Greedy,
    MinTokens,
    NoRepeatNGram,
    Power,
)

VOCABULARY, PAD, EOS = 61, 0, 2


@pytest.fixture(scope="module")
def models():
    """Theirs, and ours with its weights."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(4)
    config = transformers.MarianConfig(
        vocab_size=VOCABULARY, d_model=16, encoder_layers=1, decoder_layers=2, init_std=0.7,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32,
        decoder_ffn_dim=32, max_position_embeddings=64, pad_token_id=PAD, eos_token_id=EOS,
        decoder_start_token_id=1, forced_eos_token_id=None, num_beams=1,
    )  # fmt: skip
    model = transformers.MarianMTModel(config).eval()
    model.final_logits_bias[0, EOS] = 6.0  # random weights would hardly ever end a sentence
    named = json.loads(config.to_json_string()) | {"architectures": ["MarianMTModel"]}
    return model, from_published(named, model.state_dict()).eval()


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


CONSTRAINTS = (MinTokens(7), NoRepeatNGram(2))
THEIR_CONSTRAINTS = {"min_new_tokens": 7, "no_repeat_ngram_size": 2}
METHODS = [
    (Greedy(max_tokens=20), {}),
    (Greedy(filters=CONSTRAINTS, max_tokens=20), THEIR_CONSTRAINTS),
    (Beam(4, 4, filters=CONSTRAINTS, max_tokens=20), THEIR_CONSTRAINTS),
    *(
        (
            Beam(beams, n_best, Power(alpha), early, max_tokens=20),
            {"length_penalty": alpha, "early_stopping": early},
        )
        for alpha in (0.6, 1.0, 2.0)
        for beams, n_best in ((4, 1), (5, 5))
        for early in (True, False, "never")
    ),
]


@pytest.mark.parametrize(("method", "named"), METHODS, ids=str)
def test_searches_find_the_tokens_and_scores_of_transformers(models, method, named):
    marian, ours = models
    source = batch(sources(10, VOCABULARY, seed=8), PAD)
    beams, n_best = (method.size, method.n_best) if isinstance(method, Beam) else (1, 1)
    found = method.run(ours, source)
    assert_same(found, theirs(marian, source, beams, n_best, **named))
    assert any(one.finished for several in found for one in several)
