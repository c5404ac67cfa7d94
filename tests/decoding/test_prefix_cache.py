"""The prefix cache changes how long a start takes, and nothing else."""

import pytest
import torch
from decoding_mocks import EOS, batch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_weights import new_model, randomized

from regard.attention.pruning import heads_masked
from regard.data.batches import Sequences
from regard.decoding import (
    Beam,
    Greedy,
    PrefixCache,
    Sampling,
    generate,
)
from regard.decoding.steps import start

VOCABULARY, LONGEST = 20, 64
TOKEN = 2 * 2 * 16 * 4  # bytes of a token: keys and values, 2 layers, 16 numbers of 4 bytes


def build(seed=0, **changed):
    torch.manual_seed(seed)
    sizes = dict(d_model=16, heads=2, layers=2, max_length=LONGEST, eos=EOS) | changed
    return randomized(new_model("gpt2", VOCABULARY, **sizes)).eval()


def text(count, seed):
    random = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (count,), generator=random).tolist()


class Counting:
    """Counts the tokens that the embedding of a model reads."""

    def __init__(self, model):
        self.tokens = 0
        self.hook = model.embedding.register_forward_hook(self)

    def __call__(self, module, inputs, output):
        self.tokens += inputs[0].numel()


@torch.no_grad()
def same_start(cache, model, source):
    """The state and the first tokens, against the model's own."""
    state, first = start(cache, source)
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


# Prompts of two tokens, so that they share prefixes of every length.
PROMPT = st.lists(st.integers(3, 4), min_size=1, max_size=12)
BATCHES = st.lists(st.lists(PROMPT, min_size=1, max_size=4), min_size=1, max_size=8)


@settings(max_examples=25)
@given(BATCHES, st.sampled_from([3, 9, 1000]), st.booleans())
def test_results_do_not_depend_on_the_cache_its_budget_or_the_order_of_prompts(batches, room, long):
    cache = PrefixCache(MODEL, room * 2 * TOKEN)
    tree = cache._tree
    for prompts in batches:
        if long:  # a beginning that is worth a pass of its own
            prompts = [[*range(3, 20), *prompt] for prompt in prompts]
        same_start(cache, MODEL, Sequences.of(prompts, 0))
        nodes = list(tree.nodes())
        assert cache.bytes == 2 * TOKEN * sum(len(node.tokens) for node in nodes)
        assert cache.bytes <= room * 2 * TOKEN
        assert all(node.keys.shape == (2, 2, len(node.tokens), 8) for node in nodes)
        assert all(
            key == child.tokens[0] and child.parent is node
            for node in [*nodes, tree.root]
            for key, child in node.children.items()
        )
    assert 0 <= cache.reused <= cache.tokens


MODEL = build().double()


def test_a_common_prefix_is_computed_once():
    model, beginning = build(1), text(40, 0)
    prompts = [[*beginning, *text(n, n)] for n in (3, 5, 1, 8)]
    for method in (Greedy(max_tokens=9), Beam(3, max_tokens=9), Sampling(samples=2, max_tokens=9)):
        expected = [method.run(model, batch([prompt]))[0] for prompt in prompts]
        counted = Counting(model)
        cache = PrefixCache(model)
        found = [method.run(cache, batch([prompt]))[0] for prompt in prompts]
        # 40 + 2 for the first prompt; of the others, what is behind the beginning.
        assert cache.tokens - cache.reused == 42 + 4 + 0 + 7
        assert cache.bytes == (42 + 4 + 7) * TOKEN
        assert [[h.tokens for h in one] for one in found] == [
            [h.tokens for h in one] for one in expected
        ]
        for one, two in zip(found, expected, strict=True):
            assert one[0].score == pytest.approx(two[0].score, abs=1e-5)
        counted.hook.remove()
        cache = PrefixCache(model)
        for reused in (0, 42 + 44 + 40 + 47):
            together = method.run(cache, batch(prompts))
            assert [[h.tokens for h in one] for one in together] == [
                [h.tokens for h in one] for one in expected
            ]
            assert cache.reused == reused
        assert counted.tokens > 0


@torch.no_grad()
def test_chunks_of_a_prompt_are_stored_one_after_the_other():
    model, ids = build(1), text(30, 2)
    cache = PrefixCache(model)
    state = cache.prefill(torch.tensor([ids[:10]]), model.empty(1))
    for end in (17, 18, 30):
        state = cache.extend(ids[:end], state)
        assert cache.cached_length(ids, state) == end
        assert cache.cached_length([*ids[:3], 2, *ids], state) == 3
    assert (cache.prompts, cache.tokens, cache.reused, cache.bytes) == (1, 30, 0, 30 * TOKEN)
    same_start(cache, model, batch([[*ids, 5]]))
    with torch.enable_grad():
        assert cache.cached_length(ids, state) == 0
        cache.extend([*ids, 4], state)
    assert cache.tokens == 60 and cache.cached_length([*ids, 4], state) == 30


@torch.no_grad()
def test_changed_weights_clear_the_cache():
    model, prompt = build(4), batch([text(30, 1)])
    cache = PrefixCache(model)
    generate(cache, prompt, max_tokens=1)
    model.blocks[0].feed.inner.weight.mul_(1.5)
    same_start(cache, model, prompt)
    assert cache.reused == 0 and cache.evicted == 29
    same_start(cache, model, prompt)
    assert cache.reused == 29
    model.double()
    same_start(cache, model, prompt)
    assert cache.reused == 29
    model.float()
    with torch.autocast("cpu", torch.bfloat16):
        start(cache, prompt)
    assert cache.reused == 29


def test_the_cache_is_bypassed_while_heads_are_masked():
    model, prompt = build(6), batch([text(30, 1)])
    cache = PrefixCache(model)
    generate(cache, prompt, max_tokens=5)
    with heads_masked(model, {1: [1]}):
        found = generate(cache, prompt, max_tokens=5)
    assert (cache.prompts, cache.reused) == (1, 0)
    with heads_masked(model, {1: [1]}):
        assert generate(model, prompt, max_tokens=5) == found
    assert generate(model, prompt, max_tokens=5) != found


def test_the_cache_is_bypassed_in_training_and_where_gradients_are_wanted():
    model, (ids,) = build(6), batch([text(30, 1)]).ids.split(1)
    cache = PrefixCache(model)
    cache.prefill(ids, model.empty(1))
    with torch.no_grad():
        cache.train().prefill(ids, model.empty(1))
        assert model.training and (cache.prompts, cache.bytes) == (0, 0)
        state = cache.eval().prefill(ids, model.empty(1))
        cache.prefill(ids, state)  # behind other tokens
    assert not model.training and (cache.prompts, cache.bytes) == (1, 30 * TOKEN)
