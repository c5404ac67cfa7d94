"""The prefix cache changes how long a start takes, and nothing else."""

import pytest
import torch
from decoding_mocks import EOS, Recurrent, batch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.attention.head_gates import gated
from regard.data.batches import Sequences
from regard.decoding import Beam, Greedy, Sampling, SmallModel, Speculative, generate, keep_prefixes
from regard.decoding.start import start
from regard.errors import ConfigError
from regard.models import model_class

VOCABULARY, LONGEST = 20, 64
TOKEN = 2 * 2 * 16 * 4  # bytes of a token: keys and values, 2 layers, 16 numbers of 4 bytes


def build(seed=0, **changed):
    torch.manual_seed(seed)
    GPT2 = model_class("gpt2")
    sizes = dict(d_model=16, heads=2, layers=2, max_length=LONGEST, eos=EOS) | changed
    model = GPT2(GPT2.Config(vocab_size=VOCABULARY, **sizes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


def text(count, seed):
    random = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (count,), generator=random).tolist()


class Counting:
    """How many tokens the embedding of a model is asked for."""

    def __init__(self, model):
        self.tokens = 0
        self.hook = model.embedding.register_forward_hook(self)

    def __call__(self, module, inputs, output):
        self.tokens += inputs[0].numel()


@torch.no_grad()
def same_start(kept, model, source):
    """The state and the first tokens, against the model's own."""
    state, first = kept.start(source)
    expected, wanted = start(model, source)
    assert torch.equal(first, wanted)
    assert torch.equal(state.lengths, expected.lengths)
    for row, length in enumerate(expected.lengths.tolist()):
        for one, two in ((state.keys, expected.keys), (state.values, expected.values)):
            close(one[row, :, :, :length], two[row, :, :, :length])
    scores, _ = model.step(first, state)
    close(scores, model.step(wanted, expected)[0])


def close(one, two):
    tight = 1e-11 if one.dtype == torch.float64 else 1e-5
    torch.testing.assert_close(one, two, atol=tight, rtol=tight)


# Prompts made of a few beginnings, so that they part at all places.
PROMPT = st.lists(st.integers(3, 4), min_size=1, max_size=12)
BATCHES = st.lists(st.lists(PROMPT, min_size=1, max_size=4), min_size=1, max_size=8)


@settings(max_examples=25)
@given(BATCHES, st.sampled_from([3, 9, 1000]), st.booleans())
def test_results_do_not_depend_on_the_cache_its_budget_or_the_order_of_prompts(batches, room, long):
    model = MODEL
    with keep_prefixes(model, room * 2 * TOKEN) as kept:
        for prompts in batches:
            if long:  # a beginning that is worth a pass of its own
                prompts = [[*range(3, 20), *prompt] for prompt in prompts]
            same_start(kept, model, Sequences.of(prompts, 0))
            nodes = list(kept._nodes())
            assert kept.bytes == 2 * TOKEN * sum(len(node.tokens) for node in nodes)
            assert kept.bytes <= kept.budget_bytes
            assert all(node.keys.shape == (2, 2, len(node.tokens), 8) for node in nodes)
            assert all(
                key == child.tokens[0] and child.parent is node
                for node in [*nodes, kept._root]
                for key, child in node.children.items()
            )
        assert 0 <= kept.reused <= kept.tokens


MODEL = build().double()


def test_a_common_prefix_is_computed_once():
    model, beginning = build(1), text(40, 0)
    prompts = [[*beginning, *text(n, n)] for n in (3, 5, 1, 8)]
    for method in (Greedy(max_tokens=9), Beam(3, max_tokens=9), Sampling(samples=2, max_tokens=9)):
        expected = [method.run(model, batch([prompt]))[0] for prompt in prompts]
        counted = Counting(model)
        with keep_prefixes(model) as kept:
            found = [method.run(model, batch([prompt]))[0] for prompt in prompts]
            # 40 + 2 for the first prompt; of the others, what is behind the beginning.
            assert kept.tokens - kept.reused == 42 + 4 + 0 + 7
            assert kept.bytes == (42 + 4 + 7) * TOKEN
        assert [[h.tokens for h in one] for one in found] == [
            [h.tokens for h in one] for one in expected
        ]
        for one, two in zip(found, expected, strict=True):
            assert one[0].score == pytest.approx(two[0].score, abs=1e-5)
        counted.hook.remove()
        with keep_prefixes(model) as kept:
            together = method.run(model, batch(prompts))
        assert [[h.tokens for h in one] for one in together] == [
            [h.tokens for h in one] for one in expected
        ]
        assert kept.tokens - kept.reused == 40 + 4 * 7  # each row reads as much as the longest rest
        assert counted.tokens > 0


def test_cached_tokens_are_not_computed():
    model, prompt = build(2), text(50, 3)
    with keep_prefixes(model):
        counted = Counting(model)
        generate(model, batch([prompt]), max_tokens=1)
        assert counted.tokens == 50
        generate(model, batch([prompt]), max_tokens=1)
        assert counted.tokens == 51
    generate(model, batch([prompt]), max_tokens=1)
    assert counted.tokens == 101  # off outside of the block


def test_the_least_recently_used_prefix_is_evicted_first():
    model, a, b, c = build(3), *(text(11, seed) for seed in range(3))
    with keep_prefixes(model, 20 * TOKEN) as kept:
        for prompt in (a, b, a, c):  # 10 tokens each are read
            generate(model, batch([prompt]), max_tokens=1)
        assert (kept.reused, kept.evicted) == (10, 10)
        before = kept.reused
        generate(model, batch([a]), max_tokens=1)
        generate(model, batch([c]), max_tokens=1)
        assert kept.reused == before + 20
        generate(model, batch([b]), max_tokens=1)
        assert kept.reused == before + 20
    assert str(kept).startswith("30 of 70 tokens of 7 prompts were reused (43%); 0.0 of 0.0 MiB")


def test_other_models_and_changed_weights_do_not_use_the_cache():
    one, two, prompt = build(4), build(5), batch([text(30, 1)])
    with keep_prefixes(one) as kept, keep_prefixes(two) as others:
        generate(one, prompt, max_tokens=1)
        generate(two, prompt, max_tokens=1)
        assert (kept.prompts, kept.reused, others.prompts, others.reused) == (1, 0, 1, 0)
        with torch.no_grad():
            one.blocks[0].feed.inner.weight.mul_(1.5)
        same_start(kept, one, prompt)
        assert kept.reused == 0 and kept.evicted == 29
        same_start(kept, one, prompt)
        assert kept.reused == 29
        one.double()
        same_start(kept, one, prompt)
        assert kept.reused == 29
        one.float()
        with torch.autocast("cpu", torch.bfloat16):
            kept.start(prompt)
        assert kept.reused == 29


def test_the_cache_is_bypassed_while_heads_are_masked():
    model, prompt = build(6), batch([text(30, 1)])
    with keep_prefixes(model) as kept:
        generate(model, prompt, max_tokens=5)
        silent = torch.tensor([0.0, 1.0])
        with gated(lambda attention, hidden: silent):
            found = generate(model, prompt, max_tokens=5)
        assert (kept.prompts, kept.bypassed, kept.reused) == (2, 1, 0)
        generate(model, None, max_tokens=2)
        assert kept.bypassed == 2 and "2 prompts bypassed the cache" in str(kept)
    with gated(lambda attention, hidden: silent):
        assert generate(model, prompt, max_tokens=5) == found
    assert generate(model, prompt, max_tokens=5) != found


def test_drafts_and_models_have_caches_of_their_own():
    model, small, beginning = build(7), build(8, layers=1), text(30, 2)
    plan = Speculative(Greedy(max_tokens=10), SmallModel(small))
    rows = batch([[*beginning, 3], [*beginning, 4, 5], [*beginning, 6]])
    expected = plan.run(model, rows)
    with keep_prefixes(model) as kept, keep_prefixes(small) as ahead:
        for _ in range(2):
            found = plan.run(model, rows)
            assert [h.tokens for (h,) in found] == [h.tokens for (h,) in expected]
        assert kept.reused == ahead.reused > 90


def test_models_without_a_key_value_cache_raise_an_error():
    LSTM, Transformer = model_class("recurrent"), model_class("transformer")
    lstm = LSTM(LSTM.Config(vocab_size=9, d_model=4, layers=1))
    sizes = dict(d_model=4, d_ff=4, heads=1, encoder_layers=1, decoder_layers=1)
    with pytest.raises(ConfigError, match="not of RecurrentLanguageModel .Cells."):
        with keep_prefixes(lstm):
            pass
    for model in (Recurrent(), Transformer(Transformer.Config(vocab_size=9, **sizes))):
        with pytest.raises(ConfigError, match=f"not of {type(model).__name__}"):
            with keep_prefixes(model):
                pass
    with pytest.raises(ConfigError, match="`budget_bytes` must be at least 1, but is 0"):
        with keep_prefixes(MODEL, 0):
            pass
