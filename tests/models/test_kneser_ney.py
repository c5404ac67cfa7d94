"""Modified Kneser-Ney smoothing against Chen and Goodman's equations, n-gram by n-gram."""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import numpy as np
import pytest
import torch

from regard.errors import ConfigError
from regard.models.kneser_ney import KneserNey, KneserNeyConfig

EOS, V = 2, 404


def sentences(seed: int, count: int = 2000) -> list[list[int]]:
    """Drawn so that some tokens, and some contexts, are frequent; some sentences are empty."""
    drawn = random.Random(seed)
    texts: list[list[int]] = [[3, 4, 5]]
    for _ in range(count):
        copied = drawn.choice(texts) if drawn.random() < 0.3 else []
        new = [3 + int(397 * drawn.random() ** 6) for _ in range(drawn.randrange(6))]
        texts.append((copied + new)[: drawn.randrange(12)])
    return texts[1:]


def stream(texts: list[list[int]]) -> np.ndarray:
    return np.array([token for text in texts for token in (*text, EOS)], dtype=np.uint16)


class Definition:
    """p(w | c) by the equations, from dictionaries of n-grams; "<s>" begins a sentence."""

    def __init__(self, texts: list[list[int]], order: int):
        self.order = order
        counts: list[Counter] = [Counter() for _ in range(order + 1)]
        for text in texts:
            padded = ["<s>", *text, EOS]
            for n in range(1, order + 1):
                for i in range(len(padded) - n + 1):
                    counts[n][tuple(padded[i : i + n])] += 1
        del counts[1]["<s>",]
        self.adjusted: list[dict] = [{}]
        for n in range(1, order + 1):
            if n == order:
                self.adjusted.append(dict(counts[n]))
                continue
            before = defaultdict(set)
            for gram in counts[n + 1]:
                before[gram[1:]].add(gram[0])
            self.adjusted.append(
                {g: c if g[0] == "<s>" else len(before[g]) for g, c in counts[n].items()}
            )
        self.discounts = [[], *(self.discount(table) for table in self.adjusted[1:])]

    def discount(self, table: dict) -> list[float]:
        t = [sum(1 for c in table.values() if c == k) for k in range(5)]
        y = t[1] / (t[1] + 2 * t[2])
        return [0.0] + [k - (k + 1) * y * t[k + 1] / t[k] for k in (1, 2, 3)]

    def __call__(self, context: tuple, token: int) -> float:
        table, d = self.adjusted[len(context) + 1], self.discounts[len(context) + 1]
        shorter = self(context[1:], token) if context else 1 / (V - 2)
        total = sum(c for g, c in table.items() if g[:-1] == context)
        if not total:
            return shorter
        count = table.get((*context, token), 0)
        taken = sum(d[min(c, 3)] for g, c in table.items() if g[:-1] == context)
        return max(count - d[min(count, 3)], 0) / total + taken / total * shorter


def fitted(order: int, seed: int = 0) -> KneserNey:
    return KneserNey.fit(stream(sentences(seed)), KneserNeyConfig(V, order))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("order", [2, 3, 4])
def test_probabilities_are_those_of_the_equations(order):
    model, wanted = fitted(order), Definition(sentences(0), order)
    for text in (*sentences(1, 6), [8, 8, 8, 8, 8], []):
        ids = torch.tensor([[EOS, *text]])
        found = model.head.logits(model(ids).hidden)[0].double().exp()
        padded = ("<s>", *text)
        for i in range(len(padded)):
            context = padded[max(0, i + 2 - order) : i + 1]
            some = [2, 3, 4, 5, 17, V - 1, *text[:4]]
            by_equation = [wanted(context, token) for token in some]
            torch.testing.assert_close(
                found[i, some], torch.tensor(by_equation, dtype=torch.float64), rtol=1e-5, atol=0
            )
        assert found[:, :2].sum() == 0  # padding and bos
        torch.testing.assert_close(found.sum(-1), torch.ones(len(padded)).double())


def test_the_loss_is_that_of_the_distributions():
    model = fitted(4)
    ids = torch.tensor(stream(sentences(1, 40)).astype("int64"))[None]
    hidden, targets = model(ids[:, :-1]).hidden[0], ids[0, 1:].clone()
    targets[::5] = -100
    loss, count = model.head.loss(hidden, targets)
    counted = targets >= 0
    every = model.head.logits(hidden)[counted]
    assert count == int(counted.sum())
    wanted = -every.double().gather(1, targets[counted][:, None]).sum()
    torch.testing.assert_close(loss, wanted, rtol=1e-6, atol=0)
    with pytest.raises(ConfigError, match="label smoothing"):
        model.head.loss(hidden, targets, smoothing=0.1)


def test_steps_prefixes_and_pieces_equal_the_whole_pass():
    model = fitted(4)
    texts = torch.tensor([[2, 3, 4, 2, 5, 3, 3], [4, 4, 2, 2, 3, 5, 8]])
    wanted = model.head.logits(model(texts).hidden)
    state, found = model.empty(2), []
    for token in texts.T:
        scores, state = model.step(token[:, None], state)
        found.append(scores)
    assert torch.equal(torch.cat(found, 1), wanted)
    lengths = torch.tensor([2, 5])
    state = model.prefill(texts[:, :6], model.empty(2), lengths)
    scores, _ = model.step(texts[[0, 1], lengths][:, None], state)
    assert torch.equal(scores[:, 0], wanted[[0, 1], lengths])
    first = model(texts[:, :3])
    rest = model.head.logits(model(texts[:, 3:], first.state).hidden)
    assert torch.equal(rest, wanted[:, 3:])


@pytest.mark.filterwarnings("ignore:.*too few")
@pytest.mark.parametrize("longest", [0, 1, 2])
def test_n_grams_longer_than_every_sentence_change_nothing(longest):
    """The longest of a sentence of n tokens are n + 2 tokens, with `eos` at both ends."""
    ids = stream([text[:longest] for text in sentences(0, 400)])
    wanted = KneserNey.fit(ids, KneserNeyConfig(V, longest + 2))
    tokens = torch.tensor([[EOS, 3, 4, EOS, 5, 3, 3, 3, 3]])
    for order in range(longest + 3, longest + 6):
        model = KneserNey.fit(ids, KneserNeyConfig(V, order))
        hidden = model(tokens).hidden
        by_order = wanted.head.logits(wanted(tokens).hidden)
        assert torch.equal(model.head.logits(hidden), by_order)
        loss, count = model.head.loss(hidden[0, :-1], tokens[0, 1:])
        nats = -by_order[0, :-1].double().gather(1, tokens[0, 1:, None]).sum()
        assert count == 8 and loss.item() == pytest.approx(nats.item(), rel=1e-6)
