"""Pre-training of XLNet: targets, orders and streams, and the loss of `transformers`.

Tests of `regard.tasks.log_likelihoods`, too.
"""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import regard
from regard.data.token_arrays import TokenArray
from regard.errors import TextError
from regard.models.xlnet import Xlnet, XlnetConfig
from regard.tasks.permutation_language_modeling import (
    PermutationLanguageModel,
    PermutationOptions,
    PermutedStreams,
    allowed_of,
    sample_ranks,
    sample_targets,
)
from regard.text import train

TEXT = TokenArray.of([list(range(1000))])


def streams(options=None, **sizes) -> PermutedStreams:
    given = dict(batch_size=4, sequence_length=24, reuse=None, seed=3) | sizes
    return PermutedStreams(TEXT, options or PermutationOptions(), **given)


def uniform(seed: int = 0):
    drawn = np.random.default_rng(seed)
    return iter(drawn.random, None)


# ------------------------------------------------------------------------ the sampler


@pytest.mark.parametrize("length", [6, 7, 24, 100, 513])
def test_one_token_in_six_is_a_target_and_each_is_there_once(length):
    drawn = uniform()
    for _ in range(50):
        targets = sample_targets(length, PermutationOptions(), drawn)
        assert len(targets) == length // 6 == len(set(targets))
        assert targets == sorted(targets) and 0 <= targets[0] and targets[-1] < length


def test_lengths_and_places_of_spans_have_the_probabilities_of_the_formula():
    """One context of K L tokens at a time: p(L) = (1/L) / sum(1/l), the first token uniform."""
    options, drawn, found = PermutationOptions(every=3, longest_span=4), uniform(), []
    rounds = 8000
    for _ in range(rounds):  # the first span of a long text
        targets = sample_targets(3 * 40, options, drawn)
        length = next(
            (i for i, (a, b) in enumerate(pairwise(targets), 1) if b != a + 1), len(targets)
        )
        found.append((targets[0], length))
    first = np.array([start for start, _ in found])
    harmonic = sum(1 / n for n in range(1, 5))
    # P(first token = s) = sum over L of p(L) / (2 L + 1), where s <= 2 L
    for start in range(9):
        expected = sum(1 / n / harmonic / (2 * n + 1) for n in range(1, 5) if start <= 2 * n)
        error = (expected * (1 - expected) / rounds) ** 0.5
        assert abs((first == start).mean() - expected) < 4.5 * error, start
    assert first.max() == 8


def test_a_target_sees_what_comes_before_it_and_nobody_sees_a_later_one():
    ranks = sample_ranks(8, [1, 2, 6], uniform())
    assert sorted(ranks[[1, 2, 6]]) == [0, 1, 2] and (ranks[[0, 3, 4, 5, 7]] == -1).all()
    allowed = allowed_of(ranks)
    for i in range(8):
        for j in range(8):
            wanted = ranks[j] == -1 if ranks[i] == -1 else ranks[j] < ranks[i]
            assert allowed[i, j] == wanted
    orders = {tuple(sample_ranks(8, [1, 2, 6], uniform(seed))) for seed in range(60)}
    assert len(orders) == 6  # all orders of three targets


# ----------------------------------------------------------------------- the streams


def test_segments_follow_each_other_in_both_directions():
    epoch = streams().epoch(0)
    assert len(epoch) == 500 // 24
    for index, batch in enumerate(epoch):
        first = index * 24
        wanted = [np.arange(first, first + 24) + start for start in (0, 500)]
        wanted += [start + 499 - np.arange(first, first + 24) for start in (0, 500)]
        assert np.array_equal(batch.segments.ids, np.stack(wanted))
        assert batch.fresh == (index == 0) and batch.count == 4 * 4
        targets = batch.segments.extras["targets"]
        assert torch.equal(batch.labels, batch.segments.ids.gather(1, targets))
        assert batch.segments.extras["backward"].tolist() == [False, False, True, True]


