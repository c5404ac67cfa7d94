"""Modified Kneser-Ney smoothing: steps, its file against the format's definition, long n-grams."""

from __future__ import annotations

import math
import random
from collections import defaultdict

import numpy as np
import pytest
import torch

from regard.checkpoints.formats.arpa import write_arpa
from regard.models.kneser_ney import KneserNey, KneserNeyConfig
from regard.text import train as train_tokenizer

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


def fitted(order: int, seed: int = 0) -> KneserNey:
    return KneserNey.fit(stream(sentences(seed)), KneserNeyConfig(V, order))


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


@pytest.fixture(scope="module")
def arpa(tmp_path_factory):
    """A model over words, its tokenizer, its file, and other sentences."""
    words = [f"w{i}" for i in range(397)]
    tokenizer = train_tokenizer("words", [" ".join(words)], 401)

    def text(ids):
        return " ".join(words[i - 3] for i in ids)

    lines = [text(one) for one in sentences(0)]
    ids = [i for line in lines for i in (*tokenizer.encode(line).ids, tokenizer.eos_id)]
    special = (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)
    config = KneserNeyConfig(tokenizer.vocab_size, 4, *special)
    model, path = KneserNey.fit(np.array(ids), config), tmp_path_factory.mktemp("arpa") / "lm.arpa"
    write_arpa(model, tokenizer, path)
    return model, tokenizer, path, [text(one) for one in sentences(1, 50)]


def total(model, tokenizer, line: str) -> float:
    """log10 of the probability of a sentence and its end."""
    ids = torch.tensor([[EOS, *tokenizer.encode(line).ids, EOS]])
    loss, _ = model.head.loss(model(ids[:, :-1]).hidden[0], ids[0, 1:])
    return -float(loss) / math.log(10)


def arpa_score(path, line: str, order: int) -> float:
    """log10 of a sentence's probability as the format defines it: backoffs of the contexts that
    have no such n-gram, and the probability of the longest n-gram that is there.
    """
    probability, backoff = {}, defaultdict(float)
    for entry in path.read_text().split("\n"):
        fields = entry.split("\t")
        if len(fields) > 1:
            gram = tuple(fields[1].split(" "))
            probability[gram], backoff[gram] = float(fields[0]), float([*fields, 0][2])
    words = [word if (word,) in probability else "<unk>" for word in line.split()]
    total, tokens = 0.0, ["<s>", *words, "</s>"]
    for n in range(1, len(tokens)):
        start = max(0, n - order + 1)
        while tuple(tokens[start : n + 1]) not in probability:
            total += backoff[tuple(tokens[start:n])]
            start += 1
        total += probability[tuple(tokens[start : n + 1])]
    return total


def test_the_written_file_has_the_scores_of_the_model(arpa):
    model, tokenizer, path, lines = arpa
    for line in [*lines, "", "w3 unknown w5"]:
        assert total(model, tokenizer, line) == pytest.approx(arpa_score(path, line, 4), rel=1e-5)


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
