"""Speculative decoding generates the same texts as decoding without a draft."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from decoding_mocks import EOS, batch, sources

from regard.decoding import (
    Greedy,
    MinTokens,
    NoRepeatNGram,
    Sampling,
    Speculative,
    Streaming,
    Temperature,
    TopK,
    TopP,
    generate,
    options,
)
from regard.models import model_class
from regard.models.protocols import Generator
from regard.state import State

VOCABULARY = 24
SMALL = {
    "gpt": dict(d_model=16, heads=2, layers=2, max_length=48, eos=EOS),
    "gpt2": dict(d_model=16, heads=2, layers=2, max_length=48, eos=EOS),
    "transformer": dict(d_model=16, d_ff=32, heads=2, encoder_layers=1, decoder_layers=2),
    "transformer-prenorm": dict(d_model=16, d_ff=32, heads=2, encoder_layers=1, decoder_layers=1),
}


def build(name, seed=0, **changed):
    """A float64 model whose texts repeat, vary and end, so that no rounding decides."""
    torch.manual_seed(seed)
    kind = model_class(name)
    model = kind(kind.Config(vocab_size=VOCABULARY, **SMALL[name] | changed)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model.train()  # decoding must switch dropout off by itself


def assert_same(results, expected):
    assert len(results) == len(expected)
    for several, wanted in zip(results, expected, strict=True):
        for one, two in zip(several, wanted, strict=True):
            assert (one.tokens, one.finished) == (two.tokens, two.finished)
            assert one.log_prob == pytest.approx(two.log_prob, abs=1e-9)
            assert one.score == pytest.approx(two.score, abs=1e-9)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("seed", range(3))
def test_greedy_search_gives_the_same_tokens_with_a_draft(name, seed):
    model, filters = build(name, seed), (MinTokens(7), NoRepeatNGram(3)) if seed % 2 else ()
    rows = batch(sources(1 + 2 * seed, VOCABULARY, seed, longest=9))
    method = Greedy(filters=filters, max_tokens=16)
    assert_same(Speculative(method, 5).run(model, rows), method.run(model, rows))
    assert model.training


@pytest.mark.parametrize("name", ["gpt2", "transformer"])
def test_samples_with_a_draft_equal_those_without(name):
    model, rows = build(name, 3), batch(sources(5, VOCABULARY, 3))
    filters = (NoRepeatNGram(4), Temperature(0.7), TopK(6), TopP(0.9))
    method = Sampling(filters, samples=3, seed=5, max_tokens=20)
    assert_same(Speculative(method, 4).run(model, rows), method.run(model, rows))


@pytest.mark.parametrize("limit", [256, 9])
def test_prompts_of_all_lengths_up_to_the_context_give_the_same(limit):
    # Prompts of up to 40 tokens in a context of 48: some rows have room for fewer guesses.
    model, rows = build("gpt2", 1), batch(sources(7, VOCABULARY, 1, longest=40))
    method = Greedy(max_tokens=limit)
    assert_same(Speculative(method, 5).run(model, rows), method.run(model, rows))


def guessed(text, count):
    """What followed the latest occurrence of the last three tokens, or of the last two."""
    for size in (3, 2):
        for end in range(len(text) - 1, size - 1, -1):
            if text[end - size : end] == text[-size:]:
                return [text[end + step % (len(text) - end)] for step in range(count)]
    return []


@pytest.mark.parametrize(("limit", "draft"), [(256, 5), (9, 4), (17, 1), (1, 3)])
def test_each_step_reads_the_last_token_and_the_guesses_that_there_is_room_for(
    limit, draft, monkeypatch
):
    model, read = build("gpt2", 1), []

    def counted(tokens, state, step=model.step):
        read.append(tokens.size(1))
        return step(tokens, state)

    for text in sources(12, VOCABULARY, 1, longest=40):
        ((found,),) = Greedy(max_tokens=limit).run(model, batch([text]))
        tokens, widths, done = [*found.tokens, *[EOS] * found.finished], [], 0
        while done < len(tokens):
            guess = guessed(text, min(draft, limit - done - 1, 48 - len(text)))
            widths.append(1 + len(guess))
            right = next((n for n, token in enumerate(guess) if token != tokens[done + n]), draft)
            taken = tokens[done : done + min(right, len(guess)) + 1]
            text, done = [*text, *taken], done + len(taken)
        with monkeypatch.context() as patched:
            patched.setattr(model, "step", counted)
            Speculative(Greedy(max_tokens=limit), draft).run(model, batch([text[: -len(tokens)]]))
        assert read == widths
        read.clear()


@dataclass
class Read(State):
    """A state that counts its tokens, so that a wrong rewind shows."""

    tokens: torch.Tensor  # (B, T)
    lengths: torch.Tensor

    def rewind(self, count):
        return Read(self.tokens, self.lengths - count)


def test_ngrams_of_the_source_draft_its_copy():
    steps = []

    class Copies(Generator):
        """A model that copies its source."""

        config = SimpleNamespace(vocab_size=30, pad=0, bos=1, eos=EOS, max_length=None)

        def read(self, source):
            return Read(source.ids, torch.zeros_like(source.lengths))

        def step(self, tokens, state):
            steps.append(len(tokens))
            at = state.lengths[:, None] + torch.arange(tokens.size(1))
            following = state.tokens.gather(1, at.clamp(max=state.tokens.size(1) - 1))
            scores = 20.0 * torch.nn.functional.one_hot(following, 30)
            return scores, Read(state.tokens, state.lengths + tokens.size(1))

    random = torch.Generator().manual_seed(0)
    rows = [[*torch.randperm(26, generator=random)[:n].add(3).tolist(), EOS] for n in (20, 12, 4)]
    results = generate(Copies(), batch(rows), prompt_lookup_num_tokens=6)
    assert [h.tokens for (h,) in results] == [row[:-1] for row in rows]
    assert sum(map(len, rows)) / sum(steps) > 2.5


def test_streaming_with_a_draft_gives_the_tokens_of_generate():
    model, rows = build("gpt2", 5), batch(sources(4, VOCABULARY))
    plan, tokens = options(prompt_lookup_num_tokens=4, top_k=9, samples=2, max_tokens=15), {}
    stream = Streaming(model, rows, plan)
    for row, token in stream:
        tokens.setdefault(row, []).append(token)
    expected = [h for several in plan.run(model, rows) for h in several]
    assert [tokens.get(row, []) for row in range(len(expected))] == [h.tokens for h in expected]
    assert stream.results == plan.run(model, rows)