def test_reused_tokens_do_not_see_those_that_the_next_segment_predicts():
    epoch = streams(reuse=15).epoch(0)
    one, two = epoch[3], epoch[4]
    assert torch.equal(one.segments.ids[:, 15:], two.segments.ids[:, :9])
    allowed = one.segments.extras["allowed"]
    assert not allowed[:, :15, 15:].any() and allowed[:, 15:, :15].all()
    assert one.labels.shape == (4, 15 // 6 + 9 // 6)


# -------------------------------------------------------------------------- the loss


@pytest.mark.parametrize("reuse", [None, 15])
def test_losses_over_remembered_segments_equal_those_of_transformers(reuse):
    transformers = pytest.importorskip("transformers")
    from regard.checkpoints.formats import to_published

    torch.manual_seed(0)
    ours = Xlnet(
        XlnetConfig(
            1000, d_model=12, d_ff=16, heads=3, layers=2, dropout=0.0, memory_length=20,
            reuse_len=reuse, memory_in_training=True,
        )
    ).train()  # fmt: skip
    config, tensors = to_published(ours)
    theirs = transformers.XLNetLMHeadModel(transformers.XLNetConfig(**config | {"bi_data": True}))
    theirs.load_state_dict(tensors, strict=False)
    theirs.tie_weights()
    task = PermutationLanguageModel(ours, SimpleNamespace(template=None))
    epoch, carry, mems = streams(reuse=reuse).epoch(0), None, None
    for batch in (epoch[index] for index in range(3)):
        losses, carry = task.losses(batch, carry)
        extras = batch.segments.extras
        expected = theirs.train()(
            batch.segments.ids,
            perm_mask=(~extras["allowed"]).float(),
            target_mapping=torch.nn.functional.one_hot(extras["targets"], 24).float(),
            mems=mems,
            labels=batch.labels,
        )
        mems = expected.mems
        total, count = losses["loss"]
        torch.testing.assert_close(total / count, expected.loss, atol=1e-5, rtol=0)
        assert task.counts(batch) == {"loss": count}
    assert carry.hidden.shape == (4, 2, 20, 12)


@pytest.mark.parametrize("layout", ["lines", "text"])
def test_pseudo_log_likelihoods_equal_those_of_transformers_token_by_token(layout):
    transformers = pytest.importorskip("transformers")
    from regard.checkpoints.formats import to_published

    torch.manual_seed(1)
    tokenizer = word_tokenizer()
    ours = Xlnet(
        XlnetConfig(tokenizer.vocab_size, d_model=12, d_ff=16, heads=3, layers=3, init_range=0.5)
    ).eval()
    config, tensors = to_published(ours)
    theirs = transformers.XLNetLMHeadModel(transformers.XLNetConfig(**config)).eval()
    theirs.load_state_dict(tensors, strict=False)
    theirs.tie_weights()
    task = PermutationLanguageModel(ours, tokenizer, format=layout)
    texts = ["the cat sat on the mat .", "a dog", "the mat was red and old . " * 9]
    texts += ["old"] * (layout == "lines")  # which stands between ends of lines there
    found = task.pseudo_log_likelihoods(texts)
    for text, likelihood in zip(texts, found, strict=True):
        assert task.pseudo_log_likelihoods([text])[0] == pytest.approx(likelihood, abs=1e-4)
        ((before, after),) = task.text_ids([text])
        ids, wanted = torch.tensor([[*before, *after]]), 0.0
        for at in range(len(before), ids.size(1) - len(task.line_end())):
            hidden = torch.zeros(1, ids.size(1), ids.size(1))
            hidden[..., at] = 1
            target = torch.nn.functional.one_hot(torch.tensor([[at]]), ids.size(1)).float()
            with torch.no_grad():
                logits = theirs(ids, perm_mask=hidden, target_mapping=target).logits[0, 0]
            wanted += float(logits.double().log_softmax(-1)[ids[0, at]])
        assert likelihood == pytest.approx(wanted, abs=1e-3 if len(after) > 50 else 1e-4)
    assert task.pseudo_log_likelihoods([]) == []
    with pytest.raises(TextError, match="Text 2 is empty, or has no token"):
        task.pseudo_log_likelihoods(["the", ""])


# ------------------------------------------------------------------------ as a user


def word_tokenizer():
    return train("words", SENTENCES, 40)


SENTENCES = ["the cat sat on the mat .", "a dog ate the old bone .", "the mat was red and old ."]
RECIPE = dict(
    task="permutation-language-modeling", tokenizer=dict(kind="words", vocab_size=40),
    model=dict(
        name="xlnet", d_model=16, d_ff=24, heads=2, layers=1, dropout=0.1, memory_length=12,
        reuse_len=6, memory_in_training=True,
    ),
    data=dict(batch_size=4, sequence_length=12, valid=0.2), progress=False,
)  # fmt: skip


def trained(folder, steps: int, **more):
    lines = [SENTENCES[i % 3] for i in range(90)]
    return regard.train(train=lines, out=folder, max_steps=steps, **(RECIPE | more))


def test_perplexity_is_that_of_the_text_in_its_order_read_in_windows(tmp_path):
    lines = [SENTENCES[i % 3] for i in range(300)]
    trained(tmp_path / "run", 5, test=lines)  # tests the model behind training
    task, length = regard.load(tmp_path / "run"), RECIPE["data"]["sequence_length"]
    score = task.evaluate(lines).named[0]
    assert f"|window:{length}|" in score.signature
    ids = [task.tokenizer.eos_id]
    for line in lines:
        ids += [*task.tokenizer.encode(line).ids, task.tokenizer.eos_id]
    nats = 0.0
    for start in range(0, len(ids) - 1, length):
        window = torch.tensor([ids[start : start + length + 1]])
        with torch.no_grad():
            scores = task.module.head.logits(task.module(window[:, :-1]).hidden)[0].double()
        nats -= float(scores.log_softmax(-1).gather(1, window[0, 1:, None]).sum())
    assert score.nats == pytest.approx(nats, rel=1e-5)
    assert task.evaluate(lines, window=7).named[0].value != score.value
